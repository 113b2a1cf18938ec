//! Lanes: plain I/O of one kind to one device, one after the other, with what they share looked up once.
//!
//! Owns the shortcut from a checked read or write of one piece of memory to its request, past the mapping of devices
//! to legs. What is not plain goes through [`IoCtx::submit`]; both end in the same hardware context.

use crate::bio::{BVec, Op};
use crate::ctx::{Core, IoCtx};
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

    /// Submits up to `most` I/Os as plain records, each of which [`EndIo`](super::EndIo) brings back once: as many as
    /// `io_at` gives, and as can start now without waiting; how many. Their ranges and their memory are as in
    /// [`Lane::submit`]. `io_at` may be asked for one twice.
    #[inline(always)]
    pub fn submit_run(&mut self, run: PlainRunOf, most: u32, io_at: impl Fn(u32) -> Option<PlainIo> + Copy) -> u32 {
        self.hctx.add_run(self.core, run, self.offset, most, io_at)
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

    /// A lane: plain I/O of one kind to one device, one after the other, with what they share looked up once.
    #[inline(always)]
    pub fn lane(&mut self, route: Route, kind: PlainKind) -> Option<Lane<'_>> {
        let hctx = self.hctxs.get_mut(usize::from(route.hctx))?.as_deref_mut()?;
        hctx.start_lane(&mut self.core, route.part, kind);
        Some(Lane { hctx, core: &mut self.core, offset: route.offset })
    }
}
