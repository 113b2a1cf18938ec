//! The pool under a model checker: schedules of submitters, workers, cancels, timeouts and the end, chosen at random.
//!
//! A lost wake-up is a deadlock, which the checker reports. Timeouts (of idle workers and of standbys) come whenever
//! the checker likes, so workers end and are replaced in the middle of everything.

use std::time::Duration;

use sheave_base::sync::atomic::{AtomicU32, Ordering};
use sheave_base::sync::{Arc, Condvar, Mutex, thread};

use super::*;
use crate::work_done::WorkDone;

/// Schedules per model and kind; `SHEAVE_MODEL_RUNS` overrides it.
const RUNS: usize = 5_000;
/// Priority changes in a schedule of the second kind.
const PCT_DEPTH: usize = 3;

fn explore(name: &str, body: impl Fn() + Send + Sync + 'static) {
    let runs = std::env::var("SHEAVE_MODEL_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(RUNS);
    // Counted outside the checker's executions.
    let seen = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let counter = std::sync::Arc::clone(&seen);
    let body = std::sync::Arc::new(move || {
        counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        body();
    });
    let again = std::sync::Arc::clone(&body);
    shuttle::check_random(move || body(), runs);
    shuttle::check_pct(move || again(), runs, PCT_DEPTH);
    println!("{name}: explored {} schedules", seen.load(std::sync::atomic::Ordering::Relaxed));
}

#[derive(Default)]
struct Seen {
    done: Mutex<Vec<(u32, WorkDone)>>,
    changed: Condvar,
    busy: AtomicU32,
    ran: Mutex<Vec<u32>>,
}

impl Seen {
    fn wait(&self, count: usize) -> Vec<(u32, WorkDone)> {
        let mut done = self.done.lock().unwrap();
        while done.len() < count {
            done = self.changed.wait(done).unwrap();
        }
        done.clone()
    }
}

/// Slots from `EXCLUSIVE` up to `WAITS` must not run two at once.
const EXCLUSIVE: u32 = 4;

/// Waits inside its section until two other items have ended.
const WAITS: u32 = 8;

struct Probe(Arc<Seen>);

impl Probe {
    fn body(&self, slot: u32) -> WorkDone {
        let seen = &*self.0;
        if slot >= EXCLUSIVE {
            assert_eq!(seen.busy.fetch_add(1, Ordering::SeqCst), 0, "two items of one hash at once");
            thread::yield_now();
            seen.ran.lock().unwrap().push(slot);
            seen.busy.fetch_sub(1, Ordering::SeqCst);
        }
        WorkDone::Result(0)
    }
}

impl Source for Probe {
    type Context = ();

    fn run(&self, _: &mut (), slot: u32, _: &Section<'_>) -> WorkDone {
        if slot == WAITS {
            self.0.wait(2);
            return WorkDone::Result(0);
        }
        self.body(slot)
    }

    fn run_short(&self, _: &mut (), slots: &[u32], ends: &mut impl Ends) {
        for (at, &slot) in slots.iter().enumerate() {
            ends.end(at, self.body(slot));
        }
    }

    fn finish(&self, done: &[(u32, WorkDone)]) {
        self.0.done.lock().unwrap().extend_from_slice(done);
        self.0.changed.notify_all();
    }
}

fn pool(bound: u32) -> Pool<Probe> {
    Pool::new(PoolOptions {
        max_workers: [bound, 1],
        spin: Duration::ZERO,
        shards: 2,
        idle_timeout: Duration::from_secs(1),
        ..PoolOptions::default()
    })
}

fn client(pool: &Pool<Probe>, slots: u32) -> (Submitter<Probe>, Arc<Seen>) {
    let seen = Arc::new(Seen::default());
    (pool.submitter(Probe(Arc::clone(&seen)), slots).expect("room"), seen)
}

fn slots_of(mut done: Vec<(u32, WorkDone)>) -> Vec<u32> {
    done.sort_unstable_by_key(|end| end.0);
    done.iter().map(|&(slot, _)| slot).collect()
}

#[test]
fn model_no_wake_up_is_lost() {
    explore("queue, sleep, time out, queue again", || {
        let pool = pool(2);
        let (mut submitter, seen) = client(&pool, 4);
        for round in 1..=3 {
            submitter.queue(0, WorkFlags::SHORT);
            submitter.commit();
            submitter.queue(1, WorkFlags::BOUND);
            submitter.commit();
            seen.wait(2 * round);
        }
        drop(submitter);
        drop(pool);
    });
}

#[test]
fn model_two_submitters_and_two_workers_lose_nothing() {
    explore("two submitters", || {
        let pool = pool(2);
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let pool = pool.clone();
                thread::spawn(move || {
                    let (mut submitter, seen) = client(&pool, 3);
                    for slot in 0..3 {
                        submitter.queue(slot, if slot == 1 { WorkFlags::BOUND } else { WorkFlags::SHORT });
                        submitter.commit();
                    }
                    assert_eq!(slots_of(seen.wait(3)), [0, 1, 2]);
                })
            })
            .collect();
        drop(pool);
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn model_a_hash_keeps_its_order_and_runs_alone() {
    explore("hashes", || {
        let pool = pool(3);
        let (mut submitter, seen) = client(&pool, 8);
        for slot in EXCLUSIVE..8 {
            submitter.queue(slot, WorkFlags::hashed(1));
            submitter.queue(slot - EXCLUSIVE, WorkFlags::BOUND).then(|| submitter.commit());
        }
        submitter.commit();
        seen.wait(8);
        assert_eq!(*seen.ran.lock().unwrap(), [4, 5, 6, 7]);
    });
}

#[test]
fn model_a_cancel_has_one_outcome_and_an_item_one_end() {
    explore("cancel", || {
        let pool = pool(2);
        let (mut submitter, seen) = client(&pool, 8);
        for slot in EXCLUSIVE..8 {
            submitter.queue(slot, WorkFlags::hashed(1));
        }
        submitter.queue(0, WorkFlags::SHORT);
        submitter.commit();
        let mut expected = vec![6];
        for slot in [0, 4, 7, 5] {
            match submitter.cancel(slot) {
                Cancelled::Queued => assert_eq!(submitter.cancel(slot), Cancelled::NotFound),
                Cancelled::Running | Cancelled::NotFound => expected.push(slot),
            }
        }
        // A cancelled slot is free at once, and its stale entry starts nothing.
        let again = !expected.contains(&5);
        if again {
            submitter.queue(5, WorkFlags::hashed(1));
            submitter.commit();
            expected.push(5);
        }
        expected.sort_unstable();
        assert_eq!(slots_of(seen.wait(expected.len())), expected);
        assert!(!again || seen.ran.lock().unwrap().last() == Some(&5), "its turn is the one of its new entry");
        drop(submitter);
        drop(pool);
        assert_eq!(slots_of(seen.wait(0)), expected, "nothing comes later");
    });
}

#[test]
fn model_a_blocked_worker_is_replaced() {
    explore("an item waits for one behind it", || {
        let pool = pool(2);
        let (mut submitter, seen) = client(&pool, WAITS + 1);
        // The others are in the same batch, or behind the blocked item: another worker must run them.
        submitter.queue(WAITS, WorkFlags::BOUND);
        submitter.commit();
        submitter.queue(0, WorkFlags::BOUND);
        submitter.queue(1, WorkFlags::SHORT);
        submitter.commit();
        assert_eq!(slots_of(seen.wait(3)), [0, 1, WAITS]);
    });
}

#[test]
fn model_workers_are_called_where_items_block() {
    explore("calls", || {
        let pool = pool(3);
        pool.shared().accts[0].blocking.found_blocked();
        let (mut submitter, seen) = client(&pool, WAITS + 1);
        // An item that waits for those behind it, and then others that find workers asleep, ended, or about to be.
        for (first, all) in [(WAITS, 3), (2, 6)] {
            submitter.queue(first, WorkFlags::BOUND);
            submitter.commit();
            submitter.queue(0, WorkFlags::BOUND);
            submitter.queue(1, WorkFlags::BOUND);
            submitter.commit();
            seen.wait(all);
            assert!(pool.counts()[0].workers <= 3);
        }
        pool.shutdown();
        assert_eq!(pool.shared().accts[0].counts(), super::acct::Counts(0), "each has left the place that it was in");
    });
}

#[test]
fn model_a_client_closes_and_another_takes_its_place() {
    explore("close", || {
        let pool = pool(2);
        for _ in 0..2 {
            let (mut submitter, seen) = client(&pool, 2);
            submitter.queue(0, WorkFlags::BOUND);
            submitter.queue(1, WorkFlags::SHORT);
            submitter.commit();
            drop(submitter);
            assert!(seen.wait(0).len() <= 2);
        }
        let (mut submitter, seen) = client(&pool, 2);
        submitter.queue(0, WorkFlags::SHORT);
        submitter.queue(1, WorkFlags::BOUND);
        submitter.commit();
        assert_eq!(slots_of(seen.wait(2)), [0, 1]);
    });
}

#[test]
fn model_a_shutdown_meets_a_submitter() {
    explore("shutdown", || {
        let pool = pool(2);
        let ending = pool.clone();
        let (mut submitter, seen) = client(&pool, 4);
        submitter.queue(0, WorkFlags::BOUND);
        submitter.queue(1, WorkFlags::UNBOUND);
        submitter.commit();
        let shutdown = thread::spawn(move || ending.shutdown());
        submitter.queue(2, WorkFlags::SHORT);
        submitter.queue(3, WorkFlags::hashed(1));
        submitter.commit();
        shutdown.join().unwrap();
        assert_eq!(slots_of(seen.wait(4)), [0, 1, 2, 3], "each ends once, run or not");
        assert_eq!(pool.counts().map(|acct| (acct.workers, acct.queued)), [(0, 0); 2]);
    });
}

#[test]
fn model_a_client_helps_beside_a_worker() {
    explore("help", || {
        let pool = pool(2);
        let (mut submitter, seen) = client(&pool, 4);
        let (mut back, mut rounds) = (Vec::new(), 0);
        for first in [0, 2] {
            submitter.queue(first, WorkFlags::SHORT);
            submitter.commit();
            submitter.queue(first + 1, WorkFlags::SHORT);
            submitter.commit();
            rounds += 2;
            submitter.help(&mut back);
            // The worker runs the rest whether or not it is woken: a napping worker looks by itself.
            if first == 0 {
                submitter.wake_deferred();
            }
            seen.wait(rounds - back.len());
        }
        let mut all = slots_of(seen.wait(rounds - back.len()));
        assert_eq!(pool.counts()[0].helped, back.len() as u64);
        all.extend(&back);
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3], "each once, here or there");
        drop(submitter);
        drop(pool);
        assert_eq!(seen.wait(0).len() + back.len(), 4, "nothing comes later");
    });
}

