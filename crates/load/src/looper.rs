//! The measured loop: fill SQEs, submit, reap, again.
//!
//! All work in this loop is measured as if the ring did it. So the loop does only a little for each I/O: one step of
//! the pattern, one store into the slot table, one move through the free queue each way, and a comparison on reaping.
//! The clock is read once per turn: that moment ends the latencies of the batch that is reaped and starts those of the
//! next one. The loop neither allocates nor divides.
//!
//! * I1. No buffer of the engine is in flight when [`Looper::run`] returns, also after failed I/Os.
//! * I2. The loop checks the stop flag and the deadline and publishes its counters at least every [`LOOK_UP`] while I/O
//!   completes.
//!
//! Called by each thread of `sheave bench`, for both sides of a comparison, and by the arms of `sheave-lab`.

use std::sync::Arc;
use std::time::Duration;

use sheave_base::clock::Clock;
use sheave_base::sync::atomic::{AtomicBool, Ordering};

use crate::engine::Engine;
use crate::error::LoadError;
use crate::live::{Counters, Counts, LiveHist};
use crate::pace::Pace;
use crate::pattern::Pattern;
use crate::slots::{InFlight, Slots};

/// Longest time between two checks of the stop flag and the deadline (I2).
pub const LOOK_UP: Duration = Duration::from_millis(5);

/// Counters and latencies that one thread shows to the reporter.
#[derive(Default)]
pub struct Lane {
    /// Counts of the current phase.
    pub counters: Counters,
    /// Latencies of the current phase.
    pub latency: LiveHist,
}

/// Conditions under which a loop stops. The first one that holds ends it.
#[derive(Clone)]
pub struct Until {
    /// Time limit.
    pub runtime: Option<Duration>,
    /// Number of I/Os.
    pub ios: u64,
    /// Flag that stops the loop.
    pub stop: Arc<AtomicBool>,
}

/// A failed I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoError {
    /// Offset of the I/O on the device, in bytes.
    pub offset: u64,
    /// True for a write.
    pub write: bool,
    /// Result of the I/O: `-errno`, or fewer bytes than requested.
    pub result: i32,
}

/// An engine whose measured loop is compiled in its own crate.
///
/// The measuring programs are generic over engines, and a generic loop is compiled in the crate that calls it. There
/// every call into the ring is a real call, unless the whole program is optimized at link time. These calls take 48
/// instructions per I/O of `null:`, a fifth of the total. [`Driven::run`] is a plain function of each engine, so that
/// the loop is compiled in the engine's crate.
pub trait Driven: Engine + Sized {
    /// Runs [`Looper::turns`], compiled in the engine's crate.
    ///
    /// # Errors
    ///
    /// Returns an error if the engine cannot go on. A failed I/O is only counted.
    fn run(looper: &mut Looper<Self>, pattern: &mut Pattern, until: &Until, pace: &mut Pace) -> Result<(), LoadError>;
}

/// The loop of one thread over one engine.
pub struct Looper<E> {
    pub engine: E,
    clock: Clock,
    slots: Slots,
    lane: Arc<Lane>,
    counts: Counts,
    batch: u32,
    complete: u32,
    max_errors: u64,
    first_error: Option<IoError>,
}

impl<E: Engine> Looper<E> {
    /// Makes a loop that keeps up to `depth` I/Os in flight and submits `batch` at a time.
    pub fn new(engine: E, depth: u32, batch: u32, max_errors: u64, lane: Arc<Lane>) -> Self {
        Self {
            engine,
            clock: Clock::real(),
            slots: Slots::new(depth),
            lane,
            counts: Counts::default(),
            batch: batch.min(depth),
            complete: batch.min(depth),
            max_errors,
            first_error: None,
        }
    }

    /// Sets the number of completions to wait for at a time. Without this call it is `batch`.
    #[must_use]
    pub fn completing(mut self, complete: u32) -> Self {
        self.complete = complete.clamp(1, self.slots.free().max(1));
        self
    }

    /// Returns the clock that stamps I/Os.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Returns the first failed I/O, if any.
    pub fn first_error(&self) -> Option<IoError> {
        self.first_error
    }

    /// Sets all counters to 0.
    pub fn reset(&mut self) {
        self.counts = Counts::default();
        self.lane.counters.publish(&self.counts);
        self.lane.latency.reset();
    }

