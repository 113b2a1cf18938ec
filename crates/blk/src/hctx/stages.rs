//! Times at which a request passes from one stage of its life to the next. Its split is computed from them.
//!
//! Owns the places where the clock is read between the issue of a request (whose stamp is in the request) and its end;
//! `stamps` stores the values. A batch has one reading per stage: issue, call, return of a call in which something
//! ended, and completion.
//!
//! The time at which the device ended a request is known only for drivers that end it within their call. For all others
//! the ring knows between which two of its polls that was: the time from the poll that did not find the completion to
//! the one that did counts as *waiting to be reaped*. A ring that sleeps for completions counts as polling all the
//! time, unless completions were there before it slept.

use sheave_base::clock::CoarseTs;

use super::Hctx;
use crate::bio::{BIO_WAITED, BioId};
use crate::request::RQ_DELAYED;
use crate::ring_core::Core;

impl Hctx {
    /// Stamps the gathered requests, which go to the driver now. Returns the time.
    #[inline(always)]
    pub(super) fn stamp_sent(&mut self, core: &Core) -> CoarseTs {
        if !self.counts {
            return CoarseTs::default();
        }
        let now = core.clock.coarse();
        // Requests that end within the call are stamped by `stamp_call`.
        if !self.ends_in_call {
            self.stamps.send(self.gathered.tags(), now);
        }
        now
    }

    /// Called when the driver returns from a call that began at `sent`. `before` is the length of `done` at that time.
    #[inline(always)]
    pub(super) fn stamp_call(&mut self, core: &Core, before: usize, sent: CoarseTs) {
        if self.counts && self.done.len() != before {
            self.stamps.push_call((before, self.done.len()), sent, core.clock.coarse());
        }
    }

    /// Stamps a request that the block layer holds back from now on.
    #[cold]
    pub(super) fn stamp_held(&mut self, tag: u16, now: CoarseTs) {
        let rq = &mut self.rqs[tag];
        self.stamps.hold(tag, rq.flags & RQ_DELAYED == 0, now);
        rq.flags |= RQ_DELAYED;
    }

    /// Stamps requests that were held back and go to the driver now. Returns the time.
    #[cold]
    pub(super) fn stamp_sent_again(&mut self, core: &Core, tags: &[u16]) -> CoarseTs {
        if !self.counts {
            return CoarseTs::default();
        }
        let now = core.clock.coarse();
        tags.iter().for_each(|&tag| self.stamps.send_again(tag, now));
        now
    }

    /// Marks the bio as waiting, from `since` or from now on, unless it waited already.
    #[cold]
    pub(super) fn stamp_waiting(&self, core: &mut Core, id: BioId, since: Option<CoarseTs>) {
        if !self.counts || core.bios[id].flags & BIO_WAITED != 0 {
            return;
        }
        let now = since.unwrap_or_else(|| core.plug.now(&core.clock));
        let bio = &mut core.bios[id];
        bio.flags |= BIO_WAITED;
        bio.waited_from = now;
    }

    /// Passes the waiting time of a bio to its request, which it got at `start`.
    #[cold]
    pub(super) fn stamp_waited(&mut self, waited_from: CoarseTs, tag: u16, start: CoarseTs) {
        self.rqs[tag].flags |= RQ_DELAYED;
        self.stamps.waited(tag, start.ns_since(waited_from));
    }

    /// Called when statistics are turned on: requests in flight count as sent at `now`.
    #[cold]
    pub(super) fn restart_stamps(&mut self, now: CoarseTs) {
        self.rqs.all().iter_mut().for_each(|rq| rq.flags &= !RQ_DELAYED);
        self.stamps.restart(now);
    }
}
