//! Arenas: nodes of atomic words that are named by number and never move.
//!
//! Owns the memory of nodes. The use of nodes, and their parents, are recorded in `nodes`, under the pool's lock.
//!
//! Chunk `k` holds twice as many nodes as the one before it. So a few chunks hold any number of nodes, and finding a
//! node takes a count of leading zeroes and one load. Each arena chooses the size of its first chunk. Untouched memory
//! is not allocated by the system, so an arena that every I/O reads has a first chunk large enough for most pools: all
//! of its nodes are in one piece there.
//!
//! Memory beyond the first 2 MiB of an arena is advised to use huge pages, as replays and lookups access it at random.
//!
//! - I1: a chunk stays until the arena is dropped, so readers need no lock to reach a word.
//! - I2: a word of a node that was never made is absent, or 0.
//!
//! Called by the lookups of [`ExtentMap`](super::ExtentMap), and by changes under the lock.

use std::sync::OnceLock;

use sheave_base::huge_pages::{self, HUGE_PAGE};
use sheave_base::sync::atomic::AtomicU64;

/// Binary logarithm of the number of nodes in the first chunk, if the arena does not choose another one.
const FIRST_SHIFT: u32 = if cfg!(shuttle) { 1 } else { 6 };
/// Number of chunks: enough for all node numbers.
const CHUNKS: usize = 26;

/// Nodes of `1 << shift` words each.
#[derive(Debug)]
pub(crate) struct Arena {
    shift: u32,
    first_shift: u32,
    chunks: [OnceLock<Box<[AtomicU64]>>; CHUNKS],
}

impl Arena {
    pub(crate) fn new(shift: u32) -> Arena {
        Arena::with_first(shift, FIRST_SHIFT)
    }

    /// Makes an arena with `1 << first_shift` nodes in the first chunk.
    pub(crate) fn with_first(shift: u32, first_shift: u32) -> Arena {
        Arena { shift, first_shift, chunks: [const { OnceLock::new() }; CHUNKS] }
    }

    /// Returns word `word` of node `id`; `None` if the node was never made.
    #[inline(always)]
    pub(crate) fn word(&self, id: u32, word: usize) -> Option<&AtomicU64> {
        let (chunk, node) = self.place(id);
        self.chunks.get(chunk)?.get()?.get((node << self.shift) + word)
    }

    /// Returns the number of the first word of a node, in a sequence of the words of all nodes.
    #[inline(always)]
    pub(crate) fn first_word(&self, id: u32) -> u64 {
        u64::from(id) << self.shift
    }

    /// Returns a word by its number in that sequence.
    pub(crate) fn word_at(&self, number: u64) -> Option<&AtomicU64> {
        let id = u32::try_from(number >> self.shift).ok()?;
        self.word(id, number as usize & ((1 << self.shift) - 1))
    }

    /// Returns the last chunk that has memory, and the number of its first word. More than half of all nodes are in
    /// that chunk.
    #[inline(always)]
    pub(crate) fn last_chunk(&self) -> (u64, &[AtomicU64]) {
        let [first, second, ..] = &self.chunks;
        let words = first.get().map_or(&[][..], |words| words);
        if second.get().is_none() { (0, words) } else { self.last_of_many() }
    }

    #[cold]
    fn last_of_many(&self) -> (u64, &[AtomicU64]) {
        let mut last: (u64, &[AtomicU64]) = (0, &[]);
        for (chunk, cell) in self.chunks.iter().enumerate() {
            let Some(words) = cell.get() else { break };
            last = (self.first_word(self.first_node(chunk)), words);
        }
        last
    }

    #[inline(always)]
    fn first_node(&self, chunk: usize) -> u32 {
        (1 << (self.first_shift + chunk as u32)) - (1 << self.first_shift)
    }

    /// Returns the chunk of a node, and its index in the chunk.
    #[inline(always)]
    fn place(&self, id: u32) -> (usize, usize) {
        // Adding the size of the first chunk makes the position of the highest bit the number of the chunk.
        let shifted = id as usize + (1 << self.first_shift);
        let log = shifted.ilog2();
        ((log - self.first_shift) as usize, shifted - (1 << log))
    }

