//! Stripes: which blocks are being written just now, told well enough.
//!
//! Owns a word for each of many stripes; a block belongs to one of them by its number. A word has the writes under way
//! (bits 0..16), whether two were at once since there was none ([`CLASH`]), and a version that each begin and end
//! changes. Blocks that share a stripe by chance look as if they were written at once: that costs time, no more.
//!
//! - T1: of writes to one block at once, the last to end sees the clash: the flag is set when the later of two begins,
//!   and stays until nothing is under way.
//! - T2: when a word is the same twice, with no write under way, no write to its blocks was under way in between.

use sheave_base::sync::atomic::{AtomicU64, Ordering};

/// Few under a model checker, which makes them anew for each schedule.
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
        // Neighbours have stripes of their own: writes of a run of blocks do not clash with themselves.
        &self.words[block as usize & (STRIPES - 1)]
    }

    /// A write to the block begins: before its data is sent.
    pub(crate) fn begin(&self, block: u64) {
        let change = |word: u64| {
            let clash = if word & WRITES != 0 { CLASH } else { 0 };
            Some((word | clash).wrapping_add(VERSION + 1))
        };
        // SeqCst pairs with all others of this file: the words stand between the checksums and what the device does.
        let _ = self.word(block).fetch_update(Ordering::SeqCst, Ordering::SeqCst, change);
    }

    /// It has ended, and the block's checksum is that of what lies on the device.
    pub(crate) fn end(&self, block: u64) {
        // SeqCst pairs with the one in `begin`.
        let _ = self.word(block).fetch_update(Ordering::SeqCst, Ordering::SeqCst, |word| Some(ended(word)));
    }

    /// It has ended, and the checksum of what it wrote is stored; false if it was not alone: it is under way still.
    pub(crate) fn end_alone(&self, block: u64) -> bool {
        let change = |word: u64| (word & CLASH == 0).then(|| ended(word));
        // SeqCst pairs with the one in `begin`.
        self.word(block).fetch_update(Ordering::SeqCst, Ordering::SeqCst, change).is_ok()
    }

    /// All blocks of one write have ended, each as by [`Stripes::end_alone`]; false if any was not alone: then all of
    /// them are under way still, or again, as if written anew, for the write reads all of them back.
    pub(crate) fn end_all_alone(&self, blocks: impl Iterator<Item = u64> + Clone) -> bool {
        let alone = blocks.clone().take_while(|&block| self.end_alone(block)).count();
        if alone == blocks.clone().count() {
            return true;
        }
        blocks.take(alone).for_each(|block| self.begin(block));
        false
    }

    /// Whether a write that is under way is not alone.
    pub(crate) fn clashes(&self, block: u64) -> bool {
        self.word(block).load(Ordering::SeqCst) & CLASH != 0 // SeqCst pairs with the one in `begin`
    }

    /// The word, if no write is under way: compare it later (T2).
    pub(crate) fn quiet(&self, block: u64) -> Option<u64> {
        // SeqCst pairs with those in `begin` and `end`.
        let word = self.word(block).load(Ordering::SeqCst);
        (word & WRITES == 0).then_some(word)
    }
}

/// The word with one write less.
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

    /// A read between the end of the earlier blocks and their being read back must not find them quiet.
    #[test]
    fn a_write_that_meets_another_in_a_later_block_has_all_its_blocks_under_way_again() {
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
