//! The busy time of one hardware context: for how long at least one of its requests was accounted.
//!
//! Owns one word. While no request is accounted it holds the busy time so far, in ns. A busy period takes its start
//! from the word when it begins, and adds its end when it ends; so in the middle of one the word is negative, and lacks
//! the present time to be the busy time until now. An I/O or a batch in the middle of a period costs nothing, and a
//! reader needs one load: it can mix up no two words.
//!
//! Invariants:
//! - B1: periods do not overlap: one begins at the stamp of its first request, but not before the last one ended (that
//!   request may have waited in the plug through the end of it), and ends at the stamp of the batch that leaves
//!   nothing.
//! - B2: the sign of the word tells busy from idle, for the clock's 0 is before anything was done: whoever is busy all
//!   the time from some moment on has a busy time that is less than the time.
//! - B3: who calls knows whether a period is open: a begin and an end follow each other in turns.

use sheave_base::clock::{Clock, CoarseTs};
use sheave_base::sync::atomic::{AtomicU64, Ordering};

/// When the last busy period began or ended in which there may have been another plug; its owner's alone.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BusyEdge(CoarseTs);

/// The busy time of one hardware context.
#[derive(Debug, Default)]
pub(crate) struct BusyTime {
    word: AtomicU64,
}

impl BusyTime {
    /// A request is accounted that was issued at `start`, which may be a stamp from before the last period's end.
    #[inline(always)]
    pub(crate) fn begin(&self, edge: BusyEdge, start: CoarseTs) {
        self.begin_at(start.max(edge.0)); // B1
    }

    /// A request is accounted that was issued at `start`, by a clock that was read for it.
    #[inline(always)]
    pub(crate) fn begin_at(&self, start: CoarseTs) {
        self.add(start.0.wrapping_neg());
    }

    /// No request is accounted any more, since `now`.
    #[inline(always)]
    pub(crate) fn end(&self, edge: &mut BusyEdge, now: CoarseTs) {
        edge.0 = now;
        // Relaxed, both: single writer. A clock that is a little behind the start's must not make it negative (B2).
        let busy_ns = self.word.load(Ordering::Relaxed).wrapping_add(now.0);
        self.word.store(if is_negative(busy_ns) { 0 } else { busy_ns }, Ordering::Relaxed);
    }

    /// As [`BusyTime::end`], for a time that surely is not before the period's start.
    #[inline(always)]
    pub(crate) fn end_at(&self, edge: &mut BusyEdge, now: CoarseTs) {
        edge.0 = now;
        self.add(now.0);
    }

    /// Adds a whole period, outside of any other.
    #[inline(always)]
    pub(crate) fn add(&self, ns: u64) {
        // Relaxed, both: single writer.
        self.word.store(self.word.load(Ordering::Relaxed).wrapping_add(ns), Ordering::Relaxed);
    }

    /// The busy time until now.
    pub(crate) fn read(&self, clock: &Clock) -> u64 {
        // Relaxed: the word says all by itself.
        let word = self.word.load(Ordering::Relaxed);
        if !is_negative(word) {
            return word;
        }
        let busy_ns = word.wrapping_add(clock.coarse().0);
        // The reader's clock may be a little behind the owner's.
        if is_negative(busy_ns) { 0 } else { busy_ns }
    }
}

fn is_negative(word: u64) -> bool {
    word.cast_signed() < 0
}
