//! The state word of each item: one word decides who has it.
//!
//! Owns the states and every transition, and so the cancelling of work: one exchange on the word decides. So it does
//! not matter whether the entry lies in a shard, in a hash's run or in a worker's batch, and no lock is taken. What is
//! left of a cancelled item is an entry that starts nothing; it goes when a worker comes past it, or when its shard is
//! full.
//!
//! ```text
//!            queue                start                end
//!   IDLE ------------> QUEUED ------------> RUNNING ------------> IDLE
//!     ^                  |   \              (| CANCEL, once asked to end early)
//!     |     cancel       |
//!     +------------------+
//! ```
//!
//! | state | meaning | left by |
//! |---|---|---|
//! | `IDLE` | the slot's owner has it | `queue` |
//! | `QUEUED` | its entry is in some shard, run or batch | `start` (a worker), `cancel` (anybody): one wins |
//! | `RUNNING` | one worker runs it | `end` (that worker) |
//!
//! Invariants:
//! - I1: each transition out of `QUEUED` is a compare and exchange, so an item is started once or cancelled once.
//! - I2: the generation grows with each `queue`; `start` needs the generation of its entry, so an entry left behind
//!   by a cancel starts nothing, also when the slot was queued again.
//! - I3: `end` comes before the result is handed over: whoever has the result may queue the slot.
//! - I4: a cancel has one outcome, and an item one end: `Queued` and it never runs and never comes back; `Running` and
//!   its result comes as always; `NotFound` and its result has been handed over, or it never was queued.

use sheave_base::sync::atomic::{AtomicU32, Ordering};

use super::work::GENERATION_BITS;

const IDLE: u32 = 0;
const QUEUED: u32 = 1;
const RUNNING: u32 = 2;
const CANCEL: u32 = 4;
const STATE_BITS: u32 = u32::BITS - GENERATION_BITS;
const STATE: u32 = (1 << STATE_BITS) - 1;

/// What a cancel found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    /// It had not started: it will not run, and its slot is free.
    Queued,
    /// A worker runs it, and was asked to end early; its result comes as always (`-EALREADY` for the canceller).
    Running,
    /// Neither queued nor running (`-ENOENT`).
    NotFound,
}

/// The items of one client: a word a slot, the generation above the state.
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

    /// The owner hands a slot over; the generation for its entry. `None` when the slot is queued or runs.
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

    /// A worker takes an item; false when it was cancelled before (I2).
    #[inline]
    pub(super) fn start(&self, slot: u32, generation: u32) -> bool {
        let Some(word) = self.words.get(slot as usize) else { return false };
        let at = generation << STATE_BITS;
        // Acquire pairs with the Release of `queue`. Relaxed on failure: nothing is touched then.
        word.compare_exchange(at | QUEUED, at | RUNNING, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// The worker that started an item is done with it.
    #[inline]
    pub(super) fn end(&self, slot: u32, generation: u32) {
        // Release pairs with the Acquire of `queue`. A cancel that comes now finds the item idle.
        self.words[slot as usize].store(generation << STATE_BITS | IDLE, Ordering::Release);
    }

    /// Takes an item back, wherever it is (I1).
    pub(super) fn cancel(&self, slot: u32) -> Cancelled {
        let Some(word) = self.words.get(slot as usize) else { return Cancelled::NotFound };
        // Acquire pairs with the Release of `end`: after `NotFound` its result is on the way.
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

    /// Whether the item of an entry still waits for a worker.
    pub(super) fn is_queued(&self, slot: u32, generation: u32) -> bool {
        // Relaxed: a false only lets the sweep drop an entry whose item has been taken, and that is final (I2).
        self.words
            .get(slot as usize)
            .is_some_and(|word| word.load(Ordering::Relaxed) == generation << STATE_BITS | QUEUED)
    }

    /// Whether the slot's owner has it.
    pub(super) fn is_idle(&self, slot: u32) -> bool {
        // SeqCst pairs with the fence between `end` and the look at `closing` in `Client::finish`.
        self.words[slot as usize].load(Ordering::SeqCst) & STATE == IDLE
    }

    /// Whether the running item was asked to end early.
    pub(super) fn is_cancelled(&self, slot: u32) -> bool {
        // Relaxed: a request, and nothing comes with it.
        self.words[slot as usize].load(Ordering::Relaxed) & CANCEL != 0
    }

    /// A generation that no entry of these items has: for the next client in the same place.
    pub(super) fn next_generation(&self) -> u32 {
        // Relaxed: the client is closed.
        let last = self.words.iter().map(|word| word.load(Ordering::Relaxed) >> STATE_BITS).max().unwrap_or(0);
        last.wrapping_add(1) & (u32::MAX >> STATE_BITS)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