    #[inline]
    pub(crate) fn node(&self, id: u32) -> Option<&[AtomicU64]> {
        let (chunk, node) = self.place(id);
        self.chunks.get(chunk)?.get()?.get(node << self.shift..(node + 1) << self.shift)
    }

    /// Makes sure that node `id` has memory. Returns false if the allocation fails.
    pub(crate) fn make(&self, id: u32) -> bool {
        let (chunk, _) = self.place(id);
        let Some(cell) = self.chunks.get(chunk) else { return false };
        if cell.get().is_some() {
            return true;
        }
        let Some(words) = (1usize << (self.first_shift + chunk as u32)).checked_shl(self.shift).and_then(zeroed) else {
            return false;
        };
        // Nodes are taken in the order of their numbers, so all huge pages but the last are used entirely.
        let small = if chunk == 0 { HUGE_PAGE / size_of::<AtomicU64>() } else { 0 };
        huge_pages::advise(words.get(small..).unwrap_or_default());
        cell.set(words).is_ok() || cell.get().is_some()
    }

    pub(crate) fn node_bytes(&self) -> u64 {
        8 << self.shift
    }
}

/// Allocates zeroed memory, which the system provides page by page as it is touched.
#[cfg(not(any(shuttle, sheave_mesi)))]
pub(super) fn zeroed(words: usize) -> Option<Box<[AtomicU64]>> {
    use zerocopy::FromZeros;
    <[AtomicU64]>::new_box_zeroed_with_elems(words).ok()
}

/// Variant for model checkers, whose atomics cannot be made from zeroed memory.
#[cfg(any(shuttle, sheave_mesi))]
pub(super) fn zeroed(words: usize) -> Option<Box<[AtomicU64]>> {
    Some((0..words).map(|_| AtomicU64::new(0)).collect())
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use sheave_base::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn every_node_has_a_place_of_its_own() {
        for first_shift in [1, 6, 14] {
            let arena = Arena::with_first(3, first_shift);
            let mut next = (0, 0);
            for id in 0..100_000u32 {
                let at = arena.place(id);
                assert_eq!(at, next, "node {id}");
                assert_eq!(arena.first_node(at.0) + at.1 as u32, id);
                next = if at.1 + 1 == 1 << (first_shift as usize + at.0) { (at.0 + 1, 0) } else { (at.0, at.1 + 1) };
            }
        }
        assert!(Arena::new(3).place(super::super::nodes::MAX_NODES - 1).0 < CHUNKS, "the last number has a chunk");
    }

    #[test]
    fn the_last_chunk_has_the_words_that_its_numbers_say() {
        let arena = Arena::with_first(2, 1);
        assert_eq!(arena.last_chunk().1.len(), 0, "nothing is made yet");
        for id in 0..500 {
            assert!(arena.make(id));
            let (start, words) = arena.last_chunk();
            let at = (arena.first_word(id) - start) as usize;
            assert!(std::ptr::eq(&raw const words[at + 3], arena.word(id, 3).expect("made")), "node {id}");
            let named = arena.word_at(arena.first_word(id) + 3).expect("made");
            assert!(std::ptr::eq(&raw const words[at + 3], named), "node {id}");
            assert!(words.len() as u64 >= start, "more than half of all");
        }
        assert!(arena.word_at(u64::MAX).is_none() && arena.word_at(1 << 20).is_none());
    }

    #[test]
    fn nodes_are_zero_and_keep_what_is_stored() {
        let arena = Arena::new(3);
        assert!(arena.word(70, 0).is_none(), "nobody made it");
        for id in [1, 63, 64, 70, 5000] {
            assert!(arena.make(id));
            for (at, word) in arena.node(id).expect("made").iter().enumerate() {
                assert_eq!(word.load(Ordering::Relaxed), 0);
                word.store(u64::from(id) << 8 | at as u64, Ordering::Relaxed);
            }
        }
        for id in [1, 63, 64, 70, 5000] {
            let word = arena.word(id, 7).expect("made").load(Ordering::Relaxed);
            assert_eq!(word, u64::from(id) << 8 | 7);
        }
    }
}
