//! Times of I/O on files, as any thread reads them of a file and of a ring: on a virtual clock, with a delay inserted
//! at each stage.
#![allow(unsafe_code)] // Raw SQEs.

use std::sync::Arc;
use std::time::Duration;

use sheave_base::clock::{Clock, VirtualClock};
use sheave_blk::bio::{BVec, Op};
use sheave_blk::stats::Stage;
use sheave_iomap::io_stats::{IoGroup, IoKind};
use sheave_iomap::mapping::Intent;
use sheave_iomap::slow::Place;
use sheave_iomap::{File, MappingKind, RawFile};
use sheave_uring::sqe::{IOSQE_ASYNC, RWF_DSYNC, Sqe, opcode};
use sheave_uring::{Fd, IoWq, Ring};

use crate::support::{Puppet, fsync, push, reaped, rw};
use crate::thin::{Call, Thin, UNIT};

const DELAY: Duration = Duration::from_micros(700);
const DELAY_NS: u64 = 700_000;
const ADDR: u64 = 1 << 24;

/// Returns a ring with a virtual clock, whose workers' work runs on this thread.
fn ring(polled: bool) -> (Ring, VirtualClock) {
    let (clock, time) = Clock::virtual_clock();
    let wq = IoWq::builder().stepped(true).build().unwrap();
    let builder = Ring::builder().entries(32).clock(clock).spin(Duration::ZERO).polled(polled).io_wq(&wq);
    (builder.build().unwrap(), time)
}

fn read(fd: Fd, pos: u64) -> Sqe {
    rw(opcode::READ, fd, pos, ADDR, 4096, pos)
}

fn write(fd: Fd, pos: u64) -> Sqe {
    rw(opcode::WRITE, fd, pos, ADDR, 4096, pos)
}

/// Returns the number of I/Os of one kind, and their time in each stage. Asserts that the stages add up to the
/// latencies.
fn counted(group: &IoGroup, kind: IoKind) -> (u64, [u64; 5]) {
    let counts = group.counts();
    let kind = counts.kind(kind);
    assert_eq!(kind.split.stage_ns.iter().sum::<u64>(), kind.split.time_ns, "{kind:?}");
    assert_eq!(kind.split.ios(), kind.ios, "{kind:?}");
    (kind.ios, kind.split.stage_ns)
}

fn only(stage: Stage, ns: u64) -> [u64; 5] {
    let mut all = [0; 5];
    all[stage as usize] = ns;
    all
}

#[test]
fn records_count_for_their_file_and_their_ring() {
    let puppet = Puppet::new().holding();
    let device = puppet.device();
    let (one, other) = (Arc::new(RawFile::new(device.clone())), Arc::new(RawFile::new(device.clone())));
    let (mut ring, time) = ring(false);
    let fds = [one.clone(), other.clone()].map(|file| ring.attach_file(file).unwrap());
    let all = ring.io_group().expect("statistics are on");
    push(&mut ring, &[read(fds[0], 0), read(fds[0], 8192), write(fds[1], 0)]);
    ring.submit().unwrap();
    time.advance(DELAY);
    ring.reap(); // The driver still has them.
    puppet.script().finish = u32::MAX;
    assert_eq!(reaped(&mut ring).len(), 3);
    let [one, other] = [&one, &other].map(|file| file.io_group().expect("raw files have statistics").clone());
    assert_eq!(counted(&one, IoKind::Read), (2, only(Stage::Driver, 2 * DELAY_NS)));
    assert_eq!(one.counts().kind(IoKind::Read).bytes, 2 * 4096);
    assert_eq!(counted(&one, IoKind::Write).0, 0);
    assert_eq!(counted(&other, IoKind::Write), (1, only(Stage::Driver, DELAY_NS)));
    let read_there = all.clone();
    let ios = std::thread::spawn(move || read_there.counts().ios()).join().unwrap();
    assert_eq!(ios, 3, "any thread may read");
    let of_device = || {
        let stats = device.stats();
        let (reads, writes) = (stats.op(Op::Read), stats.op(Op::Write));
        (reads.ios, reads.sectors, reads.split.time_ns, writes.ios, writes.sectors, writes.split.ns(Stage::Driver))
    };
    let all_of_device = (2, 16, 2 * DELAY_NS, 1, 8, DELAY_NS);
    assert_eq!(of_device(), all_of_device, "the device's statistics have them, too, once");
    ring.detach(fds[0]).unwrap();
    assert_eq!(of_device(), all_of_device, "when one of its files has gone");
    drop(ring);
    assert_eq!(of_device(), all_of_device, "and when the ring has gone");
    assert_eq!(one.counts().ios(), 2, "what a ring did stays when it has gone");
    assert_eq!(all.counts().ios(), 3);
}

