//! Advice to the system that memory is better in huge pages.
//!
//! Owns nothing. For tables of many mebibytes that are looked up all over: a processor remembers where few pages lie,
//! and each huge page stands for 512 of the others. A huge page is memory as a whole from its first byte that is
//! touched: who advises wants most of it, or can do without 2 MiB. Called by the arenas of maps.
#![allow(unsafe_code)] // The system call has no safe wrapper: other advice takes memory away.

use rustix::mm::{Advice, madvise};

/// Bytes of a huge page where pages have 4 KiB. Elsewhere another number, and the system rounds.
pub const HUGE_PAGE: usize = 2 << 20;

/// Asks for huge pages for the memory, as far as it covers any. What it holds stays, and so does the memory where the
/// system has no huge pages, or gives none.
pub fn advise<T>(memory: &[T]) {
    let (start, len) = (memory.as_ptr().addr(), size_of_val(memory));
    let skipped = start.wrapping_neg() % HUGE_PAGE;
    let whole = len.saturating_sub(skipped) / HUGE_PAGE * HUGE_PAGE;
    if whole == 0 || cfg!(miri) {
        return;
    }
    let first = memory.as_ptr().cast::<u8>().wrapping_add(skipped).cast_mut().cast();
    // A kernel without huge pages says EINVAL: the memory is as good as before.
    // SAFETY: whole pages inside of `memory`; this advice changes neither what they hold nor whether they are there.
    _ = unsafe { madvise(first, whole, Advice::LinuxHugepage) };
}

#[cfg(test)]
mod tests;
