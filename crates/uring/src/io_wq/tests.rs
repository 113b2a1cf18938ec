//! The pool alone, with sources that sleep, wait, fail and count.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use super::*;
use crate::work_done::WorkDone;

mod cancel;
mod fair;
mod hashed;
mod help;
mod kept;
mod limits;
mod panics;
mod stress;

/// Time limit of every wait in these tests, so that a hang fails here and not in the harness.
const PATIENCE: Duration = Duration::from_secs(20);

type Script = dyn Fn(u32, Option<&Section<'_>>) -> i32 + Send + Sync;

/// Record of a source's calls, shared with its test.
#[derive(Default)]
pub(super) struct Seen {
    done: Mutex<Vec<(u32, i32)>>,
    changed: Condvar,
    threads: Mutex<HashSet<std::thread::ThreadId>>,
    finishes: AtomicU32,
}

impl Seen {
    /// Waits until the record has `count` results.
    pub(super) fn wait(&self, count: usize) -> Vec<(u32, i32)> {
        let until = Instant::now() + PATIENCE;
        let mut done = self.done.lock().unwrap();
        while done.len() < count {
            let left = until.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "only {} of {count} items have ended", done.len());
            done = self.changed.wait_timeout(done, left).unwrap().0;
        }
        done.clone()
    }

    pub(super) fn now(&self) -> Vec<(u32, i32)> {
        self.done.lock().unwrap().clone()
    }

    pub(super) fn threads(&self) -> usize {
        self.threads.lock().unwrap().len()
    }
}

/// Source whose items run a script.
pub(super) struct Probe {
    seen: Arc<Seen>,
    script: Box<Script>,
}

impl Probe {
    fn note_thread(&self) {
        std::thread_local! {
            static NOTED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
        }
        // Created once per thread: a worker that waits for a lock counts as blocked, and is replaced.
        if NOTED.replace(Arc::as_ptr(&self.seen).addr()) == Arc::as_ptr(&self.seen).addr() {
            return;
        }
        self.seen.threads.lock().unwrap().insert(std::thread::current().id());
    }
}

/// Result that stands for `WorkDone::NoThread` in a test's list.
pub(super) const NOT_RUN: i32 = i32::MIN;

impl Source for Probe {
    type Context = ();

    fn run(&self, _: &mut (), slot: u32, section: &Section<'_>) -> WorkDone {
        self.note_thread();
        WorkDone::Result((self.script)(slot, Some(section)))
    }

    fn run_short(&self, _: &mut (), slots: &[u32], ends: &mut impl Ends) {
        self.note_thread();
        for (at, &slot) in slots.iter().enumerate() {
            ends.end(at, WorkDone::Result((self.script)(slot, None)));
        }
    }

    fn finish(&self, done: &[(u32, WorkDone)]) {
        assert!(!done.is_empty(), "a wake-up for nothing");
        self.seen.finishes.fetch_add(1, SeqCst);
        let number = |how| if let WorkDone::Result(res) = how { res } else { NOT_RUN };
        self.seen.done.lock().unwrap().extend(done.iter().map(|&(slot, how)| (slot, number(how))));
        self.seen.changed.notify_all();
    }
}

pub(super) fn options(bound: u32, unbound: u32) -> PoolOptions {
    PoolOptions { max_workers: [bound, unbound], shards: 4, ..PoolOptions::default() }
}

