//! State word of each item: one atomic word decides who owns the item.
//!
//! Owns the states and every transition, including cancelling: one compare-exchange on the word decides. So a cancel
//! needs no lock, and need not find the entry, which may be in a shard, in a bucket or in a worker's batch. The entry
//! of a cancelled item starts nothing; it is dropped when a worker takes it or when its shard is swept.
//!
//! ```text
//!            queue                start                end
//!   IDLE ------------> QUEUED ------------> RUNNING ------------> IDLE
//!     ^                  |   \              (| CANCEL, if requested to end early)
//!     |     cancel       |
//!     +------------------+
//! ```
//!
//! | state | meaning | left by |
//! |---|---|---|
//! | `IDLE` | owned by the slot's owner | `queue` |
//! | `QUEUED` | its entry is in a shard, bucket or batch | `start` (a worker) or `cancel` (any thread): one wins |
//! | `RUNNING` | one worker runs it | `end` (that worker) |
//!
//! Invariants:
//! - I1: each transition out of `QUEUED` is a compare-exchange, so an item is either started once or cancelled once.
//! - I2: the generation grows with each `queue`; `start` needs the generation of its entry, so an entry left behind by
//!   a cancel starts nothing, even if the slot was queued again.
//! - I3: `end` comes before the result is delivered: the receiver of the result may queue the slot at once.
//! - I4: a cancel has one outcome, and an item one end. `Queued`: the item never runs and delivers no result.
//!   `Running`: its result is delivered as usual. `NotFound`: its result has been delivered or is about to be, or it
//!   was never queued.

use sheave_base::sync::atomic::{AtomicU32, Ordering};

use super::work::GENERATION_BITS;

const IDLE: u32 = 0;
const QUEUED: u32 = 1;
const RUNNING: u32 = 2;
const CANCEL: u32 = 4;
const STATE_BITS: u32 = u32::BITS - GENERATION_BITS;
const STATE: u32 = (1 << STATE_BITS) - 1;

/// Outcome of a cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    /// The item had not started: it will not run, and its slot is free.
    Queued,
    /// A worker runs the item, and was requested to end it early; its result comes as usual (`-EALREADY` for the
    /// canceller).
    Running,
    /// The item is neither queued nor running (`-ENOENT`).
    NotFound,
}

/// The items of one client: one word per slot, with the generation above the state bits.
#[derive(Debug)]
pub(super) struct Items {
    words: Box<[AtomicU32]>,
}

impl Items {
    pub(super) fn new(slots: u32, generation: u32) -> Items {
        let word = generation << STATE_BITS | IDLE;
        Items { words: (0..slots).map(|_| AtomicU32::new(word)).collect() }
    }

    pub(super) fn slots(&self) -> u32 {
        self.words.len() as u32
    }

    /// Queues a slot for its owner. Returns the generation for its entry, or `None` if the slot is queued or runs.
    pub(super) fn queue(&self, slot: u32) -> Option<u32> {
        let word = &self.words[slot as usize];
        // Acquire pairs with the Release of `end` and `cancel`.
        let old = word.load(Ordering::Acquire);
        if old & STATE != IDLE {
            return None;
        }
        let generation = (old >> STATE_BITS).wrapping_add(1) & (u32::MAX >> STATE_BITS);
        // Release pairs with the Acquire of `start`: the worker sees what the owner prepared. A store is enough: an
        // idle slot is its owner's alone.
        word.store(generation << STATE_BITS | QUEUED, Ordering::Release);
        Some(generation)
    }

