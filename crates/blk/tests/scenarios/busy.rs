//! Busy time of a device, exact on a virtual clock: overlapping I/Os count once, gaps do not count, and a reader within
//! an I/O sees the part that has passed.

use std::time::Duration;

use sheave_base::status::Status;
use sheave_blk::bio::{BIO_FUA, NO_FIXED_BUF, Op};
use sheave_blk::ctx::lane::{Alone, PlainIo, PlainKind, PlainRunOf};
use sheave_blk::ctx::{EndIo, PlainEnd};
use sheave_blk::{Device, linear};

use crate::support::{BLOCK, BLOCK_SECTORS, Puppet, Rig, address};

const MIB: u64 = 1 << 20;

/// Returns the busy times of the hardware contexts.
fn busy(device: &Device) -> Vec<u64> {
    device.stats().busy_ns().collect()
}

/// Makes a ring whose clock is past 0, as every real one is.
fn started(devices: &[&Device]) -> Rig {
    let rig = Rig::new(devices);
    rig.time.set(1_000);
    rig
}

/// Makes a device that holds its requests, and a ring on it.
fn holding() -> (Puppet, Rig) {
    let puppet = Puppet::new().holding();
    let rig = started(&[&puppet.device()]);
    (puppet, rig)
}

fn pass(rig: &Rig, ns: u64) {
    rig.time.advance(Duration::from_nanos(ns));
}

fn finish(puppet: &Puppet, rig: &mut Rig, count: u32) {
    puppet.script().finish = count;
    rig.poll();
    puppet.script().finish = 0;
}

/// Owner that has room for every record.
struct Roomy;

impl EndIo for Roomy {
    fn end_io(&mut self, _: u32, _: Status) {}
    fn end_plain(&mut self, _: u32, _: PlainEnd, _: Status) {}
    fn end_one(&mut self, _: PlainEnd) -> bool {
        true
    }
    fn end_run(&mut self, _: u32, most: usize, end_at: impl FnMut(usize) -> Option<PlainEnd>) {
        (0..most).map_while(end_at).for_each(drop);
    }
}

/// Reads one block by sending it alone.
#[allow(unsafe_code)]
fn alone(rig: &mut Rig, block: u64) -> Alone {
    let kind = PlainKind::new(false, 0, NO_FIXED_BUF);
    let route = rig.ctx.route(rig.devices[0].0).expect("one leg");
    rig.ctx.lane(route, kind).expect("attached").finish();
    // SAFETY: the test driver touches no memory.
    let io = unsafe { PlainIo::new(0, block * BLOCK_SECTORS, address(0)) };
    let run = PlainRunOf { owner: 0, bytes: BLOCK };
    let sectors = rig.device().size_bytes() >> 9;
    rig.ctx.send_alone((route, route.lane_id(kind), sectors), run, io, &mut Roomy)
}

#[test]
fn overlapping_ios_count_once_and_gaps_do_not() {
    let (puppet, mut rig) = holding();
    pass(&rig, 5_000);
    // 0 to 300, 100 to 400 and 150 to 400; then nothing for 10,000; then 70.
    rig.read(0, 0);
    pass(&rig, 100);
    rig.read(2, 1);
    pass(&rig, 50);
    rig.write(4, 2);
    pass(&rig, 150);
    finish(&puppet, &mut rig, 1);
    assert_eq!(busy(rig.device()), [300]);
    pass(&rig, 100);
    finish(&puppet, &mut rig, 2);
    assert_eq!(busy(rig.device()), [400]);
    pass(&rig, 10_000);
    assert_eq!(busy(rig.device()), [400], "an idle gap");
    rig.read(6, 3);
    pass(&rig, 70);
    finish(&puppet, &mut rig, 1);
    assert_eq!(busy(rig.device()), [470]);
    let stats = rig.device().stats();
    assert_eq!(
        stats.op(Op::Read).split.time_ns + stats.op(Op::Write).split.time_ns,
        300 + 300 + 250 + 70,
        "the sum is another"
    );
}

#[test]
fn an_idle_gap_before_two_starters_at_one_moment_is_not_counted() {
    let (puppet, mut rig) = holding();
    for gap in [1_000, 1_000_000] {
        let before = rig.device().stats();
        pass(&rig, gap);
        rig.read(0, 0);
        rig.read(2, 1);
        assert_eq!(rig.device().stats().busy_ns_since(&before), 0);
        pass(&rig, 10);
        finish(&puppet, &mut rig, 2);
        assert_eq!(rig.device().stats().busy_ns_since(&before), 10);
    }
}

