//! Advice to the kernel to back memory with huge pages.
//!
//! Owns nothing. Useful for tables of many mebibytes with scattered lookups: the TLB has few entries, and each huge
//! page replaces 512 small ones. A huge page is allocated as a whole when its first byte is touched, so the caller
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
mod tests {
    use super::*;

    /// Returns the bytes of this process with advice for huge pages, of those from `memory` on.
    fn advised<T>(memory: &[T]) -> usize {
        let smaps = std::fs::read_to_string("/proc/self/smaps").expect("Linux has it");
        let (start, end) = (memory.as_ptr().addr(), memory.as_ptr().addr() + size_of_val(memory));
        let (mut range, mut bytes) = (0..0, 0);
        for line in smaps.lines() {
            let first = line.split_whitespace().next().unwrap_or_default();
            let hex = |text| usize::from_str_radix(text, 16).ok();
            if let Some((Some(from), Some(to))) = first.split_once('-').map(|(from, to)| (hex(from), hex(to))) {
                range = from.max(start)..to.min(end);
            } else if line.starts_with("VmFlags:") && line.split_whitespace().any(|flag| flag == "hg") {
                bytes += range.len();
            }
        }
        bytes
    }

    #[test]
    fn whole_huge_pages_are_asked_for_and_keep_what_they_hold() {
        if cfg!(miri) || !std::path::Path::new("/sys/kernel/mm/transparent_hugepage/enabled").exists() {
            return;
        }
        let memory: Vec<u64> = (0..8 << 17).collect();
        advise(&memory);
        let asked = advised(&memory);
        assert!(asked >= 3 * HUGE_PAGE && asked.is_multiple_of(HUGE_PAGE) && asked <= 8 << 20, "{asked}");
        assert!(memory.iter().enumerate().all(|(at, &word)| word == at as u64));
    }

    #[test]
    fn less_than_a_huge_page_is_left_alone() {
        advise::<u64>(&[]);
        advise(&[1u8, 2, 3]);
        let memory = vec![7u8; HUGE_PAGE - 1];
        advise(&memory);
        assert!(memory.iter().all(|&byte| byte == 7));
    }
}
