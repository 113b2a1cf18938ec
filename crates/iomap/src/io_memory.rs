//! The memory of an I/O, for a file that looks at what was moved: to sum it up, to verify it, to read it again.
//!
//! Owns the way from addresses to bytes, in whole blocks, and which vectors are one run in memory. Does not own the
//! memory: that is the submitter's, who keeps it until the I/O has ended (I1 of `sheave_blk::bio`).
//!
//! - I1: between the end of the last bio and the completion nobody but the file is to touch the memory. The typed
//!   interface of rings owns it for that time; who pushes raw entries promises it.
//! - I2: no reference to the memory is ever made. Two I/Os may have the same memory, as two reads into one range of a
//!   registered buffer have, and two files, or one on two threads, then look at it at the same time. So a block is
//!   copied out before anybody looks at it, and a block that is to be replaced is copied in.
//!
//! Made by the engine; used by files with checksums.
#![allow(unsafe_code)] // The memory is known by its addresses.

use std::cell::Cell;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

use sheave_blk::bio::{BVec, Segment};

/// Longest block that [`IoMemory::each_block`] gives.
const MAX_BLOCK: usize = 4096;

/// The memory of an I/O, in the order of the file's bytes.
///
/// ```compile_fail,E0308
/// # fn leak(io: &mut sheave_blk::ctx::IoCtx, spec: &sheave_blk::ctx::BioSpec, mut bytes: Vec<u8>) {
/// // Where the memory lies can be kept, and is good for no I/O.
/// let kept = sheave_iomap::IoMemory::over(&mut bytes, |memory| memory.segments()[0]);
/// drop(bytes);
/// io.submit(spec, &[kept], sheave_blk::bio::NO_FIXED_BUF);
/// # }
/// ```
///
/// ```compile_fail,E0277
/// // Two threads could put bytes into one place at the same time.
/// fn of_threads<T: Sync>() {}
/// of_threads::<sheave_iomap::IoMemory<'_>>();
/// ```
#[derive(Debug)]
pub struct IoMemory<'a> {
    vecs: &'a [BVec],
    /// It is that of a read, or lent for this: bytes may be put into it.
    takes_bytes: bool,
    _of_one_thread: PhantomData<Cell<()>>,
}

impl<'a> IoMemory<'a> {
    pub(crate) fn new(vecs: &'a [BVec], takes_bytes: bool) -> IoMemory<'a> {
        IoMemory { vecs, takes_bytes, _of_one_thread: PhantomData }
    }

    /// One piece of memory, for who drives a file without the engine.
    pub fn over<R>(bytes: &mut [u8], with: impl FnOnce(IoMemory<'_>) -> R) -> R {
        // SAFETY: the bytes are borrowed, for this alone, until `with` returns.
        let vec = unsafe { BVec::new(bytes.as_mut_ptr().expose_provenance(), bytes.len()) };
        with(IoMemory::new(&[vec], true))
    }

    /// Where the memory is, which may be more than the I/O moved.
    #[doc(hidden)]
    pub fn segments(&self) -> &'a [Segment] {
        BVec::segments(self.vecs)
    }

    /// Gives a copy of the bytes `from..from + len` to `each`, a block of at most 4,096 bytes at a time with its
    /// number, until that says false. Whether all were given: they are not, if the memory is shorter, or if a block
    /// lies in pieces that are not adjacent.
    pub fn each_block(&self, from: u64, len: u64, block: usize, each: &mut dyn FnMut(u64, &[u8]) -> bool) -> bool {
        if block == 0 || block > MAX_BLOCK {
            return false;
        }
        let mut scratch = [const { MaybeUninit::<u8>::uninit() }; MAX_BLOCK];
        let (mut skip, mut number, count) = (from as usize, 0, len / block as u64);
        for (base, bytes) in runs(self.vecs) {
            let mut at = skip.min(bytes);
            skip -= at;
            while at < bytes && number < count {
                if bytes - at < block {
                    return false;
                }
                let memory = std::ptr::with_exposed_provenance::<u8>(base + at);
                // SAFETY: the run is memory of the I/O from `base` on, `bytes` long, and `at + block` is within it. It
                // is copied without a reference to it (I2), into memory of our own that is as long (`block` was
                // checked).
                let copy = unsafe {
                    std::ptr::copy_nonoverlapping(memory, scratch.as_mut_ptr().cast(), block);
                    std::slice::from_raw_parts(scratch.as_ptr().cast(), block)
                };
                if !each(number, copy) {
                    return false;
                }
                number += 1;
                at += block;
            }
        }
        number == count
    }

    /// Puts these bytes in the place of those from `from` on. Whether they are there: they are not, if the memory is
    /// that of a write, which its owner may share with others, if it is shorter, or if the place lies in pieces that
    /// are not adjacent.
    pub fn put(&self, from: u64, bytes: &[u8]) -> bool {
        if !self.takes_bytes {
            return false;
        }
        let mut skip = from as usize;
        for (base, len) in runs(self.vecs) {
            if skip >= len {
                skip -= len;
                continue;
            }
            if len - skip < bytes.len() {
                return false;
            }
            let memory = std::ptr::with_exposed_provenance_mut::<u8>(base + skip);
            // SAFETY: the run is memory of the I/O from `base` on, `len` long, and `skip + bytes.len()` is within it.
            // It is written without a reference to it (I2). Of a read nobody else has a reference to it, so `bytes` is
            // none of it; a write was refused.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), memory, bytes.len()) };
            return true;
        }
        bytes.is_empty()
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