#[test]
fn a_long_io_counts_in_each_interval_that_it_spans() {
    let (puppet, mut rig) = holding();
    let second = Duration::from_secs(1);
    rig.time.advance(second / 2);
    let mut before = rig.device().stats();
    rig.time.advance(second / 2);
    rig.read(0, 0);
    rig.time.advance(second / 2);
    let shares = [(second, 0.5), (second, 1.0), (second, 1.0)].map(|(elapsed, expect)| {
        let now = rig.device().stats();
        let share = now.utilization_since(&before, elapsed);
        before = now;
        rig.time.advance(second);
        (share, expect)
    });
    assert!(shares.iter().all(|(share, expect)| share == expect), "{shares:?}");
    finish(&puppet, &mut rig, 1);
    let now = rig.device().stats();
    assert_eq!(now.utilization_since(&before, second), 1.0, "no jump at its end");
    assert_eq!(busy(rig.device()), [3_500_000_000]);
}

#[test]
fn many_short_ios_count_what_they_took_and_no_tick_each() {
    let (puppet, mut rig) = holding();
    for n in 0..1000 {
        pass(&rig, 990);
        rig.read(n * 2, 0);
        pass(&rig, 10);
        finish(&puppet, &mut rig, 1);
    }
    assert_eq!(busy(rig.device()), [10_000], "1 % of a millisecond");
}

#[test]
fn an_io_alone_counts_whether_it_ends_in_its_call_or_later() {
    let (puppet, mut rig) = holding();
    rig.read(999, 9);
    finish(&puppet, &mut rig, 1);
    assert_eq!(busy(rig.device()), [0]);
    {
        let mut script = puppet.script();
        (script.in_call, script.takes) = (true, Some((rig.time.clone(), Duration::from_nanos(40))));
    }
    for at in 1..=3 {
        assert!(matches!(alone(&mut rig, at * 2), Alone::Ended));
        assert_eq!(busy(rig.device()), [40 * at]);
        pass(&rig, 1_000);
    }
    // The driver holds one I/O while another one ends in its call.
    puppet.script().in_call = false;
    assert!(matches!(alone(&mut rig, 20), Alone::Sent));
    assert_eq!(busy(rig.device()), [160]);
    puppet.script().in_call = true;
    assert!(matches!(alone(&mut rig, 22), Alone::Ended));
    assert_eq!(busy(rig.device()), [200]);
    pass(&rig, 100);
    puppet.script().finish = 1;
    rig.ctx.poll(&mut Roomy);
    pass(&rig, 1_000);
    assert_eq!(busy(rig.device()), [300]);
    // An I/O that is refused, or fails in the call, counts until the poll that ends it.
    puppet.script().accept = 0;
    assert!(matches!(alone(&mut rig, 24), Alone::Sent));
    pass(&rig, 100);
    {
        let mut script = puppet.script();
        (script.accept, script.takes) = (u32::MAX, None);
        script.fail.push((Op::Read, Status::IoErr));
    }
    rig.drain();
    assert_eq!(busy(rig.device()), [440]);
    pass(&rig, 1_000);
    assert!(matches!(alone(&mut rig, 26), Alone::Sent));
    pass(&rig, 10);
    rig.drain();
    pass(&rig, 1_000);
    assert_eq!(busy(rig.device()), [450]);
}

#[test]
fn merged_cut_and_flush_requests_do_not_count_twice() {
    let puppet = Puppet::new().holding().caps(|caps| caps.volatile_cache = true).limits(|limits| {
        limits.max_sectors = 4 * BLOCK_SECTORS as u32;
    });
    let mut rig = started(&[&puppet.device()]);
    rig.ctx.start_plug(4);
    (0..4).for_each(|n| assert!(rig.read(n, n as u32)));
    rig.ctx.finish_plug();
    assert_eq!(puppet.script().seen.len(), 1, "merged");
    pass(&rig, 100);
    finish(&puppet, &mut rig, 1);
    assert_eq!(busy(rig.device()), [100]);
    rig.io(Op::Write, 0, 16 * BLOCK, 5);
    assert_eq!(puppet.script().seen.len(), 5, "cut in four");
    for left in (0..4).rev() {
        pass(&rig, 10);
        finish(&puppet, &mut rig, 1);
        assert_eq!((rig.in_flight(), busy(rig.device())), (left, vec![140 - 10 * u64::from(left)]));
    }
    pass(&rig, 1_000);
    // The write first, then its flush.
    rig.io_flags(Op::Write, BIO_FUA, 0, BLOCK, 6);
    pass(&rig, 20);
    finish(&puppet, &mut rig, 1);
    assert_eq!((rig.in_flight(), busy(rig.device())), (1, vec![160]));
    pass(&rig, 30);
    finish(&puppet, &mut rig, 1);
    pass(&rig, 1_000);
    assert_eq!((rig.in_flight(), busy(rig.device())), (0, vec![190]));
}

