//! Freeze and quiesce on one thread: which bios wait, which go on, and in which order. The races are in `model::gate`.

use std::time::Duration;

use sheave_base::status::Status;
use sheave_blk::bio::{BIO_FUA, Op};

use crate::support::{Puppet, Rig};

const NOW: Duration = Duration::ZERO;
/// Longer than any test. A test that reaches it fails by its later assertions.
const LONG: Duration = Duration::from_secs(60);

#[test]
fn quiesced_requests_keep_their_order() {
    let puppet = Puppet::new().limits(|limits| limits.queue_depth = 128);
    let mut rig = Rig::with(256, true, &[&puppet.device()]);
    rig.read(0, 0);
    rig.drain();
    let guard = rig.queue().quiesce(NOW).expect("no ring is inside the driver");
    rig.ctx.start_plug(100);
    (1..100).for_each(|n| assert!(rig.read(n * 2, n as u32)));
    rig.ctx.finish_plug();
    for _ in 0..5 {
        rig.poll();
    }
    assert_eq!(puppet.sectors_seen().len(), 1, "nothing goes to the driver");
    assert!(rig.device().accounted().total() > 0, "quiesced requests keep their tags");
    assert_eq!(rig.in_flight(), 0, "the driver has none of them");
    drop(guard);
    rig.drain();
    assert_eq!(rig.take_ok(), (0..100).collect::<Vec<u32>>());
    assert_eq!(puppet.sectors_seen(), (0..100).map(|n| n * 16).collect::<Vec<_>>());
}

#[test]
fn frozen_bios_wait_without_tags_and_keep_their_order() {
    let puppet = Puppet::new().depth(48);
    let mut rig = Rig::with(256, true, &[&puppet.device()]);
    rig.read(0, 0);
    rig.drain();
    puppet.script().accept = 0;
    rig.ctx.start_plug(60);
    (1..40).for_each(|n| assert!(rig.read(n * 2, n as u32)));
    // 32 were refused, 7 are gathered. All count as in flight until the ring sees the gate.
    let error = rig.queue().freeze(NOW).expect_err("requests are in flight");
    assert!(error.to_string().contains("in flight"), "{error}");
    let again = rig.queue().freeze(NOW).expect_err("the failed freeze has opened the gate again");
    drop(again);
    puppet.script().accept = 0;
    let queue = rig.queue().clone();
    let freezer = std::thread::spawn(move || queue.freeze(LONG).expect("the ring polls"));
    // The ring goes on as rings do. Its requests are taken apart when it sees the gate.
    while !freezer.is_finished() {
        rig.ctx.finish_plug();
        rig.poll();
        rig.ctx.start_plug(0);
        std::thread::yield_now();
    }
    rig.ctx.finish_plug();
    let guard = freezer.join().unwrap();
    assert_eq!(rig.in_flight(), 0);
    (40..60).for_each(|n| assert!(rig.read(n * 2, n as u32)));
    puppet.script().accept = u32::MAX;
    for _ in 0..5 {
        rig.poll();
    }
    assert_eq!(rig.in_flight(), 0);
    assert_eq!(puppet.sectors_seen().len(), 1, "no bio enters a frozen queue");
    drop(guard);
    rig.drain();
    assert_eq!(rig.take_ok(), (0..60).collect::<Vec<u32>>());
    assert_eq!(puppet.sectors_seen(), (0..60).map(|n| n * 16).collect::<Vec<_>>());
}

/// A deep queue is frozen while its driver has 64 requests and refuses more. The tags of the refused ones, which are in
/// another word of the set, are freed, and all requests are sent again.
#[test]
fn a_freeze_takes_a_deep_queue_apart() {
    let puppet = Puppet::new().depth(128).holding();
    let mut rig = Rig::with(256, true, &[&puppet.device()]);
    puppet.script().accept = 64;
    rig.ctx.start_plug(128);
    (0..128).for_each(|n| assert!(rig.read(n * 2, n as u32)));
    rig.ctx.finish_plug();
    assert_eq!((rig.in_flight(), rig.device().accounted().total()), (64, 96), "32 were refused, with their tags");
    puppet.script().finish = 64;
    let queue = rig.queue().clone();
    let freezer = std::thread::spawn(move || queue.freeze(LONG).expect("the ring polls"));
    while !freezer.is_finished() {
        rig.poll();
        std::thread::yield_now();
    }
    let guard = freezer.join().unwrap();
    assert_eq!(rig.device().accounted().total(), 0);
    (puppet.script().accept, puppet.script().finish) = (u32::MAX, 0);
    drop(guard);
    rig.poll();
    assert_eq!(rig.in_flight(), 64);
    (128..192).for_each(|n| assert!(rig.read(n * 2, n as u32)));
    assert_eq!(rig.in_flight(), 128, "all tags can be had again");
    puppet.script().finish = u32::MAX;
    rig.drain();
    assert_eq!(rig.take_ok(), (0..192).collect::<Vec<u32>>());
}

