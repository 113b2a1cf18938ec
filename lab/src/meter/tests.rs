//! Tests that the meter includes other threads, and that a sleep costs context switches and no CPU time.

use std::time::Duration;

use super::*;

#[test]
fn sleeps_of_other_threads_are_switches() {
    let meter = Meter::start();
    let sleeper = std::thread::spawn(|| {
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    sleeper.join().expect("it only sleeps");
    let mut turn = Turn::default();
    meter.add(&mut turn);
    assert!(turn.context_switches >= 20, "{turn:?}");
    assert!(turn.wall_ns >= 20_000_000, "{turn:?}");
}

#[test]
fn work_is_cpu_time() {
    let mut turn = Turn::default();
    while turn.cpu_ns < 10_000_000 {
        assert!(turn.wall_ns < 60_000_000_000, "CPU time stands still");
        let meter = Meter::start();
        let _ = std::hint::black_box((0..100_000u64).map(std::hint::black_box).sum::<u64>());
        meter.add(&mut turn);
    }
    assert!(turn.wall_ns > 0);
}
