//! Clock reads at issue and completion, on a virtual clock: their number, and that latencies are neither too long nor
//! too short.

use std::time::Duration;

use sheave_blk::bio::{BIO_FUA, Op};
use sheave_blk::device::Device;
use sheave_blk::stats::Stage;

use crate::support::{BLOCK, Puppet, Rig};

/// Returns the total latency of all reads so far.
fn time_ns(device: &Device) -> u64 {
    device.stats().op(Op::Read).split.time_ns
}

fn plugged_reads(rig: &mut Rig, count: u64) {
    rig.ctx.start_plug(count as u32);
    (0..count).for_each(|n| assert!(rig.read(n * 2, n as u32)));
    rig.ctx.finish_plug();
}

#[test]
fn at_most_four_reads_of_the_clock_a_batch() {
    for (batch, in_call, expect) in [
        (1, false, 3),
        (8, false, 3),
        (32, false, 3),
        (33, false, 5),
        (64, false, 5),
        (1, true, 4),
        (32, true, 4),
        (64, true, 7),
    ] {
        let puppet = Puppet::new();
        let mut rig = Rig::with(256, true, &[&puppet.device()]);
        puppet.script().in_call = in_call;
        plugged_reads(&mut rig, 1);
        rig.poll();
        let before = rig.time.reads();
        plugged_reads(&mut rig, batch);
        rig.poll();
        let what = "one an issue, one a call, one for the end of a call that ended something, one a completed batch";
        assert_eq!(rig.time.reads() - before, expect, "batch of {batch}, ends in call: {in_call}; {what}");
        assert_eq!(rig.ended.len() as u64, batch + 1);
    }
}

#[test]
fn without_statistics_none() {
    let puppet = Puppet::new().caps(|caps| caps.volatile_cache = true);
    let mut rig = Rig::with(64, false, &[&puppet.device()]);
    let before = rig.time.reads();
    plugged_reads(&mut rig, 20);
    rig.flush(90);
    rig.io_flags(Op::Write, BIO_FUA, 0, BLOCK, 91);
    rig.drain();
    assert_eq!(rig.take_ok().len(), 22);
    assert_eq!(rig.time.reads(), before);
}

#[test]
fn fresh_after_every_kind_of_flush() {
    let puppet = Puppet::new().holding();
    let device = puppet.device();
    let mut rig = Rig::with(256, true, &[&device]);
    let tick = Duration::from_nanos(100);

    let time = rig.time.clone();
    rig.read(999, 999);
    rig.poll();

    // A full batch is sent at once, so the 33rd request has a time of its own.
    rig.ctx.start_plug(40);
    (0..32).for_each(|n| assert!(rig.read(n * 2, n as u32)));
    time.advance(tick);
    rig.read(100, 32);
    // Waiting flushes, so the 34th has one too.
    rig.ctx.wait(1, Some(Duration::ZERO));
    time.advance(tick);
    rig.read(102, 33);
    // The end of the plug, and a new one.
    rig.ctx.finish_plug();
    time.advance(tick);
    rig.ctx.start_plug(1);
    rig.read(104, 34);
    rig.ctx.finish_plug();
    // Without a plug.
    time.advance(tick);
    rig.read(106, 35);
    time.advance(tick);
    puppet.script().finish = u32::MAX;
    rig.drain();
    // Issued at 0 (33 of them), 100, 200, 300, 400; all completed at 500.
    assert_eq!(time_ns(&device), 33 * 500 + 400 + 300 + 200 + 100);
}

#[test]
fn fresh_after_a_batch_that_a_gate_held_back() {
    let puppet = Puppet::new();
    let device = puppet.device();
    let mut rig = Rig::new(&[&device]);
    rig.read(0, 0);
    rig.drain();
    let gate = device.freeze(Duration::ZERO).unwrap();
    rig.ctx.start_plug(40);
    (0..32).for_each(|n| assert!(rig.read(n * 2, n as u32)));
    rig.time.advance(Duration::from_nanos(100));
    drop(gate);
    rig.poll();
    rig.ctx.finish_plug();
    rig.time.advance(Duration::from_nanos(10));
    rig.drain();
    let split = device.stats().op(Op::Read).split.clone();
    assert_eq!(split.time_ns - split.ns(Stage::Tag), 32 * 10, "issued anew when the gate opened");
    assert_eq!(split.ns(Stage::Tag), 32 * 100, "and before that they waited");
}

#[test]
fn old_stamps_are_read_anew_in_a_long_plug() {
    let puppet = Puppet::new();
    let device = puppet.device();
    let mut rig = Rig::new(&[&device]);
    rig.ctx.start_plug(32);
    for n in 0..30 {
        rig.read(n * 2, n as u32);
        rig.time.advance(Duration::from_micros(30));
    }
    rig.ctx.finish_plug();
    rig.drain();
    let exact: u64 = (1..=30).map(|n| n * 30_000).sum();
    let bound = 30 * (50_000 + 8 * 30_000);
    let error = time_ns(&device) - exact;
    assert!(error <= bound, "a stamp is at most 50 us and eight requests old: {error} ns over {bound}");
    assert!(rig.time.reads() >= 4, "a plug that is open for 900 us reads the clock several times");
}

#[test]
fn a_batch_is_completed_at_its_own_time_and_not_at_the_time_of_an_open_plug() {
    let puppet = Puppet::new().holding();
    let device = puppet.device();
    let mut rig = Rig::new(&[&device]);
    rig.read(0, 0);
    rig.time.advance(Duration::from_micros(10));
    rig.ctx.start_plug(4);
    rig.read(2, 1);
    rig.time.advance(Duration::from_micros(30));
    puppet.script().finish = 1;
    rig.poll();
    assert_eq!(rig.take_ok(), [0]);
    assert_eq!(time_ns(&device), 40_000, "the plug has cached the time of 30 us ago");
    rig.ctx.finish_plug();
    puppet.script().finish = u32::MAX;
    rig.drain();
}

#[test]
fn latencies_are_never_negative() {
    let puppet = Puppet::new();
    let device = puppet.device();
    let mut rig = Rig::new(&[&device]);
    rig.time.set(1_000_000);
    plugged_reads(&mut rig, 8);
    // Another processor's counter may be behind.
    rig.time.set(999_000);
    rig.drain();
    assert_eq!(time_ns(&device), 0);
    assert_eq!(device.stats().op(Op::Read).split.latency[0], 8);
    rig.time.set(0);
    plugged_reads(&mut rig, 8);
    rig.drain();
    assert_eq!(time_ns(&device), 0, "0 is a time");
}

#[test]
fn one_stamp_for_a_completion_batch_of_different_starts() {
    let puppet = Puppet::new().holding();
    let device = puppet.device();
    let mut rig = Rig::new(&[&device]);
    for n in 0..5 {
        rig.read(n * 2, n as u32);
        rig.time.advance(Duration::from_nanos(8));
    }
    puppet.script().finish = u32::MAX;
    let before = rig.time.reads();
    rig.poll();
    assert_eq!(rig.time.reads() - before, 1);
    let stats = device.stats();
    let latency = &stats.op(Op::Read).split.latency;
    assert_eq!(latency.iter().sum::<u64>(), 5);
    assert_eq!(time_ns(&device), 8 + 16 + 24 + 32 + 40);
}
