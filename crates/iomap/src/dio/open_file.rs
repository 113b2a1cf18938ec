//! A file as attached to one ring, with everything that the fast path needs looked up once.
//!
//! Owns the ring's [`Seat`] in the file's grace, and the bits of a kiocb's flags that refer to it.
//!
//! Invariants:
//! - I1: an I/O is counted in the section in which it was mapped, when its first bio is sent, and uncounted once.

use sheave_base::beside::Beside;
use sheave_base::clock::CoarseTs;
use sheave_base::grace::{Grace, Phase, Seat};
use sheave_base::sync::Arc;
use sheave_blk::Device;
use sheave_blk::ctx::lane::Route;
use sheave_blk::ctx::{IoCtx, RecordSeat};
use sheave_blk::queue::Queue;
use sheave_blk::stats::{RecordStats, Split};

use crate::file::File;
use crate::io_stats::{IoCell, IoKind, IoSeat, RingIo};
use crate::kiocb::{IOCB_COUNTED, IOCB_PHASE, Kiocb};
use crate::slow::{FlightRecorder, Place, SlowIo};
use crate::usual::Usual;

/// Kiocb flags that name the grace phase in which an I/O is counted.
pub const COUNT_FLAGS: u16 = IOCB_COUNTED | IOCB_PHASE;

#[derive(Debug)]
struct SlowIos {
    recorder: Arc<FlightRecorder>,
    usual: Usual,
}

/// A slow I/O, or several equal ones that ended together. Argument of [`OpenFile::keep_slow`].
#[derive(Clone, Copy, Debug)]
pub struct SlowRunOf {
    pub kind: IoKind,
    /// Place of the first I/O.
    pub place: Place,
    /// Number of bytes of each I/O.
    pub len: u32,
    /// Number of I/Os.
    pub ios: u32,
}

/// A file as attached to one ring.
#[derive(Debug)]
pub struct OpenFile {
    pub file: Arc<dyn File>,
    /// Number of the file's device in the ring.
    pub bdev: u16,
    /// `f_pos`: position of an I/O at offset -1.
    pub pos: u64,
    device: Device,
    /// The queue whose size is the file's, for a raw device with one leg.
    pub(super) queue: Option<Arc<Queue>>,
    /// Route of bios to a device with one leg; `None` for a read-only raw device.
    pub(super) route: Option<Route>,
    seat: Option<Seat>,
    /// Statistics of plain records on the file.
    records: Option<RecordSeat>,
    io: Option<IoSeat>,
    /// Recorder of slow I/Os, and the usual latency that they are compared with.
    slow: Option<Box<SlowIos>>,
    pub(super) identity: bool,
    pub(super) read_only: bool,
    pub(super) block_mask: u32,
    pub(super) dma_mask: u32,
    pub(super) writes_through: bool,
    asynchronous: bool,
}

impl OpenFile {
    /// Looks up what does not change while the file is attached. I/O is counted in the group of the ring and in that of
    /// the file, or not at all if `ring` is `None`.
    pub fn new(file: Arc<dyn File>, bdev: u16, io: &IoCtx, ring: Option<&RingIo>) -> OpenFile {
        let device = file.device().clone();
        let (limits, caps) = (device.limits(), device.capabilities());
        let (identity, read_only) = (file.is_identity(), file.is_read_only());
        let route = io.route(bdev).filter(|_| !(identity && read_only));
        let records = ring.and(route).and_then(|route| io.record_seat(route));
        let block_bytes = file.block_bytes().checked_next_power_of_two().unwrap_or(1 << 31).max(limits.logical_block);
        OpenFile {
            queue: device.whole_queue().filter(|_| identity).cloned(),
            route,
            seat: file.grace().filter(|_| !identity).map(Grace::seat),
            io: ring.map(|ring| {
                let groups = file.io_group().into_iter().chain([&ring.group]).cloned();
                IoSeat::new(records.as_ref().map(RecordSeat::records).cloned(), Some(ring.recorder.clone()), groups)
            }),
            slow: ring.map(|ring| Box::new(SlowIos { recorder: ring.recorder.clone(), usual: Usual::default() })),
            records,
            identity,
            read_only,
            block_mask: block_bytes - 1,
            dma_mask: limits.dma_alignment - 1,
            writes_through: caps.fua || !caps.volatile_cache,
            asynchronous: caps.asynchronous,
            pos: 0,
            bdev,
            device,
            file,
        }
    }

    /// Returns the ring's counters of I/O on the file.
    #[inline(always)]
    pub fn io(&self) -> Option<&IoCell> {
        self.io.as_ref().map(IoSeat::cell)
    }

    /// Returns the statistics of plain records on the file.
    #[inline(always)]
    pub fn records(&self) -> Option<&RecordStats> {
        self.records.as_ref().map(|seat| &**seat.records())
    }

