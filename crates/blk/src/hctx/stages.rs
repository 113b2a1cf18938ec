//! When a request passed from one stage of its life to the next: the moments that its split is made from.
//!
//! Owns the moments at which the clock is read between the issue of a request (whose stamp it carries itself) and its
//! end; what was read is in `stamps`. A batch has one reading for each stage: its issue, its call, the return of the
//! call where something ended in it, and its completion.
//!
//! When a device ended a request is known of drivers that end it in their call. Of all others the ring knows between
//! which two of its looks that was: the time from the look that did not find it to the one that did counts as *waiting
//! to be reaped*. A ring that sleeps for completions looks all the time, unless some were there before it slept.

use sheave_base::clock::CoarseTs;

use super::Hctx;
use crate::bio::{BIO_WAITED, BioId};
use crate::request::RQ_DELAYED;
use crate::ring_core::Core;

impl Hctx {
    /// What was gathered goes to the driver now; when that is.
    #[inline(always)]
    pub(super) fn stamp_sent(&mut self, core: &Core) -> CoarseTs {
        if !self.counts {
            return CoarseTs::default();
        }
        let now = core.clock.coarse();
        // What ends in the call is found by the call.
        if !self.ends_in_call {
            self.stamps.send(self.gathered.tags(), now);
        }
        now
    }

    /// The driver has returned from a call that began at `sent`, with so many requests ended before it.
    #[inline(always)]
    pub(super) fn stamp_call(&mut self, core: &Core, before: usize, sent: CoarseTs) {
        if self.counts && self.done.len() != before {
            self.stamps.push_call((before, self.done.len()), sent, core.clock.coarse());
        }
    }

    /// The block layer holds this request back from now on.
    #[cold]
    pub(super) fn stamp_held(&mut self, tag: u16, now: CoarseTs) {
        let rq = &mut self.rqs[tag];
        self.stamps.hold(tag, rq.flags & RQ_DELAYED == 0, now);
        rq.flags |= RQ_DELAYED;
    }

    /// What was held back goes to the driver now; when that is.
    #[cold]
    pub(super) fn stamp_sent_again(&mut self, core: &Core, tags: &[u16]) -> CoarseTs {
        if !self.counts {
            return CoarseTs::default();
        }
        let now = core.clock.coarse();
        tags.iter().for_each(|&tag| self.stamps.send_again(tag, now));
        now
    }

    /// The bio waits from now on, or `since` then, if it did not before.
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

    /// A bio that has waited has a request, since `start`.
    #[cold]
    pub(super) fn stamp_waited(&mut self, waited_from: CoarseTs, tag: u16, start: CoarseTs) {
        self.rqs[tag].flags |= RQ_DELAYED;
        self.stamps.waited(tag, start.ns_since(waited_from));
    }

    /// Statistics were turned on: nothing is known of what is in flight but that it is.
    #[cold]
    pub(super) fn restart_stamps(&mut self, now: CoarseTs) {
        self.rqs.all().iter_mut().for_each(|rq| rq.flags &= !RQ_DELAYED);
        self.stamps.restart(now);
    }
}
