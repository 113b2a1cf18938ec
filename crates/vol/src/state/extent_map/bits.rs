//! Written bits: the blocks of a unit that have data. They are in the entry itself, or beside the entries of its leaf.
//!
//! Owns the layout of the bits, and the counts of written blocks. Does not own the mapping of units, which
//! [`tree`](super::tree) changes.
//!
//! Called under the pool's lock, by writes and discards, and by recovery.

use sheave_base::sync::atomic::Ordering;

use super::Entry;
use super::tree::{EntryPlace, Tree};

impl Tree {
    /// Marks blocks of a unit as written. `entry` has `DIRTY` and is stored before the bits (I4 of
    /// [`extent_map`](super)), because a writer that sees a bit may overwrite the block.
    pub(crate) fn write_blocks(&mut self, place: EntryPlace, entry: Entry, first: u32, count: u32) {
        debug_assert!(entry.has(Entry::ALLOC | Entry::DIRTY));
        self.store(place, entry);
        self.set_bits(place, first, count, true);
        if self.written(place).0 {
            self.store(place, entry.with(Entry::FULL));
        }
    }

    /// Sets or clears the written bits of `count` blocks of a unit.
    pub(crate) fn set_bits(&mut self, place: EntryPlace, first: u32, count: u32, written: bool) {
        if self.map.geometry.has_bits_in_entries() {
            return self.set_bits_in_entry(place, ((1 << count) - 1) << first, written);
        }
        let mut at = (place.slot << self.map.geometry.blocks_shift()) + first as usize;
        let end = at + count as usize;
        while at < end {
            let here = (64 - (at & 63)).min(end - at);
            let mask = (u64::MAX >> (64 - here)) << (at & 63);
            if let Some(word) = self.map.bits.word(place.leaf, at >> 6) {
                let old = word.load(Ordering::Relaxed); // Relaxed: under the lock.
                let new = if written { old | mask } else { old & !mask };
                // Release: pairs with the Acquire load in `ExtentMap::written_run`.
                word.store(new, Ordering::Release);
                #[cfg(all(test, not(shuttle)))]
                super::watch::stored();
                self.leaves.add_written(place.leaf, (new & !old).count_ones(), (old & !new).count_ones());
            }
            at += here;
        }
    }

    fn set_bits_in_entry(&mut self, place: EntryPlace, mask: u64, written: bool) {
        let old = self.entry(place).bits();
        self.replace_bits_in_entry(place, if written { old | mask } else { old & !mask });
    }

    fn replace_bits_in_entry(&mut self, place: EntryPlace, new: u64) {
        let entry = self.entry(place);
        let old = entry.bits();
        if let Some(word) = self.map.leaves.word(place.leaf, place.slot) {
            word.store(entry.with_bits(new).0, Ordering::Release); // Release: pairs with the Acquire load in `find`
            #[cfg(all(test, not(shuttle)))]
            super::watch::stored();
            self.leaves.add_written(place.leaf, (new & !old).count_ones(), (old & !new).count_ones());
        }
    }

    /// Returns the written bits of a unit.
    pub(crate) fn bits(&self, place: EntryPlace) -> [u64; 4] {
        if self.map.geometry.has_bits_in_entries() {
            return [self.entry(place).bits(), 0, 0, 0];
        }
        let blocks = self.map.geometry.blocks() as usize;
        let word = |at: usize| {
            // Relaxed: under the lock.
            self.map.bits.word(place.leaf, at).map_or(0, |word| word.load(Ordering::Relaxed))
        };
        if blocks < 64 {
            let at = place.slot * blocks;
            return [word(at >> 6) >> (at & 63) & ((1 << blocks) - 1), 0, 0, 0];
        }
        std::array::from_fn(|n| if n < blocks / 64 { word(place.slot * (blocks / 64) + n) } else { 0 })
    }

    /// Replaces the written bits of a unit. Returns true if all of its blocks are written now.
    pub(crate) fn store_bits(&mut self, place: EntryPlace, bits: &[u64; 4]) -> bool {
        let blocks = self.map.geometry.blocks() as usize;
        if self.map.geometry.has_bits_in_entries() {
            let all = (1 << blocks) - 1;
            self.replace_bits_in_entry(place, bits[0] & all);
            return bits[0] & all == all;
        }
        for (at, bits) in bits.iter().enumerate().take(blocks.div_ceil(64)) {
            let (first, count) = (at * 64, blocks.min(64));
            self.set_bits(place, first as u32, count as u32, false);
            let mut left = *bits & (u64::MAX >> (64 - count));
            while left != 0 {
                let from = left.trailing_zeros();
                let run = (left >> from).trailing_ones();
                self.set_bits(place, first as u32 + from, run, true);
                left &= !((u64::MAX >> (64 - run)) << from);
            }
        }
        self.written(place).0
    }

    /// Fills a new leaf from its page. `written` has `words` words of written bits per entry.
    pub(crate) fn fill_leaf(&mut self, leaf: u32, entries: &[u64], written: &[u64], words: usize) {
        let geometry = &self.map.geometry;
        let blocks = geometry.blocks() as usize;
        let full = if blocks >= 64 { u64::MAX } else { (1 << blocks) - 1 };
        let (Some(to), bits) = (self.map.leaves.node(leaf), self.map.bits.node(leaf)) else { return };
        let mut blocks_written = 0;
        for (at, ((to, &phys), written)) in to.iter().zip(entries).zip(written.chunks_exact(words)).enumerate() {
            if phys == 0 {
                continue;
            }
            // Relaxed, all: the node's number is published later.
            blocks_written += written.iter().map(|word| word.count_ones()).sum::<u32>();
            let flags = if written.iter().all(|word| *word == full) { Entry::FULL } else { 0 };
            let mut entry = Entry::at(phys).with(flags);
            match (bits, written) {
                (None, [word, ..]) => entry = entry.with_bits(*word),
                (None, []) => {}
                (Some(bits), written) => {
                    for (n, word) in written.iter().enumerate() {
                        let bit = at * blocks + n * 64;
                        let old = bits[bit >> 6].load(Ordering::Relaxed);
                        bits[bit >> 6].store(old | word << (bit & 63), Ordering::Relaxed);
                    }
                }
            }
            to.store(entry.0, Ordering::Relaxed);
        }
        self.leaves.add_written(leaf, blocks_written, 0);
    }

    /// Returns two flags: true if all blocks of a unit are written, and true if any block is.
    pub(crate) fn written(&self, place: EntryPlace) -> (bool, bool) {
        let blocks = self.map.geometry.blocks();
        let (written, run) = self.map.written_run(place.leaf, place.slot, 0, blocks);
        (written && run == blocks, written || run < blocks)
    }
}
