//! Calls step by step.

use std::sync::atomic::AtomicU32;

use sheave_base::grace::Grace;

use super::*;

#[test]
fn a_call_goes_on_only_when_it_is_told_to() {
    let threads = Threads::new();
    let at = Arc::new(AtomicU32::new(0));
    let theirs = Arc::clone(&at);
    let call = threads.start(move || {
        for step in 1..4 {
            theirs.store(step, Ordering::Relaxed);
            pause();
        }
        "done"
    });
    let call = call.expect("there is room");
    assert_eq!((at.load(Ordering::Relaxed), call.take()), (0, None));
    for step in 1..4 {
        threads.step(call.number(), false);
        assert_eq!((at.load(Ordering::Relaxed), call.has_ended()), (step, false));
    }
    threads.step(call.number(), false);
    assert!(call.has_ended() && threads.running().is_empty());
    assert_eq!((call.take(), call.take()), (Some("done"), None));
}

#[test]
fn a_call_that_has_ended_is_over_also_when_its_thread_has_another() {
    let threads = Threads::new();
    let first = threads.start(|| 1).expect("there is room");
    threads.step(first.number(), false);
    let second = threads.start(|| 2).expect("there is room");
    assert_eq!((first.number(), second.has_ended()), (second.number(), false));
    assert_eq!((first.take(), second.take()), (Some(1), None));
}

#[test]
fn two_calls_share_a_lock_that_is_held_over_waits() {
    let threads = Threads::new();
    let lock = Arc::new(Mutex::new(Vec::new()));
    let calls = ["a", "b"].map(|name| {
        let lock = Arc::clone(&lock);
        threads.start(move || {
            let mut list = wait::lock(&lock);
            list.push(name);
            pause();
            list.push(name);
        })
    });
    let [a, b] = calls.map(|call| call.expect("there is room").number());
    threads.step(b, false);
    threads.step(a, false);
    threads.step(a, false);
    assert_eq!(threads.running(), [a, b]);
    while !threads.running().is_empty() {
        threads.step(b, false);
        threads.step(a, false);
    }
    assert_eq!(*lock.lock().expect("nobody panicked"), ["b", "b", "a", "a"]);
}

#[test]
fn a_wait_for_a_grace_is_over_when_its_time_is() {
    let threads = Threads::new();
    let grace = Arc::new(Grace::new());
    let seat = Grace::seat(&grace);
    seat.enter();
    let phase = seat.count();
    seat.leave();
    let theirs = Arc::clone(&grace);
    let call = threads.start(move || theirs.wait(theirs.start(), std::time::Duration::MAX)).expect("there is room");
    (0..10).for_each(|_| threads.step(call.number(), false));
    assert!(!call.has_ended(), "the I/O has not ended");
    threads.step(call.number(), true);
    assert_eq!(call.take(), Some(false));
    seat.uncount(phase);
}

#[test]
fn a_panic_comes_out_of_the_step() {
    let threads = Threads::new();
    let call = threads.start(|| resume_unwind(Box::new("told")));
    let call: Call<()> = call.expect("there is room");
    let panic = catch_unwind(AssertUnwindSafe(|| threads.step(call.number(), false))).expect_err("it panicked");
    assert_eq!(panic.downcast_ref(), Some(&"told"));
    assert!(call.has_ended() && call.take().is_none());
}

#[test]
fn calls_that_are_given_up_unwind() {
    let dropped = Arc::new(AtomicU32::new(0));
    struct Guard(Arc<AtomicU32>);
    impl Drop for Guard {
        fn drop(&mut self) {
            pause();
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let threads = Threads::new();
    for _ in 0..MAX_CALLS {
        let guard = Guard(Arc::clone(&dropped));
        let call = threads.start(move || {
            let _guard = guard;
            loop {
                pause();
            }
        });
        let call: Call<()> = call.expect("there is room");
        threads.step(call.number(), false);
    }
    assert!(threads.start(|| ()).is_none(), "as many as there may be");
    drop(threads);
    assert_eq!(dropped.load(Ordering::Relaxed), MAX_CALLS as u32);
}
