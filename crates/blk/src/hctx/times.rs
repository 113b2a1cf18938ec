//! When a hardware context is busy: from the issue of a request that finds it idle to the end of the last one.
//!
//! Owns the moments at which the [statistics](crate::stats) hear of it. A request counts from when it is accounted: the
//! driver has it, refused it, or a quiesced queue holds it back. What is gathered, and what a frozen queue takes apart
//! before it has come to the driver, does not.
//!
//! - T1: with statistics on, a busy period is open exactly while `in_driver` is not 0, but inside of calls.

use sheave_base::clock::CoarseTs;

use super::Hctx;
use crate::queue::Gate;
use crate::ring_core::Core;

impl Hctx {
    /// What was gathered is accounted from now on.
    #[inline(always)]
    pub(super) fn begin_busy(&mut self, core: &Core) {
        if core.stats
            && self.in_driver == self.gathered.len() as u32
            && let Some(&first) = self.gathered.tags().first()
        {
            self.shared.stats.busy.begin(self.busy_edge, self.rqs[first].start);
        }
    }

    /// What was gathered, or sent alone at `start`, is accounted, and may not go to the driver.
    #[cold]
    pub(super) fn begin_held(&mut self, core: &Core, gate: Gate, count: usize, start: CoarseTs) {
        if core.stats && self.in_driver == count as u32 {
            let start = if gate.is_frozen() { core.clock.coarse() } else { start };
            self.shared.stats.busy.begin(self.busy_edge, start);
        }
    }

    /// One request was sent alone, and counts as in the driver.
    #[inline(always)]
    pub(super) fn begin_alone(&mut self, core: &Core, start: CoarseTs) {
        if self.in_driver == 1 && core.stats {
            self.shared.stats.busy.begin_at(start);
        }
    }

    /// So many requests have ended: if no other is accounted, the busy period is over.
    #[inline(always)]
    pub(super) fn end_busy_if_idle(&mut self, ended: u32, now: Option<CoarseTs>) {
        if self.in_driver == 0
            && ended != 0
            && let Some(now) = now
        {
            self.shared.stats.busy.end(&mut self.busy_edge, now);
        }
    }

    /// Requests were taken apart: if no other is accounted, the busy period is over.
    #[cold]
    pub(super) fn end_busy_if_apart(&mut self, core: &Core) {
        let now = core.stats.then(|| core.clock.coarse());
        self.end_busy_if_idle(1, now);
    }

    /// Statistics were turned on: what is in flight has no start, or one of an earlier use of its tag.
    #[cold]
    pub(crate) fn restart_times(&mut self, now: CoarseTs) {
        self.rqs.all().iter_mut().for_each(|rq| rq.start = now);
        self.restart_stamps(now);
        if self.in_driver > 0 {
            self.shared.stats.busy.begin(self.busy_edge, now);
        }
    }

    /// Statistics are turned off: nothing is counted from now on.
    #[cold]
    pub(crate) fn stop_times(&mut self, now: CoarseTs) {
        if self.in_driver > 0 {
            self.shared.stats.busy.end(&mut self.busy_edge, now);
        }
    }
}
