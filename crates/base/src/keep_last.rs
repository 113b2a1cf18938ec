//! The last entries that one thread has written, readable by any thread: each has a number, and the newest overwrites
//! the oldest.
//!
//! Owns the slots and the numbers. Does not own the meaning of an entry's words.
//!
//! A slot has a sequence number, odd while the entry is written (a *seqlock*): the writer never waits, and a reader
//! discards a copy whose slot was written meanwhile.
//!
//! Invariants:
//! - K1: one thread writes. [`KeepLast::read`] returns one entry as it was written, whole.
//! - K2: entries are numbered from 0 on, in order; as many as there are slots can be read, except one that is being
//!   overwritten.
//!
//! Called by the flight recorder of `sheave-iomap`.

use crossbeam_utils::CachePadded;

use crate::sync::atomic::{AtomicU64, Ordering, fence};

/// One slot, on lines of its own, so that a reader of one does not slow the writer of the next.
#[derive(Debug)]
#[repr(align(64))]
struct Place<const WORDS: usize> {
    /// Twice the entry's number plus 2. While the entry is written, it is one less.
    seq: AtomicU64,
    words: [AtomicU64; WORDS],
}

/// The last entries, each of `WORDS` words.
#[derive(Debug)]
pub struct KeepLast<const WORDS: usize> {
    places: Box<[Place<WORDS>]>,
    written: CachePadded<AtomicU64>,
}

impl<const WORDS: usize> KeepLast<WORDS> {
    /// Makes room for `entries` entries, at least one.
    #[must_use]
    pub fn new(entries: usize) -> KeepLast<WORDS> {
        let place = |_| Place { seq: AtomicU64::new(0), words: std::array::from_fn(|_| AtomicU64::new(0)) };
        KeepLast { places: (0..entries.max(1)).map(place).collect(), written: CachePadded::new(AtomicU64::new(0)) }
    }

    /// Returns the number of entries that were written, which is the number of the next one.
    pub fn written(&self) -> u64 {
        // Acquire pairs with the store in `push`: those entries can be read.
        self.written.load(Ordering::Acquire)
    }

    /// Returns the number of the oldest entry that is kept after `written` entries.
    #[must_use]
    pub fn oldest(&self, written: u64) -> u64 {
        written.saturating_sub(self.places.len() as u64)
    }

    fn place(&self, number: u64) -> &Place<WORDS> {
        &self.places[(number % self.places.len() as u64) as usize]
    }

    /// Writes the next entry. For the one writer (K1).
    pub fn push(&self, entry: &[u64; WORDS]) {
        // Relaxed: written by this thread alone.
        let number = self.written.load(Ordering::Relaxed);
        let place = self.place(number);
        place.seq.store(number * 2 + 1, Ordering::Relaxed);
        // Release pairs with the Acquire fence in `read`: a reader that has read a word of this entry sees the odd
        // number.
        fence(Ordering::Release);
        for (word, value) in place.words.iter().zip(entry) {
            word.store(*value, Ordering::Relaxed);
        }
        // Release pairs with the first load in `read`, which then sees the words.
        place.seq.store(number * 2 + 2, Ordering::Release);
        // Release pairs with the load in `written`.
        self.written.store(number + 1, Ordering::Release);
    }

    /// Returns the entry `number`, or `None` if it was overwritten, is being written, or was not written yet. Callable
    /// from any thread.
    #[must_use]
    pub fn read(&self, number: u64) -> Option<[u64; WORDS]> {
        let place = self.place(number);
        let whole = number * 2 + 2;
        // Acquire pairs with the last store of `seq` in `push`.
        if place.seq.load(Ordering::Acquire) != whole {
            return None;
        }
        // Relaxed: a copy that mixes two entries is discarded below.
        let entry = std::array::from_fn(|at| place.words[at].load(Ordering::Relaxed));
        // Acquire pairs with the Release fence in `push`.
        fence(Ordering::Acquire);
        (place.seq.load(Ordering::Relaxed) == whole).then_some(entry)
    }
}

#[cfg(all(test, any(shuttle, loom)))]
mod model;
#[cfg(all(test, not(any(shuttle, loom))))]
mod tests;
