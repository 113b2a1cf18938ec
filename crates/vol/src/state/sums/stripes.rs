//! Stripes: approximate tracking of blocks with writes in flight.
//!
//! Owns one word per stripe; the number of a block gives its stripe. A word has the number of writes in flight (bits
//! 0..16), a flag that two writes have overlapped since that number was last 0 ([`CLASH`]), and a version that each
//! begin and end changes. Writes to unrelated blocks of one stripe look like overlapping writes to one block. They
//! cause only extra work.
//!
//! - T1: of overlapping writes to one block, the last to end finds the clash: the later begin sets `CLASH`, which stays
//!   set until no write is in flight.
//! - T2: if two loads return the same word without writes in flight, no write to its blocks was in flight between them.

use sheave_base::sync::atomic::{AtomicU64, Ordering};

/// Number of stripes. Few under a model checker, which allocates them anew for each schedule.
const STRIPES: usize = if cfg!(shuttle) { 1 << 4 } else { 1 << 16 };
const WRITES: u64 = (1 << 16) - 1;
const CLASH: u64 = 1 << 16;
const VERSION: u64 = 1 << 17;

#[derive(Debug)]
pub(crate) struct Stripes {
    words: Box<[AtomicU64]>,
}

impl Stripes {
    pub(crate) fn new() -> Stripes {
        Stripes { words: (0..STRIPES).map(|_| AtomicU64::new(0)).collect() }
    }

    fn word(&self, block: u64) -> &AtomicU64 {
        // Neighbouring blocks have different stripes, so a write of several blocks does not clash with itself.
        &self.words[block as usize & (STRIPES - 1)]
    }

    /// Called before the data of a write to the block is sent.
    pub(crate) fn begin(&self, block: u64) {
        let change = |word: u64| {
            let clash = if word & WRITES != 0 { CLASH } else { 0 };
            Some((word | clash).wrapping_add(VERSION + 1))
        };
        // SeqCst pairs with all others of this file: the words order the checksums against the device's reads and
        // writes.
        let _ = self.word(block).fetch_update(Ordering::SeqCst, Ordering::SeqCst, change);
    }

    /// Ends a write to the block. The stored checksum is that of the data on the device now.
    pub(crate) fn end(&self, block: u64) {
        // SeqCst pairs with the one in `begin`.
        let _ = self.word(block).fetch_update(Ordering::SeqCst, Ordering::SeqCst, |word| Some(ended(word)));
    }

    /// Ends a write to the block whose checksum has been stored. If the write was not alone, leaves it in flight and
    /// returns false.
    pub(crate) fn end_alone(&self, block: u64) -> bool {
        let change = |word: u64| (word & CLASH == 0).then(|| ended(word));
        // SeqCst pairs with the one in `begin`.
        self.word(block).fetch_update(Ordering::SeqCst, Ordering::SeqCst, change).is_ok()
    }

    /// Ends all blocks of one write, each as [`Stripes::end_alone`]. Returns false if the write was not alone on some
    /// block: then all blocks are in flight again, with a new version as if rewritten, because the write reads all of
    /// them back.
    pub(crate) fn end_all_alone(&self, blocks: impl Iterator<Item = u64> + Clone) -> bool {
        let alone = blocks.clone().take_while(|&block| self.end_alone(block)).count();
        if alone == blocks.clone().count() {
            return true;
        }
        blocks.take(alone).for_each(|block| self.begin(block));
        false
    }

    /// Returns true if writes in flight to the block have overlapped.
    pub(crate) fn clashes(&self, block: u64) -> bool {
        self.word(block).load(Ordering::SeqCst) & CLASH != 0 // SeqCst pairs with the one in `begin`
    }

    /// Returns the word if no write is in flight, for a later comparison (T2).
    pub(crate) fn quiet(&self, block: u64) -> Option<u64> {
        // SeqCst pairs with those in `begin` and `end`.
        let word = self.word(block).load(Ordering::SeqCst);
        (word & WRITES == 0).then_some(word)
    }
}

/// Returns the word with one write less.
fn ended(word: u64) -> u64 {
    debug_assert!(word & WRITES != 0, "as many ends as begins");
    let left = word.wrapping_add(VERSION).wrapping_sub(1);
    if left & WRITES == 0 { left & !CLASH } else { left }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_lone_write_is_alone_and_two_are_not() {
        let stripes = Stripes::new();
        stripes.begin(5);
        assert!(!stripes.clashes(5) && stripes.quiet(5).is_none());
        assert!(stripes.end_alone(5));
        let quiet = stripes.quiet(5).unwrap();
        for _ in 0..2 {
            stripes.begin(5);
        }
        assert!(stripes.clashes(5) && !stripes.clashes(6));
        assert!(!stripes.end_alone(5), "the first to end");
        stripes.end(5);
        assert!(stripes.clashes(5), "the flag stays for the last");
        assert!(!stripes.end_alone(5), "the last to end");
        stripes.end(5);
        assert!(!stripes.clashes(5));
        assert_ne!(stripes.quiet(5), Some(quiet), "a write came in between");
        stripes.begin(5);
        stripes.begin(5 + (1 << 16));
        assert!(stripes.clashes(5), "they share a stripe");
    }

    /// A read must not find the earlier blocks quiet between their end and their being read back.
    #[test]
    fn a_clash_in_a_later_block_restarts_all_blocks() {
        let stripes = Stripes::new();
        (5..8).for_each(|block| stripes.begin(block));
        let before: Vec<_> = (5..7).map(|block| stripes.word(block).load(Ordering::SeqCst)).collect();
        stripes.begin(7);
        assert!(!stripes.end_all_alone(5..8));
        assert!((5..8).all(|block| stripes.quiet(block).is_none()), "all are under way");
        let after: Vec<_> = (5..7).map(|block| stripes.word(block).load(Ordering::SeqCst)).collect();
        assert!(before.iter().zip(&after).all(|(before, after)| before != after), "as if written anew");
        (5..8).for_each(|block| stripes.end(block));
        assert!(stripes.quiet(5).is_some() && stripes.quiet(6).is_some() && stripes.quiet(7).is_none());
        stripes.end(7);
        (5..8).for_each(|block| stripes.begin(block));
        assert!(stripes.end_all_alone(5..8) && (5..8).all(|block| stripes.quiet(block).is_some()));
    }
}
