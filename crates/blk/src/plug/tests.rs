//! Cached time of the plug on a virtual clock: when the clock is read, and where the cached value may be used.

use super::*;
use sheave_base::clock::VirtualClock;

fn clock() -> (Clock, VirtualClock) {
    Clock::virtual_clock()
}

/// Returns the plug's time after another `ns`.
fn after(plug: &mut Plug, clock: &Clock, time: &VirtualClock, ns: u64) -> u64 {
    time.advance(Duration::from_nanos(ns));
    plug.now(clock).0
}

#[test]
fn equal_within_a_batch_and_one_read() {
    let (clock, time) = clock();
    time.set(1000);
    let mut plug = Plug::new(&clock);
    plug.start(32);
    let stamps: Vec<u64> = (0..32).map(|_| after(&mut plug, &clock, &time, 10)).collect();
    assert_eq!(stamps, [1010; 32]);
    assert_eq!(time.reads(), 1);
}

#[test]
fn without_a_plug_always_the_clock() {
    let (clock, time) = clock();
    let mut plug = Plug::new(&clock);
    for n in 1..10 {
        assert_eq!(after(&mut plug, &clock, &time, 1), n);
    }
    assert_eq!(time.reads(), 9);
    plug.start(1);
    plug.now(&clock);
    assert!(plug.finish());
    plug.invalidate();
    assert_eq!(after(&mut plug, &clock, &time, 5), 14, "nor after it was closed");
    assert_eq!(after(&mut plug, &clock, &time, 5), 19);
}

#[test]
fn zero_is_a_time_like_any_other() {
    let (clock, time) = clock();
    let mut plug = Plug::new(&clock);
    plug.start(4);
    assert_eq!(plug.now(&clock).0, 0);
    time.advance(Duration::from_nanos(7));
    assert_eq!(plug.now(&clock).0, 0, "cached, though it is 0");
    assert_eq!(time.reads(), 1);
}

#[test]
fn bounded_in_age() {
    let (clock, time) = clock();
    let mut plug = Plug::new(&clock);
    plug.start(100);
    plug.now(&clock);
    // Within the age limit the cached time stays, for any number of requests.
    time.advance(Duration::from_nanos(MAX_AGE.as_nanos() as u64));
    (0..100).for_each(|_| assert_eq!(plug.now(&clock).0, 0));
    // Beyond the limit the next check of the cycle counter discards it.
    time.advance(Duration::from_nanos(1));
    let fresh = (0..CHECK_EVERY).position(|_| plug.now(&clock).0 == MAX_AGE.as_nanos() as u64 + 1);
    assert!(fresh.is_some(), "after at most {CHECK_EVERY} requests");
    assert_eq!(time.reads(), 2);
    // The age counts from that reading.
    time.advance(Duration::from_nanos(MAX_AGE.as_nanos() as u64));
    (0..100).for_each(|_| assert_eq!(plug.now(&clock).0, MAX_AGE.as_nanos() as u64 + 1));
}

#[test]
fn without_a_bound_a_reading_serves_until_it_is_dropped() {
    let (clock, time) = clock();
    let mut plug = Plug::new(&clock);
    plug.set_max_age(&clock, Duration::MAX);
    plug.start(1000);
    plug.now(&clock);
    assert_eq!(after(&mut plug, &clock, &time, 1_000_000), 0, "1 ms old");
    plug.invalidate();
    assert_eq!(plug.now(&clock).0, 1_000_000);
    assert!(plug.finish());
    assert_eq!(after(&mut plug, &clock, &time, 5), 1_000_000, "until it is dropped, which its owner does now");
    plug.invalidate();
    assert_eq!(after(&mut plug, &clock, &time, 5), 1_000_010);
    assert_eq!(after(&mut plug, &clock, &time, 5), 1_000_015, "without a plug always the clock");
}

#[test]
fn another_bound_holds_from_the_next_reading_on() {
    let (clock, time) = clock();
    let mut plug = Plug::new(&clock);
    plug.set_max_age(&clock, Duration::from_micros(20));
    plug.start(100);
    plug.now(&clock);
    assert_eq!(after(&mut plug, &clock, &time, 20_000), 0);
    assert_eq!(after(&mut plug, &clock, &time, 1), 20_001);
    // A time cached under the old limit is discarded.
    time.advance(Duration::from_nanos(9));
    plug.set_max_age(&clock, Duration::from_micros(50));
    assert_eq!(plug.now(&clock).0, 20_010);
}

#[test]
fn fresh_after_it_was_dropped() {
    let (clock, time) = clock();
    let mut plug = Plug::new(&clock);
    plug.start(4);
    plug.now(&clock);
    time.advance(Duration::from_nanos(3));
    plug.invalidate();
    assert_eq!(plug.now(&clock).0, 3);
    assert!(plug.finish());
    time.advance(Duration::from_nanos(3));
    plug.start(4);
    assert_eq!(plug.now(&clock).0, 6, "a new plug starts without a time");
}

#[test]
fn nested_plugs_are_one() {
    let (clock, time) = clock();
    let mut plug = Plug::new(&clock);
    plug.start(10);
    plug.now(&clock);
    time.advance(Duration::from_nanos(3));
    plug.start(99);
    assert_eq!(plug.now(&clock).0, 0, "the inner plug shares the time of the outer");
    assert_eq!(plug.hint(), 10, "and its hint");
    assert!(!plug.finish());
    assert!(plug.is_open());
    assert_eq!(plug.now(&clock).0, 0);
    assert!(plug.finish());
    assert!(!plug.is_open());
}

#[test]
fn the_hint_ends_with_the_plug() {
    let (clock, _) = clock();
    let mut plug = Plug::new(&clock);
    plug.start(3);
    plug.start(9);
    plug.finish();
    assert_eq!(plug.hint(), 3, "the outer plug's");
    plug.finish();
    assert_eq!(plug.hint(), 1);
}

#[test]
fn time_that_goes_back_does_not_harm() {
    let (clock, time) = clock();
    time.set(1_000_000);
    let mut plug = Plug::new(&clock);
    plug.start(100);
    plug.now(&clock);
    time.set(10);
    // The difference of the counters is huge then, so the next check reads the clock and caches the time again.
    let stamps: Vec<u64> = (0..100).map(|_| plug.now(&clock).0).collect();
    assert_eq!(stamps.last(), Some(&10));
    assert!(time.reads() <= 3);
}

/// Has two candidates for a type that is `Send`, so that naming one is ambiguous, and one candidate for other types.
trait AmbiguousIfSend<Candidate> {
    fn is_not_send() {}
}
impl<T: ?Sized> AmbiguousIfSend<()> for T {}
struct Sendable;
impl<T: ?Sized + Send> AmbiguousIfSend<Sendable> for T {}

#[test]
fn neither_plug_nor_ring_leaves_its_thread() {
    // Does not compile if one of them is `Send`.
    <Plug as AmbiguousIfSend<_>>::is_not_send();
    <crate::ctx::IoCtx as AmbiguousIfSend<_>>::is_not_send();
    <crate::bio_set::BioSet as AmbiguousIfSend<Sendable>>::is_not_send();
}
