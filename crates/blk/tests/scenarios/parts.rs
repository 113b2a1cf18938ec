//! Statistics of partitions: each has its own requests, sectors, ticks and busy time, and the device has the sum. Also
//! statistics that are turned off and on while the device is used.

use std::time::Duration;

use sheave_base::status::Status;
use sheave_blk::bio::{BIO_FUA, NO_FIXED_BUF, Op};
use sheave_blk::ctx::lane::{Alone, PlainIo, PlainKind, PlainRunOf};
use sheave_blk::ctx::{EndIo, PlainEnd};
use sheave_blk::stats::Stats;
use sheave_blk::{Device, linear};

use crate::support::{BLOCK, BLOCK_SECTORS, Puppet, Rig, address};

const MIB: u64 = 1 << 20;

/// Makes a device, two partitions, one within the second, and a concatenation of both.
fn devices(puppet: &Puppet) -> [Device; 5] {
    let disk = puppet.device();
    let a = linear::partition("a", &disk, MIB, MIB).unwrap();
    let b = linear::partition("b", &disk, 2 * MIB, MIB).unwrap();
    let inner = linear::partition("inner", &b, 64 << 10, 64 << 10).unwrap();
    let both = linear::concatenate("both", &[a.clone(), b.clone()]).unwrap();
    [disk, a, b, inner, both]
}

fn rig(puppet: &Puppet) -> (Rig, [Device; 5]) {
    let devices = devices(puppet);
    let rig = Rig::new(&devices.iter().collect::<Vec<_>>());
    rig.time.set(1_000);
    (rig, devices)
}

fn pass(rig: &Rig, ns: u64) {
    rig.time.advance(Duration::from_nanos(ns));
}

fn finish(puppet: &Puppet, rig: &mut Rig, count: u32) {
    puppet.script().finish = count;
    rig.poll();
    puppet.script().finish = 0;
}

/// Returns reads and writes of a reading, their sectors, and their time.
fn counts(stats: &Stats) -> [u64; 6] {
    let of = |op| {
        let op = stats.op(op);
        [op.ios, op.sectors, op.split.time_ns]
    };
    let ([r, rs, rt], [w, ws, wt]) = (of(Op::Read), of(Op::Write));
    [r, rs, rt, w, ws, wt]
}

fn all(devices: &[Device; 5]) -> [[u64; 6]; 5] {
    devices.each_ref().map(|device| counts(&device.stats()))
}

fn busy(devices: &[Device; 5], before: &[Stats; 5]) -> [u64; 5] {
    std::array::from_fn(|at| devices[at].stats().busy_ns_since(&before[at]))
}

#[test]
fn io_counts_for_its_partition_and_for_all_enclosing_ones() {
    let puppet = Puppet::new().holding();
    let (mut rig, devices) = rig(&puppet);
    let before = devices.each_ref().map(Device::stats);
    // One I/O each: to the device, to a, to the partition within b, and to the concatenation where it is a.
    rig.io_to(0, Op::Read, 0, 0, BLOCK, 0);
    pass(&rig, 100);
    rig.io_to(1, Op::Write, 0, 0, BLOCK, 1);
    pass(&rig, 100);
    finish(&puppet, &mut rig, 1);
    pass(&rig, 100);
    finish(&puppet, &mut rig, 1);
    pass(&rig, 1_000);
    rig.io_to(3, Op::Read, 0, 0, 2 * BLOCK, 2);
    pass(&rig, 50);
    finish(&puppet, &mut rig, 1);
    pass(&rig, 1_000);
    rig.io_to(4, Op::Read, 0, 100, BLOCK, 3);
    pass(&rig, 30);
    assert_eq!(busy(&devices, &before), [300 + 50 + 30, 200 + 30, 50, 50, 200 + 50 + 30], "one is in flight");
    finish(&puppet, &mut rig, 1);
    let block = BLOCK_SECTORS;
    let expect = [
        [3, 4 * block, 200 + 50 + 30, 1, block, 200],
        [1, block, 30, 1, block, 200],
        [1, 2 * block, 50, 0, 0, 0],
        [1, 2 * block, 50, 0, 0, 0],
        [2, 3 * block, 80, 1, block, 200],
    ];
    assert_eq!(all(&devices), expect);
    assert_eq!(busy(&devices, &before), [380, 230, 50, 50, 280]);
    rig.shutdown();
    drop(rig);
    assert_eq!(all(&devices), expect, "a ring that is gone");
    assert_eq!(busy(&devices, &before), [380, 230, 50, 50, 280]);
}