pub(super) fn client(
    pool: &Pool<Probe>,
    slots: u32,
    script: impl Fn(u32, Option<&Section<'_>>) -> i32 + Send + Sync + 'static,
) -> (Submitter<Probe>, Arc<Seen>) {
    let seen = Arc::new(Seen::default());
    let source = Probe { seen: Arc::clone(&seen), script: Box::new(script) };
    (pool.submitter(source, slots).expect("room for a client"), seen)
}

/// Waits until a condition is true.
pub(super) fn until(what: &str, mut so: impl FnMut() -> bool) {
    let limit = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < limit, "never: {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Gate that items wait at until a test opens it.
#[derive(Clone, Default)]
pub(super) struct Gate {
    inner: Arc<(Mutex<bool>, Condvar)>,
}

impl Gate {
    pub(super) fn pass(&self) {
        let (open, changed) = &*self.inner;
        let limit = Instant::now() + PATIENCE;
        let mut open = open.lock().unwrap();
        while !*open {
            let left = limit.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "the gate never opened");
            open = changed.wait_timeout(open, left).unwrap().0;
        }
    }

    pub(super) fn open(&self) {
        *self.inner.0.lock().unwrap() = true;
        self.inner.1.notify_all();
    }
}

#[test]
fn short_items_are_served_by_one_worker_in_batches() {
    let pool = Pool::new(options(8, 8));
    let (mut submitter, seen) = client(&pool, 4096, |slot, _| slot as i32);
    for slot in 0..4096 {
        assert!(submitter.queue(slot, WorkFlags::SHORT));
    }
    submitter.commit();
    let mut done = seen.wait(4096);
    assert_eq!(done.iter().map(|&(slot, _)| slot).collect::<Vec<_>>(), (0..4096).collect::<Vec<_>>(), "in order");
    done.retain(|&(slot, res)| res != slot as i32);
    assert!(done.is_empty());
    assert_eq!((pool.counts()[0].created, seen.threads()), (1, 1));
    assert_eq!(pool.counts()[1].created, 0, "the other account has nothing to do");
    assert!(seen.finishes.load(SeqCst) < 4096 / 8, "results come back in batches");
}

#[test]
fn items_that_are_quick_though_they_may_block_are_served_by_few_workers() {
    let pool = Pool::new(options(64, 8));
    let (mut submitter, seen) = client(&pool, 4096, |_, section| {
        assert!(section.is_some());
        0
    });
    for slot in 0..4096 {
        submitter.queue(slot, WorkFlags::BOUND);
    }
    submitter.commit();
    seen.wait(4096);
    // A worker that is preempted in the middle of an item looks like a sleeping one and gets a replacement. On a busy
    // machine this happens a few times in 4,096 items; one worker per item would be 64, the limit.
    assert!(pool.counts()[0].created <= 16, "{:?}", pool.counts()[0]);
}

#[test]
fn a_blocked_worker_is_replaced() {
    let pool = Pool::new(options(8, 8));
    let gate = Gate::default();
    let at = gate.clone();
    let (mut submitter, seen) = client(&pool, 8, move |slot, _| {
        if slot == 0 {
            at.pass();
        }
        slot as i32
    });
    for slot in 0..8 {
        submitter.queue(slot, WorkFlags::BOUND);
    }
    submitter.commit();
    let others = seen.wait(7);
    assert!(others.iter().all(|&(slot, _)| slot != 0));
    gate.open();
    seen.wait(8);
}

#[test]
fn work_that_comes_while_the_only_worker_is_blocked_is_served() {
    let pool = Pool::new(options(8, 8));
    let gate = Gate::default();
    let at = gate.clone();
    let (mut submitter, seen) = client(&pool, 8, move |slot, _| {
        if slot == 0 {
            at.pass();
        }
        0
    });
    submitter.queue(0, WorkFlags::BOUND);
    submitter.commit();
    until("the worker is in its section", || pool.counts()[0].in_section == 1);
    for slot in 1..8 {
        submitter.queue(slot, WorkFlags::SHORT);
        submitter.commit();
        seen.wait(slot as usize);
    }
    gate.open();
    seen.wait(8);
}

#[test]
fn many_sleepers_sleep_together() {
    let pool = Pool::new(options(64, 8));
    let inside = Arc::new(AtomicU32::new(0));
    let (mut submitter, seen) = client(&pool, 64, move |_, _| {
        inside.fetch_add(1, SeqCst);
        // Run one after the other they would never end.
        until("many are inside at once", || inside.load(SeqCst) > 16);
        0
    });
    for slot in 0..64 {
        submitter.queue(slot, WorkFlags::BOUND);
    }
    submitter.commit();
    seen.wait(64);
    let counts = pool.counts()[0];
    assert!(counts.created > 16, "{counts:?}");
    assert!(counts.workers <= 64, "{counts:?}");
}

#[test]
fn computing_items_do_not_raise_the_worker_count() {
    let pool = Pool::new(options(64, 8));
    let (mut submitter, seen) = client(&pool, 64, |_, _| {
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(2) {
            std::hint::spin_loop();
        }
        0
    });
    for slot in 0..64 {
        submitter.queue(slot, WorkFlags::BOUND);
    }
    submitter.commit();
    seen.wait(64);
    assert!(pool.counts()[0].created <= 16, "{:?}", pool.counts()[0]);
}

#[test]
fn saturated_bound_work_does_not_starve_unbound_work() {
    let pool = Pool::new(options(2, 2));
    let gate = Gate::default();
    let at = gate.clone();
    let (mut submitter, seen) = client(&pool, 32, move |slot, _| {
        if slot < 16 {
            at.pass();
        }
        0
    });
    for slot in 0..16 {
        submitter.queue(slot, WorkFlags::BOUND);
    }
    submitter.commit();
    until("both bound workers are blocked", || pool.counts()[0].in_section == 2);
    for slot in 16..32 {
        submitter.queue(slot, WorkFlags::UNBOUND);
    }
    submitter.commit();
    assert!(seen.wait(16).iter().all(|&(slot, _)| slot >= 16));
    gate.open();
    seen.wait(32);
}

#[test]
fn a_slot_is_queued_once_at_a_time() {
    let pool = Pool::new(options(1, 1));
    let gate = Gate::default();
    let at = gate.clone();
    let (mut submitter, seen) = client(&pool, 2, move |_, _| {
        at.pass();
        0
    });
    assert!(submitter.queue(0, WorkFlags::BOUND));
    assert!(!submitter.queue(0, WorkFlags::BOUND));
    submitter.commit();
    gate.open();
    seen.wait(1);
    assert!(submitter.queue(0, WorkFlags::BOUND), "whoever has the result may queue the slot");
    submitter.commit();
    seen.wait(2);
}

#[test]
fn several_clients_share_a_pool_and_come_and_go() {
    let pool = Pool::new(options(4, 4));
    for round in 0..50 {
        let mut clients: Vec<_> = (0..3).map(|_| client(&pool, 64, move |slot, _| slot as i32 + round)).collect();
        for slot in 0..64 {
            for (submitter, _) in &mut clients {
                submitter.queue(slot, if slot % 3 == 0 { WorkFlags::BOUND } else { WorkFlags::SHORT });
            }
        }
        for (submitter, seen) in &mut clients {
            submitter.commit();
            let done = seen.wait(64);
            assert!(done.iter().all(|&(slot, res)| res == slot as i32 + round));
        }
    }
}

#[test]
fn a_panic_of_a_source_ends_its_item_and_not_its_worker() {
    let pool = Pool::new(options(1, 1));
    let (mut submitter, seen) = client(&pool, 2, |slot, _| {
        assert!(slot != 0, "on purpose");
        7
    });
    submitter.queue(0, WorkFlags::BOUND);
    submitter.queue(1, WorkFlags::BOUND);
    submitter.commit();
    let mut done = seen.wait(2);
    done.sort_unstable();
    assert_eq!(done, [(0, -5), (1, 7)]);
    assert_eq!(pool.counts()[0].created, 1);
}

#[cfg(sheave_lab)]
#[test]
fn what_is_measured_adds_up() {
    let pool = Pool::new(PoolOptions { measure: true, ..options(2, 2) });
    let (mut submitter, seen) = client(&pool, 512, |_, _| 0);
    for slot in 0..512 {
        submitter.queue(slot, WorkFlags::SHORT);
    }
    submitter.commit();
    seen.wait(512);
    assert_eq!(pool.starts().iter().map(|&(_, count)| count).sum::<u64>(), 512);
    let locks = pool.lock_stats();
    assert!(locks.taken > 0 && locks.hold_ns > 0, "{locks:?}");
}
