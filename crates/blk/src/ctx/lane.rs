//! Lanes: plain I/O of one kind to one device, one after the other, with what they share looked up once.
//!
//! Owns the shortcut from a checked read or write of one piece of memory to its request, past the mapping of devices
//! to legs. What is not plain goes through [`IoCtx::submit`]; both end in the same hardware context.

use crate::bio::{BVec, Op};
use crate::ctx::{Core, EndIo, IoCtx};
use crate::hctx::Hctx;

/// The way of bios to a device that is one leg.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    hctx: u16,
    part: u16,
    offset: u64,
}

/// What plain I/Os of a lane have in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlainKind {
    /// Read or write.
    pub op: Op,
    /// `BIO_FUA`, `BIO_POLLED`.
    pub flags: u16,
    /// The registered buffer that all memory is in, or [`NO_FIXED_BUF`](crate::bio::NO_FIXED_BUF).
    pub fixed_buf: u16,
}

/// Partition and kind of a lane in one word, to compare lanes of one device by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaneId(u64);

impl LaneId {
    /// No lane's.
    pub(crate) const NONE: LaneId = LaneId(u64::MAX);

    #[inline(always)]
    pub(crate) fn new(part: u16, kind: PlainKind) -> LaneId {
        let PlainKind { op, flags, fixed_buf } = kind;
        LaneId(op as u64 | u64::from(flags) << 8 | u64::from(fixed_buf) << 24 | u64::from(part) << 40)
    }
}

/// What became of an I/O that was to go alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Alone {
    /// It has to go by a lane, and nothing has happened.
    No,
    /// It is on its way: [`EndIo`] brings it back, in a poll.
    Sent,
    /// It has ended with success, and [`EndIo::end_one`] has heard of it.
    Ended,
}

impl Route {
    /// What [`IoCtx::send_alone`] knows the lanes of this way and kind by.
    #[must_use]
    pub fn lane_id(&self, kind: PlainKind) -> LaneId {
        LaneId::new(self.part, kind)
    }
}

/// What the I/Os of a run have in common beside the lane.
#[derive(Clone, Copy, Debug)]
pub struct PlainRunOf {
    /// Given back when they end.
    pub owner: u32,
    /// Length of each; a multiple of the logical block.
    pub bytes: u32,
}

/// One I/O of a run.
#[derive(Clone, Copy, Debug)]
pub struct PlainIo {
    pub(crate) cookie: u64,
    pub(crate) sector: u64,
    pub(crate) base: usize,
}

impl PlainIo {
    /// The I/O from `sector` on with the memory from the address `base` on; `cookie` comes back when it ends.
    ///
    /// # Safety
    /// As for [`BVec::new`], for as many bytes as the I/Os of the run have that it is given to.
    #[allow(unsafe_code)] // Devices write to where it points.
    #[inline(always)]
    pub const unsafe fn new(cookie: u64, sector: u64, base: usize) -> PlainIo {
        PlainIo { cookie, sector, base }
    }
}

/// Plain I/O to one device; see [`IoCtx::lane`].
#[derive(Debug)]
pub struct Lane<'a> {
    hctx: &'a mut Hctx,
    core: &'a mut Core,
    offset: u64,
}

impl Lane<'_> {
    /// Submits a read or write of one piece of memory, to a range that the caller has checked against the device's
    /// size; false when no bio is free. Otherwise as [`IoCtx::submit`].
    #[inline(always)]
    pub fn submit(&mut self, owner: u32, sector: u64, bytes: u32, vec: BVec) -> bool {
        self.hctx.add_plain(self.core, owner, sector + self.offset, bytes, vec)
    }

    /// Submits I/Os as plain records, `most` at most, each of which [`EndIo`] brings back once: as many
    /// as can start now without waiting; how many. `from` gives them in order, from that number on; it may be asked
    /// for one twice. Their ranges and their memory are as in [`Lane::submit`].
    #[inline(always)]
    pub fn submit_run<I>(&mut self, run: PlainRunOf, most: usize, from: impl Fn(usize) -> I + Copy) -> usize
    where
        I: Iterator<Item = PlainIo>,
    {
        self.hctx.add_run(self.core, run, self.offset, most, from)
    }

    /// Size of the device in sectors, now.
    #[inline(always)]
    pub fn sectors(&self) -> u64 {
        self.hctx.capacity.sectors()
    }

    /// Ends the lane: what it gathered goes to the driver with the plug, or now when none is open.
    #[inline]
    pub fn finish(self) {
        self.hctx.end_lane(self.core);
    }
}

impl IoCtx {
    /// The way of bios to a device that is one leg, for [`IoCtx::lane`].
    pub fn route(&self, bdev: u16) -> Option<Route> {
        match self.bdevs.get(usize::from(bdev))?.as_ref()?.legs.as_slice() {
            [leg] => Some(Route { hctx: leg.hctx, part: leg.part, offset: leg.offset }),
            _ => None,
        }
    }

    /// Sends one I/O alone to its driver, as a plain record. Its range and its memory are as in [`Lane::submit`]. It
    /// has to go by a lane in a plug where one is open already, where the lane before was of another kind, and where
    /// the device has not so many sectors now.
    #[inline(always)]
    pub fn send_alone(
        &mut self,
        (route, lane, sectors): (Route, LaneId, u64),
        run: PlainRunOf,
        io: PlainIo,
        end: &mut impl EndIo,
    ) -> Alone {
        let Some(Some(hctx)) = self.hctxs.get_mut(usize::from(route.hctx)) else { return Alone::No };
        if self.core.plug.is_open() || hctx.lane_id() != lane || hctx.capacity.sectors() != sectors {
            return Alone::No;
        }
        hctx.send_alone(&mut self.core, run, route.offset, io, end)
    }

    /// A lane: plain I/O of one kind to one device, one after the other, with what they share looked up once.
    #[inline(always)]
    pub fn lane(&mut self, route: Route, kind: PlainKind) -> Option<Lane<'_>> {
        let hctx = self.hctxs.get_mut(usize::from(route.hctx))?.as_deref_mut()?;
        hctx.start_lane(&mut self.core, route.part, kind);
        Some(Lane { hctx, core: &mut self.core, offset: route.offset })
    }
}