#[test]
fn partitions_and_pieces_on_one_queue_count_once() {
    let puppet = Puppet::new().holding();
    let disk = puppet.device();
    let a = linear::partition("a", &disk, 0, MIB).unwrap();
    let b = linear::partition("b", &disk, 8 * MIB, MIB).unwrap();
    let both = linear::concatenate("both", &[a.clone(), b]).unwrap();
    let mut rig = started(&[&both]);
    rig.read(0, 0);
    rig.read(MIB / u64::from(BLOCK), 1);
    assert_eq!(puppet.script().seen.len(), 2);
    pass(&rig, 100);
    assert_eq!([&disk, &a].map(busy), [[100], [100]]);
    assert_eq!(busy(&both), [100; 2], "of each piece");
    finish(&puppet, &mut rig, 2);
    pass(&rig, 1_000);
    assert_eq!([&disk, &a].map(busy), [[100], [100]]);
    assert_eq!(busy(&both), [100; 2]);
}

#[test]
fn what_fails_or_takes_too_long_ends_the_period() {
    let puppet = Puppet::new().holding();
    let device = puppet.device_with_timeout(Duration::from_secs(1));
    let mut rig = started(&[&device]);
    puppet.script().fail.push((Op::Write, Status::IoErr));
    rig.write(0, 0);
    pass(&rig, 100);
    finish(&puppet, &mut rig, 1);
    assert_eq!(rig.take_ended(), [(0, Status::IoErr)]);
    pass(&rig, 1_000);
    assert_eq!(busy(&device), [100]);
    puppet.script().ends_overdue = true;
    rig.read(0, 1);
    let mut ns = 100;
    while rig.ended.is_empty() {
        pass(&rig, 100_000_000);
        ns += 100_000_000;
        rig.poll();
        assert!(ns < 3_000_000_000, "it is overdue after 1.25 s");
    }
    assert_eq!(rig.take_ended(), [(1, Status::Timeout)]);
    pass(&rig, 1_000);
    assert_eq!(busy(&device), [ns]);
}

#[test]
fn what_is_refused_or_held_back_counts_once_and_until_it_has_ended() {
    let (puppet, mut rig) = holding();
    puppet.script().accept = 0;
    rig.read(0, 0);
    pass(&rig, 100);
    rig.poll();
    assert_eq!((rig.in_flight(), busy(rig.device())), (0, vec![100]), "refused");
    let gate = rig.queue().quiesce(Duration::ZERO).unwrap();
    puppet.script().accept = u32::MAX;
    pass(&rig, 100);
    rig.poll();
    drop(gate);
    rig.poll();
    assert_eq!((rig.in_flight(), busy(rig.device())), (1, vec![200]));
    pass(&rig, 100);
    finish(&puppet, &mut rig, 1);
    pass(&rig, 1_000);
    assert_eq!(busy(rig.device()), [300]);
    // Held back before the driver got it.
    let gate = rig.queue().quiesce(Duration::ZERO).unwrap();
    rig.read(0, 1);
    // The ring reads the gate only when the request is to go to the driver.
    pass(&rig, 10);
    drop(gate);
    rig.poll();
    let before = busy(rig.device());
    pass(&rig, 10);
    finish(&puppet, &mut rig, 1);
    pass(&rig, 1_000);
    assert_eq!(busy(rig.device()), [before[0] + 10]);
}

