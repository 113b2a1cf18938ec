//! Runs: plain I/O on one file, one after the other, with what the checks and the way need looked up once.
//!
//! Owns what *plain* means: an I/O of one piece of memory that passes all checks, and needs no completion work, as
//! almost every I/O does. What is not plain goes through [`issue`](super::issue()), which checks in order and says what
//! is wrong; so a "no" here means nothing but "not this way".

use sheave_blk::bio::{BVec, Op};
use sheave_blk::ctx::lane::{Alone, Lane, LaneId, PlainIo, PlainKind, PlainRunOf, Route, RunItem};
use sheave_blk::ctx::{EndIo, IoCtx};

use super::bio_spec;
use super::open_file::OpenFile;
use crate::file::{File, PlainRanges};
use crate::kiocb::{IOCB_DSYNC, IOCB_SYNC, IOCB_WRITE};
use crate::mapping::{Intent, MapFlags, MappingKind};

/// Flags of mappings to which no write is plain.
const NOT_PLAIN_FOR_WRITES: MapFlags =
    MapFlags::SHARED.with(MapFlags::NEW).with(MapFlags::SUMMED).with(MapFlags::TASK).with(MapFlags::WORKER);

/// What all I/Os of a run lie within that have one length: the file, on its blocks, and memory that the device can
/// take.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The last position.
    last: u64,
    block_mask: u64,
    dma_mask: u64,
}

impl Bounds {
    /// For I/Os of `len` bytes; `None` when there can be none of that length.
    #[inline(always)]
    fn new(size: u64, (block_mask, dma_mask): (u32, u32), len: u32) -> Option<Bounds> {
        let last = size.checked_sub(u64::from(len))?;
        let whole = len != 0 && len & block_mask == 0;
        whole.then_some(Bounds { last, block_mask: block_mask.into(), dma_mask: dma_mask.into() })
    }

    /// Whether an I/O at this position, with memory from this address on, is within.
    #[inline(always)]
    #[must_use]
    pub fn hold(&self, pos: u64, addr: u64) -> bool {
        self.reach(pos) && self.aligned(pos, addr)
    }

    /// Whether an I/O at this position ends within the file.
    #[inline(always)]
    #[must_use]
    pub fn reach(&self, pos: u64) -> bool {
        pos <= self.last
    }

    /// Whether all I/Os are on blocks, and their memory is where the device can take it: of those whose positions have
    /// no other bits than these, and whose addresses have no others than those.
    #[inline(always)]
    #[must_use]
    pub fn aligned(&self, pos_bits: u64, addr_bits: u64) -> bool {
        (pos_bits & self.block_mask) | (addr_bits & self.dma_mask) == 0
    }
}

/// Whether an I/O is within the [`Bounds`] of a file of `size` bytes for its length.
#[inline(always)]
fn fits(size: u64, masks: (u32, u32), pos: u64, len: u32, addr: usize) -> bool {
    Bounds::new(size, masks, len).is_some_and(|bounds| bounds.hold(pos, addr as u64))
}

/// A run on one raw device.
#[derive(Debug)]
pub struct PlainRun<'a> {
    lane: Lane<'a>,
    /// Size of the device.
    sectors: u64,
    block_mask: u32,
    dma_mask: u32,
}

/// The way of plain I/O of one kind to one raw device: what a [`PlainRun`] is made from, for as long as the file is
/// attached.
#[derive(Clone, Copy, Debug)]
pub struct PlainWay {
    route: Route,
    kind: PlainKind,
    lane: LaneId,
    block_mask: u32,
    dma_mask: u32,
}

impl PlainWay {
    /// For I/O with the same `IOCB_*` flags and the same registered buffer (or none). For a raw device that is one leg
    /// and may be written; others have no plain I/O.
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

