//! The advice reaches the kernel, and the content of the memory stays.

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