#[test]
fn merges_errors_and_flushes_count_for_the_partition_or_the_device() {
    let puppet = Puppet::new().holding().caps(|caps| caps.volatile_cache = true);
    let (mut rig, [disk, a, b, ..]) = rig(&puppet);
    rig.ctx.start_plug(4);
    (0..3).for_each(|n| assert!(rig.io_to(1, Op::Read, 0, n * BLOCK_SECTORS, BLOCK, n as u32)));
    rig.ctx.finish_plug();
    puppet.script().fail.push((Op::Write, Status::IoErr));
    rig.io_to(2, Op::Write, BIO_FUA, 0, BLOCK, 3);
    puppet.script().finish = u32::MAX;
    rig.drain();
    let of = |device: &Device, op| {
        let stats = device.stats();
        (stats.op(op).ios, stats.op(op).merges, stats.op(op).errors, stats.faults().count)
    };
    assert_eq!([&disk, &a, &b].map(|device| of(device, Op::Read)), [(1, 2, 0, 1), (1, 2, 0, 1), (0, 0, 0, 1)]);
    assert_eq!([&disk, &a, &b].map(|device| of(device, Op::Write)), [(1, 0, 1, 1), (0, 0, 0, 1), (1, 0, 1, 1)]);
    rig.io_to(1, Op::Flush, 0, 0, 0, 4);
    rig.drain();
    assert_eq!([&disk, &a].map(|device| of(device, Op::Flush).0), [1, 0], "a flush is the device's own");
}

