//! Messages from many threads; wake-ups; handles that outlive their ring.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use sheave_base::parker::{Parker, Wake};

use super::TaskWork;
use crate::cqe::Cqe;
use crate::work_done::WorkDone;
use crate::{Ring, SendError, Waited};

const SENDERS: u64 = 3;
const EACH: u64 = 2_000;

fn cqe(user_data: u64) -> Cqe {
    Cqe { user_data, res: -(user_data as i32), flags: 3 }
}

#[test]
fn all_that_was_accepted_arrives_once_and_in_order() {
    let mut ring = Ring::builder().entries(8).spin(Duration::ZERO).build().expect("a ring");
    let senders: Vec<_> = (0..SENDERS)
        .map(|sender| {
            let handle = ring.handle();
            thread::spawn(move || {
                for n in 0..EACH {
                    while let Err(error) = handle.send_cqe(cqe(sender << 32 | n)) {
                        assert_eq!(error, SendError::Full);
                        thread::yield_now();
                    }
                }
            })
        })
        .collect();
    let mut next = [0; SENDERS as usize];
    while next.iter().sum::<u64>() < SENDERS * EACH {
        assert!(ring.wait(1, None).is_ready(), "sleeps until somebody sends");
        for completion in ring.completions() {
            let (sender, n) = ((completion.user_data >> 32) as usize, completion.user_data & 0xffff_ffff);
            assert_eq!((next[sender], completion.res, completion.flags.bits()), (n, -(n as i32), 3));
            next[sender] += 1;
        }
    }
    senders.into_iter().for_each(|sender| sender.join().expect("no panic"));
}

/// However many threads send at once: a sender with fewer messages in flight than there is room for is never refused.
#[test]
fn a_mailbox_with_room_refuses_nobody() {
    const ON_THE_WAY: u32 = 7;
    let mut ring = Ring::builder().entries(8).cq_entries(64).spin(Duration::ZERO).build().expect("a ring");
    let senders: Vec<_> = (0..8)
        .map(|_| {
            let (handle, read) = (ring.handle(), Arc::new(AtomicU32::new(0)));
            let seen = Arc::clone(&read);
            let sender = thread::spawn(move || {
                for sent in 0..EACH as u32 {
                    while sent - seen.load(Ordering::SeqCst) >= ON_THE_WAY {
                        thread::yield_now();
                    }
                    let accepted = handle.send(Arc::as_ptr(&seen).addr() as u64, 0);
                    assert_eq!(accepted, Ok(()), "there is room for 64, and at most 56 are on the way");
                }
            });
            (sender, read)
        })
        .collect();
    let mut left = 8 * EACH;
    while left > 0 {
        assert!(ring.wait(1, Some(Duration::from_secs(20))).is_ready(), "senders go on, {left} to come");
        for completion in ring.completions() {
            let of = |(_, read): &&(_, Arc<AtomicU32>)| Arc::as_ptr(read).addr() as u64 == completion.user_data;
            senders.iter().find(of).expect("one of them").1.fetch_add(1, Ordering::SeqCst);
            left -= 1;
        }
    }
    senders.into_iter().for_each(|(sender, _)| sender.join().expect("no panic"));
}

#[test]
fn a_ring_that_nobody_else_can_reach_does_not_wait() {
    let mut ring = Ring::builder().entries(8).build().expect("a ring");
    let itself = ring.handle();
    let fd = ring.attach_ring(&itself).expect("room");
    drop(itself);
    assert_eq!(ring.wait(1, None), Waited::Idle);
    // The ring's own worker does not count as another holder either.
    ring.push(crate::prep::nop().run_async()).expect("room");
    ring.submit_and_wait(1).expect("submitted");
    assert_eq!(ring.completions().count(), 1);
    assert_eq!(ring.wait(1, None), Waited::Idle);
    ring.push(crate::prep::message(fd, 5, 6)).expect("room");
    assert_eq!(ring.submit_and_wait(2).expect("submitted"), 1);
    assert_eq!(ring.completions().map(|c| (c.user_data, c.res)).collect::<Vec<_>>(), [(0, 0), (5, 6)]);
}

