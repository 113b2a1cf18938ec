//! The memory of an I/O, for a file that looks at what was moved: to sum it up, to verify it, to read it again.
//!
//! Owns the way from addresses to bytes, in whole blocks, and which vectors are one run in memory. Does not own the
//! memory: that is the submitter's, who keeps it until the I/O has ended (I1 of `sheave_blk::bio`).
//!
//! - I1: between the end of the last bio and the completion nobody but the file touches the memory. The typed
//!   interface of rings owns it for that time; who pushes raw entries promises it.
//! - I2: no two references to the same bytes: an [`IoMemory`] is the only one of its memory and cannot be copied, and
//!   it gives one block at a time, to one caller at a time.
//!
//! Made by the engine; used by files with checksums.
#![allow(unsafe_code)] // The memory is known by its addresses.

use std::cell::Cell;

use sheave_blk::bio::{BVec, Segment};

/// The memory of an I/O, in the order of the file's bytes.
///
/// ```compile_fail,E0382
/// # let mut bytes = [0; 512];
/// sheave_iomap::IoMemory::over(&mut bytes, |memory| {
///     // There is one of each memory (I2): with two, each would give its own reference to the same bytes.
///     let moved = memory;
///     memory.each_block(0, 512, 512, &mut |_, _| true);
/// });
/// ```
///
/// ```compile_fail,E0308
/// # fn leak(io: &mut sheave_blk::ctx::IoCtx, spec: &sheave_blk::ctx::BioSpec, mut bytes: Vec<u8>) {
/// // Where the memory lies can be kept, and is good for no I/O.
/// let kept = sheave_iomap::IoMemory::over(&mut bytes, |memory| memory.segments()[0]);
/// drop(bytes);
/// io.submit(spec, &[kept], sheave_blk::bio::NO_FIXED_BUF);
/// # }
/// ```
#[derive(Debug)]
pub struct IoMemory<'a> {
    vecs: &'a [BVec],
    /// Somebody has a block (I2).
    lent: Cell<bool>,
}

impl<'a> IoMemory<'a> {
    pub(crate) fn new(vecs: &'a [BVec]) -> IoMemory<'a> {
        IoMemory { vecs, lent: Cell::new(false) }
    }

    /// One piece of memory, for who drives a file without the engine.
    pub fn over<R>(bytes: &mut [u8], with: impl FnOnce(IoMemory<'_>) -> R) -> R {
        // SAFETY: the bytes are borrowed, for this alone, until `with` returns.
        let vec = unsafe { BVec::new(bytes.as_mut_ptr().expose_provenance(), bytes.len()) };
        with(IoMemory::new(&[vec]))
    }

    /// Where the memory is, which may be more than the I/O moved.
    pub fn segments(&self) -> &'a [Segment] {
        BVec::segments(self.vecs)
    }

    /// Gives the bytes `from..from + len` to `each`, a block at a time with its number, until that says false. Whether
    /// all were given: they are not, if the memory is shorter, or if a block lies in pieces that are not adjacent. From
    /// within `each` none is.
    pub fn each_block(&self, from: u64, len: u64, block: usize, each: &mut dyn FnMut(u64, &mut [u8]) -> bool) -> bool {
        // I2. Whoever panics in `each` leaves it lent, and nobody gets the memory any more.
        if self.lent.replace(true) {
            return false;
        }
        let all = self.lend_each(from, len, block, each);
        self.lent.set(false);
        all
    }

    fn lend_each(&self, from: u64, len: u64, block: usize, each: &mut dyn FnMut(u64, &mut [u8]) -> bool) -> bool {
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
                // Each block is borrowed once, until `each` returns, and no other is meanwhile (I2).
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