    /// Returns the counts since the last reset.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Runs until a limit is reached or too many I/Os failed. Nothing is in flight afterwards (I1). Callers use
    /// [`Driven::run`] instead, which is compiled in the engine's crate.
    pub fn turns(&mut self, pattern: &mut Pattern, until: &Until, pace: &mut Pace) -> Result<(), LoadError> {
        let mut now = self.clock.cycles();
        let look_up = self.clock.ns_to_cycles(LOOK_UP.as_nanos() as u64);
        let deadline = match until.runtime {
            Some(runtime) => now.saturating_add(self.clock.ns_to_cycles(runtime.as_nanos() as u64)),
            None => u64::MAX,
        };
        let (mut left, mut look_at) = (until.ios, now);
        while left > 0 {
            if now >= look_at {
                self.lane.counters.publish(&self.counts);
                // Relaxed: the flag carries nothing but itself; the signal handler sets it.
                if now >= deadline || until.stop.load(Ordering::Relaxed) {
                    break;
                }
                look_at = deadline.min(now + look_up);
            }
            let want = left.min(u64::from(self.batch.min(self.slots.free()))) as u32;
            let prepped = self.prep(want, now, pattern, pace);
            left -= u64::from(prepped);
            if self.slots.in_flight() == 0 {
                pace.rest(now);
            } else {
                let wait = if prepped < want { 0 } else { self.wait_for(left) };
                self.engine.submit(wait)?;
                self.counts.submits += u64::from(prepped > 0);
            }
            now = self.clock.cycles();
            self.reap(now);
            if self.counts.errors > self.max_errors {
                break;
            }
        }
        self.drain()
    }

    /// Returns the number of completions to wait for: 0 while there is room for another batch, like in `t/io_uring`.
    #[inline]
    fn wait_for(&self, left: u64) -> u32 {
        let room = left > 0 && self.slots.free() >= self.batch;
        if room { 0 } else { self.complete.min(self.slots.in_flight()) }
    }

    /// Fills up to `want` SQEs, fewer if fewer are due. Returns their number.
    #[inline]
    fn prep(&mut self, want: u32, now: u64, pattern: &mut Pattern, pace: &mut Pace) -> u32 {
        match pace {
            Pace::Unlimited => self.prep_due(want, pattern, || Some(now)),
            Pace::Rate(rate) => self.prep_due(want, pattern, || rate.due(now)),
        }
    }

    #[inline]
    fn prep_due(&mut self, want: u32, pattern: &mut Pattern, mut due: impl FnMut() -> Option<u64>) -> u32 {
        // This is a copy, so that it stays in registers although SQEs are written to memory meanwhile.
        let mut at = pattern.at.clone();
        let mut slots = self.slots.taker();
        let (mut prepped, mut writes) = (0, 0);
        while prepped < want {
            let Some(due) = due() else { break };
            let step = pattern.step_from(&mut at);
            let offset = pattern.offset(step.block);
            let slot = slots.take(InFlight::new(due, step.write, offset));
            writes += u64::from(step.write);
            self.engine.prep(slot, step.write, offset);
            prepped += 1;
        }
        pattern.at = at;
        self.counts.writes += writes;
        prepped
    }

    /// Reaps completions. I/Os of one batch share a stamp, so the histogram is touched once per batch.
    #[inline]
    fn reap(&mut self, now: u64) {
        let (mut slots, expected) = (self.slots.giver(), self.engine.expected());
        let (clock, latency) = (&self.clock, &self.lane.latency);
        let (first_error, counts) = (&mut self.first_error, &mut self.counts);
        let (mut stamp, mut same) = (now, 0u64);
        let reaped = self.engine.reap(|slot, result| {
            let io = slots.put(slot);
            if io.stamp != stamp {
                if same > 0 {
                    latency.add(clock.cycles_to_ns(now.saturating_sub(stamp)), same);
                }
                (stamp, same) = (io.stamp, 0);
            }
            same += 1;
            if result != expected {
                note_error(first_error, counts, io, result);
            }
        });
        if same > 0 {
            latency.add(clock.cycles_to_ns(now.saturating_sub(stamp)), same);
        }
        self.counts.ios += u64::from(reaped);
        self.counts.reaps += u64::from(reaped > 0);
    }

    /// Waits until nothing is in flight.
    fn drain(&mut self) -> Result<(), LoadError> {
        while self.slots.in_flight() > 0 {
            self.engine.submit(1)?;
            let now = self.clock.cycles();
            self.reap(now);
        }
        self.lane.counters.publish(&self.counts);
        Ok(())
    }
}

