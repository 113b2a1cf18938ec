//! A ring that a foreign event loop waits for: every event either makes its descriptor readable, or is within the limit
//! of the wait.
#![forbid(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sheave::{Completion, Device, Ring, op, open_device};

use crate::{buf, ring};

/// A time longer than any step here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns true if the ring's descriptor becomes readable within `timeout`.
fn readable(ring: &Ring, timeout: Duration) -> bool {
    let timeout = Timespec::try_from(timeout).expect("a time");
    poll(&mut [PollFd::new(&ring.as_fd(), PollFlags::IN)], Some(&timeout)).expect("polled") == 1
}

/// Waits for a completion as a foreign loop does. Adds the number of waits to `waits`.
fn next(ring: &mut Ring, waits: &mut u32) -> Completion {
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < PATIENCE, "nothing came: {ring:?}");
        if let Some(done) = ring.pop() {
            return done;
        }
        if let Some(wait) = ring.prepare_wait() {
            *waits += 1;
            readable(ring, wait.timeout.unwrap_or(PATIENCE));
        }
    }
}

#[test]
fn nothing_to_do_is_not_readable_and_has_no_limit() {
    let mut ring = ring();
    let fd = ring.as_fd().as_raw_fd();
    for _ in 0..3 {
        let wait = ring.prepare_wait().expect("nothing to do");
        assert_eq!(wait.timeout, None);
        assert!(!readable(&ring, Duration::from_millis(5)));
    }
    assert_eq!(ring.as_fd().as_raw_fd(), fd, "it stays");
}

#[test]
fn a_wake_and_a_message_make_it_readable_until_the_next_look() {
    let mut ring = ring();
    let handle = ring.handle();
    for message in [false, true] {
        // Before the announcement there is something to do at once; after it, the descriptor becomes readable.
        let ring_up = || if message { handle.send(1, 2).expect("room") } else { handle.wake() };
        ring_up();
        assert_eq!(ring.prepare_wait(), None);
        assert_eq!(ring.completions().count(), usize::from(message));
        // The ring may ask for one look more than needed.
        let wait = (0..3).find_map(|_| ring.prepare_wait());
        assert!(wait.is_some_and(|wait| wait.timeout.is_none()), "{wait:?}");
        ring_up();
        assert!(readable(&ring, PATIENCE) && readable(&ring, Duration::ZERO));
        assert_eq!(ring.prepare_wait(), None);
        assert_eq!(ring.completions().count(), usize::from(message));
        assert!((0..3).any(|_| ring.prepare_wait().is_some()));
        assert!(!readable(&ring, Duration::from_millis(1)), "it was taken");
    }
}

#[test]
fn a_ring_that_waits_itself_after_an_announcement_is_woken_and_not_deaf() {
    let mut ring = Ring::builder().spin(Duration::ZERO).build().expect("a ring");
    let handle = ring.handle();
    for round in 0..20 {
        assert!(ring.prepare_wait().is_some());
        let handle = handle.clone();
        let sender = thread::spawn(move || {
            thread::sleep(Duration::from_micros(100 * (round % 4)));
            handle.send(round, 0).expect("room");
        });
        assert!(ring.wait(1, Some(PATIENCE)).is_ready());
        assert_eq!(ring.pop().map(|done| done.user_data), Some(round));
        sender.join().expect("no panic");
    }
}

fn file(dir: &tempfile::TempDir) -> Device {
    let path = dir.path().join("image");
    std::fs::write(&path, vec![7; 1 << 20]).expect("written");
    open_device(&format!("file:{}", path.display())).expect("a device")
}

#[test]
fn every_kind_of_device_and_work_ends_such_a_wait() {
    let dir = tempfile::tempdir().expect("a directory");
    for spec in ["file", "ram:size=1M", "null:size=1M,latency=2ms", "null:size=1M,latency=2ms,complete=thread"] {
        for early in [false, true] {
            let mut ring = ring();
            if early {
                ring.as_fd();
                let _ = ring.prepare_wait();
            }
            let device = if spec == "file" { file(&dir) } else { open_device(spec).expect("a device") };
            let fd = ring.attach(&device).expect("attached");
            let mut waits = 0;
            for n in 0..50 {
                ring.push(op::read(fd, buf(0)).offset(n % 16 * 4096).user_data(n)).expect("room");
                ring.submit().expect("submitted");
                let done = next(&mut ring, &mut waits);
                assert_eq!((done.user_data, done.res), (n, 4096), "{spec}");
            }
            assert!(spec != "file" || waits < 500, "it does not spin: {waits}");
            // A timeout does not make the descriptor readable: its time is the limit of the wait. A worker's completion
            // does.
            ring.push(op::timeout(Duration::from_millis(5)).etime_success().user_data(100)).expect("room");
            ring.submit().expect("submitted");
            let wait = ring.prepare_wait().expect("nothing to do yet");
            assert!(wait.timeout.is_some_and(|time| time <= Duration::from_millis(5)), "{wait:?}");
            assert_eq!(next(&mut ring, &mut waits).user_data, 100);
            ring.push(op::nop().run_async().user_data(101)).expect("room");
            ring.submit().expect("submitted");
            assert_eq!(next(&mut ring, &mut waits).user_data, 101);
        }
    }
}

#[test]
fn threads_that_send_all_the_time_are_all_heard() {
    const EACH: u64 = 3_000;
    static GO: AtomicBool = AtomicBool::new(false);
    let mut ring = ring();
    let senders: Vec<_> = (0..2)
        .map(|_| {
            let handle = ring.handle();
            thread::spawn(move || {
                while !GO.load(Ordering::Relaxed) {
                    thread::yield_now();
                }
                let mut sent = 0;
                while sent < EACH {
                    match handle.send(sent, 0) {
                        Ok(()) => sent += 1,
                        Err(_) => thread::yield_now(),
                    }
                    if sent % 7 == 0 {
                        thread::yield_now();
                    }
                }
            })
        })
        .collect();
    GO.store(true, Ordering::Relaxed);
    let mut waits = 0;
    for _ in 0..2 * EACH {
        next(&mut ring, &mut waits);
    }
    senders.into_iter().for_each(|sender| sender.join().expect("no panic"));
    assert!(ring.pop().is_none());
}
