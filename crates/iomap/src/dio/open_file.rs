//! A file as one ring has it: what the fast path wants at hand, looked up once.
//!
//! Owns the ring's [`Seat`] in the file's grace, and the way from a kiocb's flags to it.
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

/// What of a kiocb's flags says where it is counted.
pub const COUNT_FLAGS: u16 = IOCB_COUNTED | IOCB_PHASE;

#[derive(Debug)]
struct SlowIos {
    recorder: Arc<FlightRecorder>,
    usual: Usual,
}

/// What a slow I/O was, or several that were alike.
#[derive(Clone, Copy, Debug)]
pub struct SlowRunOf {
    /// What it did.
    pub kind: IoKind,
    /// Where the first of them lies.
    pub place: Place,
    /// Bytes of one.
    pub len: u32,
    /// How many.
    pub ios: u32,
}

/// A file as one ring has it: attached, with what the fast path wants at hand.
#[derive(Debug)]
pub struct OpenFile {
    /// The file.
    pub file: Arc<dyn File>,
    /// The number of its device in the ring.
    pub bdev: u16,
    /// `f_pos`: where an I/O at offset -1 goes.
    pub pos: u64,
    device: Device,
    /// The queue whose size is the file's, for the raw device that is one.
    pub(super) queue: Option<Arc<Queue>>,
    /// The way of bios to the device, when it is one leg; a raw device that may not be written has none.
    pub(super) route: Option<Route>,
    /// The place in the file's grace, if it has one.
    seat: Option<Seat>,
    /// Where plain records on it count.
    records: Option<RecordSeat>,
    io: Option<IoSeat>,
    /// What is usual of its I/O, and who keeps what is not.
    slow: Option<Box<SlowIos>>,
    pub(super) identity: bool,
    pub(super) read_only: bool,
    pub(super) block_mask: u32,
    pub(super) dma_mask: u32,
    pub(super) writes_through: bool,
    asynchronous: bool,
}

impl OpenFile {
    /// Takes note of what does not change while the file is attached. Its I/O counts in the group of the ring, and in
    /// the file's; for a ring without a group it does not count.
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

    /// Where the ring counts its I/O on the file.
    #[inline(always)]
    pub fn io(&self) -> Option<&IoCell> {
        self.io.as_ref().map(IoSeat::cell)
    }

    /// Where plain records on it count.
    #[inline(always)]
    pub fn records(&self) -> Option<&RecordStats> {
        self.records.as_ref().map(|seat| &**seat.records())
    }

    /// Looks from when on its I/O counts as slow: a second after the last time, at this time.
    pub fn look(&mut self, now: CoarseTs) {
        if let (Some(io), Some(slow)) = (&self.io, &mut self.slow) {
            slow.usual.look(io.cell(), slow.recorder.limit_ns(), now);
        }
    }

    /// Keeps an I/O on it, or several that were alike, that ended now with such a split, of so many in flight.
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

    /// Where a plain record lies that has this sector of its queue.
    pub fn place_of(&self, sector: u64) -> Place {
        let bytes = sector.saturating_sub(self.route.map_or(0, |route| route.offset())) << 9;
        if self.identity { Place::File(bytes) } else { Place::Device(bytes) }
    }

    /// Whether its device begins I/O and leaves ([`Capabilities::asynchronous`]).
    ///
    /// [`Capabilities::asynchronous`]: sheave_blk::driver::Capabilities::asynchronous
    pub fn is_asynchronous(&self) -> bool {
        self.asynchronous
    }

    /// Whether writes are refused.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Whether the file is its device from end to end.
    pub fn is_identity(&self) -> bool {
        self.identity
    }

    /// Size of the smallest addressable unit, less one.
    pub fn block_mask(&self) -> u32 {
        self.block_mask
    }

    /// What offset and length are multiples of, and what the address of the memory is, in bytes.
    pub fn alignment(&self) -> (u64, u64) {
        (u64::from(self.block_mask) + 1, u64::from(self.dma_mask) + 1)
    }

    /// Size in bytes, now.
    #[inline]
    pub fn size_bytes(&self) -> u64 {
        match &self.queue {
            Some(queue) => queue.sectors() << 9,
            None => self.file.size_bytes(),
        }
    }

    /// Size of the device that mappings point into.
    #[inline]
    pub(super) fn device_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    /// What of that the way of plain I/O reaches.
    #[inline]
    pub(super) fn route_bytes(&self) -> u64 {
        self.device.first_leg_bytes()
    }

    /// Begins a section of the file's grace, unless the file has none or one has begun; true when it is to be ended
    /// with [`OpenFile::leave`], at the end of the batch. Before each I/O to a file that is not the identity.
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

    /// Ends the section.
    #[inline]
    pub fn leave(&self) {
        if let Some(seat) = &self.seat {
            seat.leave();
        }
    }

    /// Gives the seat up, when all I/O of this ring to the file has ended.
    pub fn leave_grace(&mut self) {
        self.seat = None;
    }

    /// The flags of kiocbs that are [counted](OpenFile::count) in this section.
    #[inline(always)]
    pub fn count_flags(&self) -> u16 {
        match &self.seat {
            Some(seat) => IOCB_COUNTED | if seat.phase().bit() { IOCB_PHASE } else { 0 },
            None => 0,
        }
    }

    /// Counts so many I/Os, whose kiocbs have [`OpenFile::count_flags`].
    #[inline(always)]
    pub fn count(&self, ios: u32) {
        if let Some(seat) = &self.seat {
            seat.count_many(u64::from(ios));
        }
    }

    /// The I/O has ended, its completion work too; only a sync may be left to do.
    #[inline]
    pub fn uncount(&self, kiocb: &mut Kiocb) {
        self.uncount_many(kiocb.flags, 1);
        kiocb.flags &= !COUNT_FLAGS;
    }

    /// So many I/Os with these kiocb flags have ended for good.
    #[inline]
    pub fn uncount_many(&self, flags: u16, ios: u32) {
        if flags & IOCB_COUNTED != 0
            && let Some(seat) = &self.seat
        {
            seat.uncount_many(Phase::from_bit(flags & IOCB_PHASE != 0), u64::from(ios));
        }
    }
}