#[test]
fn model_two_clients_rely_on_one_nap() {
    explore("naps", || {
        let pool = pool(1);
        let ending = pool.clone();
        let other = thread::spawn(move || {
            let (mut submitter, seen) = client(&ending, 2);
            for slot in 0..2 {
                submitter.queue(slot, WorkFlags::SHORT);
                submitter.commit();
                seen.wait(slot as usize + 1);
            }
        });
        let (mut submitter, seen) = client(&pool, 2);
        let mut back = Vec::new();
        submitter.queue(0, WorkFlags::SHORT);
        submitter.commit();
        seen.wait(1);
        submitter.queue(1, WorkFlags::SHORT);
        submitter.commit();
        submitter.help(&mut back);
        submitter.queue(0, WorkFlags::BOUND);
        submitter.commit();
        seen.wait(3 - back.len());
        other.join().unwrap();
    });
}

#[test]
fn model_a_ring_that_wants_several_results_sleeps_until_they_are_there() {
    explore("results", || {
        let mut parker = sheave_base::parker::Parker::new().expect("a parker");
        let mut task_work = crate::task_work::TaskWork::new(4, 4, parker.unparker());
        let workers: Vec<_> = [0..2, 2..3, 3..4]
            .into_iter()
            .map(|slots: std::ops::Range<u32>| {
                let done = task_work.done_queue();
                thread::spawn(move || {
                    // The last result is `Reissue`, which wakes the ring at once.
                    let how = |slot| if slot == 3 { WorkDone::Reissue } else { WorkDone::Result(0) };
                    done.finish(&slots.map(|slot| (slot, how(slot))).collect::<Vec<_>>());
                })
            })
            .collect();
        let mut seen = 0;
        while seen < 4 {
            while task_work.pop_done().is_some() {
                seen += 1;
            }
            if seen < 4 && task_work.sleep_until(4 - seen) {
                parker.park(None);
            } else {
                thread::yield_now(); // A partially queued result is neither visible nor absent.
            }
            task_work.is_awake();
        }
        for worker in workers {
            worker.join().unwrap();
        }
    });
}

#[test]
fn model_limits_change_under_way() {
    explore("limits", || {
        let pool = pool(3);
        let (mut submitter, seen) = client(&pool, 4);
        let other = pool.clone();
        for slot in 0..4 {
            submitter.queue(slot, WorkFlags::BOUND);
        }
        submitter.commit();
        let lowering = thread::spawn(move || other.set_max_workers([1, 1]));
        seen.wait(4);
        lowering.join().unwrap();
        for slot in 0..4 {
            submitter.queue(slot, WorkFlags::BOUND);
        }
        submitter.commit();
        seen.wait(8);
    });
}
