//! Lanes: plain I/O of one kind to one device, one after the other, with what they share looked up once.
//!
//! Owns the shortcut from a checked read or write of one piece of memory to its request, past the mapping of devices
//! to legs. What is not plain goes through [`IoCtx::submit`]; both end in the same hardware context. What a submitter
//! says of plain I/O is in `plain_io`.

use sheave_base::sync::Arc;

use super::IoCtx;
use crate::bio::BVec;
use crate::end_io::EndIo;
use crate::hctx::Hctx;
use crate::hctx_shared::RecordSeat;
use crate::ring_core::Core;

pub use crate::plain_io::{Alone, BufferedIo, LaneId, PlainIo, PlainKind, PlainRunOf, RunItem};

/// The way of bios to a device that is one leg. For one ring, as long as the device is attached there: afterwards, and
/// with any other ring, it leads nowhere.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// Of the hardware context that it leads to.
    key: u64,
    hctx: u16,
    part: u16,
    offset: u64,
}

impl Route {
    /// Where the device begins on its queue, in sectors.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// What [`IoCtx::send_alone`] knows the lanes of this way and kind by.
    #[must_use]
    pub fn lane_id(&self, kind: PlainKind) -> LaneId {
        LaneId::new(self.part, kind)
    }
}

/// Plain I/O to one device; see [`IoCtx::lane`]. Its end, or its drop, hands on what it gathered.
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
    pub fn submit(&mut self, owner: u32, sector: u64, vec: BVec) -> bool {
        self.hctx.add_plain(self.core, owner, sector + self.offset, vec)
    }

    /// Submits I/Os as plain records, `most` at most, each of which [`EndIo`] brings back once: as many
    /// as can start now without waiting; how many. `from` gives them in order, from that number on; it may be asked
    /// for one twice. Their ranges and their memory are as in [`Lane::submit`].
    #[inline(always)]
    pub fn submit_run<I>(&mut self, run: PlainRunOf, most: usize, from: impl Fn(usize) -> I + Copy) -> usize
    where
        I: Iterator<Item: RunItem>,
    {
        self.hctx.add_run(self.core, run, self.offset, most, from)
    }

    /// Size of the device in sectors, now.
    #[inline(always)]
    pub fn sectors(&self) -> u64 {
        self.hctx.capacity.sectors()
    }

    /// Ends the lane: what it gathered goes to the driver with the plug, or now when none is open.
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
    /// The way of bios to a device that is one leg, for [`IoCtx::lane`].
    pub fn route(&self, bdev: u16) -> Option<Route> {
        match self.bdevs.get(usize::from(bdev))?.as_ref()?.legs.as_slice() {
            [leg] => {
                let key = self.hctxs.get(usize::from(leg.hctx))?.as_ref()?.key();
                Some(Route { key, hctx: leg.hctx, part: leg.part, offset: leg.offset })
            }
            _ => None,
        }
    }

    /// A place to count plain records of one owner that go this way; none when it leads nowhere.
    pub fn record_seat(&self, route: Route) -> Option<RecordSeat> {
        let hctx = self.hctxs.get(usize::from(route.hctx))?.as_ref()?;
        (hctx.key() == route.key).then(|| RecordSeat::new(Arc::clone(&hctx.shared), hctx.known_part(route.part)))
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
        if self.core.plug.is_open()
            || hctx.key() != route.key
            || hctx.lane_id() != lane
            || hctx.capacity.sectors() != sectors
        {
            return Alone::No;
        }
        hctx.send_alone(&mut self.core, run, route.offset, io, end)
    }

    /// A lane: plain I/O of one kind to one device, one after the other, with what they share looked up once.
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
