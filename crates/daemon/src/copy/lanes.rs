//! A ring with a volume attached, and buffers for the copies. If the image is a device, it is attached too, and data
//! moves between the two through the same buffer.
//!
//! A lane is a registered buffer. A copy takes a free lane, fills it and writes parts of it, or reads into it and takes
//! the bytes out. The lane is free again when no operation uses it. The first failed I/O ends the copy.
//!
//! * I1. At most [`MAX_OPS`] operations are in flight, so the ring always has an entry for the next.
//! * I2. The bytes of a lane are accessed only while no operation uses it (the ring refuses otherwise).

use std::ops::Range;
use std::sync::Arc;

use sheave::{Buf, Device, Fd, Ring, RingError, op};
use sheave_base::status::Errno;
use sheave_vol::Volume;

use crate::failure::Failure;
use crate::place::VolumePlace;

/// Number of lanes.
pub const LANES: u16 = 16;
/// Size of a lane, and of the largest I/O.
pub const LANE_BYTES: usize = 1 << 20;
/// Maximum number of operations in flight (I1).
const MAX_OPS: usize = 128;

/// An operation in flight, kept for error messages and to resubmit the rest after a short completion.
#[derive(Clone, Copy, Debug)]
struct Op {
    what: What,
    of: Of,
    lane: Option<u16>,
    /// First byte within the lane; the length, for a discard or zero operation.
    start: usize,
    pos: u64,
    /// Result of a complete success.
    expected: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Read,
    Write,
    Discard,
    Zero,
    Flush,
}

/// Target of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    Volume,
    Image,
}

/// A ring with a volume attached, and its buffers.
pub struct Lanes {
    ring: Ring,
    fd: Fd,
    place: VolumePlace,
    /// File descriptor and name of the image, if it is a device.
    image: Option<(Fd, String)>,
    /// Number of operations in flight on each lane.
    users: [u32; LANES as usize],
    /// Operations in flight, by user data; and the free indices of that list.
    ops: Vec<Option<Op>>,
    free_ops: Vec<usize>,
    failed: Option<(Op, i32)>,
}

impl Lanes {
    /// Sets up a ring on this thread and attaches the volume.
    pub fn new(volume: &Volume, place: &VolumePlace) -> Result<Self, Failure> {
        let fail = |err: RingError| Failure::run(format!("{place}: cannot set a ring up: {err}"));
        let mut ring = Ring::builder().entries(2 * MAX_OPS as u32).build().map_err(fail)?;
        let fd = ring.attach_file(Arc::new(volume.clone())).map_err(fail)?;
        let buffers = (0..LANES).map(|_| Buf::zeroed(LANE_BYTES, 4096)).collect::<Result<Vec<_>, _>>();
        let buffers = buffers.map_err(|err| Failure::run(format!("no memory for the buffers: {err}")))?;
        ring.register_buffers(buffers).map_err(fail)?;
        Ok(Self {
            ring,
            fd,
            place: place.clone(),
            image: None,
            users: [0; LANES as usize],
            ops: vec![None; MAX_OPS],
            free_ops: (0..MAX_OPS).collect(),
            failed: None,
        })
    }

    /// Attaches the image, which is a device.
    pub fn attach_image(&mut self, device: &Device) -> Result<(), Failure> {
        let fail = |err| Failure::run(format!("{}: cannot be attached: {err}", device.name()));
        let fd = self.ring.attach(device).map_err(fail)?;
        self.image = Some((fd, device.name().to_owned()));
        Ok(())
    }

    /// Returns a free lane; waits for one if necessary.
    pub fn take(&mut self) -> Result<u16, Failure> {
        self.take_but(&mut |_| false)
    }

    /// Returns a free lane that is not `kept`; waits for one if necessary. At least one lane must not be kept.
    pub fn take_but(&mut self, kept: &mut dyn FnMut(u16) -> bool) -> Result<u16, Failure> {
        loop {
            if let Some(lane) = (0..LANES).find(|&lane| self.users[usize::from(lane)] == 0 && !kept(lane)) {
                return Ok(lane);
            }
            self.reap(1)?;
        }
    }

    /// Returns the buffer of a free lane, for filling.
    pub fn bytes_mut(&mut self, lane: u16) -> &mut [u8] {
        self.ring.buffer_mut(lane).expect("I2: the lane is free")
    }