#[test]
fn guards_nest() {
    let puppet = Puppet::new();
    let mut rig = Rig::new(&[&puppet.device()]);
    let freeze = rig.queue().freeze(NOW).unwrap();
    let inner = rig.queue().freeze(NOW).unwrap();
    let quiesce = rig.queue().quiesce(NOW).unwrap();
    rig.read(0, 0);
    for guard in [inner, freeze] {
        rig.poll();
        assert!(puppet.sectors_seen().is_empty());
        drop(guard);
    }
    rig.poll();
    assert!(puppet.sectors_seen().is_empty(), "still quiesced");
    drop(quiesce);
    rig.drain();
    assert_eq!(rig.take_ok(), [0]);
}

#[test]
fn a_failed_freeze_leaves_the_gate_open() {
    let puppet = Puppet::new().holding();
    let mut rig = Rig::new(&[&puppet.device()]);
    rig.read(0, 0);
    let error = rig.device().freeze(NOW).expect_err("a request is in flight");
    assert!(error.to_string().contains("puppet") && error.to_string().contains("1 request"), "{error}");
    puppet.script().finish = u32::MAX;
    rig.read(1, 1);
    rig.drain();
    assert_eq!(rig.take_ok(), [0, 1]);
}

#[test]
fn a_freeze_takes_flush_sequences_apart_and_they_end_afterwards() {
    let puppet = Puppet::new().caps(|caps| caps.volatile_cache = true);
    let mut rig = Rig::new(&[&puppet.device()]);
    rig.read(0, 0);
    rig.drain();
    puppet.script().accept = 0;
    rig.flush(1);
    rig.io_flags(Op::Write, BIO_FUA, 8, 4096, 2);
    rig.flush(3);
    rig.poll();
    let queue = rig.queue().clone();
    let freezer = std::thread::spawn(move || queue.freeze(LONG).expect("the ring polls"));
    while !freezer.is_finished() {
        rig.poll();
        std::thread::yield_now();
    }
    let guard = freezer.join().unwrap();
    assert_eq!(rig.in_flight(), 0);
    puppet.script().accept = u32::MAX;
    rig.poll();
    assert_eq!(puppet.script().seen.len(), 1);
    drop(guard);
    rig.drain();
    let mut ended = rig.take_ok();
    ended.sort_unstable();
    assert_eq!(ended, [0, 1, 2, 3]);
    let ops: Vec<Op> = puppet.script().seen[1..].iter().map(|seen| seen.op).collect();
    assert_eq!(ops.last(), Some(&Op::Flush), "the write's flush comes last: {ops:?}");
}

#[test]
fn opening_the_gate_wakes_a_ring_that_sleeps() {
    let puppet = Puppet::new();
    let device = puppet.device();
    let queue = device.legs()[0].queue.clone();
    let freeze = queue.freeze(NOW).unwrap();
    let quiesce = queue.quiesce(NOW).unwrap();
    let (send, receive) = std::sync::mpsc::channel();
    let ring = std::thread::spawn(move || {
        let mut rig = Rig::new(&[&device]);
        rig.read(0, 7);
        rig.poll();
        send.send(()).unwrap();
        let start = std::time::Instant::now();
        while !rig.ctx.is_idle() {
            rig.ctx.wait(1, Some(LONG));
            rig.poll();
        }
        assert!(start.elapsed() < LONG, "woken, not timed out");
        rig.take_ended()
    });
    receive.recv().unwrap();
    drop(freeze);
    drop(quiesce);
    assert_eq!(ring.join().unwrap(), [(7, Status::Ok)]);
}

#[test]
fn a_freeze_wakes_a_ring_that_sleeps_with_quiesced_requests() {
    let puppet = Puppet::new();
    // The timeout walk would wake the ring too, so it is far away.
    let device = puppet.device_with_timeout(Duration::from_secs(3600));
    let queue = device.legs()[0].queue.clone();
    let (send, receive) = std::sync::mpsc::channel();
    let (quiesced, wait_for_quiesce) = std::sync::mpsc::channel::<()>();
    let ring = std::thread::spawn(move || {
        let mut rig = Rig::new(&[&device]);
        rig.read(0, 0);
        rig.drain();
        send.send(()).unwrap();
        wait_for_quiesce.recv().unwrap();
        rig.read(1, 1);
        rig.poll();
        send.send(()).unwrap();
        while !rig.ctx.is_idle() {
            rig.ctx.wait(1, Some(LONG));
            rig.poll();
        }
        rig.take_ok()
    });
    receive.recv().unwrap();
    let quiesce = queue.quiesce(LONG).unwrap();
    quiesced.send(()).unwrap();
    receive.recv().unwrap();
    // Usually long enough for the ring to fall asleep. A ring that is still awake sees the gate without a wake-up.
    std::thread::sleep(Duration::from_millis(200));
    let start = std::time::Instant::now();
    let freeze = queue.freeze(LONG).expect("the ring gives its tags back");
    assert!(start.elapsed() < LONG / 2, "the ring was woken for it");
    drop((quiesce, freeze));
    assert_eq!(ring.join().unwrap(), [0, 1]);
}
