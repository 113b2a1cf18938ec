//! The order of threads: from a seed, fair, and one at a time.

use std::sync::Arc;

use super::super::sync::atomic::{AtomicU64, Ordering};
use super::super::sync::{Condvar, Mutex};
use super::super::{hint, thread};
use super::*;

const NEAR: Topology = Topology { complex: 64, socket: 64 };

/// Simulates `threads` threads, each of which adds 1 to one counter `times` times. Returns the outcome and the counter.
fn adding(seed: u64, threads: usize, times: u64) -> (Outcome, u64) {
    let counter = Arc::new(AtomicU64::new(0));
    let bodies = (0..threads).map(|_| {
        let counter = Arc::clone(&counter);
        Box::new(move || {
            measure();
            for _ in 0..times {
                let seen = counter.load(Ordering::Relaxed);
                counter.store(seen + 1, Ordering::Relaxed);
            }
            measured();
        }) as Box<dyn FnOnce() + Send>
    });
    let outcome = simulate(seed, NEAR, threads, bodies.collect());
    (outcome, counter.load(Ordering::Relaxed))
}

#[test]
fn a_seed_repeats_to_the_digit_and_another_does_not() {
    let first = adding(7, 4, 200);
    assert_eq!(first, adding(7, 4, 200));
    assert_ne!(first.0.steps, adding(8, 4, 200).0.steps);
}

#[test]
fn another_thread_may_come_between_a_load_and_its_store() {
    let (outcome, sum) = adding(7, 4, 200);
    assert!(sum < 800, "{sum}: no addition was lost, so nobody ever came between");
    assert!(outcome.counts.transfers > 400, "{outcome:?}");
}

#[test]
fn alone_nothing_is_fetched() {
    let (outcome, sum) = adding(7, 1, 200);
    assert_eq!((sum, outcome.counts.transfers, outcome.counts.upgrades), (200, 0, 0));
    assert_eq!(outcome.counts.accesses, 400);
}

#[test]
fn nobody_is_left_behind() {
    let (outcome, _) = adding(3, 8, 500);
    let (least, most) = (outcome.steps.iter().min().copied(), outcome.steps.iter().max().copied());
    assert!(least > Some(0) && least.map(|least| 2 * least) > most, "{:?}", outcome.steps);
}

/// Among threads that can all run, each gets its share of the first draws, which a scheduler that prefers one would
/// break.
#[test]
fn each_thread_is_drawn_with_the_same_chance() {
    let drawn = Arc::new(Mutex::new(Vec::new()));
    let bodies = (0..4_usize).map(|me| {
        let drawn = Arc::clone(&drawn);
        Box::new(move || {
            measure();
            while drawn.lock().is_ok_and(|drawn| drawn.len() < 4000) {
                if let Ok(mut drawn) = drawn.lock() {
                    drawn.push(me);
                }
                hint::spin_loop();
            }
        }) as Box<dyn FnOnce() + Send>
    });
    simulate(11, NEAR, 4, bodies.collect());
    let drawn = drawn.lock().expect("nobody panicked");
    for me in 0..4 {
        let share = drawn.iter().filter(|&&who| who == me).count();
        assert!((850..1150).contains(&share), "thread {me} had {share} of 4000 turns");
    }
}

#[test]
fn a_lock_keeps_others_out_and_its_waiters_are_counted() {
    let sum = Arc::new(Mutex::new(0_u64));
    let bodies = (0..4).map(|_| {
        let sum = Arc::clone(&sum);
        Box::new(move || {
            measure();
            for _ in 0..100 {
                let mut sum = sum.lock().expect("nobody panics");
                let seen = *sum;
                hint::spin_loop();
                *sum = seen + 1;
            }
            measured();
        }) as Box<dyn FnOnce() + Send>
    });
    let outcome = simulate(5, NEAR, 4, bodies.collect());
    assert_eq!(*sum.lock().expect("nobody panicked"), 400, "one at a time");
    assert!(outcome.counts.lock_waits > 100, "{outcome:?}");
    // The lines that the holders fetched cost at least as many hops as the lock's own line.
    assert!(outcome.counts.busiest[0].iter().sum::<u64>() >= outcome.counts.busiest[1].iter().sum());
}

#[test]
fn threads_that_a_body_starts_are_of_the_machine_too() {
    let body = || {
        let (sent, told) = (Arc::new((Mutex::new(false), Condvar::new())), Arc::new(AtomicU64::new(0)));
        let (there, seen) = (Arc::clone(&sent), Arc::clone(&told));
        let child = thread::spawn(move || {
            let mut ready = there.0.lock().expect("nobody panics");
            while !*ready {
                ready = there.1.wait(ready).expect("nobody panics");
            }
            seen.store(9, Ordering::Relaxed);
        });
        *sent.0.lock().expect("nobody panics") = true;
        sent.1.notify_all();
        assert!(child.join().is_ok());
        assert_eq!(told.load(Ordering::Relaxed), 9);
    };
    let outcome = simulate(1, NEAR, 2, vec![Box::new(body)]);
    assert_eq!(outcome.steps.len(), 2);
    assert!(outcome.counts.transfers > 0, "what it stored was fetched");
}

#[test]
#[should_panic(expected = "waits for another one")]
fn threads_that_wait_for_each_other_are_told_of() {
    let body = || {
        let lock = Mutex::new(());
        let _held = lock.lock();
        drop(lock.lock());
    };
    simulate(1, NEAR, 1, vec![Box::new(body)]);
}

#[test]
fn who_waits_with_a_timeout_goes_on_when_nobody_else_can() {
    let body = || assert_eq!(wait_for(64, true), Some(true));
    simulate(1, NEAR, 1, vec![Box::new(body)]);
    assert_eq!(wait_for(64, true), None, "outside of a simulation the system waits");
}
