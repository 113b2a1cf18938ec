//! Memory usage of the region: only written pages take memory, and clearing releases them.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::*;

fn length(region: &Region) -> usize {
    region.sectors as usize * SECTOR
}

/// Returns the pages of the region that take memory of their own, by number.
fn pages_in_use(region: &Region) -> Vec<usize> {
    /// Flag of a page that this process alone has; the shared page of zeroes lacks it.
    const EXCLUSIVE: u64 = 1 << 56;
    let pagemap = File::open("/proc/self/pagemap").expect("/proc is there");
    let first = region.base.addr().get() / region.page;
    let mut entries = vec![0; length(region).div_ceil(region.page) * 8];
    pagemap.read_exact_at(&mut entries, first as u64 * 8).expect("an entry for each page");
    let entries = entries.chunks_exact(8).map(|e| u64::from_ne_bytes(e.try_into().expect("8 bytes")));
    entries.enumerate().filter(|(_, entry)| entry & EXCLUSIVE != 0).map(|(page, _)| page).collect()
}

fn fill(region: &Region, start: usize, len: usize, byte: u8) {
    assert!(start + len <= length(region));
    // SAFETY: inside the region.
    unsafe { region.base.as_ptr().add(start).write_bytes(byte, len) };
}

fn bytes(region: &Region, start: usize, len: usize) -> Vec<u8> {
    assert!(start + len <= length(region));
    let mut bytes = vec![0xee; len];
    // SAFETY: inside the region, which the vector does not overlap.
    unsafe { region.base.as_ptr().add(start).copy_to_nonoverlapping(bytes.as_mut_ptr(), len) };
    bytes
}

fn clear(region: &Region, start: usize, len: usize) {
    assert!(start + len <= length(region));
    region.clear(region.base.as_ptr().wrapping_add(start), len);
}

#[test]
fn memory_is_used_where_it_was_written_and_given_back_page_by_page() {
    let region = Region::new(64 << 20, false).expect("64 MiB of addresses");
    let page = region.page;
    assert_eq!(pages_in_use(&region), []);
    assert_eq!(bytes(&region, 5 * page, 3 * page), vec![0; 3 * page]);
    assert_eq!(pages_in_use(&region), [], "a look costs no memory");
    for at in [2, 3, 4, 5, 9000] {
        fill(&region, at * page, page, 0xa5);
    }
    assert_eq!(pages_in_use(&region), [2, 3, 4, 5, 9000]);
    // From the middle of page 2 to the middle of page 5.
    clear(&region, 2 * page + 512, 3 * page);
    assert_eq!(pages_in_use(&region), [2, 5, 9000]);
    let left = bytes(&region, 2 * page, 4 * page);
    let kept = |at: usize| at < 512 || at >= 512 + 3 * page;
    assert!(left.iter().enumerate().all(|(at, &byte)| byte == if kept(at) { 0xa5 } else { 0 }));
    clear(&region, 0, 64 << 20);
    assert_eq!(pages_in_use(&region), []);
}

#[test]
fn clearing_what_was_never_written_takes_no_memory() {
    for huge in [false, true] {
        let region = Region::new(8 << 20, huge).expect("8 MiB of addresses");
        clear(&region, 512, 1024);
        clear(&region, region.page - 512, 1024);
        clear(&region, 1536, 3 << 20);
        assert_eq!(pages_in_use(&region), []);
    }
}

#[test]
fn clearing_inside_a_page_leaves_its_neighbours() {
    let region = Region::new(1 << 20, true).expect("1 MiB of addresses");
    fill(&region, 0, 1 << 20, 0xff);
    for (start, len) in [(512, 512), (8192 - 512, 512), (12_288, 512), (20_480 - 1024, 2048), (40_960 + 512, 0)] {
        clear(&region, start, len);
        assert_eq!(bytes(&region, start, len), vec![0; len]);
        assert!(bytes(&region, start - 512, 512).iter().all(|&byte| byte == 0xff));
        assert!(bytes(&region, start + len, 512).iter().all(|&byte| byte == 0xff));
    }
}

#[test]
fn a_region_that_can_hold_a_huge_page_begins_on_one() {
    let region = Region::new(HUGE_PAGE, true).expect("2 MiB of addresses");
    assert_eq!(region.base.addr().get() % HUGE_PAGE, 0);
    let small = Region::new(512, true).expect("a page of addresses");
    assert_eq!((small.map.1, small.base), (small.page, small.map.0));
    assert_eq!(bytes(&small, 0, 512), [0; 512]);
}

#[test]
fn more_than_the_address_space_is_refused() {
    assert_eq!(Region::new(usize::MAX, true).map(|_| ()), Err(Errno::NOMEM));
    assert_eq!(Region::new(1 << 60, true).map(|_| ()), Err(Errno::NOMEM));
}
