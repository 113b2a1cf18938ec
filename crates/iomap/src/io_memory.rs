//! The memory of an I/O, for a file that looks at what was moved: to sum it up, to verify it, to read it again.
//!
//! Owns the way from addresses to bytes, in whole blocks, and which vectors are one run in memory. Does not own the
//! memory: that is the submitter's, who keeps it until the I/O has ended (I1 of `sheave_blk::bio`).
//!
//! - I1: between the end of the last bio and the completion nobody but the file touches the memory. The typed
//!   interface of rings owns it for that time; who pushes raw entries promises it.
//!
//! Made by the engine; used by files with checksums.
#![allow(unsafe_code)] // The memory is known by its addresses.

use sheave_blk::bio::BVec;

/// The memory of an I/O, in the order of the file's bytes.
#[derive(Clone, Copy, Debug)]
pub struct IoMemory<'a> {
    vecs: &'a [BVec],
}

impl<'a> IoMemory<'a> {
    pub(crate) fn new(vecs: &'a [BVec]) -> IoMemory<'a> {
        IoMemory { vecs }
    }

    /// One piece of memory, for who drives a file without the engine.
    pub fn over<R>(bytes: &mut [u8], with: impl FnOnce(IoMemory<'_>) -> R) -> R {
        // SAFETY: the bytes are borrowed, for this alone, until `with` returns.
        let vec = unsafe { BVec::new(bytes.as_mut_ptr().expose_provenance(), bytes.len()) };
        with(IoMemory::new(&[vec]))
    }

    /// The vectors, which may hold more than the I/O moved.
    pub fn vecs(&self) -> &'a [BVec] {
        self.vecs
    }

    /// Gives the bytes `from..from + len` to `each`, a block at a time with its number, until that says false. Whether
    /// all were given: they are not, if the memory is shorter, or if a block lies in pieces that are not adjacent.
    pub fn each_block(&self, from: u64, len: u64, block: usize, each: &mut dyn FnMut(u64, &mut [u8]) -> bool) -> bool {
        let (mut skip, mut number, count) = (from as usize, 0, len / block as u64);
        for (base, bytes) in runs(self.vecs) {
            let mut at = skip.min(bytes);
            skip -= at;
            while at < bytes && number < count {
                if bytes - at < block {
                    return false;
                }
                let memory = std::ptr::with_exposed_provenance_mut(base + at);
                // SAFETY: I1; the run is memory of the I/O from `base` on, `bytes` long, and `at + block` is within it.
                // Each block is borrowed once, until `each` returns.
                if !each(number, unsafe { std::slice::from_raw_parts_mut(memory, block) }) {
                    return false;
                }
                number += 1;
                at += block;
            }
        }
        number == count
    }
}

/// The runs of adjacent memory: where each starts, and its bytes.
pub(crate) fn runs(vecs: &[BVec]) -> impl Iterator<Item = (usize, usize)> {
    let mut vecs = vecs.iter().filter(|vec| !vec.is_empty()).peekable();
    std::iter::from_fn(move || {
        let first = vecs.next()?;
        let mut end = first.base() + first.len();
        while let Some(vec) = vecs.next_if(|vec| vec.base() == end) {
            end += vec.len();
        }
        Some((first.base(), end - first.base()))
    })
}

#[cfg(test)]
mod tests;
