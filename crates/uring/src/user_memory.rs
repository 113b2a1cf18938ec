//! Reads the small structures that SQEs point to: vectors and timespecs.
//!
//! The caller of [`Ring::push_sqe`](crate::Ring::push_sqe) promises that addresses are valid; ranges that cannot be
//! memory at all were refused before.
#![allow(unsafe_code)] // SQEs carry addresses.

use sheave_blk::bio::BVec;

/// Copies `count` vectors from `addr` into `vecs`.
pub(crate) fn read_vecs(addr: u64, count: usize, vecs: &mut Vec<BVec>) {
    vecs.extend((0..count).map(|at| {
        // SAFETY: promised by the caller of `push_sqe` until the SQE is submitted; `BVec` has the layout of `iovec`
        // and any bytes are valid; alignment is not promised.
        unsafe { (addr as *const BVec).add(at).read_unaligned() }
    }));
}

/// The two words of a `__kernel_timespec`.
pub(crate) fn read_timespec(addr: u64) -> [i64; 2] {
    // SAFETY: as above.
    unsafe { (addr as *const [i64; 2]).read_unaligned() }
}
