//! Buffers and I/O in flight: a ring with a volume attached, as copies use it; and with the device that an image is, if
//! it is one, so that data goes from the one to the other by the same buffer.
//!
//! A lane is a registered buffer. A copy takes a free one, fills it and writes parts of it, or reads into it and takes
//! the bytes out; it is free again when nothing uses it. The first I/O that fails ends the copy.
//!
//! * I1. At most [`MAX_OPS`] operations are in flight, so that the ring has an entry for each.
//! * I2. A lane's bytes are touched only while no operation uses it (the ring refuses otherwise).

use std::ops::Range;
use std::sync::Arc;

use sheave::{Buf, Device, Fd, Ring, RingError, op};
use sheave_base::status::Errno;
use sheave_vol::Volume;

use crate::failure::Failure;
use crate::place::VolumePlace;

/// Buffers.
pub const LANES: u16 = 16;
/// Bytes of a buffer: the largest I/O.
pub const LANE_BYTES: usize = 1 << 20;
/// Operations in flight at most (I1).
const MAX_OPS: usize = 128;

/// What an operation does, for its errors and for the rest of one that came out short.
#[derive(Clone, Copy, Debug)]
struct Op {
    what: What,
    of: Of,
    lane: Option<u16>,
    /// First byte in the lane; of a discard, its length.
    start: usize,
    pos: u64,
    /// What it should end with.
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

/// What an operation goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    Volume,
    Image,
}

/// A ring with a volume.
pub struct Lanes {
    ring: Ring,
    fd: Fd,
    place: VolumePlace,
    /// The image, where that is a device.
    image: Option<(Fd, String)>,
    /// Operations that use each lane.
    users: [u32; LANES as usize],
    /// In flight, by user data; the free places.
    ops: Vec<Option<Op>>,
    free_ops: Vec<usize>,
    failed: Option<(Op, i32)>,
}

impl Lanes {
    /// A ring on this thread with the volume attached.
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

    /// Attaches the device that the image is.
    pub fn attach_image(&mut self, device: &Device) -> Result<(), Failure> {
        let fail = |err| Failure::run(format!("{}: cannot be attached: {err}", device.name()));
        let fd = self.ring.attach(device).map_err(fail)?;
        self.image = Some((fd, device.name().to_owned()));
        Ok(())
    }

    /// A lane that nothing uses; waits for one.
    pub fn take(&mut self) -> Result<u16, Failure> {
        self.take_but(&mut |_| false)
    }

    /// A lane that nothing uses, other than those that are `kept`; waits for one. There is one that is not kept.
    pub fn take_but(&mut self, kept: &mut dyn FnMut(u16) -> bool) -> Result<u16, Failure> {
        loop {
            if let Some(lane) = (0..LANES).find(|&lane| self.users[usize::from(lane)] == 0 && !kept(lane)) {
                return Ok(lane);
            }
            self.reap(1)?;
        }
    }

    /// A free lane's bytes, to fill.
    pub fn bytes_mut(&mut self, lane: u16) -> &mut [u8] {
        self.ring.buffer_mut(lane).expect("I2: the lane is free")
    }

    /// A free lane's bytes, to take out.
    pub fn bytes(&self, lane: u16) -> &[u8] {
        self.ring.buffer(lane).expect("I2: the lane is free")
    }

    /// Starts writing a part of a lane to `pos` of the volume.
    pub fn write(&mut self, lane: u16, part: Range<usize>, pos: u64) -> Result<(), Failure> {
        let expected = part.len() as u32;
        self.start(Op { what: What::Write, of: Of::Volume, lane: Some(lane), start: part.start, pos, expected })
    }

    /// Starts writing the front of a lane to `pos` of the image.
    pub fn write_image(&mut self, lane: u16, len: usize, pos: u64) -> Result<(), Failure> {
        let expected = len as u32;
        self.start(Op { what: What::Write, of: Of::Image, lane: Some(lane), start: 0, pos, expected })
    }

    /// Starts reading `len` bytes from `pos` of the image to the front of a lane.
    pub fn read_image(&mut self, lane: u16, len: usize, pos: u64) -> Result<(), Failure> {
        let expected = len as u32;
        self.start(Op { what: What::Read, of: Of::Image, lane: Some(lane), start: 0, pos, expected })
    }

    /// Starts reading `len` bytes from `pos` of the volume to the front of a lane.
    pub fn read(&mut self, lane: u16, len: usize, pos: u64) -> Result<(), Failure> {
        let expected = len as u32;
        self.start(Op { what: What::Read, of: Of::Volume, lane: Some(lane), start: 0, pos, expected })
    }

    /// Reads and waits for it; false when that failed. Nothing else is in flight.
    pub fn try_read(&mut self, lane: u16, len: usize, pos: u64) -> Result<bool, Failure> {
        debug_assert_eq!(self.free_ops.len(), MAX_OPS, "who knows which one failed");
        let done = self.read(lane, len, pos).and_then(|()| self.wait_for(lane));
        match self.failed.take() {
            Some(_) => Ok(false),
            None => done.map(|()| true),
        }
    }

    /// Starts giving the space of a range back.
    pub fn punch(&mut self, pos: u64, len: u64) -> Result<(), Failure> {
        self.range(What::Discard, Of::Volume, pos, len)
    }

    /// Starts making a range of the image zeroes.
    pub fn zero_image(&mut self, pos: u64, len: u64) -> Result<(), Failure> {
        self.range(What::Zero, Of::Image, pos, len)
    }

    fn range(&mut self, what: What, of: Of, mut pos: u64, mut len: u64) -> Result<(), Failure> {
        /// Of one operation, so that Ctrl-C has not to wait for a discard of a TiB.
        const MOST: u64 = 1 << 30;
        while len > 0 {
            let piece = len.min(MOST);
            self.start(Op { what, of, lane: None, start: piece as usize, pos, expected: 0 })?;
            (pos, len) = (pos + piece, len - piece);
        }
        Ok(())
    }

    /// Makes everything written to the volume durable; waits for it.
    pub fn sync(&mut self) -> Result<(), Failure> {
        self.flush(Of::Volume)
    }

    /// Makes everything written to the image durable; waits for it.
    pub fn sync_image(&mut self) -> Result<(), Failure> {
        self.flush(Of::Image)
    }

    fn flush(&mut self, of: Of) -> Result<(), Failure> {
        self.drain()?;
        self.start(Op { what: What::Flush, of, lane: None, start: 0, pos: 0, expected: 0 })?;
        self.drain()
    }

    /// Waits until nothing uses a lane.
    pub fn wait_for(&mut self, lane: u16) -> Result<(), Failure> {
        while self.users[usize::from(lane)] > 0 {
            self.reap(1)?;
        }
        Ok(())
    }

    /// Waits until nothing is in flight.
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
        // Handed over at once: the file or pipe at the other end may take its time.
        self.reap(0)
    }

    /// There is a free number, and the lane is counted as used.
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

    /// Hands over what was pushed, waits for `wait` completions, and takes those that are there.
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
        // As far as the ring's bios went; the rest goes on.
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