#[test]
fn records_that_are_merged_count_each_and_are_slow_each() {
    // With room for all CQEs, and with room for one, so that the others end one by one.
    for entries in [32, 1] {
        let puppet = Puppet::new().holding();
        let device = puppet.device();
        let file = Arc::new(RawFile::new(device.clone()));
        let (clock, time) = Clock::virtual_clock();
        let builder = Ring::builder().entries(32).cq_entries(entries).in_flight(32).clock(clock).spin(Duration::ZERO);
        let mut ring = builder.slow_limit(DELAY / 2).build().unwrap();
        let fd = ring.attach_file(file.clone()).unwrap();
        push(&mut ring, &[read(fd, 4096), read(fd, 8192), read(fd, 12288), write(fd, 0)]);
        assert_eq!(ring.submit().unwrap(), 4);
        time.advance(DELAY);
        ring.reap(); // The driver still has them.
        puppet.script().finish = u32::MAX;
        let mut told = 0;
        for _ in 0..4 {
            ring.reap();
            told += reaped(&mut ring).len();
        }
        assert_eq!(told, 4);
        let stats = device.stats();
        assert_eq!((stats.op(Op::Read).ios, stats.op(Op::Read).merges), (1, 2), "one request");
        let io = file.io_group().expect("raw files have statistics").clone();
        assert_eq!(counted(&io, IoKind::Read), (3, only(Stage::Driver, 3 * DELAY_NS)));
        assert_eq!(io.counts().kind(IoKind::Read).bytes, 3 * 4096);
        let slow = ring.flight_recorder().expect("statistics are on").read(0).ios;
        let reads = slow.iter().filter(|slow| slow.kind == IoKind::Read);
        assert_eq!(reads.clone().map(|slow| slow.ios).sum::<u32>(), 3, "{slow:?}");
        for slow in reads {
            let Place::File(at) = slow.place else { panic!("{slow:?}") };
            assert!((4096..16384).contains(&at) && slow.len == 4096 && slow.latency_ns() == DELAY_NS, "{slow:?}");
        }
    }
}

#[test]
fn alone_and_not_looked_for() {
    for in_call in [false, true] {
        let puppet = Puppet::new();
        puppet.script().in_call = in_call;
        let file = Arc::new(RawFile::new(puppet.device()));
        let (mut ring, time) = ring(true);
        let fd = ring.attach_file(file.clone()).unwrap();
        for _ in 0..3 {
            push(&mut ring, &[read(fd, 0)]);
            ring.submit().unwrap();
            time.advance(DELAY);
            assert_eq!(reaped(&mut ring).len(), 1);
        }
        let (ios, split) = counted(file.io_group().unwrap(), IoKind::Read);
        assert_eq!(ios, 3);
        let waited = split[Stage::Reap as usize];
        // An I/O that is sent alone, and that its driver ends in the call, never waits for a reap.
        assert!(if in_call { waited <= DELAY_NS } else { waited == 3 * DELAY_NS }, "in call {in_call}: {split:?}");
        assert_eq!(split.iter().sum::<u64>(), waited);
    }
}

#[test]
fn holes_are_traced_around_the_data() {
    let puppet = Puppet::new();
    let (mut ring, time) = ring(false);
    let slow = time.clone();
    let file = Thin::new(&puppet.device(), 8, MappingKind::Unwritten, move |_, call, _| {
        slow.advance(match call {
            Call::MapBlocking(_) => DELAY,
            Call::End { .. } => 2 * DELAY,
            Call::Sync => 3 * DELAY,
            Call::Fallocate(..) => 4 * DELAY,
        });
        Ok(())
    });
    file.forget(3);
    let fd = ring.attach_file(file.clone()).unwrap();
    let group = ring.io_group().unwrap();
    push(&mut ring, &[write(fd, 3 * UNIT)]);
    ring.submit().unwrap();
    ring.drain();
    assert_eq!(reaped(&mut ring).len(), 1);
    assert!(file.map(3 * UNIT, 4096, Intent::Read).is_ok());
    assert_eq!(counted(&group, IoKind::Write), (1, only(Stage::Worker, DELAY_NS)), "its mapping took a worker");
    push(&mut ring, &[write(fd, 0)]);
    ring.submit().unwrap();
    ring.drain();
    assert_eq!(counted(&group, IoKind::Write), (2, only(Stage::Worker, 3 * DELAY_NS)), "and the other's end");
    push(&mut ring, &[fsync(fd, 9)]);
    ring.submit().unwrap();
    ring.drain();
    assert_eq!(counted(&group, IoKind::Other), (1, only(Stage::Worker, 3 * DELAY_NS)));
    push(&mut ring, &[Sqe { opcode: opcode::FALLOCATE, addr: UNIT, len: 3, ..fsync(fd, 10) }]);
    ring.submit().unwrap();
    ring.drain();
    assert_eq!(counted(&group, IoKind::Other), (2, only(Stage::Worker, 7 * DELAY_NS)), "and a hole");
    assert_eq!(reaped(&mut ring).len(), 3);
    assert_eq!(group.counts().errors(), 0);
}