    /// Returns the contents of a free lane.
    pub fn bytes(&self, lane: u16) -> &[u8] {
        self.ring.buffer(lane).expect("I2: the lane is free")
    }

    /// Starts writing `part` of a lane to `pos` of the volume.
    pub fn write(&mut self, lane: u16, part: Range<usize>, pos: u64) -> Result<(), Failure> {
        let expected = part.len() as u32;
        self.start(Op { what: What::Write, of: Of::Volume, lane: Some(lane), start: part.start, pos, expected })
    }

    /// Starts writing the first `len` bytes of a lane to `pos` of the image.
    pub fn write_image(&mut self, lane: u16, len: usize, pos: u64) -> Result<(), Failure> {
        let expected = len as u32;
        self.start(Op { what: What::Write, of: Of::Image, lane: Some(lane), start: 0, pos, expected })
    }

    /// Starts reading `len` bytes from `pos` of the image to the start of a lane.
    pub fn read_image(&mut self, lane: u16, len: usize, pos: u64) -> Result<(), Failure> {
        let expected = len as u32;
        self.start(Op { what: What::Read, of: Of::Image, lane: Some(lane), start: 0, pos, expected })
    }

    /// Starts reading `len` bytes from `pos` of the volume to the start of a lane.
    pub fn read(&mut self, lane: u16, len: usize, pos: u64) -> Result<(), Failure> {
        let expected = len as u32;
        self.start(Op { what: What::Read, of: Of::Volume, lane: Some(lane), start: 0, pos, expected })
    }

    /// Reads, and waits for completion. Returns false if the read failed. Nothing else may be in flight.
    pub fn try_read(&mut self, lane: u16, len: usize, pos: u64) -> Result<bool, Failure> {
        debug_assert_eq!(self.free_ops.len(), MAX_OPS, "who knows which one failed");
        let done = self.read(lane, len, pos).and_then(|()| self.wait_for(lane));
        match self.failed.take() {
            Some(_) => Ok(false),
            None => done.map(|()| true),
        }
    }

    /// Starts discarding a range of the volume.
    pub fn punch(&mut self, pos: u64, len: u64) -> Result<(), Failure> {
        self.range(What::Discard, Of::Volume, pos, len)
    }

    /// Starts writing zeroes to a range of the image.
    pub fn zero_image(&mut self, pos: u64, len: u64) -> Result<(), Failure> {
        self.range(What::Zero, Of::Image, pos, len)
    }

    fn range(&mut self, what: What, of: Of, mut pos: u64, mut len: u64) -> Result<(), Failure> {
        /// Length of a single operation. Bounds how long Ctrl-C has to wait when a TiB is discarded.
        const MOST: u64 = 1 << 30;
        while len > 0 {
            let piece = len.min(MOST);
            self.start(Op { what, of, lane: None, start: piece as usize, pos, expected: 0 })?;
            (pos, len) = (pos + piece, len - piece);
        }
        Ok(())
    }

    /// Makes everything written to the volume durable; waits for completion.
    pub fn sync(&mut self) -> Result<(), Failure> {
        self.flush(Of::Volume)
    }

    /// Makes everything written to the image durable; waits for completion.
    pub fn sync_image(&mut self) -> Result<(), Failure> {
        self.flush(Of::Image)
    }

    fn flush(&mut self, of: Of) -> Result<(), Failure> {
        self.drain()?;
        self.start(Op { what: What::Flush, of, lane: None, start: 0, pos: 0, expected: 0 })?;
        self.drain()
    }

    /// Waits until no operation uses the lane.
    pub fn wait_for(&mut self, lane: u16) -> Result<(), Failure> {
        while self.users[usize::from(lane)] > 0 {
            self.reap(1)?;
        }
        Ok(())
    }

    /// Waits until no operation is in flight.
    pub fn drain(&mut self) -> Result<(), Failure> {
        while self.free_ops.len() < MAX_OPS {
            self.reap(1)?;
        }
        Ok(())
    }

    fn start(&mut self, op: Op) -> Result<(), Failure> {
        while self.free_ops.is_empty() {
            self.reap(1)?;
        }
        if let Some(lane) = op.lane {
            self.users[usize::from(lane)] += 1;
        }
        self.push(op)?;
        // Submitted at once, not batched: the caller may next block on the file or pipe at the other end.
        self.reap(0)
    }

