//! Arenas: nodes of atomic words, named by number, that never move.
//!
//! Owns the memory of nodes. Does not own which node is in use, nor by whom: that is `nodes`, under the pool's lock.
//!
//! Chunk `k` holds `64 << k` nodes, so a handful of chunks holds any number of them, and finding one takes a count of
//! leading zeroes and one load.
//!
//! - I1: a chunk, once there, stays until the arena is dropped; readers need no lock to reach a word.
//! - I2: a word of a node that nobody has made is none, or 0.
//!
//! Called by the lookups of [`ExtentMap`](super::ExtentMap), and by the mutations under the lock.

use std::sync::OnceLock;

use sheave_base::sync::atomic::AtomicU64;

/// Nodes of the first chunk, as a power of two.
const FIRST_SHIFT: u32 = if cfg!(shuttle) { 1 } else { 6 };
/// Chunks: together they hold more nodes than there are numbers. As many as five bits can name: [`Nodes::word`] then
/// needs no look whether there is such a chunk.
const CHUNKS: usize = 32;

/// Nodes of `1 << shift` words each.
#[derive(Debug)]
pub(crate) struct Arena {
    shift: u32,
    chunks: [OnceLock<Box<[AtomicU64]>>; CHUNKS],
}

impl Arena {
    pub(crate) fn new(shift: u32) -> Arena {
        Arena { shift, chunks: [const { OnceLock::new() }; CHUNKS] }
    }

    /// Word `word` of node `id`; none if nobody made the node.
    #[inline(always)]
    pub(crate) fn word(&self, id: u32, word: usize) -> Option<&AtomicU64> {
        let (chunk, node) = place(id);
        self.chunks.get(chunk)?.get()?.get((node << self.shift) + word)
    }

    /// For lookups by place.
    #[inline(always)]
    pub(crate) fn nodes(&self) -> Nodes<'_> {
        Nodes { shift: self.shift, chunks: &self.chunks }
    }

    /// All words of a node.
    #[inline]
    pub(crate) fn node(&self, id: u32) -> Option<&[AtomicU64]> {
        let (chunk, node) = place(id);
        self.chunks.get(chunk)?.get()?.get(node << self.shift..(node + 1) << self.shift)
    }

    /// Makes sure that node `id` has memory; false when the system has none left.
    pub(crate) fn make(&self, id: u32) -> bool {
        let (chunk, _) = place(id);
        let Some(cell) = self.chunks.get(chunk) else { return false };
        if cell.get().is_some() {
            return true;
        }
        let Some(words) = (1usize << (FIRST_SHIFT + chunk as u32)).checked_shl(self.shift).and_then(zeroed) else {
            return false;
        };
        cell.set(words).is_ok() || cell.get().is_some()
    }

    /// Bytes of one node.
    pub(crate) fn node_bytes(&self) -> u64 {
        8 << self.shift
    }
}

/// The nodes of an arena, with what finding one takes at hand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nodes<'a> {
    shift: u32,
    chunks: &'a [OnceLock<Box<[AtomicU64]>>; CHUNKS],
}

impl<'a> Nodes<'a> {
    /// A word of a node whose [`place`] is known.
    #[inline(always)]
    pub(crate) fn word(self, (chunk, node): (usize, usize), word: usize) -> Option<&'a AtomicU64> {
        self.chunks.get(chunk)?.get()?.get((node << (self.shift & 63)) + word)
    }
}

/// Chunk of a node, and its number within the chunk.
#[inline(always)]
pub(super) fn place(id: u32) -> (usize, usize) {
    let shifted = id as usize + (1 << FIRST_SHIFT);
    let log = shifted.ilog2();
    ((log - FIRST_SHIFT) as usize, shifted - (1 << log))
}

/// Memory that the system hands out zeroed and page by page, as it is touched.
#[cfg(not(shuttle))]
pub(super) fn zeroed(words: usize) -> Option<Box<[AtomicU64]>> {
    use zerocopy::FromZeros;
    <[AtomicU64]>::new_box_zeroed_with_elems(words).ok()
}

/// The model checkers' atomics are no plain words.
#[cfg(shuttle)]
pub(super) fn zeroed(words: usize) -> Option<Box<[AtomicU64]>> {
    Some((0..words).map(|_| AtomicU64::new(0)).collect())
}

#[cfg(test)]
mod tests;
