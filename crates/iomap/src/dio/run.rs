//! Runs: consecutive plain I/Os on one file, whose checks and route are looked up once.
//!
//! Owns the meaning of *plain*: an I/O on one piece of memory that passes all checks and needs no completion work, as
//! almost every I/O does. Every other I/O goes through [`issue`](super::issue()), which checks in order and reports the
//! error; a refusal here means only that the I/O must take that path.

use sheave_blk::bio::{BVec, Op};
use sheave_blk::ctx::lane::{Alone, Lane, LaneId, PlainIo, PlainKind, PlainRunOf, Route, RunItem};
use sheave_blk::ctx::{EndIo, IoCtx};

use super::bio_spec;
use super::open_file::OpenFile;
use crate::file::{File, PlainRanges};
use crate::kiocb::{IOCB_DSYNC, IOCB_SYNC, IOCB_WRITE};
use crate::mapping::{Intent, MapFlags, MappingKind};

/// Mapping flags that exclude a write from the plain path.
const NOT_PLAIN_FOR_WRITES: MapFlags =
    MapFlags::SHARED.with(MapFlags::NEW).with(MapFlags::SUMMED).with(MapFlags::TASK).with(MapFlags::WORKER);

/// Limits of the I/Os of one length in a run: the end of the file, its blocks, and the alignment of memory for the
/// device.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Last position at which an I/O of this length fits.
    last: u64,
    block_mask: u64,
    dma_mask: u64,
}

impl Bounds {
    /// Returns the limits of I/Os of `len` bytes; `None` if no I/O of that length is possible.
    #[inline(always)]
    fn new(size: u64, (block_mask, dma_mask): (u32, u32), len: u32) -> Option<Bounds> {
        let last = size.checked_sub(u64::from(len))?;
        let whole = len != 0 && len & block_mask == 0;
        whole.then_some(Bounds { last, block_mask: block_mask.into(), dma_mask: dma_mask.into() })
    }

    /// Returns true if an I/O at `pos` with memory at `addr` is within the limits.
    #[inline(always)]
    #[must_use]
    pub fn hold(&self, pos: u64, addr: u64) -> bool {
        self.reach(pos) && self.aligned(pos, addr)
    }

    /// Returns true if an I/O at `pos` ends within the file.
    #[inline(always)]
    #[must_use]
    pub fn reach(&self, pos: u64) -> bool {
        pos <= self.last
    }

    /// Returns true if all I/Os of a run are aligned. `pos_bits` has at least the bits that are set in any of their
    /// positions, and `addr_bits` at least those set in any of their addresses.
    #[inline(always)]
    #[must_use]
    pub fn aligned(&self, pos_bits: u64, addr_bits: u64) -> bool {
        (pos_bits & self.block_mask) | (addr_bits & self.dma_mask) == 0
    }
}

/// Returns true if an I/O is within the [`Bounds`] for its length, on a file of `size` bytes.
#[inline(always)]
fn fits(size: u64, masks: (u32, u32), pos: u64, len: u32, addr: usize) -> bool {
    Bounds::new(size, masks, len).is_some_and(|bounds| bounds.hold(pos, addr as u64))
}

/// A run on one raw device.
#[derive(Debug)]
pub struct PlainRun<'a> {
    lane: Lane<'a>,
    sectors: u64,
    block_mask: u32,
    dma_mask: u32,
}

/// Route of plain I/O of one kind to one raw device. [`PlainRun`]s are made from it while the file is attached.
#[derive(Clone, Copy, Debug)]
pub struct PlainWay {
    route: Route,
    kind: PlainKind,
    lane: LaneId,
    block_mask: u32,
    dma_mask: u32,
}

impl PlainWay {
    /// Returns the route for I/O with the flags `iocb_flags` and the registered buffer `fixed_buf` (or none). Returns
    /// `None` unless the file is a writable raw device with a single leg.
    #[inline(always)]
    #[must_use]
    pub fn new(file: &OpenFile, iocb_flags: u16, fixed_buf: u16) -> Option<PlainWay> {
        file.queue.as_ref()?;
        let fua = iocb_flags & (IOCB_DSYNC | IOCB_SYNC) != 0;
        let spec = bio_spec(file.bdev, iocb_flags, 0, 0, 0, fua);
        let kind = PlainKind::new(spec.op == Op::Write, spec.flags, fixed_buf);
        let (route, block_mask, dma_mask) = (file.route?, file.block_mask, file.dma_mask);
        Some(PlainWay { route, kind, lane: route.lane_id(kind), block_mask, dma_mask })
    }

