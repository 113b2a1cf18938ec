//! Memory of the checksums: one word for each block of the regions that have data, read without a lock.
//!
//! Owns the memory. A region's node has its flags in word 0, then its checksums. Memory takes 4 bytes for each 4 KiB of
//! the regions in use (1 GiB per TiB), in chunks that the system provides page by page as they are touched.
//!
//! - A1: a chunk stays until the arena is dropped.

use std::sync::OnceLock;

use sheave_base::sync::atomic::AtomicU32;

use crate::format::MAX_SUMS;

/// Binary logarithm of the number of words of a node: flags and checksums.
const NODE_SHIFT: u32 = 10;
const _: () = assert!(MAX_SUMS < 1 << NODE_SHIFT);
/// Binary logarithm of the number of nodes in the first chunk.
const FIRST_SHIFT: u32 = 4;
/// Number of chunks: enough for the regions of the largest pool.
const CHUNKS: usize = 36;

/// Nodes by region number.
#[derive(Debug)]
pub(crate) struct SumArena {
    chunks: [OnceLock<Box<[AtomicU32]>>; CHUNKS],
}

impl SumArena {
    pub(crate) fn new() -> SumArena {
        SumArena { chunks: [const { OnceLock::new() }; CHUNKS] }
    }

    /// Returns the node of a region; `None` if it was never made.
    #[inline]
    pub(crate) fn node(&self, region: u64) -> Option<&[AtomicU32]> {
        let (chunk, node) = place(region);
        self.chunks.get(chunk)?.get()?.get(node << NODE_SHIFT..(node + 1) << NODE_SHIFT)
    }

    /// Makes sure that a region has memory. Returns false if the allocation fails.
    pub(crate) fn make(&self, region: u64) -> bool {
        let (chunk, _) = place(region);
        let Some(cell) = self.chunks.get(chunk) else { return false };
        if cell.get().is_some() {
            return true;
        }
        let words = 1usize << (FIRST_SHIFT + NODE_SHIFT + chunk as u32);
        let Some(words) = zeroed(words) else { return false };
        cell.set(words).is_ok() || cell.get().is_some()
    }
}

/// Returns the chunk of a region, and its index in the chunk.
#[inline]
fn place(region: u64) -> (usize, usize) {
    // Adding the size of the first chunk makes the position of the highest bit the number of the chunk.
    let shifted = region + (1 << FIRST_SHIFT);
    let log = shifted.ilog2();
    ((log - FIRST_SHIFT) as usize, (shifted - (1 << log)) as usize)
}

#[cfg(not(any(shuttle, sheave_mesi)))]
fn zeroed(words: usize) -> Option<Box<[AtomicU32]>> {
    use zerocopy::FromZeros;
    <[AtomicU32]>::new_box_zeroed_with_elems(words).ok()
}

/// Variant for model checkers, whose atomics cannot be made from zeroed memory.
#[cfg(any(shuttle, sheave_mesi))]
fn zeroed(words: usize) -> Option<Box<[AtomicU32]>> {
    Some((0..words).map(|_| AtomicU32::new(0)).collect())
}