#[test]
fn a_sync_counts_its_own_time_and_all_of_it() {
    let puppet = Puppet::new().caps(|caps| caps.volatile_cache = true).holding();
    let file = Arc::new(RawFile::new(puppet.device()));
    let (mut ring, time) = ring(false);
    let fd = ring.attach_file(file.clone()).unwrap();
    // SAFETY: the device of these tests touches no memory.
    let vec = unsafe { BVec::new(ADDR as usize, 4096) };
    let vectored = Sqe { addr: std::ptr::from_ref(&vec) as u64, len: 1, ..rw(opcode::READV, fd, 0, 0, 1, 7) };
    push(&mut ring, &[fsync(fd, 1)]);
    ring.submit().unwrap();
    time.advance(DELAY);
    push(&mut ring, &[vectored]);
    ring.submit().unwrap();
    ring.reap();
    time.advance(Duration::from_micros(1));
    puppet.script().finish = u32::MAX;
    ring.drain();
    assert_eq!(reaped(&mut ring), [(7, 4096), (1, 0)], "a sequence ends behind the others of its batch");
    let io = file.io_group().unwrap();
    let (ios, split) = counted(io, IoKind::Other);
    assert_eq!((ios, split.iter().sum::<u64>()), (1, DELAY_NS + 1000), "{split:?}");
    assert_eq!(counted(io, IoKind::Read).1.iter().sum::<u64>(), 1000);
    // A second sync waits for the flush of the first, and then for its own.
    puppet.script().finish = 0;
    for user_data in [2, 3] {
        push(&mut ring, &[fsync(fd, user_data)]);
        ring.submit().unwrap();
    }
    for sync in [2, 3] {
        time.advance(DELAY);
        puppet.script().finish = 1;
        ring.reap();
        ring.reap();
        assert_eq!(reaped(&mut ring), [(sync, 0)]);
    }
    let (ios, after) = counted(io, IoKind::Other);
    let sum = after.iter().sum::<u64>() - split.iter().sum::<u64>();
    assert_eq!((ios, sum), (3, 3 * DELAY_NS), "{after:?}");
    assert_eq!(after[Stage::Tag as usize], DELAY_NS);
    // A durable write is one I/O from its data to the flush behind it.
    push(&mut ring, &[Sqe { op_flags: RWF_DSYNC, ..write(fd, 0) }]);
    ring.submit().unwrap();
    for left in [1, 0] {
        time.advance(DELAY);
        puppet.script().finish = 1;
        ring.reap();
        ring.reap();
        assert_eq!(ring.in_flight(), left);
    }
    let (ios, split) = counted(io, IoKind::Write);
    assert_eq!((ios, split.iter().sum::<u64>()), (1, 2 * DELAY_NS), "{split:?}");
}

#[test]
fn a_whole_operation_with_a_worker_counts_once() {
    let puppet = Puppet::new();
    let file = Arc::new(RawFile::new(puppet.device()));
    let (mut ring, _) = ring(false);
    let fd = ring.attach_file(file.clone()).unwrap();
    push(&mut ring, &[Sqe { flags: IOSQE_ASYNC, ..read(fd, 0) }]);
    ring.submit().unwrap();
    ring.drain();
    assert_eq!(reaped(&mut ring).len(), 1);
    assert_eq!(counted(file.io_group().unwrap(), IoKind::Read).0, 1, "by the ring that was asked, not by the worker's");
}

#[test]
fn errors_count_and_a_ring_without_statistics_does_not() {
    let puppet = Puppet::new();
    puppet.script().fail = vec![(Op::Read, sheave_base::status::Status::IoErr)];
    let file = Arc::new(RawFile::new(puppet.device()));
    for stats in [true, false] {
        let mut ring = Ring::builder().entries(8).stats(stats).build().unwrap();
        let fd = ring.attach_file(file.clone()).unwrap();
        push(&mut ring, &[read(fd, 0), read(fd, 1 << 20)]);
        ring.submit().unwrap();
        ring.drain();
        assert!(reaped(&mut ring).iter().all(|(_, res)| *res == -5));
        assert_eq!(ring.io_group().is_some(), stats);
        let counts = file.io_group().unwrap().counts();
        assert_eq!((counts.ios(), counts.errors()), (2, 2), "statistics: {stats}");
    }
}
