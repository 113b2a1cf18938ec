//! Counts of the allocator that this test program has installed.

use super::*;

#[test]
fn counts_what_this_thread_calls() {
    assert_eq!(calls(|| ()).0, Some(0));
    let (count, sum) = calls(|| {
        let boxes: Vec<Box<u64>> = (0..10).map(|n| std::hint::black_box(Box::new(n))).collect();
        boxes.iter().map(|n| **n).sum::<u64>()
    });
    assert_eq!((count, sum), (Some(22), 45), "ten boxes and a vector, made and dropped");
    let (count, ()) = calls(|| {
        let mut grows = std::hint::black_box(vec![1_u8; 10]);
        grows.reserve_exact(1000);
    });
    assert_eq!(count, Some(3));
}

#[test]
fn others_do_not_count() {
    use std::sync::mpsc::channel;
    let (start, started) = channel::<()>();
    let (done, end) = channel::<()>();
    let other = std::thread::spawn(move || {
        started.recv().expect("told to");
        let busy: Vec<String> = (0..1000).map(|n| n.to_string()).collect();
        done.send(()).expect("awaited");
        busy.len()
    });
    let (count, ()) = calls(|| {
        start.send(()).expect("there");
        end.recv().expect("there");
    });
    assert!(count.expect("installed") < 20, "{count:?}: what the channels take, and not 1000 strings");
    assert_eq!(other.join().expect("no panic"), 1000);
}

#[test]
fn memory_is_the_systems() {
    let mut zeroed = vec![0_u32; 4096];
    assert!(zeroed.iter().all(|&n| n == 0));
    zeroed.iter_mut().zip(0..).for_each(|(place, n)| *place = n);
    zeroed.reserve(1 << 16);
    assert!(zeroed.iter().zip(0..).all(|(&place, n)| place == n), "moved with its content");
}
