//! Times at which a request passes from one stage of its life to the next, and the split computed from them.
//!
//! Owns the places where the clock is read between the issue of a request (whose stamp is in the request) and its end,
//! and the stamps: when the driver got each request, when a driver's call ended requests, and for how long the block
//! layer held a request back. A batch has one reading per stage: issue, call, return of a call in which something
//! ended, and completion.
//!
//! The time at which the device ended a request is known only for drivers that end it within their call. For all others
//! the ring knows between which two of its polls that was: the time from the poll that did not find the completion to
//! the one that did counts as *waiting to be reaped*. A ring that sleeps for completions counts as polling all the
//! time, unless completions were there before it slept.
//!
//! Invariants:
//! - P1: a stamp by tag belongs to the tag's current request: it is written when the driver gets the request, and
//!   before that if the request is held back.
//! - P2: requests of one batch that were not held back share all stamps. A request that was held back has
//!   [`RQ_DELAYED`] set and is counted by itself.

use sheave_base::clock::CoarseTs;

use super::Hctx;
use crate::bio::{BIO_WAITED, BioId};
use crate::request::{RQ_DELAYED, RqHead};
use crate::ring_core::{ALL_THE_TIME, Core};
use crate::stats::Split;

/// Number of calls recorded separately between two completion batches. Later calls are added to the last record.
const CALLS_MAX: usize = 64;

#[derive(Debug)]
struct Call {
    /// Range in the done list.
    first: u32,
    end: u32,
    sent: CoarseTs,
    ended: CoarseTs,
}

/// Time for which the block layer held a request back.
#[derive(Clone, Copy, Debug, Default)]
struct Delay {
    /// Time for which its bio waited, before there was a request.
    waited_ns: u64,
    /// Time after the request was made.
    held_ns: u64,
}

/// Stamps of a request, and the part of the batch that shares them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Passed {
    pub(super) sent: CoarseTs,
    pub(super) ended: CoarseTs,
    /// First index in the done list whose request does not share these stamps.
    pub(super) until: usize,
}

#[derive(Debug)]
pub(super) struct Stamps {
    /// By tag: the time at which the driver got the request, or from which on the request is held back.
    sent: Box<[CoarseTs]>,
    /// By tag. Valid for requests with [`RQ_DELAYED`].
    delays: Box<[Delay]>,
    calls: Vec<Call>,
    /// Index of the first call that the current completion batch has not passed.
    next: usize,
}

impl Stamps {
    pub(super) fn new(depth: u16) -> Stamps {
        let tags = usize::from(depth) + 1;
        Stamps {
            sent: vec![CoarseTs::default(); tags].into(),
            delays: vec![Delay::default(); tags].into(),
            calls: Vec::with_capacity(CALLS_MAX),
            next: 0,
        }
    }

    #[inline(always)]
    pub(super) fn send_one(&mut self, tag: u16, now: CoarseTs) {
        self.sent[usize::from(tag)] = now;
    }

    #[inline(always)]
    pub(super) fn send(&mut self, tags: &[u16], now: CoarseTs) {
        tags.iter().for_each(|&tag| self.send_one(tag, now));
    }

    /// Returns the stamps of the request at index `at` of the done list, and the index up to which requests that were
    /// not held back share them. `at` must grow from call to call; `look_again` resets it. A request that did not end
    /// within a call of the driver counts as ended at `looked`.
    #[inline(always)]
    pub(super) fn of_run(&mut self, at: usize, tag: u16, looked: CoarseTs) -> Passed {
        let mut until = usize::MAX;
        while let Some(call) = self.calls.get(self.next) {
            if at < call.first as usize {
                until = call.first as usize;
                break;
            }
            if at < call.end as usize {
                return Passed { sent: call.sent, ended: call.ended, until: call.end as usize };
            }
            self.next += 1;
        }
        Passed { sent: self.sent[usize::from(tag)], ended: looked, until }
    }

    /// Returns the split of a request that was held back. `split` is the one that it would have otherwise.
    #[cold]
    pub(super) fn add_delay(&self, tag: u16, split: Split) -> Split {
        let Delay { waited_ns, held_ns } = self.delays[usize::from(tag)];
        // Time held back passed before the driver had the request, so it is contained in the plugged time.
        let held_ns = held_ns.min(split.plugged_ns);
        Split { tag_ns: waited_ns + held_ns, plugged_ns: split.plugged_ns - held_ns, ..split }
    }

    /// Returns the split of the request at index `at` of the done list.
    #[inline(always)]
    pub(super) fn split_of(&mut self, at: usize, tag: u16, head: &RqHead, looked: CoarseTs, now: CoarseTs) -> Split {
        let Passed { sent, ended, .. } = self.of_run(at, tag, looked);
        let split = Split::between(head.start, sent, ended, now);
        if head.flags & RQ_DELAYED != 0 { self.add_delay(tag, split) } else { split }
    }

    /// [`Stamps::split_of`] for the only request of the done list, which was not held back. Has a shortcut for a
    /// request that was sent alone, by a ring that then slept until it ended.
    #[inline(always)]
    pub(super) fn split_of_only(&mut self, tag: u16, head: &RqHead, looked: CoarseTs, now: CoarseTs) -> Split {
        if looked == ALL_THE_TIME && self.calls.is_empty() && self.sent[usize::from(tag)] == head.start {
            return Split::in_driver(now.ns_since(head.start));
        }
        self.split_of(0, tag, head, looked, now)
    }

    /// Resets `at` of `of_run` to the start of the done list.
    #[cold]
    pub(super) fn look_again(&mut self) {
        self.next = 0;
    }

    /// Called when the done list was emptied.
    #[inline(always)]
    pub(super) fn clear_calls(&mut self) {
        self.calls.clear();
        self.next = 0;
    }

    /// Begins a period in which the block layer holds the request back. `first` is true if there was none before.
    #[cold]
    pub(super) fn hold(&mut self, tag: u16, first: bool, now: CoarseTs) {
        if first {
            self.delays[usize::from(tag)] = Delay::default();
        }
        self.send_one(tag, now);
    }

    /// Ends the period that `hold` began: the driver gets the request now.
    #[cold]
    pub(super) fn send_again(&mut self, tag: u16, now: CoarseTs) {
        self.delays[usize::from(tag)].held_ns += now.ns_since(self.sent[usize::from(tag)]);
        self.send_one(tag, now);
    }

    /// Sets the time for which the bio waited for this request.
    #[cold]
    pub(super) fn waited(&mut self, tag: u16, waited_ns: u64) {
        self.delays[usize::from(tag)] = Delay { waited_ns, held_ns: 0 };
    }

    /// Records a call of the driver that has ended the requests `first..end` of the done list.
    #[inline(always)]
    pub(super) fn push_call(&mut self, (first, end): (usize, usize), sent: CoarseTs, ended: CoarseTs) {
        let call = Call { first: first as u32, end: end as u32, sent, ended };
        if self.calls.len() < CALLS_MAX {
            self.calls.push(call);
        } else if let Some(last) = self.calls.last_mut() {
            (last.end, last.ended) = (call.end, ended);
        }
    }

    /// Treats all requests in flight as sent at `now`.
    #[cold]
    pub(super) fn restart(&mut self, now: CoarseTs) {
        self.sent.fill(now);
        self.clear_calls();
    }
}

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
