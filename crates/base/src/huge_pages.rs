//! Advice to the kernel to back memory with huge pages.
//!
//! Owns nothing. For tables of many mebibytes with scattered lookups: the TLB has few entries, and each huge page takes
//! the place of 512 small ones. A huge page is allocated as a whole when its first byte is touched, so the caller
//! should use most of it, or be able to spare 2 MiB. Called by the arenas of maps.
#![allow(unsafe_code)] // The system call has no safe wrapper: other advice takes memory away.

use rustix::mm::{Advice, madvise};

/// Bytes of a huge page where pages have 4 KiB. Other architectures differ, and the kernel rounds.
pub const HUGE_PAGE: usize = 2 << 20;

/// Requests huge pages for the whole huge pages within `memory`. The content stays, and if the kernel has no huge
/// pages, so does the memory.
pub fn advise<T>(memory: &[T]) {
    let (start, len) = (memory.as_ptr().addr(), size_of_val(memory));
    let skipped = start.wrapping_neg() % HUGE_PAGE;
    let whole = len.saturating_sub(skipped) / HUGE_PAGE * HUGE_PAGE;
    if whole == 0 || cfg!(miri) {
        return;
    }
    let first = memory.as_ptr().cast::<u8>().wrapping_add(skipped).cast_mut().cast();
    // A kernel without huge pages returns EINVAL, and nothing changes.
    // SAFETY: whole pages inside of `memory`; this advice changes neither what they hold nor whether they are there.
    _ = unsafe { madvise(first, whole, Advice::LinuxHugepage) };
}

#[cfg(test)]
mod tests;
