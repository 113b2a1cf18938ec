//! The parker with its real eventfd: its rings, its sleeps, and a poll on it.

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;
use crate::sync::thread;

/// Returns true if the eventfd is readable, that is, if an `unpark` made its system call.
fn rang(parker: &Parker) -> bool {
    let fd = parker.fd();
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).expect("poll") > 0
}

#[test]
fn an_unpark_before_the_park_is_kept_once_and_rings_nothing() {
    let mut parker = Parker::new().expect("eventfd");
    let unparker = parker.unparker();
    unparker.unpark();
    unparker.clone().unpark();
    assert!(!rang(&parker), "the owner was awake");
    assert_eq!(parker.park(None), Wake::Notified);
    assert_eq!(parker.park(Some(Duration::from_millis(1))), Wake::TimedOut);
}

#[test]
fn only_the_first_unpark_of_a_sleep_rings() {
    let mut parker = Parker::new().expect("eventfd");
    let unparker = parker.unparker();
    assert!(parker.prepare_sleep() && parker.prepare_sleep(), "announcing twice is announcing");
    assert!(!rang(&parker));
    unparker.unpark();
    unparker.unpark();
    assert!(rang(&parker), "whoever polls the descriptor wakes up");
    let mut count = [0; 8];
    rustix::io::read(parker.fd(), &mut count).expect("rung");
    assert_eq!(u64::from_ne_bytes(count), 1);
    assert!(parker.cancel_sleep());
    assert!(!parker.cancel_sleep(), "nothing is announced");
}

#[test]
fn the_end_of_a_sleep_silences_the_bell() {
    let mut parker = Parker::new().expect("eventfd");
    assert!(parker.prepare_sleep());
    parker.unparker().unpark();
    assert!(parker.cancel_sleep());
    assert!(!rang(&parker));
    assert!(parker.prepare_sleep(), "the notification is used up");
    assert!(!parker.cancel_sleep());
}

#[test]
fn a_parker_without_a_descriptor_is_woken_and_owes_nothing() {
    let mut parker = Parker::without_fd();
    for _ in 0..3 {
        assert!(parker.prepare_sleep());
        parker.unparker().unpark();
        assert!(parker.cancel_sleep(), "the sleep ends notified");
        assert_eq!(parker.owed, 0, "no ring is to come");
        assert_eq!(parker.park(Some(Duration::from_millis(1))), Wake::TimedOut);
    }
    let unparker = parker.unparker();
    let waker = thread::spawn(move || unparker.unpark());
    assert_eq!(parker.park(None), Wake::Notified);
    waker.join().expect("no panic");
}

#[test]
fn an_unpark_while_awake_forbids_the_next_sleep() {
    let mut parker = Parker::new().expect("eventfd");
    parker.unparker().unpark();
    assert!(!parker.prepare_sleep());
    assert!(parker.prepare_sleep(), "once");
}

#[test]
fn a_late_ring_does_not_end_a_park() {
    let mut parker = Parker::new().expect("eventfd");
    rustix::io::write(parker.fd(), &1_u64.to_ne_bytes()).expect("as if an old unpark had rung");
    let start = Instant::now();
    assert_eq!(parker.park(Some(Duration::from_millis(10))), Wake::TimedOut);
    assert!(start.elapsed() >= Duration::from_millis(10));
}

#[test]
fn no_time_and_all_time_are_timeouts() {
    let mut parker = Parker::new().expect("eventfd");
    assert_eq!(parker.park(Some(Duration::ZERO)), Wake::TimedOut);
    assert!(parker.prepare_sleep());
    parker.unparker().unpark();
    assert_eq!(parker.park(Some(Duration::MAX)), Wake::Notified);
}

#[test]
fn an_unpark_between_announcement_and_park_leaves_no_ring() {
    let mut parker = Parker::new().expect("eventfd");
    assert!(parker.prepare_sleep());
    parker.unparker().unpark();
    assert!(rang(&parker), "the owner might wait for the descriptor");
    assert_eq!(parker.park(None), Wake::Notified);
    assert!(!rang(&parker));
    assert_eq!(parker.park(Some(Duration::from_millis(1))), Wake::TimedOut, "used up");
}

/// Returns the result of a thread. A thread that sleeps for ever fails the test, and is left behind. The limit is a
/// number of checks of this thread, so that a machine that stalls for a while fails no test.
fn on_a_thread_that_ends<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = thread::spawn(run);
    for _ in 0..20_000 {
        if thread.is_finished() {
            return thread.join().expect("no panic");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("the thread sleeps for ever: nobody has woken it");
}

#[test]
fn who_sleeps_on_the_word_is_woken_there_and_no_bell_rings() {
    let mut parker = Parker::new().expect("eventfd");
    let (unparker, shared) = (parker.unparker(), Arc::clone(&parker.shared));
    let waker = thread::spawn(move || {
        while shared.state.load(Ordering::Relaxed) != PARKED {
            thread::yield_now();
        }
        // By now the thread very probably sleeps; the models cover all other moments.
        std::thread::sleep(Duration::from_millis(20));
        unparker.unpark();
    });
    let mut parker = on_a_thread_that_ends(move || {
        assert_eq!(parker.park(None), Wake::Notified);
        parker
    });
    waker.join().expect("no panic");
    assert!(!rang(&parker), "nothing has to be read afterwards");
    assert!(parker.prepare_sleep(), "used up");
}

#[test]
fn two_threads_wake_each_other_in_turn() {
    const TURNS: u32 = 2_000;
    let mut here = Parker::new().expect("eventfd");
    let mut there = Parker::new().expect("eventfd");
    let (to_here, to_there) = (here.unparker(), there.unparker());
    let answers = thread::spawn(move || {
        for _ in 0..TURNS {
            assert_eq!(there.park(None), Wake::Notified);
            to_here.unpark();
        }
    });
    on_a_thread_that_ends(move || {
        for _ in 0..TURNS {
            to_there.unpark();
            assert_eq!(here.park(None), Wake::Notified);
        }
    });
    answers.join().expect("no panic");
}
