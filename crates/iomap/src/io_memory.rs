//! The memory of an I/O, for a file that works on the moved data: checksums it, verifies it, or reads it again.
//!
//! Owns the step from addresses to bytes, in whole blocks, and the rule that decides which vectors form one run in
//! memory. Does not own the memory: the submitter keeps it until the I/O has ended (I1 of `sheave_blk::bio`).
//!
//! - I1: between the end of the last bio and the completion only the file touches the memory. The typed interface of
//!   rings owns it for that time; a submitter of raw SQEs promises it.
//! - I2: no reference to the memory is ever made. Two I/Os may use the same memory, as two reads into one range of a
//!   registered buffer do, and two files, or one file on two threads, then access it at the same time. So a block is
//!   copied out before anything looks at it, and a replacement is copied in.
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
/// // The address of the memory can be kept, but no I/O takes it.
/// let kept = sheave_iomap::IoMemory::over(&mut bytes, |memory| memory.segments()[0]);
/// drop(bytes);
/// io.submit(spec, &[kept], sheave_blk::bio::NO_FIXED_BUF);
/// # }
/// ```
///
/// ```compile_fail,E0277
/// // Otherwise two threads could put bytes into one place at the same time.
/// fn of_threads<T: Sync>() {}
/// of_threads::<sheave_iomap::IoMemory<'_>>();
/// ```
#[derive(Debug)]
pub struct IoMemory<'a> {
    vecs: &'a [BVec],
    /// True if bytes may be put into the memory: it is the memory of a read, or is lent by [`IoMemory::over`].
    takes_bytes: bool,
    _of_one_thread: PhantomData<Cell<()>>,
}

impl<'a> IoMemory<'a> {
    pub(crate) fn new(vecs: &'a [BVec], takes_bytes: bool) -> IoMemory<'a> {
        IoMemory { vecs, takes_bytes, _of_one_thread: PhantomData }
    }

    /// Calls `with` on one piece of memory, for a caller that drives a file without the engine.
    pub fn over<R>(bytes: &mut [u8], with: impl FnOnce(IoMemory<'_>) -> R) -> R {
        // SAFETY: the bytes are borrowed, for this alone, until `with` returns.
        let vec = unsafe { BVec::new(bytes.as_mut_ptr().expose_provenance(), bytes.len()) };
        with(IoMemory::new(&[vec], true))
    }

    /// Returns the vectors of the memory, which may be longer than the I/O.
    #[doc(hidden)]
    pub fn segments(&self) -> &'a [Segment] {
        BVec::segments(self.vecs)
    }

    /// Calls `each` with the number and a copy of each block of `from..from + len`, until it returns false. Blocks have
    /// `block` bytes, at most 4,096. Returns true if all blocks were given; false also if the memory is too short, or
    /// if a block lies in pieces that are not adjacent.
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

    /// Replaces the bytes from `from` on by `bytes`. Returns false, and changes nothing, if the memory is that of a
    /// write (its owner may share it with others), if it is too short, or if the place lies in pieces that are not
    /// adjacent.
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
            // It is written without a reference to it (I2). Nobody else has a reference to the memory of a read, so
            // `bytes` does not overlap it; the memory of a write was refused above.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), memory, bytes.len()) };
            return true;
        }
        bytes.is_empty()
    }
}

/// Returns the runs of adjacent memory, each as its address and its bytes.
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
mod tests {
    use super::*;

    /// Makes a vector of the bytes.
    fn vec_of(bytes: &mut [u8]) -> BVec {
        // SAFETY: each test keeps the memory until it has looked at all of it, and does not touch it meanwhile.
        unsafe { BVec::new(bytes.as_mut_ptr().expose_provenance(), bytes.len()) }
    }

    fn seen(memory: &IoMemory<'_>, from: u64, len: u64) -> (bool, Vec<(u64, u8)>) {
        let mut seen = Vec::new();
        let all = memory.each_block(from, len, 4, &mut |number, block| {
            seen.push((number, block[0]));
            true
        });
        (all, seen)
    }

