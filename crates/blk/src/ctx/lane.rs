//! Lanes: a series of plain I/Os of one kind to one device, for which their common values are looked up once.
//!
//! Owns the shortcut from a checked read or write of one piece of memory to its request, without the mapping of devices
//! to legs. I/O that is not plain goes through [`IoCtx::submit`]; both end in the same hardware context. The data types
//! are in `plain_io`.

use sheave_base::sync::Arc;

use super::IoCtx;
use crate::bio::BVec;
use crate::end_io::EndIo;
use crate::hctx::Hctx;
use crate::hctx_shared::RecordSeat;
use crate::ring_core::Core;

pub use crate::plain_io::{Alone, BufferedIo, LaneId, PlainIo, PlainKind, PlainRunOf, RunItem};

/// Target of plain I/O: the hardware context of a device with one leg. Valid for the ring that made it, while the
/// device is attached there; rejected otherwise.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// Key of the hardware context (`Hctx::key`).
    key: u64,
    hctx: u16,
    part: u16,
    offset: u64,
}

impl Route {
    /// Returns the first sector of the device on its queue.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the id of the lane for this route and `kind`, for [`IoCtx::send_alone`].
    #[must_use]
    pub fn lane_id(&self, kind: PlainKind) -> LaneId {
        LaneId::new(self.part, kind)
    }
}

/// Lane opened by [`IoCtx::lane`]. Finishing or dropping it passes on the gathered requests.
#[derive(Debug)]
pub struct Lane<'a> {
    hctx: &'a mut Hctx,
    core: &'a mut Core,
    offset: u64,
}

impl Lane<'_> {
    /// Submits a read or write of one piece of memory. The caller has checked its range against the device's size.
    /// Returns false if no bio is free. Otherwise like [`IoCtx::submit`].
    #[inline(always)]
    pub fn submit(&mut self, owner: u32, sector: u64, vec: BVec) -> bool {
        self.hctx.add_plain(self.core, owner, sector + self.offset, vec)
    }

    /// Submits at most `most` I/Os as plain records, as long as they can start without waiting. Returns the number
    /// submitted. Each ends once through [`EndIo`]. `from(n)` returns an iterator over the I/Os from number `n` on; it
    /// may produce the same one twice. Ranges and memory are as in [`Lane::submit`].
    #[inline(always)]
    pub fn submit_run<I>(&mut self, run: PlainRunOf, most: usize, from: impl Fn(usize) -> I + Copy) -> usize
    where
        I: Iterator<Item: RunItem>,
    {
        self.hctx.add_run(self.core, run, self.offset, most, from)
    }

    /// Returns the current size of the device in sectors.
    #[inline(always)]
    pub fn sectors(&self) -> u64 {
        self.hctx.capacity.sectors()
    }

    /// Ends the lane. Its requests go to the driver with the plug, or now if none is open.
    #[inline(always)]
    pub fn finish(self) {}
}

impl Drop for Lane<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.hctx.end_lane(self.core);
    }
}

impl IoCtx {
    /// Returns the route to a device with one leg, for [`IoCtx::lane`]; `None` for devices with several.
    pub fn route(&self, bdev: u16) -> Option<Route> {
        match self.bdevs.get(usize::from(bdev))?.as_ref()?.legs.as_slice() {
            [leg] => {
                let key = self.hctxs.get(usize::from(leg.hctx))?.as_ref()?.key();
                Some(Route { key, hctx: leg.hctx, part: leg.part, offset: leg.offset })
            }
            _ => None,
        }
    }

    /// Returns a slot in the statistics for one owner's plain records on this route; `None` if the route is not valid.
    pub fn record_seat(&self, route: Route) -> Option<RecordSeat> {
        let hctx = self.hctxs.get(usize::from(route.hctx))?.as_ref()?;
        (hctx.key() == route.key).then(|| RecordSeat::new(Arc::clone(&hctx.shared), hctx.known_part(route.part)))
    }

    /// Sends one I/O to its driver at once, as a plain record. Its range and memory are as in [`Lane::submit`]. Returns
    /// `Alone::No` if the I/O must be submitted through a lane instead, because a plug is open, the route is not valid
    /// any more, the last lane was of another kind, or the device's size is not `sectors` any more.
    #[inline(always)]
    pub fn send_alone(
        &mut self,
        (route, lane, sectors): (Route, LaneId, u64),
        run: PlainRunOf,
        io: PlainIo,
        end: &mut impl EndIo,
    ) -> Alone {
        let Some(Some(hctx)) = self.hctxs.get_mut(usize::from(route.hctx)) else { return Alone::No };
        if self.core.plug.is_open()
            || hctx.key() != route.key
            || hctx.lane_id() != lane
            || hctx.capacity.sectors() != sectors
        {
            return Alone::No;
        }
        hctx.send_alone(&mut self.core, run, route.offset, io, end)
    }

    /// Opens a lane. Returns `None` if the route is not valid any more.
    #[inline(always)]
    pub fn lane(&mut self, route: Route, kind: PlainKind) -> Option<Lane<'_>> {
        let hctx = self.hctxs.get_mut(usize::from(route.hctx))?.as_deref_mut()?;
        if hctx.key() != route.key {
            return None;
        }
        hctx.start_lane(&mut self.core, route.part, kind);
        Some(Lane { hctx, core: &mut self.core, offset: route.offset })
    }
}
