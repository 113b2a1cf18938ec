//! Steps: one item each, in order, on the caller's thread; no item runs outside a step.

use std::sync::Mutex;

use super::super::{Ends, PoolOptions, Section, WorkFlags};
use super::*;
use crate::work_done::WorkDone;

/// Source that records which items run and end, with the thread.
#[derive(Default)]
struct Log(Mutex<Vec<(&'static str, u32)>>, Mutex<Vec<std::thread::ThreadId>>);

impl Source for std::sync::Arc<Log> {
    type Context = ();

    fn run(&self, _: &mut (), slot: u32, section: &Section<'_>) -> WorkDone {
        assert!(!section.is_cancelled());
        self.0.lock().unwrap().push(("run", slot));
        self.1.lock().unwrap().push(std::thread::current().id());
        WorkDone::Result(slot as i32)
    }

    fn run_short(&self, _: &mut (), slots: &[u32], ends: &mut impl Ends) {
        for (at, &slot) in slots.iter().enumerate() {
            self.0.lock().unwrap().push(("short", slot));
            ends.end(at, WorkDone::Result(slot as i32));
        }
    }

    fn finish(&self, done: &[(u32, WorkDone)]) {
        self.0.lock().unwrap().extend(done.iter().map(|&(slot, how)| {
            assert_eq!(WorkDone::Result(slot as i32), how);
            ("end", slot)
        }));
    }
}

#[test]
fn a_step_runs_one_item_here_and_nothing_runs_by_itself() {
    let log = std::sync::Arc::new(Log::default());
    let pool = Pool::new(PoolOptions { stepped: true, ..PoolOptions::default() });
    let mut submitter = pool.submitter(log.clone(), 16).unwrap();
    assert!(pool.is_stepped() && !pool.step());
    assert!(submitter.queue(0, WorkFlags::UNBOUND));
    assert!(submitter.queue(1, WorkFlags::BOUND));
    for slot in 2..5 {
        assert!(submitter.queue(slot, WorkFlags::SHORT));
    }
    assert!(submitter.queue(5, WorkFlags::hashed(9)) && submitter.queue(6, WorkFlags::hashed(9)));
    assert!(!pool.step(), "not handed over");
    submitter.commit();
    assert_eq!(pool.counts()[0].workers + pool.counts()[1].workers, 0);
    assert_eq!(submitter.cancel(3), super::super::Cancelled::Queued);
    let mut steps = Vec::new();
    while pool.step() {
        let step: Vec<_> = log.0.lock().unwrap().drain(..).collect();
        assert_eq!(step.len(), 2, "one item, and its end: {step:?}");
        steps.push(step[0]);
    }
    assert_eq!(steps, [("run", 1), ("run", 5), ("short", 2), ("short", 4), ("run", 6), ("run", 0)]);
    assert!(log.1.lock().unwrap().iter().all(|&thread| thread == std::thread::current().id()));
}

#[test]
fn the_caller_may_choose_the_account() {
    let log = std::sync::Arc::new(Log::default());
    let pool = Pool::new(PoolOptions { stepped: true, ..PoolOptions::default() });
    let mut submitter = pool.submitter(log.clone(), 4).unwrap();
    submitter.queue(0, WorkFlags::BOUND);
    submitter.queue(1, WorkFlags::UNBOUND);
    submitter.commit();
    assert!(pool.step_account(Account::Unbound) && !pool.step_account(Account::Unbound));
    assert_eq!(*log.0.lock().unwrap(), [("run", 1), ("end", 1)]);
    assert!(pool.step_account(Account::Bound));
    let threads = Pool::<std::sync::Arc<Log>>::new(PoolOptions::default());
    assert!(!threads.step(), "a pool with threads runs its work itself");
}

/// Source whose item of slot 0 waits until the test lets it continue.
struct Slow(std::sync::Arc<Log>, std::sync::Arc<std::sync::Barrier>);

impl Source for Slow {
    type Context = ();

    fn run(&self, _: &mut (), slot: u32, section: &Section<'_>) -> WorkDone {
        if slot == 0 {
            self.1.wait();
            self.1.wait();
        }
        self.0.run(&mut (), slot, section)
    }

    fn run_short(&self, context: &mut (), slots: &[u32], ends: &mut impl Ends) {
        self.0.run_short(context, slots, ends);
    }

    fn finish(&self, done: &[(u32, WorkDone)]) {
        self.0.finish(done);
    }
}

#[test]
fn items_of_one_hash_stay_in_order_when_several_threads_step() {
    let log = std::sync::Arc::new(Log::default());
    let gate = std::sync::Arc::new(std::sync::Barrier::new(2));
    let pool = Pool::new(PoolOptions { stepped: true, ..PoolOptions::default() });
    let mut submitter = pool.submitter(Slow(log.clone(), gate.clone()), 4).unwrap();
    for slot in 0..2 {
        submitter.queue(slot, WorkFlags::hashed(9));
    }
    submitter.commit();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| pool.step());
        gate.wait();
        assert!(!pool.step(), "an item of its hash runs");
        gate.wait();
        assert!(other.join().unwrap());
    });
    assert!(pool.step() && !pool.step());
    assert_eq!(*log.0.lock().unwrap(), [("run", 0), ("end", 0), ("run", 1), ("end", 1)]);
}