#[test]
fn a_message_ends_a_sleep_before_its_time() {
    let mut ring = Ring::builder().entries(8).spin(Duration::ZERO).build().expect("a ring");
    ring.push(crate::prep::timeout(Duration::from_secs(1000))).expect("room");
    ring.submit().expect("submitted");
    let handle = ring.handle();
    let sender = thread::spawn(move || {
        thread::sleep(Duration::from_millis(20));
        handle.send_cqe(cqe(1))
    });
    let start = Instant::now();
    assert_eq!(ring.wait(1, Some(Duration::from_secs(500))), Waited::Ready(1));
    assert!(start.elapsed() < Duration::from_secs(400));
    assert_eq!(sender.join().expect("no panic"), Ok(()));
}

#[test]
fn a_handle_outlives_its_ring() {
    let ring = Ring::builder().entries(8).build().expect("a ring");
    let handle = ring.handle();
    assert!(handle.same(&ring.handle()));
    assert_eq!(handle.send_cqe(cqe(1)), Ok(()));
    drop(ring);
    assert_eq!(handle.send_cqe(cqe(2)), Err(SendError::Gone));
    handle.wake();
}

#[test]
fn rings_dropped_under_senders_are_safe() {
    for round in 0..20 {
        let ring = Ring::builder().entries(8).build().expect("a ring");
        let handle = ring.handle();
        let sender = thread::spawn(move || {
            let mut accepted = 0;
            loop {
                match handle.send_cqe(cqe(accepted)) {
                    Ok(()) => accepted += 1,
                    Err(SendError::Full) => thread::yield_now(),
                    Err(SendError::Gone) => return accepted,
                }
            }
        });
        thread::sleep(Duration::from_micros(round * 50));
        drop(ring);
        sender.join().expect("it is told that the ring is gone");
    }
}

/// Returns true if the owner was woken since the last call.
fn is_woken(parker: &mut Parker) -> bool {
    parker.park(Some(Duration::ZERO)) == Wake::Notified
}

const DONE: WorkDone = WorkDone::Result(0);

#[test]
fn a_ring_that_wants_several_results_is_woken_once_by_the_last() {
    let mut parker = Parker::new().expect("a parker");
    let mut work = TaskWork::new(8, 8, parker.unparker());
    let finished = work.done_queue();
    for wanted in [4, 5] {
        assert!(work.sleep_until(wanted));
        finished.finish(&[(0, DONE)]);
        finished.finish(&[(1, DONE), (2, DONE)]);
        assert!(!is_woken(&mut parker), "three of {wanted}");
        finished.finish(&[(3, DONE), (4, DONE)]);
        assert!(is_woken(&mut parker), "five of {wanted}");
        finished.finish(&[(5, DONE)]);
        work.is_awake();
        is_woken(&mut parker);
        assert!(!work.sleep_until(4), "some are there already: it looks before it sleeps");
        work.is_awake();
        assert_eq!(std::iter::from_fn(|| work.pop_done()).map(|done| done.0).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
        finished.finish(&[(6, DONE)]);
        assert!(is_woken(&mut parker), "a ring that is awake, or waits for one, hears of each");
        assert_eq!(work.pop_done(), Some((6, DONE)));
    }
}

#[test]
fn a_ring_that_wants_several_results_is_woken_at_once_by_what_it_has_to_do() {
    let mut parker = Parker::new().expect("a parker");
    let mut work = TaskWork::new(8, 8, parker.unparker());
    let finished = work.done_queue();
    for what in [WorkDone::Reissue, WorkDone::Flush, WorkDone::NoThread] {
        assert!(work.sleep_until(4));
        finished.finish(&[(0, DONE), (1, what)]);
        assert!(is_woken(&mut parker), "{what:?} is no CQE yet");
        work.is_awake();
        assert_eq!(std::iter::from_fn(|| work.pop_done()).count(), 2);
    }
}
