//! Busy time of a hardware context: from the issue of a request that finds it idle to the end of the last one.
//!
//! Owns the points at which the [statistics](crate::stats) are updated. A request counts from when it is accounted: the
//! driver has it or refused it, or a quiesced queue holds it back. Gathered requests do not count, nor do those that a
//! frozen queue takes apart before the driver got them.
//!
//! - T1: with statistics on, a busy period is open exactly while `in_driver` is not 0, except within calls.

use sheave_base::clock::CoarseTs;

use super::Hctx;
use crate::queue::Gate;
use crate::ring_core::Core;
use crate::stats::OpTallies;

impl Hctx {
    /// Begins a busy period with the gathered requests if no other request is accounted.
    #[inline(always)]
    pub(super) fn begin_busy(&mut self) {
        if self.counts
            && self.in_driver == self.gathered.len() as u32
            && let Some(&first) = self.gathered.tags().first()
        {
            self.shared.stats.busy.begin(self.busy_edge, self.rqs[first].start);
        }
        if !self.parts.is_empty() {
            self.begin_gathered_parts();
        }
    }

    #[cold]
    pub(super) fn begin_gathered_parts(&mut self) {
        let gathered = std::mem::take(&mut self.gathered);
        self.begin_parts(gathered.tags(), None);
        self.gathered = gathered;
    }

    /// Accounts requests that the closed gate keeps from the driver: the gathered ones, or one that was sent alone at
    /// `start`.
    #[cold]
    pub(super) fn begin_held(&mut self, core: &Core, gate: Gate, tags: &[u16], start: CoarseTs) {
        let now = gate.is_frozen().then(|| core.clock.coarse());
        if self.counts && self.in_driver == tags.len() as u32 {
            self.shared.stats.busy.begin(self.busy_edge, now.unwrap_or(start));
        }
        self.begin_parts(tags, now);
    }

    /// Accounts a request that was sent alone and is with the driver.
    #[inline(always)]
    pub(super) fn begin_alone(&mut self, start: CoarseTs) {
        if self.in_driver == 1 && self.counts {
            self.shared.stats.busy.begin_at(start);
        }
        if !self.parts.is_empty() {
            self.parts.begin(self.lane.head.part, self.counts.then_some(start));
        }
    }

    /// Ends the busy period if `ended` requests have ended and no other is accounted.
    #[inline(always)]
    pub(super) fn end_busy_if_idle(&mut self, ended: u32, now: Option<CoarseTs>) {
        if self.in_driver == 0
            && ended != 0
            && let Some(now) = now
        {
            self.shared.stats.busy.end(&mut self.busy_edge, now);
        }
    }

    /// Ends the busy period if all accounted requests were taken apart.
    #[cold]
    pub(super) fn end_busy_if_apart(&mut self, core: &Core) {
        let now = self.counts.then(|| core.clock.coarse());
        self.end_busy_if_idle(1, now);
    }

    /// Turns statistics on or off. Requests in flight count from the moment at which they are turned on; requests that
    /// end while they are off are not counted. `new` requests are counted in `in_driver` already, but belong to no busy
    /// period yet.
    #[cold]
    pub(crate) fn set_counts(&mut self, core: &Core, on: bool, new: u32) {
        if on == self.counts {
            return;
        }
        self.counts = on;
        let now = core.clock.coarse();
        if on {
            self.rqs.all().iter_mut().for_each(|rq| rq.start = now);
            self.lane.time = now;
            self.restart_stamps(now);
        }
        if self.in_driver > new {
            let busy = &self.shared.stats.busy;
            if on { busy.begin(self.busy_edge, now) } else { busy.end(&mut self.busy_edge, now) }
        }
        self.parts.turn(on, now);
    }

    /// Follows the ring's setting for statistics, if the device keeps them too.
    pub(crate) fn set_ring_counts(&mut self, core: &Core, on: bool) {
        self.set_counts(core, on && self.open_gate.keeps_stats(), 0);
    }

    /// Adds the busy time of an I/O that was sent alone and ended in its call.
    #[inline(always)]
    pub(super) fn add_alone(&mut self, start: CoarseTs, now: CoarseTs) {
        if self.in_driver == 0 {
            self.shared.stats.busy.add_period(&mut self.busy_edge, start, now);
        }
        if !self.parts.is_empty() {
            self.parts.add_period(self.lane.head.part, start, now);
        }
    }

    /// Gives partition `part` statistics of its own.
    pub(crate) fn open_part(&mut self, part: u16) {
        self.parts.open(part, &self.shared.stats);
    }

    /// Returns the partition under which records of `part` are counted: its own, or 0 for the whole device.
    pub(crate) fn known_part(&self, part: u16) -> u16 {
        if self.parts.get(part).is_some() { part } else { 0 }
    }

    /// Returns the tallies of the partition, or of the whole device if the partition has none.
    #[inline]
    pub(super) fn tallies_of(&self, part: u16) -> &OpTallies {
        self.parts.get(part).map_or(&self.shared.stats.own, |slot| &slot.stats.tallies)
    }

    /// Accounts requests for their partitions, from `start` or from their issue.
    #[cold]
    pub(super) fn begin_parts(&mut self, tags: &[u16], start: Option<CoarseTs>) {
        for &tag in tags {
            let rq = &self.rqs[tag];
            self.parts.begin(rq.part, self.counts.then(|| start.unwrap_or(rq.start)));
        }
    }

    /// Ends the accounting of all requests in `done` for their partitions.
    #[cold]
    pub(super) fn end_parts(&mut self, now: Option<CoarseTs>) {
        let Hctx { parts, done, rqs, .. } = self;
        done.tags().iter().for_each(|&tag| parts.end(rqs[tag].part, now));
    }
}