    #[inline(always)]
    #[must_use]
    pub fn start<'a>(&self, io: &'a mut IoCtx) -> Option<PlainRun<'a>> {
        let lane = io.lane(self.route, self.kind)?;
        Some(PlainRun { sectors: lane.sectors(), lane, block_mask: self.block_mask, dma_mask: self.dma_mask })
    }

    /// Sends one I/O by itself that is within the [`Bounds`] of a device of `sectors` sectors; see
    /// [`IoCtx::send_alone`].
    #[inline(always)]
    pub fn send_alone(
        &self,
        io: &mut IoCtx,
        sectors: u64,
        run: PlainRunOf,
        one: PlainIo,
        end: &mut impl EndIo,
    ) -> Alone {
        io.send_alone((self.route, self.lane, sectors), run, one, end)
    }
}

impl PlainRun<'_> {
    /// Returns true if the I/O lies within the device and on its blocks, and its memory is aligned for the device.
    #[inline(always)]
    pub(super) fn fits(&self, pos: u64, len: u32, addr: usize) -> bool {
        fits(self.sectors << 9, (self.block_mask, self.dma_mask), pos, len, addr)
    }

    /// Sends an I/O that [fits](PlainRun::fits) in a bio; its kiocb has been [started](crate::Kiocb::started). Returns
    /// false if no bio is free.
    #[inline(always)]
    pub(super) fn submit(&mut self, pos: u64, owner: u32, vec: BVec) -> bool {
        self.lane.submit(owner, pos >> 9, vec)
    }

    /// Returns the size of the device in sectors.
    #[inline(always)]
    #[must_use]
    pub fn sectors(&self) -> u64 {
        self.sectors
    }

    /// Returns the limits of I/Os of `len` bytes.
    #[inline(always)]
    pub fn bounds(&self, len: u32) -> Option<Bounds> {
        Bounds::new(self.sectors << 9, (self.block_mask, self.dma_mask), len)
    }

    /// Sends I/Os within their [`Bounds`] as plain records; see [`Lane::submit_run`].
    #[inline(always)]
    pub fn submit_run<I>(&mut self, run: PlainRunOf, most: usize, from: impl Fn(usize) -> I + Copy) -> usize
    where
        I: Iterator<Item: RunItem>,
    {
        self.lane.submit_run(run, most, from)
    }

    /// Ends the run.
    #[inline(always)]
    pub fn finish(self) {
        self.lane.finish();
    }
}

/// Checks the `places` that a file returned. Returns the number of leading places that are block-aligned and at most
/// `last`.
#[inline(always)]
fn believed(places: &[u64], last: u64, block_mask: u64) -> usize {
    // One pass without a branch per place: the highest bit of the union is set if a place, or its distance to `last`,
    // is out of range.
    let (bits, behind) =
        places.iter().fold((0, 0), |(bits, behind), place| (bits | place, behind | last.wrapping_sub(*place)));
    if (bits | behind) >> 63 == 0 && bits & block_mask == 0 {
        return places.len();
    }
    places.iter().take_while(|place| **place <= last && **place & block_mask == 0).count()
}

/// Largest number of I/Os of a run that are looked up in a file with one call; a power of two.
pub const LOOK_AHEAD: usize = 32;

/// Positions of the I/Os in the file, which [`MappedRun::map`] replaces by their positions on the device.
pub type Places = [u64; LOOK_AHEAD];

/// A run on a file with mappings, inside a section of its grace: overwrites, and reads of written data, each within one
/// mapping.
#[derive(Debug)]
pub struct MappedRun<'a> {
    lane: Lane<'a>,
    file: &'a OpenFile,
    /// The file, dereferenced once from its `Arc`.
    map: &'a dyn File,
    intent: Intent,
    size: u64,
    device_bytes: u64,
    block_mask: u32,
    dma_mask: u32,
    count_flags: u16,
    look_ahead: usize,
}