impl<E: Driven> Looper<E> {
    /// Runs until a limit is reached or too many I/Os failed. Nothing is in flight afterwards (I1).
    ///
    /// # Errors
    ///
    /// Returns an error if the engine cannot go on. A failed I/O is only counted.
    pub fn run(&mut self, pattern: &mut Pattern, until: &Until, pace: &mut Pace) -> Result<(), LoadError> {
        E::run(self, pattern, until, pace)
    }
}

#[cold]
fn note_error(first: &mut Option<IoError>, counts: &mut Counts, io: InFlight, result: i32) {
    counts.errors += 1;
    first.get_or_insert(IoError { offset: io.offset(), write: io.write(), result });
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use crate::pace::Pace;
    use crate::rw::Rw;

    /// An engine that completes I/Os in order, either only when it must wait or at once, and that fails at given
    /// offsets.
    struct Toy {
        queue: VecDeque<(u32, i32)>,
        ready: usize,
        instant: bool,
        fail_at: Option<u64>,
        most: usize,
        offsets: Vec<(bool, u64)>,
    }

    impl Toy {
        fn new(instant: bool) -> Self {
            Self { queue: VecDeque::new(), ready: 0, instant, fail_at: None, most: 0, offsets: Vec::new() }
        }
    }

    impl Driven for Toy {
        fn run(
            looper: &mut Looper<Self>,
            pattern: &mut Pattern,
            until: &Until,
            pace: &mut Pace,
        ) -> Result<(), LoadError> {
            looper.turns(pattern, until, pace)
        }
    }

    impl Engine for Toy {
        fn expected(&self) -> i32 {
            512
        }
        fn prep(&mut self, slot: u32, write: bool, offset: u64) {
            assert!(self.queue.iter().all(|&(busy, _)| busy != slot), "slot {slot} is used twice at once");
            let result = if self.fail_at == Some(offset) { -5 } else { 512 };
            self.queue.push_back((slot, result));
            self.offsets.push((write, offset));
            self.most = self.most.max(self.queue.len());
        }
        fn submit(&mut self, wait: u32) -> Result<(), LoadError> {
            self.ready = if self.instant { self.queue.len() } else { wait as usize };
            Ok(())
        }
        fn reap(&mut self, mut done: impl FnMut(u32, i32)) -> u32 {
            let ready = std::mem::take(&mut self.ready);
            self.queue.drain(..ready).for_each(|(slot, result)| done(slot, result));
            ready as u32
        }
        fn buffer(&mut self, _slot: u32) -> &mut [u8] {
            unreachable!("the measured loop does not look into buffers")
        }
    }

    fn until(ios: u64) -> Until {
        Until { runtime: None, ios, stop: Arc::new(AtomicBool::new(false)) }
    }

    fn looper(toy: Toy, depth: u32, batch: u32) -> Looper<Toy> {
        Looper::new(toy, depth, batch, 0, Arc::new(Lane::default()))
    }

    #[test]
    fn does_exactly_the_ios_asked_and_leaves_none_in_flight() {
        for (instant, depth, batch, ios) in
            [(true, 1, 1, 10), (false, 1, 1, 10), (false, 32, 8, 1003), (true, 128, 32, 1003), (false, 5, 4, 7)]
        {
            let mut looper = looper(Toy::new(instant), depth, batch);
            let mut pattern = Pattern::new(Rw::Randrw, 50, 0, 512, 100, 1);
            looper.run(&mut pattern, &until(ios), &mut Pace::Unlimited).expect("the toy does not fail");
            assert_eq!(looper.counts().ios, ios);
            assert_eq!(looper.slots.in_flight(), 0);
            assert_eq!(looper.counts().writes, looper.engine.offsets.iter().filter(|io| io.0).count() as u64);
            let mut report = crate::live::report_histogram();
            crate::live::merge(&looper.lane.latency, &mut report);
            assert_eq!(report.len(), ios);
        }
    }

    #[test]
    fn keeps_the_depth_when_the_device_lags() {
        let mut looper = looper(Toy::new(false), 32, 8);
        let mut pattern = Pattern::new(Rw::Randread, 50, 0, 512, 100, 1);
        looper.run(&mut pattern, &until(1000), &mut Pace::Unlimited).expect("the toy does not fail");
        assert_eq!(looper.engine.most, 32);
        assert_eq!(looper.counts().submits, 125);
    }

    #[test]
    fn instant_devices_get_full_batches() {
        let mut looper = looper(Toy::new(true), 128, 32);
        let mut pattern = Pattern::new(Rw::Randread, 50, 0, 512, 100, 1);
        looper.run(&mut pattern, &until(3200), &mut Pace::Unlimited).expect("the toy does not fail");
        assert_eq!((looper.counts().submits, looper.counts().reaps), (100, 100));
    }

    #[test]
    fn an_error_ends_the_run_and_is_named() {
        let mut toy = Toy::new(true);
        toy.fail_at = Some(512 * 50);
        let mut looper = looper(toy, 4, 2);
        let mut pattern = Pattern::new(Rw::Write, 50, 0, 512, 100, 1);
        looper.run(&mut pattern, &until(1000), &mut Pace::Unlimited).expect("an I/O error is no error of the loop");
        assert_eq!(looper.first_error(), Some(IoError { offset: 512 * 50, write: true, result: -5 }));
        assert_eq!(looper.counts().errors, 1);
        assert!(looper.counts().ios <= 54);
    }

    #[test]
    fn the_stop_flag_and_the_deadline_end_the_run() {
        let mut pattern = Pattern::new(Rw::Randread, 50, 0, 512, 100, 1);
        let mut first = looper(Toy::new(true), 4, 4);
        let stopped = until(u64::MAX);
        // Relaxed: one thread.
        stopped.stop.store(true, Ordering::Relaxed);
        first.run(&mut pattern, &stopped, &mut Pace::Unlimited).expect("the toy does not fail");
        assert_eq!(first.counts().ios, 0);

        let mut toy = Toy::new(true);
        toy.offsets.reserve(1 << 20);
        let mut second = looper(toy, 4, 4);
        let timed = Until { runtime: Some(Duration::from_millis(20)), ..until(u64::MAX) };
        let start = std::time::Instant::now();
        second.run(&mut pattern, &timed, &mut Pace::Unlimited).expect("the toy does not fail");
        assert!(start.elapsed() >= Duration::from_millis(19));
        assert!(start.elapsed() < Duration::from_secs(5));
    }

    /// An engine that completes at once and takes next to no time, so that the loop itself is measured.
    struct Nothing {
        slots: [u32; 128],
        queued: usize,
    }

    impl Driven for Nothing {
        fn run(
            looper: &mut Looper<Self>,
            pattern: &mut Pattern,
            until: &Until,
            pace: &mut Pace,
        ) -> Result<(), LoadError> {
            looper.turns(pattern, until, pace)
        }
    }

    impl Engine for Nothing {
        fn expected(&self) -> i32 {
            512
        }
        #[inline]
        fn prep(&mut self, slot: u32, _write: bool, offset: u64) {
            self.slots[self.queued & 127] = slot;
            self.queued += 1;
            std::hint::black_box(offset);
        }
        fn submit(&mut self, _wait: u32) -> Result<(), LoadError> {
            Ok(())
        }
        #[inline]
        fn reap(&mut self, mut done: impl FnMut(u32, i32)) -> u32 {
            let queued = std::mem::take(&mut self.queued);
            self.slots[..queued.min(128)].iter().for_each(|&slot| done(slot, 512));
            queued as u32
        }
        fn buffer(&mut self, _slot: u32) -> &mut [u8] {
            unreachable!("the measured loop does not look into buffers")
        }
    }

    #[test]
    #[ignore = "measures the loop itself: cargo test --release -p sheave-cli loop_cost -- --ignored --nocapture"]
    fn loop_cost() {
        for (depth, batch) in [(128, 32), (32, 8), (1, 1)] {
            let engine = Nothing { slots: [0; 128], queued: 0 };
            let mut looper = Looper::new(engine, depth, batch, 0, Arc::new(Lane::default()));
            let mut pattern = Pattern::new(Rw::Randread, 50, 0, 512, 1 << 30, 1);
            let start = std::time::Instant::now();
            looper.run(&mut pattern, &until(50_000_000), &mut Pace::Unlimited).expect("nothing does not fail");
            println!("depth {depth}, batch {batch}: {:.2} ns an I/O", start.elapsed().as_nanos() as f64 / 50e6);
        }
    }
}
