//! Stamps of a hardware context's requests, other than those in the requests themselves, and the split computed from
//! them.
//!
//! Owns the times at which the driver got each request, the times at which a driver's call ended requests, and the time
//! for which the block layer held a request back. Does not read the clock; `stages` does.
//!
//! Invariants:
//! - P1: a stamp by tag belongs to the tag's current request: it is written when the driver gets the request, and
//!   before that if the request is held back.
//! - P2: requests of one batch that were not held back share all stamps. A request that was held back has
//!   [`RQ_DELAYED`] set and is counted by itself.

use sheave_base::clock::CoarseTs;

use crate::request::{RQ_DELAYED, RqHead};
use crate::ring_core::ALL_THE_TIME;
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
