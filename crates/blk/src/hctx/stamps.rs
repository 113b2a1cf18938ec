//! The stamps of a hardware context's requests, beside those that they carry themselves, and the split that comes of
//! them.
//!
//! Owns when the driver got each request, when a call ended some, and how long the block layer held a request back.
//! Does not read the clock: `stages` does, and says when.
//!
//! Invariants:
//! - P1: what is in a stamp by tag is of the tag's request now: it is written when the driver gets the request, and
//!   before that for one that is held back.
//! - P2: requests of one batch that were not held back share all stamps; one that was has [`RQ_DELAYED`], and is
//!   counted by itself.

use sheave_base::clock::CoarseTs;

use crate::request::{RQ_DELAYED, RqHead};
use crate::ring_core::ALL_THE_TIME;
use crate::stats::Split;

/// Calls that are told apart between two completion batches; those beyond count as one with the last.
const CALLS_MAX: usize = 64;

/// A call in which the driver ended requests.
#[derive(Debug)]
struct Call {
    /// The requests' numbers in the list of what has ended.
    first: u32,
    end: u32,
    sent: CoarseTs,
    ended: CoarseTs,
}

/// How long the block layer held a request back.
#[derive(Clone, Copy, Debug, Default)]
struct Delay {
    /// Before it was a request: its bio waited.
    waited_ns: u64,
    /// As a request.
    held_ns: u64,
}

/// When a request passed from stage to stage.
#[derive(Clone, Copy, Debug)]
pub(super) struct Passed {
    pub(super) sent: CoarseTs,
    pub(super) ended: CoarseTs,
    /// The first number of the list of what has ended whose request does not share that.
    pub(super) until: usize,
}

/// The stamps of a hardware context.
#[derive(Debug)]
pub(super) struct Stamps {
    /// By tag: when the driver got the request, or since when it is held back.
    sent: Box<[CoarseTs]>,
    /// By tag, of requests with [`RQ_DELAYED`].
    delays: Box<[Delay]>,
    calls: Vec<Call>,
    /// The first call that a completion batch has not passed.
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

    /// The driver gets this one request.
    #[inline(always)]
    pub(super) fn send_one(&mut self, tag: u16, now: CoarseTs) {
        self.sent[usize::from(tag)] = now;
    }

    /// The driver gets these requests.
    #[inline(always)]
    pub(super) fn send(&mut self, tags: &[u16], now: CoarseTs) {
        tags.iter().for_each(|&tag| self.send_one(tag, now));
    }

    /// When the request numbered `at` of the list of what has ended was sent, and when it ended; and up to which number
    /// of that list requests of one batch that were not held back share that. Asked with numbers that grow.
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

    /// Where the time of a request went that was held back: `split` is that of one that was not.
    #[cold]
    pub(super) fn add_delay(&self, tag: u16, split: Split) -> Split {
        let Delay { waited_ns, held_ns } = self.delays[usize::from(tag)];
        // As a request it was held back before the driver had it.
        let held_ns = held_ns.min(split.plugged_ns);
        Split { tag_ns: waited_ns + held_ns, plugged_ns: split.plugged_ns - held_ns, ..split }
    }

    /// Where the time of a request went that is numbered `at` in the list of what has ended.
    #[inline(always)]
    pub(super) fn split_of(&mut self, at: usize, tag: u16, head: &RqHead, looked: CoarseTs, now: CoarseTs) -> Split {
        let Passed { sent, ended, .. } = self.of_run(at, tag, looked);
        let split = Split::between(head.start, sent, ended, now);
        if head.flags & RQ_DELAYED != 0 { self.add_delay(tag, split) } else { split }
    }

    /// As [`Stamps::split_of`], of the only request in that list, which was not held back. Quick for one that was sent
    /// alone, by a ring that then slept until it ended.
    #[inline(always)]
    pub(super) fn split_of_only(&mut self, tag: u16, head: &RqHead, looked: CoarseTs, now: CoarseTs) -> Split {
        if looked == ALL_THE_TIME && self.calls.is_empty() && self.sent[usize::from(tag)] == head.start {
            return Split::in_driver(now.ns_since(head.start));
        }
        self.split_of(0, tag, head, looked, now)
    }

    /// Asks for numbers of the list of what has ended from the first on again.
    #[cold]
    pub(super) fn look_again(&mut self) {
        self.next = 0;
    }

    /// The list of what has ended was emptied.
    #[inline(always)]
    pub(super) fn clear_calls(&mut self) {
        self.calls.clear();
        self.next = 0;
    }

    /// The block layer holds this request back from now on; `first`: it has not before.
    #[cold]
    pub(super) fn hold(&mut self, tag: u16, first: bool, now: CoarseTs) {
        if first {
            self.delays[usize::from(tag)] = Delay::default();
        }
        self.send_one(tag, now);
    }

    /// The driver gets a request now that was held back.
    #[cold]
    pub(super) fn send_again(&mut self, tag: u16, now: CoarseTs) {
        self.delays[usize::from(tag)].held_ns += now.ns_since(self.sent[usize::from(tag)]);
        self.send_one(tag, now);
    }

    /// This request's bio has waited so long for it.
    #[cold]
    pub(super) fn waited(&mut self, tag: u16, waited_ns: u64) {
        self.delays[usize::from(tag)] = Delay { waited_ns, held_ns: 0 };
    }

    /// A call of the driver has ended the requests with these numbers of the list of what has ended.
    #[inline(always)]
    pub(super) fn push_call(&mut self, (first, end): (usize, usize), sent: CoarseTs, ended: CoarseTs) {
        let call = Call { first: first as u32, end: end as u32, sent, ended };
        if self.calls.len() < CALLS_MAX {
            self.calls.push(call);
        } else if let Some(last) = self.calls.last_mut() {
            (last.end, last.ended) = (call.end, ended);
        }
    }

    /// Nothing is known of what is in flight but that it is.
    #[cold]
    pub(super) fn restart(&mut self, now: CoarseTs) {
        self.sent.fill(now);
        self.clear_calls();
    }
}
