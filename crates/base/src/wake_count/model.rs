//! The count under a model checker: an owner that saw too few results before it sleeps is woken when the rest is
//! queued.

use super::WakeCount;
use crate::model::explore;
use crate::sync::Arc;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::thread;

#[derive(Default)]
struct Race {
    count: WakeCount,
    queued: [AtomicU32; 2],
    wakes: AtomicU32,
}

/// Two threads queue a result each; the owner sleeps for both, in some runs after it slept for one before.
fn race(naps: bool) {
    let shared = Arc::new(Race::default());
    let threads: Vec<_> = (0..2)
        .map(|at| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                // Relaxed: the fences alone must make the owner's look find it.
                shared.queued[at].store(1, Ordering::Relaxed);
                if shared.count.is_due(1) {
                    shared.wakes.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let seen = || shared.queued.iter().map(|queued| queued.load(Ordering::Relaxed)).sum::<u32>();
    let mut had = 0;
    if naps {
        shared.count.sleep_until(1);
        had = seen();
        shared.count.awake();
    }
    let wakes = shared.wakes.load(Ordering::Relaxed);
    shared.count.sleep_until(2 - had);
    let sleeps = had < 2 && seen() == had;
    threads.into_iter().for_each(|thread| thread.join().expect("thread"));
    if sleeps {
        assert!(shared.wakes.load(Ordering::Relaxed) > wakes, "the owner sleeps for ever on {} results", 2 - had);
    }
}

#[test]
fn model_an_owner_that_sleeps_for_two_results_is_woken() {
    explore("two results", || race(false));
}

#[test]
fn model_who_counts_late_wakes_too_early_and_never_too_late() {
    explore("a late count", || race(true));
}