#[test]
fn a_queue_that_is_frozen_is_not_busy() {
    let (puppet, mut rig) = holding();
    rig.read(0, 0);
    finish(&puppet, &mut rig, 1);
    rig.ctx.start_plug(2);
    rig.read(2, 1);
    pass(&rig, 100);
    let gate = rig.device().freeze(Duration::ZERO).unwrap();
    rig.ctx.finish_plug();
    pass(&rig, 100);
    assert_eq!(busy(rig.device()), [0], "taken apart before it came to the driver");
    drop(gate);
    rig.poll();
    pass(&rig, 10);
    finish(&puppet, &mut rig, 1);
    assert_eq!(busy(rig.device()), [10]);
    // Refused, and then taken apart.
    puppet.script().accept = 0;
    rig.read(4, 2);
    pass(&rig, 100);
    assert!(rig.device().freeze(Duration::ZERO).is_err(), "it is accounted");
    let queue = rig.queue().clone();
    let gate = std::thread::scope(|scope| {
        let freezing = scope.spawn(move || queue.freeze(Duration::from_secs(60)));
        while !freezing.is_finished() {
            rig.poll();
        }
        freezing.join().unwrap().unwrap()
    });
    pass(&rig, 1_000);
    assert_eq!(busy(rig.device()), [110]);
    puppet.script().accept = u32::MAX;
    drop(gate);
    rig.poll();
    pass(&rig, 5);
    finish(&puppet, &mut rig, 1);
    assert_eq!(busy(rig.device()), [115]);
}

#[test]
fn a_stamp_from_before_the_end_of_a_period_counts_from_that_end() {
    let (puppet, mut rig) = holding();
    rig.read(0, 0);
    pass(&rig, 10_000);
    rig.ctx.start_plug(4);
    rig.read(2, 1);
    pass(&rig, 30_000);
    finish(&puppet, &mut rig, 1);
    assert_eq!(busy(rig.device()), [40_000]);
    // Its stamp is 30 us old, from a time when the device was busy with the other request.
    rig.ctx.finish_plug();
    assert_eq!(busy(rig.device()), [40_000]);
    pass(&rig, 5);
    finish(&puppet, &mut rig, 1);
    assert_eq!(busy(rig.device()), [40_005]);
    // An idle device counts as busy from the stamp on, as latencies do.
    rig.ctx.start_plug(2);
    rig.read(4, 2);
    pass(&rig, 100);
    rig.ctx.finish_plug();
    assert_eq!(busy(rig.device()), [40_105]);
    pass(&rig, 5);
    finish(&puppet, &mut rig, 1);
    assert_eq!(busy(rig.device()), [40_110]);
    assert_eq!(rig.device().stats().op(Op::Read).split.time_ns, 40_000 + 30_005 + 105);
}

#[test]
fn statistics_that_are_toggled_count_while_they_are_on() {
    let (puppet, mut rig) = holding();
    rig.read(0, 0);
    pass(&rig, 100);
    rig.ctx.set_stats(false);
    pass(&rig, 1_000);
    assert_eq!(busy(rig.device()), [100]);
    rig.ctx.set_stats(true);
    pass(&rig, 10);
    assert_eq!(busy(rig.device()), [110]);
    finish(&puppet, &mut rig, 1);
    pass(&rig, 1_000);
    rig.ctx.set_stats(true);
    assert_eq!(busy(rig.device()), [110]);
}

#[test]
fn several_rings_are_told_apart_and_no_device_is_busy_for_longer_than_time_has_passed() {
    let puppet = Puppet::new().holding();
    let device = puppet.device();
    let mut rigs: Vec<Rig> = (0..2).map(|_| started(&[&device])).collect();
    let second = Duration::from_secs(1);
    let start = device.stats();
    rigs.iter_mut().for_each(|rig| assert!(rig.read(0, 0)));
    rigs.iter().for_each(|rig| rig.time.advance(second));
    let now = device.stats();
    assert_eq!(busy(&device), [1_000_000_000; 2]);
    assert_eq!(now.utilization_since(&start, second), 1.0);
    assert_eq!(now.utilization_since(&start, second * 4), 0.25);
    assert_eq!(now.utilization_since(&start, second / 4), 1.0, "by another clock");
    assert_eq!(now.utilization_since(&start, Duration::ZERO), 1.0);
    assert_eq!(start.utilization_since(&start, Duration::ZERO), 0.0);
    // A ring is dropped during an I/O, and leaves its seat and its busy time to the next ring.
    rigs[0].shutdown();
    rigs.remove(0);
    let mut third = started(&[&device]);
    third.time.advance(second * 10);
    third.read(0, 0);
    third.time.advance(second);
    assert_eq!(busy(&device), [2_000_000_000, 1_000_000_000]);
    assert_eq!(device.stats().busy_ns_since(&now), 1_000_000_000);
    third.shutdown();
    rigs[0].shutdown();
    drop((third, rigs));
    assert_eq!(busy(&device), [2_000_000_000, 1_000_000_000], "rings that are gone");
}