    /// Called by a worker: starts a queued item. Returns false if it was cancelled (I2).
    #[inline]
    pub(super) fn start(&self, slot: u32, generation: u32) -> bool {
        // The stale entry of an earlier client may name a slot that this client does not have.
        let Some(word) = self.words.get(slot as usize) else { return false };
        let at = generation << STATE_BITS;
        // Acquire pairs with the Release of `queue`. Relaxed on failure: nothing is touched then.
        word.compare_exchange(at | QUEUED, at | RUNNING, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Called by the worker that started the item: ends it.
    #[inline]
    pub(super) fn end(&self, slot: u32, generation: u32) {
        // Release pairs with the Acquire of `queue`. A cancel that comes now finds the item idle.
        self.words[slot as usize].store(generation << STATE_BITS | IDLE, Ordering::Release);
    }

    /// Cancels the item of a slot, wherever its entry is (I1).
    pub(super) fn cancel(&self, slot: u32) -> Cancelled {
        let Some(word) = self.words.get(slot as usize) else { return Cancelled::NotFound };
        // Acquire pairs with the Release of `end`: if this finds `IDLE`, the result is being delivered.
        let mut old = word.load(Ordering::Acquire);
        loop {
            let (new, outcome) = match old & STATE {
                QUEUED => (old & !STATE | IDLE, Cancelled::Queued),
                IDLE => return Cancelled::NotFound,
                _ => (old | CANCEL, Cancelled::Running),
            };
            // AcqRel pairs with `start`, `end` and the Acquire of `queue`; Acquire on failure as above.
            match word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return outcome,
                Err(now) => old = now,
            }
        }
    }

    /// Returns true if the item of an entry still waits for a worker.
    pub(super) fn is_queued(&self, slot: u32, generation: u32) -> bool {
        // Relaxed: a false only lets the sweep drop an entry whose item has been taken, and that is final (I2).
        self.words
            .get(slot as usize)
            .is_some_and(|word| word.load(Ordering::Relaxed) == generation << STATE_BITS | QUEUED)
    }

    /// Returns true if the slot's owner owns it.
    pub(super) fn is_idle(&self, slot: u32) -> bool {
        // SeqCst pairs with the fence between `end` and the look at `closing` in `Client::finish`.
        self.words[slot as usize].load(Ordering::SeqCst) & STATE == IDLE
    }

    /// Returns true if the running item was requested to end early.
    pub(super) fn is_cancelled(&self, slot: u32) -> bool {
        // Relaxed: a request that publishes no other data.
        self.words[slot as usize].load(Ordering::Relaxed) & CANCEL != 0
    }

    /// Returns a generation that no entry of these items has, for the next client with the same number.
    pub(super) fn next_generation(&self) -> u32 {
        // Relaxed: the client is closed.
        let last = self.words.iter().map(|word| word.load(Ordering::Relaxed) >> STATE_BITS).max().unwrap_or(0);
        last.wrapping_add(1) & (u32::MAX >> STATE_BITS)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn item_passes_idle_queued_running_idle() {
        let items = Items::new(2, 5);
        assert!(items.is_idle(0) && items.is_idle(1));
        let generation = items.queue(0).expect("idle");
        assert_eq!(generation, 6);
        assert_eq!(items.queue(0), None, "queued already");
        assert!(items.is_queued(0, 6) && !items.is_queued(0, 5) && !items.is_queued(9, 6));
        assert!(!items.start(0, 5), "an entry of an earlier use");
        assert!(items.start(0, 6) && !items.start(0, 6));
        assert_eq!(items.queue(0), None, "running");
        assert!(!items.is_cancelled(0));
        assert_eq!(items.cancel(0), Cancelled::Running);
        assert!(items.is_cancelled(0));
        items.end(0, 6);
        assert!(items.is_idle(0) && !items.is_cancelled(0));
        assert_eq!(items.cancel(0), Cancelled::NotFound);
        assert_eq!(items.queue(0), Some(7));
        assert_eq!(items.next_generation(), 8);
    }

    #[test]
    fn an_entry_left_behind_by_a_cancel_starts_nothing() {
        let items = Items::new(1, 0);
        let first = items.queue(0).expect("idle");
        assert_eq!(items.cancel(0), Cancelled::Queued);
        assert_eq!(items.cancel(0), Cancelled::NotFound);
        assert!(!items.start(0, first));
        let second = items.queue(0).expect("idle");
        assert!(!items.start(0, first), "of the first use");
        assert!(items.start(0, second));
        assert!(!items.start(7, second), "no such slot");
    }

    #[test]
    fn generations_wrap() {
        let last = u32::MAX >> STATE_BITS;
        let items = Items::new(1, last);
        assert_eq!(items.queue(0), Some(0));
        assert!(items.start(0, 0));
    }
}
