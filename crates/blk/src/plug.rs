//! The plug: requests that a ring gathers before it passes a batch to the drivers, and the cached time of that batch.
//!
//! Owns the hint, the mask of hardware contexts with gathered requests, and the time cache. The requests themselves are
//! in their [`hctx`](crate::hctx). A plug belongs to its ring and never leaves the ring's thread (a ring is not
//! `Send`), so no other thread can read its cached time.
//!
//! Invariants:
//! - I1: a cached time is never older than its batch: flush and sleep discard it, and so does a cycle-counter delta
//!   above the limit ([`MAX_AGE`] unless [`Plug::set_max_age`] changed it). The delta is checked for each bio, for the
//!   first request of each lane, and for every [`CHECK_EVERY`]th request. A stamp can therefore exceed the limit only
//!   by the time that its ring takes, within one lane, to gather that many requests.
//! - I2: the cached time is a [`CoarseTs`], for statistics only. Deadlines use `PreciseTs`, which no plug caches.
//! - I3: 0 is a valid time; a separate flag says if a time is cached.

use std::marker::PhantomData;
use std::time::Duration;

use sheave_base::clock::{Clock, CoarseTs};

use crate::request::PLUG_MAX;

/// Default for the largest age of a cached time.
pub const MAX_AGE: Duration = Duration::from_micros(50);
/// Largest number of requests that share a stamp without a check of the cycle counter.
pub const CHECK_EVERY: usize = 16;

/// Clock that the lab reads for each request that shares a stamp, to measure the cost of one clock read per request
/// with everything else unchanged. The value is discarded.
#[cfg(sheave_lab)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EachRead {
    /// None: the stamp is shared.
    #[default]
    None,
    /// The coarse clock, which stamps are read from.
    Coarse,
    /// The system's clock.
    System,
}

/// A ring's plug. It cannot leave the ring's thread, because its cached time is valid only there:
///
/// ```compile_fail,E0277
/// let plug = sheave_blk::plug::Plug::new(&sheave_base::clock::Clock::real());
/// std::thread::spawn(move || plug.is_open());
/// ```
#[derive(Debug)]
pub struct Plug {
    time: CoarseTs,
    cached: bool,
    /// Value of the cycle counter when `time` was read.
    cycles: u64,
    /// Largest age of a cached time, in cycles.
    max_age: u64,
    /// A lane checks the time when the number of gathered requests has none of these bits set.
    due_mask: u8,
    /// Nesting depth: only the outermost `finish` flushes.
    depth: u32,
    /// Mask for `depth`: all bits set, or 0 if times are not cached.
    keep: u32,
    /// Number of I/Os that the submitter has announced.
    hint: u32,
    /// Mask of hardware contexts with gathered requests.
    pub(crate) dirty: u64,
    #[cfg(sheave_lab)]
    pub(crate) each: EachRead,
    /// Makes the type neither `Send` nor `Sync`.
    thread: PhantomData<*const ()>,
}

impl Plug {
    /// Makes a closed plug for a ring with this clock.
    pub fn new(clock: &Clock) -> Plug {
        let mut plug = Plug {
            time: CoarseTs::default(),
            cached: false,
            cycles: 0,
            max_age: 0,
            due_mask: 0,
            depth: 0,
            keep: 0,
            hint: 0,
            dirty: 0,
            #[cfg(sheave_lab)]
            each: EachRead::None,
            thread: PhantomData,
        };
        plug.set_max_age(clock, MAX_AGE);
        plug
    }

    /// Sets the largest age of a cached time. With zero every request reads the clock; with [`Duration::MAX`] one
    /// reading serves until the plug is flushed.
    pub fn set_max_age(&mut self, clock: &Clock, max_age: Duration) {
        (self.due_mask, self.keep) = match max_age {
            Duration::ZERO => (0, 0),
            // Only the first request of a batch reads the clock.
            Duration::MAX => (u8::MAX, u32::MAX),
            _ => (CHECK_EVERY as u8 - 1, u32::MAX),
        };
        self.max_age = clock.ns_to_cycles(u64::try_from(max_age.as_nanos()).unwrap_or(u64::MAX));
        self.invalidate();
    }

    /// Opens the plug for about `hint` I/Os. Plugs nest, and only the outermost counts.
    #[inline]
    pub fn start(&mut self, hint: u32) {
        if self.depth == 0 {
            self.hint = hint;
            self.invalidate();
        }
        self.depth += 1;
    }

    /// Closes the plug. Returns true if it was the outermost, whose gathered requests must then be flushed.
    #[inline]
    pub fn finish(&mut self) -> bool {
        debug_assert!(self.depth > 0, "finish pairs with start");
        self.depth = self.depth.saturating_sub(1);
        if self.depth > 0 {
            return false;
        }
        // Announced I/Os that did not come must not reserve tags.
        self.hint = 0;
        true
    }

    /// Returns true if a plug is open.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.depth > 0
    }

    /// Returns the number of I/Os that the submitter announced, at least 1.
    #[inline]
    pub(crate) fn hint(&self) -> u32 {
        self.hint.max(1)
    }

    /// Returns true if a submitter that has gathered `gathered` requests must call `now` again: for each request if
    /// times are not cached, for every [`CHECK_EVERY`]th if they are, and only for the first if their age is not
    /// limited.
    #[inline(always)]
    pub(crate) fn is_time_due(&self, gathered: usize) -> bool {
        gathered as u8 & self.due_mask == 0
    }

    /// Returns the number of requests that may still be gathered, after `gathered` ones, until the time is due again.
    #[inline(always)]
    pub(crate) fn until_due(&self, gathered: usize) -> usize {
        usize::from(self.due_mask) + 1 - (gathered & usize::from(self.due_mask))
    }

    /// Reads the lab's clock for a request that shares its stamp.
    #[cfg(sheave_lab)]
    #[inline(always)]
    pub(crate) fn read_for_one(&self, clock: &Clock) {
        match self.each {
            EachRead::None => {}
            EachRead::Coarse => drop(std::hint::black_box(clock.coarse())),
            EachRead::System => drop(std::hint::black_box(clock.precise())),
        }
    }

    /// Returns the time of the batch: cached while the plug is open, else read. Callers that gather many requests call
    /// this when [`Plug::is_time_due`], because even a check of the cycle counter has a cost.
    #[inline]
    pub fn now(&mut self, clock: &Clock) -> CoarseTs {
        let unbounded = self.due_mask == u8::MAX;
        if self.cached && (unbounded || clock.cycles().wrapping_sub(self.cycles) <= self.max_age) {
            return self.time;
        }
        (self.time, self.cycles) = clock.coarse_with_cycles();
        self.cached = self.depth & self.keep != 0;
        self.time
    }

    /// Discards the cached time. Called after a flush, before sleeping, and wherever the owner may have spent time.
    #[inline]
    pub fn invalidate(&mut self) {
        self.cached = false;
    }
}

const _: () = assert!(CHECK_EVERY.is_power_of_two() && CHECK_EVERY <= 256, "it makes a mask");
const _: () = assert!(PLUG_MAX <= 256, "what may be gathered fits the mask");

#[cfg(all(test, not(shuttle)))]
mod tests {
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
    fn a_time_stamp_is_no_older_than_its_bound() {
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

    /// Has two candidates for a type that is `Send`, so that naming one is ambiguous, and one candidate for other
    /// types.
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
}
