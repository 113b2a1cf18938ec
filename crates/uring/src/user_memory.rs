//! Reads the small structures that SQEs point to: vectors and timespecs.
//!
//! The caller of [`Ring::push_sqe`](crate::Ring::push_sqe) promises that addresses are valid. Ranges outside of user
//! memory were refused before.
#![allow(unsafe_code)] // SQEs carry addresses.

use sheave_blk::bio::{BVec, SECTOR_SHIFT};
use sheave_blk::ctx::lane::PlainIo;

use crate::sqe::Sqe;

/// End of a user program's addresses. On x86-64 exact: the page below the hole is never mapped. Elsewhere an upper
/// bound.
pub(crate) const USER_END: u64 = if cfg!(target_arch = "x86_64") { (1 << 47) - 4096 } else { 1 << 48 };
/// The first page is never mapped.
pub(crate) const FIRST_PAGE: u64 = 4096;

/// Returns true if `[addr, addr + len)` can be user memory at all.
#[inline]
pub(crate) fn is_user_range(addr: u64, len: u64) -> bool {
    addr.checked_add(len).is_some_and(|end| end <= USER_END)
}

/// Converts the address and length of a read or write into a vector.
#[inline(always)]
pub(crate) fn sqe_memory(addr: u64, len: u32) -> BVec {
    // SAFETY: promised by the caller of `push_sqe` until the completion is posted.
    unsafe { BVec::new(addr as usize, len as usize) }
}

/// Returns the plain I/O for the SQE of a read or write, at `place` on the device. Its length is that of the run.
#[inline(always)]
pub(crate) fn plain_io(sqe: &Sqe, place: u64) -> PlainIo {
    // SAFETY: promised by the caller of `push_sqe` until the completion is posted.
    unsafe { PlainIo::new(sqe.user_data, place >> SECTOR_SHIFT, sqe.addr as usize) }
}

pub(crate) fn read_vecs(addr: u64, count: usize, vecs: &mut Vec<BVec>) {
    vecs.extend((0..count).map(|at| {
        // SAFETY: promised by the caller of `push_sqe` until the SQE is submitted; `BVec` has the layout of `iovec`
        // and any bytes are valid; alignment is not promised.
        unsafe { (addr as *const BVec).add(at).read_unaligned() }
    }));
}

/// Reads the two words of a `__kernel_timespec`.
pub(crate) fn read_timespec(addr: u64) -> [i64; 2] {
    // SAFETY: promised by the caller of `push_sqe` until the SQE is submitted; any bytes are valid; alignment is not
    // promised.
    unsafe { (addr as *const [i64; 2]).read_unaligned() }
}
