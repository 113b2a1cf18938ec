//! The bounds on memory, and what is kept.

use super::*;

#[test]
fn data_lies_aligned_behind_room_for_a_header() {
    let mut pool = Pool::new(1 << 20);
    for align in [1, 64, 512, 4096] {
        let mut payload = pool.take(4096, align).expect("there is memory");
        assert_eq!(payload.address(payload.start()) as usize % align, 0);
        assert!(payload.headroom().len() >= MAX_READ_HEADER);
        payload.fill(4000, &[7; 96]);
        pool.put(payload);
    }
}

#[test]
fn no_more_is_given_out_than_there_may_be_but_for_one() {
    let mut pool = Pool::new(100);
    let cost = Pool::cost(1 << 20, 1);
    assert!(pool.has_room(cost, 0), "a request larger than the bound is served alone");
    let payload = pool.take(1 << 20, 1).expect("there is memory");
    assert_eq!(payload.cost(), cost);
    assert!(!pool.has_room(1, 0));
    pool.put(payload);
    assert!(pool.has_room(cost, 0));
}

#[test]
fn what_is_kept_for_another_is_given_to_nobody_else_but_half_is_given_out_in_any_case() {
    let mut pool = Pool::new(100 << 10);
    let payload = pool.take(40 << 10, 1).expect("there is memory");
    assert_eq!(payload.cost(), 64 << 10);
    assert!(pool.has_room(8 << 10, 28 << 10) && !pool.has_room(8 << 10, 29 << 10));
    pool.put(payload);
    let _payload = pool.take(4 << 10, 1).expect("there is memory");
    assert!(pool.has_room(42 << 10, 1 << 20) && !pool.has_room(43 << 10, 1 << 20));
}

#[test]
fn memory_is_used_again_and_kept_within_its_bound() {
    let mut pool = Pool::new(u64::MAX);
    let mut first = pool.take(4096, 1).expect("there is memory");
    let address = first.address(0) as usize;
    pool.put(first);
    assert_eq!(pool.take(4000, 1).expect("there is memory").address(0) as usize, address);
    let many: Vec<_> = (0..40).filter_map(|_| pool.take(1 << 20, 1)).collect();
    many.into_iter().for_each(|payload| pool.put(payload));
    assert!(pool.keeps_memory() && pool.kept_bytes <= MAX_KEPT);
    pool.trim();
    assert!(!pool.keeps_memory());
}