    #[test]
    fn blocks_come_in_order_across_vectors_and_runs() {
        let mut bytes: Vec<u8> = (0..64).collect();
        // One run of 8 bytes in three vectors, a gap, one of 16.
        let (low, high) = bytes.split_at_mut(32);
        let vecs = [vec_of(&mut low[..2]), vec_of(&mut low[2..5]), vec_of(&mut low[5..8]), vec_of(&mut high[..16])];
        let memory = IoMemory::new(&vecs, true);
        assert_eq!(seen(&memory, 0, 24), (true, vec![(0, 0), (1, 4), (2, 32), (3, 36), (4, 40), (5, 44)]));
        assert_eq!(seen(&memory, 4, 8), (true, vec![(0, 4), (1, 32)]));
        assert_eq!(seen(&memory, 12, 12), (true, vec![(0, 36), (1, 40), (2, 44)]));
        assert_eq!(seen(&memory, 20, 8), (false, vec![(0, 44)]), "the memory is shorter");
        assert_eq!(seen(&memory, 0, 0), (true, vec![]));
    }

    #[test]
    fn a_block_in_two_places_is_not_given_and_stopping_is_told() {
        let mut bytes = [7; 64];
        let (low, high) = bytes.split_at_mut(32);
        let vecs = [vec_of(&mut low[..6]), vec_of(&mut high[..2])];
        assert_eq!(seen(&IoMemory::new(&vecs, true), 0, 8), (false, vec![(0, 7)]));
        let mut calls = 0;
        let vecs = [vec_of(high)];
        let stopped = !IoMemory::new(&vecs, true).each_block(0, 16, 4, &mut |_, block| {
            calls += 1;
            assert_eq!(block, [7; 4]);
            calls < 2
        });
        assert_eq!((stopped, calls), (true, 2));
        assert!(!IoMemory::new(&vecs, true).each_block(0, 1 << 20, 4097, &mut |_, _| true), "no block is that long");
    }

    #[test]
    fn a_block_is_put_where_one_piece_has_room_for_it() {
        let mut bytes = [7; 32];
        let (low, high) = bytes.split_at_mut(16);
        let vecs = [vec_of(&mut low[..2]), vec_of(&mut low[2..8]), vec_of(&mut high[..8])];
        let memory = IoMemory::new(&vecs, true);
        assert!(memory.put(1, &[1, 2, 3, 4]), "across two vectors that are adjacent");
        assert!(memory.put(12, &[5, 6, 7, 8]));
        assert!(!memory.put(6, &[9; 4]), "in two pieces");
        assert!(!memory.put(14, &[9; 4]) && !memory.put(16, &[9]), "beyond the end");
        assert!(memory.put(16, &[]));
        assert_eq!(bytes[..8], [7, 1, 2, 3, 4, 7, 7, 7]);
        assert_eq!(bytes[16..24], [7, 7, 7, 7, 5, 6, 7, 8]);
    }

    /// Two reads into one range of a registered buffer. Under Miri this fails if a block is lent instead of copied.
    #[test]
    fn two_have_the_same_memory_and_neither_a_reference_to_it() {
        let mut bytes = [7; 16];
        let (first, second) = ([vec_of(&mut bytes)], [vec_of(&mut bytes)]);
        let (first, second) = (IoMemory::new(&first, true), IoMemory::new(&second, true));
        let mut inner = Vec::new();
        assert!(first.each_block(0, 16, 8, &mut |number, block| {
            assert!(second.put(0, &[9; 8]), "while the first looks at it");
            inner.push((number, block[0], seen(&second, 0, 8)));
            block[1] == 7
        }));
        assert_eq!(inner, [(0, 7, (true, vec![(0, 9), (1, 9)])), (1, 7, (true, vec![(0, 9), (1, 9)]))]);
    }

    /// The owner of a write's memory may share it with others, who read it meanwhile.
    #[test]
    fn nothing_is_put_into_the_memory_of_a_write() {
        let mut bytes = [7u8; 16];
        IoMemory::over(&mut bytes, |memory| {
            let of_write = IoMemory { takes_bytes: false, ..memory };
            assert!(!of_write.put(0, &[9; 4]) && !of_write.put(16, &[]));
            let of_read = IoMemory { takes_bytes: true, ..of_write };
            assert!(of_read.put(12, &[9; 4]) && !of_read.put(13, &[9; 4]));
        });
        assert_eq!(bytes, [7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 9, 9, 9, 9]);
    }
}