impl<'a> MappedRun<'a> {
    /// Begins a run of I/Os with the flags `iocb_flags` and the registered buffer `fixed_buf` (or none). `None` for the
    /// identity, for I/O with a sync, for writes to a read-only file, and for a device with several legs.
    #[inline(always)]
    pub fn start(io: &'a mut IoCtx, file: &'a OpenFile, iocb_flags: u16, fixed_buf: u16) -> Option<MappedRun<'a>> {
        if file.identity || iocb_flags & (IOCB_DSYNC | IOCB_SYNC) != 0 {
            return None;
        }
        let spec = bio_spec(file.bdev, iocb_flags, 0, 0, 0, false);
        let write = iocb_flags & IOCB_WRITE != 0;
        if write && file.read_only {
            return None;
        }
        Some(MappedRun {
            lane: io.lane(file.route?, PlainKind::new(write, spec.flags, fixed_buf))?,
            intent: if write { Intent::Write } else { Intent::Read },
            size: file.size_bytes(),
            device_bytes: file.route_bytes(),
            block_mask: file.block_mask,
            dma_mask: file.dma_mask,
            count_flags: file.count_flags(),
            map: &*file.file,
            file,
            look_ahead: LOOK_AHEAD,
        })
    }

    /// Returns the flags that each kiocb of the run gets in addition to those that the run was started with.
    #[inline(always)]
    pub fn count_flags(&self) -> u16 {
        self.count_flags
    }

    /// Returns the number of I/Os to map with the next call of [`Self::map`]: 1 after a call whose first I/O was not
    /// plain, then twice as many after each other call, up to `LOOK_AHEAD`.
    #[inline(always)]
    pub fn look_ahead(&self) -> usize {
        self.look_ahead
    }

    /// Replaces the positions in `at` by positions on the device, up to the first I/O that is not plain, and returns
    /// the number replaced. The I/Os have `len` bytes and are within their [`Bounds`]. `bits` has at least the bits
    /// that are set in any of their positions.
    #[inline(always)]
    pub fn map(&mut self, at: &mut [u64], len: u32, bits: u64) -> usize {
        let len = u64::from(len);
        let mut many = self.map.map_plain(at, &PlainRanges { len, bits, intent: self.intent });
        if many == 0 {
            self.look_ahead = 1;
            many = map_first(self.map, at, len, self.intent);
        } else {
            self.look_ahead = (2 * self.look_ahead).min(LOOK_AHEAD);
        }
        let Some(last) = self.device_bytes.checked_sub(len) else { return 0 };
        believed(at.get(..many).unwrap_or_default(), last, u64::from(self.block_mask))
    }
}

/// Maps the first I/O alone. Out of line, so that the run can live in registers.
#[inline(never)]
fn map_first(map: &dyn File, at: &mut [u64], len: u64, intent: Intent) -> usize {
    let Some(pos) = at.first_mut() else { return 0 };
    let Ok(mapping) = map.map(*pos, len, intent) else { return 0 };
    let not_plain = if intent == Intent::Write { NOT_PLAIN_FOR_WRITES } else { MapFlags::SUMMED };
    let plain = mapping.kind == MappingKind::Mapped && !mapping.flags.any(not_plain);
    let here = mapping.offset == *pos && mapping.len >= len;
    *pos = mapping.addr;
    usize::from(plain && here)
}

impl MappedRun<'_> {
    /// Returns the limits of I/Os of `len` bytes.
    #[inline(always)]
    pub fn bounds(&self, len: u32) -> Option<Bounds> {
        Bounds::new(self.size, (self.block_mask, self.dma_mask), len)
    }

    /// Sends I/Os to the places that [`MappedRun::map`] returned, as plain records; see [`Lane::submit_run`].
    #[inline(always)]
    pub fn submit_run<I>(&mut self, run: PlainRunOf, most: usize, from: impl Fn(usize) -> I + Copy) -> usize
    where
        I: Iterator<Item = PlainIo>,
    {
        self.lane.submit_run(run, most, from)
    }

    /// Ends the run. `sent` is the number of its I/Os that were sent.
    #[inline(always)]
    pub fn finish(self, sent: u32) {
        self.file.count(sent);
        self.lane.finish();
    }
}