    /// Begins a run.
    #[inline(always)]
    #[must_use]
    pub fn start<'a>(&self, io: &'a mut IoCtx) -> Option<PlainRun<'a>> {
        let lane = io.lane(self.route, self.kind)?;
        Some(PlainRun { sectors: lane.sectors(), lane, block_mask: self.block_mask, dma_mask: self.dma_mask })
    }

    /// Sends one I/O alone that is within its [`Bounds`], which were those of a device of so many sectors; see
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
    /// Whether the I/O lies within the device, on its blocks, and its memory where the device can take it.
    #[inline(always)]
    pub(super) fn fits(&self, pos: u64, len: u32, addr: usize) -> bool {
        fits(self.sectors << 9, (self.block_mask, self.dma_mask), pos, len, addr)
    }

    /// Sends an I/O that [fits](PlainRun::fits) with a bio, when its kiocb was [started](crate::Kiocb::started); false
    /// when no bio is free.
    #[inline(always)]
    pub(super) fn submit(&mut self, pos: u64, owner: u32, vec: BVec) -> bool {
        self.lane.submit(owner, pos >> 9, vec)
    }

    /// Size of the device in sectors.
    #[inline(always)]
    #[must_use]
    pub fn sectors(&self) -> u64 {
        self.sectors
    }

    /// What I/Os of this length must be within.
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

/// A file is not believed: how many of the first places are in whole blocks, and none behind `last`.
#[inline(always)]
fn believed(places: &[u64], last: u64, block_mask: u64) -> usize {
    // All at once, without a branch for each: the highest bit is that of a place, or of its distance to `last`, that
    // is none.
    let (bits, behind) =
        places.iter().fold((0, 0), |(bits, behind), place| (bits | place, behind | last.wrapping_sub(*place)));
    if (bits | behind) >> 63 == 0 && bits & block_mask == 0 {
        return places.len();
    }
    places.iter().take_while(|place| **place <= last && **place & block_mask == 0).count()
}

/// How many I/Os of a run a file is asked for at once, at most; a power of two.
pub const LOOK_AHEAD: usize = 32;

/// Room for the positions of as many, and then for their places.
pub type Places = [u64; LOOK_AHEAD];

/// A run on a file with mappings, inside a section of its grace: pure overwrites, and reads of what is written, in one
/// mapping each.
#[derive(Debug)]
pub struct MappedRun<'a> {
    lane: Lane<'a>,
    file: &'a OpenFile,
    /// What it maps with; found once, past its counter of references.
    map: &'a dyn File,
    intent: Intent,
    /// Size of the file in bytes, and of its device as far as the lane goes.
    size: u64,
    device_bytes: u64,
    block_mask: u32,
    dma_mask: u32,
    count_flags: u16,
    look_ahead: usize,
}

impl<'a> MappedRun<'a> {
    /// A run with the same `IOCB_*` flags, without sync, and the same registered buffer (or none). For a file whose
    /// device is one leg; what may not be written has no plain writes.
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

    /// Flags that all kiocbs of the run have, beside those that it was started with.
    #[inline(always)]
    pub fn count_flags(&self) -> u16 {
        self.count_flags
    }

    /// How many I/Os to map at once: few, as long as what comes is not plain.
    #[inline(always)]
    pub fn look_ahead(&self) -> usize {
        self.look_ahead
    }

    /// Puts where on the device they go in the place of the positions of I/Os of `len` bytes, which fit, and have no
    /// other `bits` set; as far as they are plain. How many.
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

/// The first of them alone. By itself, so that the run may live in registers.
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
    /// What I/Os of this length must be within.
    #[inline(always)]
    pub fn bounds(&self, len: u32) -> Option<Bounds> {
        Bounds::new(self.size, (self.block_mask, self.dma_mask), len)
    }

    /// Sends I/Os to the places that [`MappedRun::map`] gave, as plain records; see [`Lane::submit_run`].
    #[inline(always)]
    pub fn submit_run<I>(&mut self, run: PlainRunOf, most: usize, from: impl Fn(usize) -> I + Copy) -> usize
    where
        I: Iterator<Item = PlainIo>,
    {
        self.lane.submit_run(run, most, from)
    }

    /// Ends the run, of which so many were sent.
    #[inline(always)]
    pub fn finish(self, sent: u32) {
        self.file.count(sent);
        self.lane.finish();
    }
}
