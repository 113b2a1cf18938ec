//! Arenas: nodes of atomic words, named by number, that never move.
//!
//! Owns the memory of nodes. Does not own which node is in use, nor by whom: that is `nodes`, under the pool's lock.
//!
//! Chunk `k` holds twice as many nodes as the one before it, so a handful of chunks holds any number of them, and
//! finding one takes a count of leading zeroes and one load. How many the first one holds is the arena's: memory that
//! nobody has touched is none, so an arena whose nodes are looked up for every I/O has a first chunk that is large
//! enough for most pools, and lookups find all nodes in one piece.
//!
//! What lies beyond the first 2 MiB of an arena is asked for in huge pages: replays and lookups go all over it.
//!
//! - I1: a chunk, once there, stays until the arena is dropped; readers need no lock to reach a word.
//! - I2: a word of a node that nobody has made is none, or 0.
//!
//! Called by the lookups of [`ExtentMap`](super::ExtentMap), and by the mutations under the lock.

use std::sync::OnceLock;

use sheave_base::huge_pages::{self, HUGE_PAGE};
use sheave_base::sync::atomic::AtomicU64;

/// Nodes of the first chunk, as a power of two, unless the arena says otherwise.
const FIRST_SHIFT: u32 = if cfg!(shuttle) { 1 } else { 6 };
/// Chunks: together they hold more nodes than there are numbers.
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

    /// With `1 << first_shift` nodes in the first chunk.
    pub(crate) fn with_first(shift: u32, first_shift: u32) -> Arena {
        Arena { shift, first_shift, chunks: [const { OnceLock::new() }; CHUNKS] }
    }

    /// Word `word` of node `id`; none if nobody made the node.
    #[inline(always)]
    pub(crate) fn word(&self, id: u32, word: usize) -> Option<&AtomicU64> {
        let (chunk, node) = self.place(id);
        self.chunks.get(chunk)?.get()?.get((node << self.shift) + word)
    }

    /// The number of the first word of a node, if the words of all nodes were one row.
    #[inline(always)]
    pub(crate) fn first_word(&self, id: u32) -> u64 {
        u64::from(id) << self.shift
    }

    /// A word by its number in that row.
    pub(crate) fn word_at(&self, number: u64) -> Option<&AtomicU64> {
        let id = u32::try_from(number >> self.shift).ok()?;
        self.word(id, number as usize & ((1 << self.shift) - 1))
    }

    /// The last chunk that has memory, and the number of its first word in the row of all words. It has more than half
    /// of all nodes there are.
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

    /// The first node of a chunk.
    #[inline(always)]
    fn first_node(&self, chunk: usize) -> u32 {
        (1 << (self.first_shift + chunk as u32)) - (1 << self.first_shift)
    }

    /// Chunk of a node, and its number within the chunk.
    #[inline(always)]
    fn place(&self, id: u32) -> (usize, usize) {
        let shifted = id as usize + (1 << self.first_shift);
        let log = shifted.ilog2();
        ((log - self.first_shift) as usize, shifted - (1 << log))
    }

    /// All words of a node.
    #[inline]
    pub(crate) fn node(&self, id: u32) -> Option<&[AtomicU64]> {
        let (chunk, node) = self.place(id);
        self.chunks.get(chunk)?.get()?.get(node << self.shift..(node + 1) << self.shift)
    }

    /// Makes sure that node `id` has memory; false when the system has none left.
    pub(crate) fn make(&self, id: u32) -> bool {
        let (chunk, _) = self.place(id);
        let Some(cell) = self.chunks.get(chunk) else { return false };
        if cell.get().is_some() {
            return true;
        }
        let Some(words) = (1usize << (self.first_shift + chunk as u32)).checked_shl(self.shift).and_then(zeroed) else {
            return false;
        };
        // Nodes are handed out in the order of their numbers, so all but the last page is used as a whole.
        let small = if chunk == 0 { HUGE_PAGE / size_of::<AtomicU64>() } else { 0 };
        huge_pages::advise(words.get(small..).unwrap_or_default());
        cell.set(words).is_ok() || cell.get().is_some()
    }

    /// Bytes of one node.
    pub(crate) fn node_bytes(&self) -> u64 {
        8 << self.shift
    }
}

/// Memory that the system hands out zeroed and page by page, as it is touched.
#[cfg(not(any(shuttle, sheave_mesi)))]
pub(super) fn zeroed(words: usize) -> Option<Box<[AtomicU64]>> {
    use zerocopy::FromZeros;
    <[AtomicU64]>::new_box_zeroed_with_elems(words).ok()
}

/// The model checkers' atomics are no plain words.
#[cfg(any(shuttle, sheave_mesi))]
pub(super) fn zeroed(words: usize) -> Option<Box<[AtomicU64]>> {
    Some((0..words).map(|_| AtomicU64::new(0)).collect())
}

#[cfg(all(test, not(shuttle)))]
mod tests;
