//! Time of requests by stage, on a virtual clock with a delay inserted at each stage: the split shows that stage, and
//! its parts add up to the latency exactly.

use std::time::Duration;

use sheave_base::clock::VirtualClock;
use sheave_blk::bio::{BIO_FUA, Op};
use sheave_blk::stats::{SplitCounts, Stage};

use crate::support::{BLOCK, BLOCK_SECTORS, Puppet, Rig};

const DELAY: Duration = Duration::from_micros(700);
const DELAY_NS: u64 = 700_000;

fn reads(rig: &Rig) -> SplitCounts {
    rig.device().stats().op(Op::Read).split.clone()
}

/// Returns the time of all reads in each stage. Asserts that it adds up to their latencies.
fn stage_ns(rig: &Rig) -> [u64; 5] {
    let split = reads(rig);
    assert_eq!(split.stage_ns.iter().sum::<u64>(), split.time_ns, "{split:?}");
    split.stage_ns
}

/// Returns the times of reads that spent `ns` in one stage and none elsewhere.
fn only(stage: Stage, ns: u64) -> [u64; 5] {
    let mut all = [0; 5];
    all[stage as usize] = ns;
    all
}

fn plugged_reads(rig: &mut Rig, count: u64, pause: impl FnOnce(&VirtualClock)) {
    let time = rig.time.clone();
    rig.ctx.start_plug(count as u32);
    (0..count).for_each(|n| assert!(rig.read(n * 2, n as u32)));
    pause(&time);
    rig.ctx.finish_plug();
}

#[test]
fn plugged() {
    // Not 32, because a full batch is sent at once.
    for (in_call, count) in [(false, 1), (false, 31), (true, 1), (true, 31)] {
        let puppet = Puppet::new();
        puppet.script().in_call = in_call;
        let mut rig = Rig::new(&[&puppet.device()]);
        plugged_reads(&mut rig, count, |time| time.advance(DELAY));
        rig.drain();
        assert_eq!(stage_ns(&rig), only(Stage::Plugged, count * DELAY_NS));
        let there = reads(&rig).stages[Stage::Plugged as usize].iter().sum::<u64>();
        assert_eq!(there, count, "each of them was there");
    }
}

#[test]
fn waiting_for_a_tag() {
    let puppet = Puppet::new().depth(4).holding();
    let mut rig = Rig::new(&[&puppet.device()]);
    (0..6).for_each(|n| assert!(rig.read(n * 2, n as u32)));
    rig.time.advance(DELAY);
    puppet.script().finish = u32::MAX;
    // The first four end, and the other two get their tags.
    assert_eq!(rig.poll(), 4);
    let before = stage_ns(&rig);
    rig.time.advance(Duration::from_micros(1));
    rig.drain();
    assert_eq!(rig.take_ok().len(), 6);
    let mut after = stage_ns(&rig);
    after.iter_mut().zip(before).for_each(|(after, before)| *after -= before);
    // The poll that gave them their tags was the last before the one that found them ended.
    assert_eq!(after, [0, 2 * DELAY_NS, 0, 0, 2 * 1000]);
    assert_eq!(before[Stage::Tag as usize], 0, "those before them waited for none");
}

#[test]
fn refused_by_the_driver() {
    let puppet = Puppet::new();
    puppet.script().accept = 3;
    let mut rig = Rig::new(&[&puppet.device()]);
    plugged_reads(&mut rig, 8, |time| time.advance(Duration::from_micros(5)));
    rig.poll();
    rig.time.advance(DELAY);
    puppet.script().accept = u32::MAX;
    rig.drain();
    let split = stage_ns(&rig);
    assert_eq!(split, [0, 5 * DELAY_NS, 8 * 5000, 0, 0], "no room in the driver is no time in it");
}

#[test]
fn held_back_by_a_quiesced_queue() {
    let puppet = Puppet::new();
    let device = puppet.device();
    let mut rig = Rig::new(&[&device]);
    let gate = device.quiesce(Duration::from_secs(1)).expect("nobody is inside the driver");
    plugged_reads(&mut rig, 4, |_| {});
    rig.poll();
    rig.time.advance(DELAY);
    drop(gate);
    rig.drain();
    assert_eq!(stage_ns(&rig), only(Stage::Tag, 4 * DELAY_NS));
}

#[test]
fn held_back_by_a_frozen_queue() {
    let puppet = Puppet::new();
    let device = puppet.device();
    let mut rig = Rig::new(&[&device]);
    let gate = device.freeze(Duration::ZERO).expect("nothing is in flight");
    plugged_reads(&mut rig, 4, |_| {});
    rig.poll();
    rig.time.advance(DELAY);
    drop(gate);
    rig.drain();
    assert_eq!(stage_ns(&rig), only(Stage::Tag, 4 * DELAY_NS));
}

#[test]
fn in_a_driver_that_ends_requests_in_its_call() {
    for batches in [1, 2, 5] {
        let puppet = Puppet::new();
        let mut rig = Rig::with(256, true, &[&puppet.device()]);
        puppet.script().in_call = true;
        puppet.script().takes = Some((rig.time.clone(), DELAY));
        for _ in 0..batches {
            plugged_reads(&mut rig, 8, |_| {});
        }
        rig.drain();
        let split = stage_ns(&rig);
        assert_eq!(split[Stage::Driver as usize], batches * 8 * DELAY_NS, "each batch was in its own call");
        let later: u64 = (0..batches).sum();
        assert_eq!(split[Stage::Reap as usize], later * 8 * DELAY_NS, "and then waited for those behind it");
    }
}

