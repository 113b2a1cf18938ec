//! Tests of the layout of a payload, of the bytes it counts for, and of kept memory.

use super::*;

/// Takes a payload that counts for all of its memory.
fn whole(pool: &mut Pool, len: usize, align: usize) -> Payload {
    let shape = Shape::whole(len, align);
    pool.take(&shape, Pool::cost(&shape), false).expect("there is memory")
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
    let cost = |len| Pool::cost(&Shape::whole(len, 1));
    assert_eq!(cost(512), 8 << 10);
    assert_eq!(cost(64 << 10), (64 << 10) + 4096);
    assert_eq!(cost(32 << 20), (32 << 20) + 4096);
}

#[test]
fn a_payload_has_room_for_what_it_counts_for() {
    let mut pool = Pool::new();
    let mut payload = pool.take(&Shape::whole(1 << 20, 512), 64 << 10, false).expect("there is memory");
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
        // All pages of this one are allocated.
        let read = whole(&mut pool, 1 << 20, 1);
        pool.put(read);
        slow.push(pool.take(&Shape::whole(1 << 20, 1), 8 << 10, false).expect("there is memory"));
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

#[test]
fn data_within_blocks_has_them_whole_around_it_and_counts_for_all() {
    let mut pool = Pool::new();
    for (align, counted) in [(1, 1000), (512, 4096), (4096, 20 << 10)] {
        let shape = Shape { len: 700 << 10, align, skip: 200, after: 312, aside: 2 * align.max(512) };
        let whole = Pool::cost(&shape);
        let mut payload = pool.take(&shape, (shape.around() + counted) as u64, false).expect("there is memory");
        assert_eq!((payload.room(), payload.cost()), (counted as u64, whole));
        for at in [payload.aside_at(), payload.blocks_at()] {
            assert_eq!(payload.address(at) as usize % align, 0);
        }
        assert!(payload.aside_at() + shape.aside <= payload.blocks_at() && payload.headroom().len() >= MAX_READ_HEADER);
        assert_eq!(payload.start() - payload.blocks_at(), 200);
        let more = whole - payload.counted();
        pool.grow(&mut payload, more, false);
        assert!(payload.room() >= shape.len as u64, "{} of {}", payload.room(), shape.len);
        pool.put(payload);
    }
}

#[test]
fn what_fits_costs_no_more_and_is_whole_blocks() {
    for cost in [8 << 10, 12345, 64 << 10, 100_000] {
        for align in [1, 512, 4096] {
            let len = Pool::fits(cost, align);
            assert!(len > 0 && len.is_multiple_of(ALIGN as u64), "{len} bytes");
            assert!(Pool::cost(&Shape::whole(len as usize, align)) <= cost, "{len} bytes cost more than {cost}");
        }
    }
}