    /// Queues an operation. The caller ensures that `free_ops` is not empty, and has counted the lane as used.
    fn push(&mut self, op: Op) -> Result<(), Failure> {
        let number = self.free_ops.pop().expect("I1: the caller has seen one, or given one back");
        let part = op.start..op.start + op.expected as usize;
        let lane = op.lane.unwrap_or(0);
        let fd = match (op.of, &self.image) {
            (Of::Image, Some((fd, _))) => *fd,
            _ => self.fd,
        };
        let entry: op::Entry = match op.what {
            What::Read => op::read_fixed(fd, lane, part).offset(op.pos).into(),
            What::Write => op::write_fixed(fd, lane, part).offset(op.pos).into(),
            What::Discard => op::punch_hole(fd, op.pos, op.start as u64).into(),
            What::Zero => op::zero_range(fd, op.pos, op.start as u64).into(),
            What::Flush => op::fsync(fd).into(),
        };
        self.ops[number] = Some(op);
        self.ring
            .push(entry.user_data(number as u64))
            .map_err(|full| Failure::run(format!("{}: the ring refuses: {}", self.place, full.error)))
    }

    /// Submits what was queued, waits for `wait` completions, and processes all that have arrived.
    fn reap(&mut self, wait: u32) -> Result<(), Failure> {
        match self.ring.submit_and_wait(wait) {
            Ok(_) | Err(RingError::Busy) => {}
            Err(err) => return Err(Failure::run(format!("{}: the ring refuses: {err}", self.place))),
        }
        let mut short = Vec::new();
        for done in self.ring.completions() {
            let number = done.user_data as usize;
            let Some(op) = self.ops[number].take() else { continue };
            self.free_ops.push(number);
            if done.res > 0 && (done.res as u32) < op.expected && self.failed.is_none() {
                short.push((op, done.res as u32));
                continue;
            }
            if let Some(lane) = op.lane {
                self.users[usize::from(lane)] -= 1;
            }
            if done.res != op.expected as i32 && self.failed.is_none() {
                self.failed = Some((op, done.res));
            }
        }
        // A completion is short when the ring ran out of bios; the rest is resubmitted.
        for (op, did) in short {
            let start = op.start + did as usize;
            self.push(Op { start, pos: op.pos + u64::from(did), expected: op.expected - did, ..op })?;
        }
        match self.failed {
            Some((op, res)) => Err(self.explain(op, res)),
            None => Ok(()),
        }
    }

    fn explain(&self, op: Op, res: i32) -> Failure {
        let what = match op.what {
            What::Read => format!("reading byte {}", op.pos),
            What::Write => format!("writing byte {}", op.pos),
            What::Discard => format!("discarding byte {}", op.pos),
            What::Zero => format!("zeroing byte {}", op.pos),
            What::Flush => "flushing".to_owned(),
        };
        if let (Of::Image, Some((_, name))) = (op.of, &self.image) {
            let failure = Failure::run(format!("{name}: {what} failed: {}", Errno((-res).max(0))));
            return failure.fix("look at the server of the image, then try again");
        }
        if res >= 0 {
            let cause = format!("{}: {what} did {res} of {} bytes", self.place, op.expected);
            return Failure::run(cause).fix("the volume may have become smaller meanwhile: try again");
        }
        let failure = Failure::run(format!("{}: {what} failed: {}", self.place, Errno(-res)));
        match -res {
            libc::ENOSPC if self.place.pool.host_free_bytes().is_some_and(|free| free < LANE_BYTES as u64) => {
                failure.fix("free some space in the file system that holds the pool: it is full, whatever the pool has")
            }
            libc::ENOSPC => failure.fix("make room: delete volumes or snapshots, or sheave pool grow"),
            libc::EFBIG => failure.fix("raise the limit on the size of files (ulimit -f)"),
            libc::EROFS | libc::EBADF => failure.fix("a snapshot cannot be written: make a clone of it"),
            libc::EILSEQ => failure.fix("a checksum was wrong: sheave pool scrub tells what is damaged"),
            _ => failure.fix("look at the device under the pool (dmesg), then sheave pool check"),
        }
    }
}