#[test]
fn in_a_driver_that_is_looked_at() {
    let puppet = Puppet::new().holding();
    let mut rig = Rig::new(&[&puppet.device()]);
    plugged_reads(&mut rig, 8, |_| {});
    for _ in 0..7 {
        rig.time.advance(Duration::from_micros(100));
        rig.poll();
    }
    puppet.script().finish = u32::MAX;
    rig.drain();
    assert_eq!(stage_ns(&rig), only(Stage::Driver, 8 * DELAY_NS));
}

#[test]
fn in_a_driver_whose_ring_sleeps() {
    let puppet = Puppet::new().holding();
    let mut rig = Rig::new(&[&puppet.device()]);
    plugged_reads(&mut rig, 8, |_| {});
    rig.ctx.wait(1, Some(Duration::ZERO));
    rig.time.advance(DELAY);
    puppet.script().finish = u32::MAX;
    rig.drain();
    assert_eq!(stage_ns(&rig), only(Stage::Driver, 8 * DELAY_NS), "a ring that sleeps for completions looks");
}

#[test]
fn waiting_to_be_reaped() {
    for in_call in [false, true] {
        let puppet = Puppet::new();
        puppet.script().in_call = in_call;
        let mut rig = Rig::new(&[&puppet.device()]);
        plugged_reads(&mut rig, 8, |_| {});
        rig.time.advance(DELAY);
        rig.drain();
        assert_eq!(stage_ns(&rig), only(Stage::Reap, 8 * DELAY_NS), "ends in call: {in_call}");
    }
}

#[test]
fn all_stages_one_after_the_other() {
    let puppet = Puppet::new().depth(1).holding();
    let mut rig = Rig::new(&[&puppet.device()]);
    let step = |rig: &Rig, us| rig.time.advance(Duration::from_micros(us));
    rig.read(0, 0);
    rig.read(2, 1); // Waits for the only tag.
    step(&rig, 3);
    puppet.script().finish = 1;
    rig.ctx.start_plug(1);
    rig.poll(); // The first ends, the second has its tag.
    step(&rig, 5);
    rig.ctx.finish_plug();
    step(&rig, 7);
    rig.poll(); // Still in the driver.
    step(&rig, 11);
    puppet.script().finish = u32::MAX;
    rig.drain();
    let split = stage_ns(&rig);
    // The first: until the next poll 3 us later.
    assert_eq!(split, [0, 3000, 5000, 7000, 11_000 + 3000]);
}

#[test]
fn pieces_of_a_bio_that_waited_have_waited() {
    let puppet = Puppet::new().limits(|limits| limits.max_sectors = BLOCK_SECTORS as u32).depth(2).holding();
    let mut rig = Rig::new(&[&puppet.device()]);
    rig.read(100, 0);
    rig.read(200, 1);
    rig.io(Op::Read, 0, 2 * BLOCK, 2);
    rig.time.advance(DELAY);
    puppet.script().finish = u32::MAX;
    rig.drain();
    assert_eq!(rig.take_ok().len(), 3);
    let split = stage_ns(&rig);
    assert_eq!(split[Stage::Tag as usize], 2 * DELAY_NS, "both pieces: {split:?}");
}

#[test]
fn a_reused_tag_carries_no_waiting_time() {
    let puppet = Puppet::new().depth(1).holding();
    let mut rig = Rig::new(&[&puppet.device()]);
    rig.read(0, 0);
    rig.read(2, 1);
    rig.time.advance(DELAY);
    puppet.script().finish = u32::MAX;
    rig.drain();
    let before = stage_ns(&rig);
    assert_eq!(before[Stage::Tag as usize], DELAY_NS);
    rig.read(4, 2);
    rig.drain();
    assert_eq!(stage_ns(&rig), before);
}

#[test]
fn what_was_in_flight_when_statistics_were_turned_on_counts_from_then() {
    let puppet = Puppet::new().depth(2).holding();
    let mut rig = Rig::with(64, false, &[&puppet.device()]);
    (0..3).for_each(|n| assert!(rig.read(n * 2, n as u32)));
    rig.time.advance(DELAY);
    rig.ctx.set_stats(true);
    rig.time.advance(Duration::from_micros(9));
    rig.poll();
    puppet.script().finish = u32::MAX;
    rig.drain();
    assert_eq!(rig.take_ok().len(), 3);
    assert_eq!(stage_ns(&rig), only(Stage::Driver, 2 * 9000), "the third had its tag after that");
}

#[test]
fn writes_with_fua_and_flushes_have_splits_too() {
    let puppet = Puppet::new().caps(|caps| caps.volatile_cache = true).holding();
    let mut rig = Rig::new(&[&puppet.device()]);
    rig.io_flags(Op::Write, BIO_FUA, 0, BLOCK, 0);
    rig.flush(1);
    for _ in 0..4 {
        rig.time.advance(DELAY);
        rig.poll();
        puppet.script().finish = u32::MAX;
    }
    rig.drain();
    let stats = rig.device().stats();
    for op in [Op::Write, Op::Flush] {
        let split = &stats.op(op).split;
        assert_eq!(split.stage_ns.iter().sum::<u64>(), split.time_ns);
        assert!(split.ns(Stage::Driver) >= DELAY_NS, "{op:?}: {split:?}");
    }
}
