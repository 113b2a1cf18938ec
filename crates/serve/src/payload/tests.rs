//! Where the data lies, what a payload counts for, and what is kept.

use super::*;

/// A payload that counts for all of it.
fn whole(pool: &mut Pool, len: usize, align: usize) -> Payload {
    pool.take(len, align, Pool::cost(len, align), false).expect("there is memory")
}

#[test]
fn data_lies_aligned_behind_room_for_a_header() {
    let mut pool = Pool::new();
    for align in [1, 64, 512, 4096] {
        let mut payload = whole(&mut pool, 4096, align);
        assert_eq!(payload.address(payload.start()) as usize % align, 0);
        assert!(payload.headroom().len() >= MAX_READ_HEADER);
        payload.fill(4000, &[7; 96]);
        pool.put(payload);
    }
}

#[test]
fn a_large_payload_counts_for_its_pages_and_a_small_one_for_all_of_its_memory() {
    assert_eq!(Pool::cost(512, 1), 8 << 10);
    assert_eq!(Pool::cost(64 << 10, 1), (64 << 10) + 4096);
    assert_eq!(Pool::cost(32 << 20, 1), (32 << 20) + 4096);
}

#[test]
fn a_payload_has_room_for_what_it_counts_for() {
    let mut pool = Pool::new();
    let mut payload = pool.take(1 << 20, 512, 64 << 10, false).expect("there is memory");
    assert_eq!((payload.room(), payload.counted(), payload.is_of_room()), ((64 << 10) - 512, 64 << 10, false));
    pool.grow(&mut payload, 192 << 10, true);
    assert_eq!((payload.room(), payload.counted(), payload.is_of_room()), ((256 << 10) - 512, 256 << 10, true));
}

#[test]
fn memory_is_used_again_and_kept_within_its_bound() {
    let mut pool = Pool::new();
    let mut first = whole(&mut pool, 4096, 1);
    let address = first.address(0) as usize;
    pool.put(first);
    assert_eq!(whole(&mut pool, 4000, 1).address(0) as usize, address);
    let many: Vec<_> = (0..40).map(|_| whole(&mut pool, 1 << 20, 1)).collect();
    many.into_iter().for_each(|payload| pool.put(payload));
    assert!(pool.keeps_memory() && pool.kept_bytes <= MAX_KEPT);
    pool.trim();
    assert!(!pool.keeps_memory());
}

#[test]
fn memory_that_writes_announce_and_do_not_fill_is_within_the_bound_of_what_is_kept() {
    let mut pool = Pool::new();
    let mut slow = Vec::new();
    for _ in 0..100 {
        // The system has given all pages of this one.
        let read = whole(&mut pool, 1 << 20, 1);
        pool.put(read);
        slow.push(pool.take(1 << 20, 1, 8 << 10, false).expect("there is memory"));
        let beyond: u64 = slow.iter().map(|payload| payload.touched.saturating_sub(payload.counted)).sum();
        let kept: u64 = pool.kept.iter().flatten().map(|kept| kept.touched).sum();
        assert_eq!(pool.kept_bytes, kept + beyond, "P2");
        assert!(pool.kept_bytes <= MAX_KEPT, "P2");
    }
    slow.iter_mut().for_each(|payload| pool.grow(payload, 1 << 20, false));
    slow.into_iter().for_each(|payload| pool.put(payload));
    let kept: u64 = pool.kept.iter().flatten().map(|kept| kept.touched).sum();
    assert!(pool.kept_bytes == kept && kept <= MAX_KEPT);
}