    /// Updates the latency above which I/O on the file counts as slow. Called once a second.
    pub fn look(&mut self, now: CoarseTs) {
        if let (Some(io), Some(slow)) = (&self.io, &mut self.slow) {
            slow.usual.look(io.cell(), slow.recorder.limit_ns(), now);
        }
    }

    /// Records a slow I/O on the file, or several equal ones, that ended at `ended` with the stage times `split`, while
    /// `depth` I/Os were in flight.
    #[cold]
    pub fn keep_slow(&self, what: SlowRunOf, split: &Split, ended: CoarseTs, depth: u32) {
        let (Some(io), Some(slow)) = (&self.io, &self.slow) else { return };
        let SlowRunOf { kind, place, len, ios } = what;
        let began = CoarseTs(ended.0.saturating_sub(split.total_ns()));
        let of_file = self.file.beside().map_or_else(Beside::default, |beside| beside.since(began));
        slow.recorder.keep(&SlowIo {
            number: 0,
            file: self.file.io_group().map_or(0, |group| group.id()),
            kind,
            place,
            len,
            ios,
            ended,
            split: *split,
            depth,
            beside: self.device.beside(began).and(of_file),
            slow_above_ns: io.cell().slow_above_ns(kind),
            usual_p999_ns: slow.usual.p999_ns(kind),
        });
    }

    /// Returns the place of a plain record at `sector` of its queue.
    pub fn place_of(&self, sector: u64) -> Place {
        let bytes = sector.saturating_sub(self.route.map_or(0, |route| route.offset())) << 9;
        if self.identity { Place::File(bytes) } else { Place::Device(bytes) }
    }

    /// Returns true if its device executes I/O after the submitting call ([`Capabilities::asynchronous`]).
    ///
    /// [`Capabilities::asynchronous`]: sheave_blk::driver::Capabilities::asynchronous
    pub fn is_asynchronous(&self) -> bool {
        self.asynchronous
    }

    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Returns true if the file is its device from end to end.
    pub fn is_identity(&self) -> bool {
        self.identity
    }

    /// Returns the size of the smallest addressable block, less one.
    pub fn block_mask(&self) -> u32 {
        self.block_mask
    }

    /// Returns two alignments in bytes: of offset and length, and of the memory's address.
    pub fn alignment(&self) -> (u64, u64) {
        (u64::from(self.block_mask) + 1, u64::from(self.dma_mask) + 1)
    }

    /// Returns the current size in bytes.
    #[inline]
    pub fn size_bytes(&self) -> u64 {
        match &self.queue {
            Some(queue) => queue.sectors() << 9,
            None => self.file.size_bytes(),
        }
    }

    /// Returns the size of the device that mappings point into.
    #[inline]
    pub(super) fn device_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    /// Returns the number of bytes of the device that plain I/O can reach: the size of its first leg.
    #[inline]
    pub(super) fn route_bytes(&self) -> u64 {
        self.device.first_leg_bytes()
    }

    /// Begins a section of the file's grace, before each I/O to a file that is not the identity. Returns true if the
    /// caller must end the section with [`OpenFile::leave`] at the end of the batch; false if the file has no grace or
    /// is in a section already.
    #[inline]
    pub fn enter(&self) -> bool {
        match &self.seat {
            Some(seat) if !seat.is_inside() => {
                seat.enter();
                true
            }
            _ => false,
        }
    }

    /// Ends the section that [`OpenFile::enter`] began.
    #[inline]
    pub fn leave(&self) {
        if let Some(seat) = &self.seat {
            seat.leave();
        }
    }

    /// Drops the seat in the grace, after all I/O of this ring to the file has ended.
    pub fn leave_grace(&mut self) {
        self.seat = None;
    }

    /// Returns the flags of kiocbs that are [counted](OpenFile::count) in this section.
    #[inline(always)]
    pub fn count_flags(&self) -> u16 {
        match &self.seat {
            Some(seat) => IOCB_COUNTED | if seat.phase().bit() { IOCB_PHASE } else { 0 },
            None => 0,
        }
    }

    /// Counts `ios` I/Os, whose kiocbs have [`OpenFile::count_flags`].
    #[inline(always)]
    pub fn count(&self, ios: u32) {
        if let Some(seat) = &self.seat {
            seat.count_many(u64::from(ios));
        }
    }

    /// Drops the count of an I/O that has ended, completion work included; only a sync may follow.
    #[inline]
    pub fn uncount(&self, kiocb: &mut Kiocb) {
        self.uncount_many(kiocb.flags, 1);
        kiocb.flags &= !COUNT_FLAGS;
    }

    /// Drops the counts of `ios` I/Os that have ended, whose kiocbs have `flags`.
    #[inline]
    pub fn uncount_many(&self, flags: u16, ios: u32) {
        if flags & IOCB_COUNTED != 0
            && let Some(seat) = &self.seat
        {
            seat.uncount_many(Phase::from_bit(flags & IOCB_PHASE != 0), u64::from(ios));
        }
    }
}