#[test]
fn what_is_refused_taken_apart_or_ended_in_its_call_is_busy_time_of_its_partition() {
    let puppet = Puppet::new().holding();
    let (mut rig, devices) = rig(&puppet);
    let before = devices.each_ref().map(Device::stats);
    puppet.script().accept = 0;
    rig.io_to(1, Op::Read, 0, 0, BLOCK, 0);
    pass(&rig, 100);
    rig.poll();
    rig.io_to(1, Op::Read, 0, 100, BLOCK, 1);
    assert_eq!(busy(&devices, &before)[..2], [100, 100], "refused");
    // Taken apart by a freeze: the partition is not busy while the queue is frozen.
    let queue = rig.queue().clone();
    let gate = std::thread::scope(|scope| {
        let freezing = scope.spawn(move || queue.freeze(Duration::from_secs(60)));
        while !freezing.is_finished() {
            rig.poll();
        }
        freezing.join().unwrap().unwrap()
    });
    pass(&rig, 5_000);
    assert_eq!(busy(&devices, &before)[..2], [100, 100], "frozen");
    drop(gate);
    puppet.script().accept = u32::MAX;
    rig.poll();
    pass(&rig, 20);
    finish(&puppet, &mut rig, u32::MAX);
    assert_eq!(busy(&devices, &before)[..3], [120, 120, 0]);
    // Sent alone, and ended in its call.
    {
        let mut script = puppet.script();
        (script.in_call, script.takes) = (true, Some((rig.time.clone(), Duration::from_nanos(40))));
    }
    assert!(matches!(alone(&mut rig, 1), Alone::Ended));
    assert_eq!(busy(&devices, &before)[..3], [160, 160, 0]);
    puppet.script().in_call = false;
    puppet.script().takes = None;
    assert!(matches!(alone(&mut rig, 1), Alone::Sent));
    pass(&rig, 40);
    puppet.script().finish = 1;
    rig.ctx.poll(&mut Roomy);
    assert_eq!(busy(&devices, &before)[..3], [200, 200, 0]);
    assert_eq!(counts(&devices[1].stats())[0], 4);
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

/// Reads one block of a device by sending it alone.
#[allow(unsafe_code)]
fn alone(rig: &mut Rig, device: usize) -> Alone {
    let kind = PlainKind::new(false, 0, NO_FIXED_BUF);
    let route = rig.ctx.route(rig.devices[device].0).expect("one leg");
    rig.ctx.lane(route, kind).expect("attached").finish();
    // SAFETY: the test driver touches no memory.
    let io = unsafe { PlainIo::new(0, 0, address(0)) };
    let run = PlainRunOf { owner: 0, bytes: BLOCK };
    let sectors = rig.device().size_bytes() >> 9;
    rig.ctx.send_alone((route, route.lane_id(kind), sectors), run, io, &mut Roomy)
}

#[test]
fn a_seat_counts_its_records_for_its_partition() {
    let puppet = Puppet::new();
    let (mut rig, [disk, a, b, ..]) = rig(&puppet);
    let seats = [1, 2].map(|at| rig.ctx.record_seat(rig.ctx.route(rig.devices[at].0).unwrap()).unwrap());
    let split = sheave_blk::stats::Split { driver_ns: 70, ..Default::default() };
    seats[0].records().tally(Op::Read).note(&split, 3, 3 * 512);
    seats[1].records().tally(Op::Write).note(&split, 1, 512);
    let expect = [[3, 3, 210, 1, 1, 70], [3, 3, 210, 0, 0, 0], [0, 0, 0, 1, 1, 70]];
    assert_eq!([&disk, &a, &b].map(|device| counts(&device.stats())), expect);
    drop(seats);
    assert_eq!([&disk, &a, &b].map(|device| counts(&device.stats())), expect);
    rig.shutdown();
    assert_eq!([&disk, &a, &b].map(|device| counts(&device.stats())), expect);
}

#[test]
fn a_ring_counts_some_partitions_by_themselves_and_loses_none() {
    let puppet = Puppet::new();
    let disk = puppet.device();
    let mut rig = Rig::new(&[&disk]);
    let parts: Vec<Device> =
        (0..300).map(|at| linear::partition("one of many", &disk, at * 4096, 4096).unwrap()).collect();
    for part in &parts {
        let bdev = rig.ctx.attach(part).unwrap();
        rig.devices = vec![(bdev, part.clone())];
        assert!(rig.read(0, 0));
        rig.drain();
    }
    let by_itself = parts.iter().filter(|part| part.stats().op(Op::Read).ios == 1).count();
    assert_eq!((by_itself, disk.stats().op(Op::Read).ios), (256, 300));
    rig.shutdown();
    drop(rig);
    assert_eq!(disk.stats().op(Op::Read).ios, 300);
}

#[test]
fn a_device_that_keeps_no_statistics_counts_nothing_from_the_next_io_on() {
    let puppet = Puppet::new().holding();
    let (mut rig, devices) = rig(&puppet);
    let before = devices.each_ref().map(Device::stats);
    rig.io_to(1, Op::Read, 0, 0, BLOCK, 0);
    pass(&rig, 100);
    devices[1].set_stats(false);
    assert!(!devices[0].keeps_stats() && !devices[4].keeps_stats());
    // The ring notices with the next request that it sends. The one in flight is not counted.
    rig.io_to(2, Op::Read, 0, 0, BLOCK, 1);
    pass(&rig, 1_000);
    let (_, looks) = (rig.time.reads(), rig.time.reads());
    finish(&puppet, &mut rig, 1);
    rig.io_to(1, Op::Read, 0, 0, BLOCK, 2);
    assert_eq!(rig.time.reads(), looks, "no clock is read for it");
    assert_eq!(all(&devices), [[0; 6]; 5]);
    assert_eq!(busy(&devices, &before), [100, 100, 0, 0, 100]);
    assert_eq!(devices[0].in_flight().reads, 2, "that is known nevertheless");
    // A fault counts even without statistics.
    puppet.script().fail.push((Op::Write, Status::IoErr));
    rig.io_to(2, Op::Write, 0, 100, BLOCK, 3);
    finish(&puppet, &mut rig, 1);
    finish(&puppet, &mut rig, 2);
    assert_eq!((devices[0].faults().count, devices[0].stats().op(Op::Write).errors), (1, 0));
    // Two are in flight when statistics are turned on. They count from that moment.
    rig.io_to(1, Op::Read, 0, 0, BLOCK, 4);
    pass(&rig, 5_000);
    devices[0].set_stats(true);
    rig.io_to(2, Op::Read, 0, 0, BLOCK, 5);
    pass(&rig, 30);
    finish(&puppet, &mut rig, 2);
    pass(&rig, 1_000);
    assert_eq!(counts(&devices[0].stats()), [2, 2 * BLOCK_SECTORS, 60, 0, 0, 0]);
    assert_eq!(busy(&devices, &before), [130, 130, 30, 0, 160]);
    assert!(devices[4].keeps_stats());
}

#[test]
fn the_switch_of_a_device_closes_no_gate_and_opens_none() {
    let puppet = Puppet::new();
    let (mut rig, devices) = rig(&puppet);
    let frozen = devices[0].freeze(Duration::ZERO).unwrap();
    devices[0].set_stats(false);
    rig.read(0, 0);
    rig.poll();
    assert_eq!(puppet.script().seen.len(), 0, "frozen");
    drop(frozen);
    rig.drain();
    assert_eq!((rig.take_ok().len(), devices[0].stats().ios()), (1, 0));
    let quiesced = devices[0].quiesce(Duration::ZERO).unwrap();
    devices[0].set_stats(true);
    rig.read(0, 1);
    rig.poll();
    assert_eq!(puppet.script().seen.len(), 1, "quiesced");
    drop(quiesced);
    rig.drain();
    assert_eq!((rig.take_ok().len(), devices[0].stats().ios()), (1, 1));
    // Turning on the device's statistics does not turn on those of a ring that keeps none.
    rig.ctx.set_stats(false);
    devices[0].set_stats(false);
    devices[0].set_stats(true);
    rig.read(0, 2);
    rig.drain();
    assert_eq!(devices[0].stats().ios(), 1);
}
