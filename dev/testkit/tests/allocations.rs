//! Tests that the counting allocator counts every way to allocate, and only on the thread that is watched.

use std::hint::black_box;

use sheave_testkit::allocations::{Counting, allocations};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn every_way_to_allocate_is_counted() {
    assert_eq!(allocations(|| ()), 0);
    assert_eq!(allocations(|| drop(black_box(Box::new(1)))), 1, "alloc");
    assert_eq!(allocations(|| drop(black_box(vec![0_u8; 4096]))), 1, "alloc_zeroed");
    let mut grows = Vec::<u8>::with_capacity(16);
    assert_eq!(allocations(|| grows.reserve_exact(black_box(64))), 1, "realloc");
    assert_eq!(allocations(|| drop(grows)), 0, "giving memory back is no allocation");
}

#[test]
fn other_threads_do_not_count() {
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let (done, ended) = std::sync::mpsc::channel();
    let other = std::thread::spawn(move || {
        wait.recv().expect("told");
        black_box(vec![1_u8; 1 << 16]);
        done.send(()).expect("heard");
    });
    let ours = allocations(|| {
        go.send(()).expect("heard");
        while ended.try_recv().is_err() {
            std::hint::spin_loop();
        }
    });
    other.join().expect("ended");
    // A channel allocates its first block of messages for the thread that sends first.
    assert!(ours <= 1, "{ours}: the other thread's are counted");
}