const MS: u64 = 1_000_000;

/// Makes two rings on one device, with their clocks at 1 ms.
fn two_rings() -> (Puppet, Device, [Rig; 2]) {
    let puppet = Puppet::new().holding();
    let device = puppet.device();
    let rigs = [(); 2].map(|()| Rig::new(&[&device]));
    rigs.iter().for_each(|rig| rig.time.set(MS));
    (puppet, device, rigs)
}

fn pass_both(rigs: &[Rig; 2], ns: u64) {
    rigs.iter().for_each(|rig| pass(rig, ns));
}

/// Keeps a read of this ring in flight for `ns`, while the clock of the other goes on too.
fn read_for(puppet: &Puppet, rigs: &mut [Rig; 2], ring: usize, ns: u64) {
    assert!(rigs[ring].read(0, 0));
    pass_both(rigs, ns);
    finish(puppet, &mut rigs[ring], 1);
}

#[test]
fn a_device_that_rings_keep_busy_in_turns_is_busy_all_the_time() {
    for io_ns in [5 * MS, 600_000, 7_000] {
        let (puppet, device, mut rigs) = two_rings();
        let before = device.stats();
        for turn in 0..200 {
            read_for(&puppet, &mut rigs, turn % 2, io_ns);
        }
        let now = device.stats();
        assert_eq!(busy(&device), [100 * io_ns; 2]);
        assert_eq!(now.busy_ns_since(&before), 200 * io_ns, "I/Os of {io_ns} ns");
        // An interval without I/O.
        pass_both(&rigs, 50 * MS);
        assert_eq!(device.stats().busy_ns_since(&now), 0);
        // In turns, with one I/O in flight during the reading.
        let before = device.stats();
        read_for(&puppet, &mut rigs, 0, 10 * MS);
        assert!(rigs[1].read(0, 0));
        pass_both(&rigs, 10 * MS);
        assert_eq!(device.stats().busy_ns_since(&before), 20 * MS);
        finish(&puppet, &mut rigs[1], 1);
    }
}

#[test]
fn what_several_rings_do_at_the_same_time_counts_once() {
    let (puppet, device, mut rigs) = two_rings();
    let before = device.stats();
    for _ in 0..20 {
        rigs.iter_mut().for_each(|rig| assert!(rig.read(0, 0)));
        pass_both(&rigs, 8 * MS);
        rigs.iter_mut().for_each(|rig| finish(&puppet, rig, 1));
        pass_both(&rigs, 8 * MS);
    }
    let exact = 160 * MS;
    let shown = device.stats().busy_ns_since(&before);
    // Each I/O may touch two ticks of 0.53 ms beyond those that it fills.
    assert!((exact..exact * 115 / 100).contains(&shown), "{shown} of {exact}");
    assert_eq!(busy(&device), [exact; 2]);
}

#[test]
fn few_short_ios_of_several_rings_count_what_they_took_and_no_tick_each() {
    let (puppet, device, mut rigs) = two_rings();
    let before = device.stats();
    for turn in 0..100 {
        read_for(&puppet, &mut rigs, turn % 2, 10_000);
        pass_both(&rigs, 990_000);
    }
    assert_eq!(device.stats().busy_ns_since(&before), 100 * 10_000, "1 % of the time");
}

#[test]
fn a_ring_that_goes_leaves_its_busy_ticks_and_a_long_interval_is_judged_by_its_end() {
    let (puppet, device, mut rigs) = two_rings();
    let before = device.stats();
    read_for(&puppet, &mut rigs, 0, 100 * MS);
    rigs[0].shutdown();
    let [gone, mut other] = rigs;
    drop(gone);
    other.read(0, 0);
    pass(&other, 100 * MS);
    finish(&puppet, &mut other, 1);
    assert_eq!(device.stats().busy_ns_since(&before), 200 * MS);
    // Longer than the calendar: half of each second for a minute, by two rings in turns.
    let rigs = &mut [other, Rig::new(&[&device])];
    let now = rigs[0].ctx.clock().coarse().0;
    rigs[1].time.set(now);
    let before = device.stats();
    for turn in 0..60 {
        read_for(&puppet, rigs, turn % 2, 500 * MS);
        pass_both(rigs, 500 * MS);
    }
    let shown = device.stats().busy_ns_since(&before);
    assert!((29_000 * MS..=30_000 * MS).contains(&shown), "{shown} ns of a minute");
}
