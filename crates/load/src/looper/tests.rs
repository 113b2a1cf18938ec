//! Tests of the loop over an engine of memory only.

use std::collections::VecDeque;

use super::*;
use crate::pace::Pace;
use crate::rw::Rw;

/// An engine that completes in order when it must wait, or at once, and fails at given offsets.
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
    fn run(looper: &mut Looper<Self>, pattern: &mut Pattern, until: &Until, pace: &mut Pace) -> Result<(), LoadError> {
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

/// An engine that completes at once at almost no cost, so that the loop itself is measured.
struct Nothing {
    slots: [u32; 128],
    queued: usize,
}

impl Driven for Nothing {
    fn run(looper: &mut Looper<Self>, pattern: &mut Pattern, until: &Until, pace: &mut Pace) -> Result<(), LoadError> {
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
