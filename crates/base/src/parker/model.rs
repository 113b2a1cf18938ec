//! The parker under a model checker: no wake-up is lost, and the owner sees the work queued before it.
//!
//! A lost wake-up is a deadlock here, which both checkers report.

use super::*;
use crate::model::explore;
use crate::mpscq::MpscQueue;
use crate::sync::atomic::AtomicU32;
use crate::sync::thread;

/// Returns the work of the wakers, written with Relaxed, so that only the parker orders it.
fn work(count: usize) -> Arc<Vec<AtomicU32>> {
    Arc::new((0..count).map(|_| AtomicU32::new(0)).collect())
}

fn done(work: &[AtomicU32]) -> bool {
    work.iter().all(|flag| flag.load(Ordering::Relaxed) == 1)
}

fn spawn_wakers(parker: &Parker, work: &Arc<Vec<AtomicU32>>) -> Vec<thread::JoinHandle<()>> {
    (0..work.len())
        .map(|at| {
            let (unparker, work) = (parker.unparker(), Arc::clone(work));
            thread::spawn(move || {
                work[at].store(1, Ordering::Relaxed);
                unparker.unpark();
            })
        })
        .collect()
}

fn join(threads: Vec<thread::JoinHandle<()>>) {
    for thread in threads {
        thread.join().expect("thread");
    }
}

#[test]
fn model_park_sees_the_work_of_the_waker() {
    explore("park after unpark", || {
        let mut parker = Parker::new().expect("bell");
        let work = work(1);
        let wakers = spawn_wakers(&parker, &work);
        assert_eq!(parker.park(None), Wake::Notified);
        assert!(done(&work), "woken before the work was visible");
        join(wakers);
    });
}

#[test]
fn model_two_wakers_are_both_seen() {
    explore("park with two wakers", || {
        let mut parker = Parker::new().expect("bell");
        let work = work(2);
        let wakers = spawn_wakers(&parker, &work);
        while !done(&work) {
            assert_eq!(parker.park(None), Wake::Notified);
        }
        join(wakers);
    });
}

/// Announces a sleep, looks for work, and sleeps if there is none, until two wakers have done their work.
fn announces_looks_and_sleeps(mut parker: Parker) {
    let work = work(2);
    let wakers = spawn_wakers(&parker, &work);
    while !done(&work) {
        if !parker.prepare_sleep() {
            continue;
        }
        if done(&work) {
            parker.cancel_sleep();
        } else {
            parker.park(None);
        }
    }
    join(wakers);
}

#[test]
fn model_a_parker_without_a_descriptor_loses_no_wake_up() {
    explore("announce, look, sleep, without a bell", || announces_looks_and_sleeps(Parker::without_fd()));
}

#[test]
fn model_event_count_loses_no_wake_up() {
    explore("announce, look, sleep", || announces_looks_and_sleeps(Parker::new().expect("bell")));
}

#[test]
fn model_a_late_ring_of_a_cancelled_sleep_hides_no_later_one() {
    explore("late ring", || {
        let mut parker = Parker::new().expect("bell");
        let work = work(2);
        let wakers = spawn_wakers(&parker, &work);
        // The cancelled sleep may leave a late ring.
        let mut notified = u32::from(!parker.prepare_sleep() || parker.cancel_sleep());
        while !done(&work) {
            assert_eq!(parker.park(None), Wake::Notified);
            notified += 1;
        }
        assert!(notified <= 2, "park returned without an unpark");
        join(wakers);
    });
}

#[test]
fn model_a_late_ring_is_silenced_by_the_end_of_the_next_sleep() {
    explore("silence", || {
        let mut parker = Parker::new().expect("bell");
        let work = work(2);
        let wakers = spawn_wakers(&parker, &work);
        for _ in 0..2 {
            if parker.prepare_sleep() {
                parker.cancel_sleep();
            }
        }
        join(wakers);
        // If a ring were left, a kernel ring that waits for the descriptor would return at once, again and again.
        while !parker.prepare_sleep() {}
        parker.cancel_sleep();
        assert_eq!((parker.shared.bell.silence(), parker.owed), (Some(0), 0), "a ring is left, or was counted wrongly");
    });
}

#[test]
fn model_queue_and_parker_together_lose_nothing() {
    explore("queue and parker", || {
        let (queue, mut consumer) = MpscQueue::new(3);
        let mut parker = Parker::new().expect("bell");
        let producers: Vec<_> = [vec![0, 1], vec![2]]
            .into_iter()
            .map(|nodes| {
                let (queue, unparker) = (queue.clone(), parker.unparker());
                thread::spawn(move || {
                    for node in nodes {
                        if queue.push(node) {
                            unparker.unpark();
                        }
                    }
                })
            })
            .collect();
        let mut seen = 0_u32;
        while seen != 0b111 {
            if let Some(node) = consumer.pop() {
                assert_eq!(seen & (1 << node), 0, "node {node} came twice");
                seen |= 1 << node;
            } else if parker.prepare_sleep() {
                if consumer.is_empty() {
                    parker.park(None);
                } else {
                    parker.cancel_sleep();
                    thread::yield_now();
                }
            }
        }
        assert!(consumer.is_empty() && consumer.pop().is_none());
        join(producers);
    });
}

#[cfg(not(loom))] // A timeout is a random choice, which loom does not have.
#[test]
fn model_a_timeout_loses_no_notification() {
    explore("timeouts", || {
        let mut parker = Parker::new().expect("bell");
        let work = work(2);
        let wakers = spawn_wakers(&parker, &work);
        let mut notified = 0;
        while !done(&work) {
            match parker.park(Some(Duration::from_secs(1))) {
                Wake::Notified => notified += 1,
                Wake::TimedOut => thread::yield_now(),
            }
        }
        join(wakers);
        // Work that was not taken yet is still announced: no notification is lost.
        notified += u32::from(!parker.prepare_sleep());
        assert!((1..=2).contains(&notified), "{notified}");
    });
}

#[test]
fn model_a_wait_from_outside_loses_no_wake_up() {
    explore("take the rings, announce, look, wait for the bell", || {
        let mut parker = Parker::new().expect("bell");
        let work = work(2);
        let wakers = spawn_wakers(&parker, &work);
        loop {
            // The rings since the last announcement, taken as in `sheave_blk::ctx::IoCtx::prepare_wait`.
            parker.cancel_sleep();
            if !parker.prepare_sleep() {
                continue;
            }
            if done(&work) {
                parker.cancel_sleep();
                break;
            }
            // An application's event loop: it only sees whether the descriptor is readable.
            parker.shared.bell.wait();
        }
        join(wakers);
    });
}
