//! Waits end: with the completions waited for, with a wake, or at their time limit, and at once if they would last for
//! ever.
#![forbid(unsafe_code)]

use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use sheave::{Ring, Waited, op, open_device};

use crate::{buf, ring};

/// A time longer than any step here takes.
const PATIENCE: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(30);

#[test]
fn a_wait_with_a_time_limit_lasts_as_long_on_an_idle_ring() {
    let mut ring = ring();
    for _ in 0..3 {
        let start = Instant::now();
        assert_eq!(ring.wait(1, Some(SHORT)), Waited::TimedOut);
        assert!(start.elapsed() >= SHORT, "nothing was in flight, but somebody may come: {:?}", start.elapsed());
    }
    assert_eq!(ring.wait(0, Some(PATIENCE)), Waited::Ready(0));
    assert_eq!(ring.wait(1, Some(Duration::ZERO)), Waited::TimedOut);
}

#[test]
fn a_wait_without_end_that_nothing_could_end_comes_back_at_once() {
    let mut ring = ring();
    assert_eq!(ring.wait(1, None), Waited::Idle);
    assert_eq!(ring.submit_and_wait(1).expect("submitted"), 0);
    ring.push(op::nop()).expect("room");
    assert_eq!(ring.submit_and_wait(5).expect("submitted"), 1);
    assert_eq!(ring.wait(5, None), Waited::Idle, "one is there, and no other will come");
    assert_eq!(ring.wait(1, None), Waited::Ready(1));
}

/// Makes a ring on a thread of its own, wakes it during `wait`, and returns the result of the wait.
fn woken(wait: impl FnOnce(&mut Ring) -> Option<Waited> + Send + 'static) -> Option<Waited> {
    let (send, receive) = channel();
    let thread = thread::spawn(move || {
        let mut ring = Ring::builder().spin(Duration::ZERO).build().expect("a ring");
        send.send(ring.handle()).expect("somebody waits");
        wait(&mut ring)
    });
    let handle = receive.recv().expect("the ring was built");
    thread::sleep(SHORT);
    handle.wake();
    // The handle is kept: with it alive, a wait on this ring can still be ended by a wake.
    let ended = thread.join().expect("no panic");
    drop(handle);
    ended
}

#[test]
fn a_wake_ends_each_kind_of_wait() {
    assert_eq!(woken(|ring| Some(ring.wait(1, None))), Some(Waited::Woken));
    assert_eq!(woken(|ring| Some(ring.wait(1, Some(PATIENCE)))), Some(Waited::Woken));
    assert_eq!(woken(|ring| ring.submit_and_wait(1).map(|_| None).expect("submitted")), None);
    // With I/O in flight, which continues.
    assert_eq!(
        woken(|ring| {
            let device = open_device("null:size=1M,latency=60s").expect("a device");
            let fd = ring.attach(&device).expect("attached");
            ring.push(op::read(fd, buf(0))).expect("room");
            ring.push(op::timeout(PATIENCE)).expect("room");
            ring.submit().expect("submitted");
            Some(ring.wait(1, None))
        }),
        Some(Waited::Woken)
    );
}

#[test]
fn a_wake_before_the_wait_ends_it_and_only_it() {
    let mut ring = ring();
    let handle = ring.handle();
    handle.wake();
    handle.wake();
    ring.push(op::nop()).expect("room");
    ring.submit().expect("submitted");
    assert_eq!(ring.wait(1, None), Waited::Ready(1), "what is there comes first");
    assert_eq!(ring.completions().count(), 1);
    assert_eq!(ring.wait(1, None), Waited::Woken);
    assert_eq!(ring.wait(1, Some(SHORT)), Waited::TimedOut, "two wakes are one");
}
