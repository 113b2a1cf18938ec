//! Plain records: reads and writes that go from SQE to CQE without a slot and without a bio. Each ends once, with its
//! user data, and counts as in flight until then, in every state of its device, of the gate and of the ring.

use std::collections::BTreeMap;
use std::time::Duration;

use sheave_base::buf::Buf;
use sheave_base::clock::Clock;
use sheave_base::status::Status;
use sheave_blk::Device;
use sheave_blk::bio::Op;
use sheave_drivers::open_device;
use sheave_uring::prep::Cancel;
use sheave_uring::sqe::{IOSQE_IO_DRAIN, IOSQE_IO_LINK, Sqe, opcode};
use sheave_uring::{Fd, Ring, Waited};

use crate::support::{Puppet, buf, nop, push, reaped, run, rw};

const SOON: Duration = Duration::from_secs(10);
const EIO: i32 = -5;
const ENOENT: i32 = -2;

/// A polled ring with a device, and memory for its I/O.
struct Bench {
    ring: Ring,
    fd: Fd,
    memory: Buf,
}

fn bench_with(device: &Device, entries: u32) -> Bench {
    let mut ring = Ring::builder().entries(entries).polled(true).build().expect("a ring");
    let fd = ring.attach(device).expect("attached");
    Bench { ring, fd, memory: buf(64 << 10) }
}

fn bench(device: &Device) -> Bench {
    bench_with(device, 64)
}

impl Bench {
    /// Returns a read or write of the block `at`, with user data that encodes the place.
    fn block(&mut self, opcode: u8, at: u64) -> Sqe {
        let addr = self.memory.as_mut_ptr() as u64;
        rw(opcode, self.fd, at * 4096, addr, 4096, 1000 + at)
    }

    fn reads(&mut self, places: impl IntoIterator<Item = u64>) -> Vec<Sqe> {
        places.into_iter().map(|at| self.block(opcode::READ, at)).collect()
    }

    /// Does one I/O, so that the ring caches the gate as open. I/O submitted next is then gathered, and meets a gate
    /// that was closed meanwhile only when it is sent to the driver.
    fn find_open(&mut self) {
        let sqe = self.reads([1 << 10]);
        self.submit(&sqe);
        self.ring.drain();
        assert_eq!(reaped(&mut self.ring), done([1 << 10]));
    }

    fn submit(&mut self, sqes: &[Sqe]) {
        push(&mut self.ring, sqes);
        assert_eq!(self.ring.submit().expect("slots are free") as usize, sqes.len());
    }

    /// Returns the number of bios in use. A record has none.
    fn bios(&self) -> u32 {
        self.ring.io().bios().live()
    }

    fn promised(&self) -> u32 {
        self.ring.io().bios().promised()
    }

    fn sorted(&mut self) -> Vec<(u64, i32)> {
        self.ring.reap();
        let mut all = reaped(&mut self.ring);
        all.sort_unstable();
        all
    }
}

/// Returns the expected CQEs of reads of these places.
fn done(places: impl IntoIterator<Item = u64>) -> Vec<(u64, i32)> {
    places.into_iter().map(|at| (1000 + at, 4096)).collect()
}

/// Returns places that are not adjacent.
fn apart(count: u64) -> impl Iterator<Item = u64> {
    (0..count).map(|n| 3 * n)
}

#[test]
fn a_record_needs_no_bio_and_is_in_flight_until_it_ends() {
    let puppet = Puppet::new().holding();
    let device = puppet.device();
    let mut b = bench(&device);
    let mut sqes = b.reads(apart(20));
    sqes.extend([b.block(opcode::WRITE, 70), b.block(opcode::WRITE, 80)]);
    b.submit(&sqes);
    assert_eq!((b.ring.in_flight(), b.bios(), b.promised()), (22, 0, 22));
    let in_flight = device.in_flight();
    assert_eq!((in_flight.reads, in_flight.writes, in_flight.other), (20, 2, 0), "as the tags have it");
    puppet.script().finish = 5;
    b.ring.reap();
    assert_eq!(reaped(&mut b.ring), done(apart(5)));
    assert_eq!((b.ring.in_flight(), device.in_flight().total(), b.promised()), (17, 17, 17));
    puppet.script().finish = u32::MAX;
    b.ring.reap();
    assert_eq!(reaped(&mut b.ring), done(apart(20).skip(5).chain([70, 80])));
    assert_eq!((b.ring.in_flight(), device.in_flight().total(), b.promised()), (0, 0, 0));
    let stats = device.stats();
    assert_eq!((stats.op(Op::Read).ios, stats.op(Op::Write).ios, stats.op(Op::Read).sectors), (20, 2, 160));
    assert_eq!(stats.op(Op::Read).split.latency.iter().sum::<u64>(), 20);
}

#[test]
fn a_partition_and_its_device_count_records_in_one_pass() {
    let puppet = Puppet::new().holding();
    let whole = puppet.device();
    let part = sheave_blk::linear::partition("part", &whole, 4096, 1 << 25).expect("a partition");
    let mut ring = Ring::builder().entries(64).polled(true).build().expect("a ring");
    let (on_whole, on_part) = (ring.attach(&whole).expect("attached"), ring.attach(&part).expect("attached"));
    let mut memory = buf(4096);
    let addr = memory.as_mut_ptr() as u64;
    for at in apart(6) {
        push(&mut ring, &[rw(opcode::READ, on_part, at * 4096, addr, 4096, at)]);
    }
    for at in apart(4) {
        push(&mut ring, &[rw(opcode::WRITE, on_whole, at * 4096, addr, 4096, at)]);
    }
    ring.submit().expect("room");
    assert_eq!(ring.io().bios().promised(), 4, "on the device itself");
    assert_eq!((whole.in_flight().reads, whole.in_flight().writes), (6, 4));
    assert_eq!((part.in_flight().reads, part.in_flight().writes), (6, 0));
    assert_eq!(puppet.sectors_seen()[..2], [8, 8 + 24], "from the partition's start on");
    puppet.script().finish = u32::MAX;
    ring.drain();
    assert_eq!(reaped(&mut ring).len(), 10);
    assert_eq!(whole.in_flight().total(), 0);
}

#[test]
fn a_frozen_device_has_none_in_flight_and_loses_none() {
    let puppet = Puppet::new();
    let device = puppet.device();
    let mut b = bench(&device);
    b.find_open();
    let frozen = device.freeze(SOON).expect("it is idle");
    let sqes = b.reads(apart(30));
    b.submit(&sqes);
    assert_eq!((device.in_flight().total(), b.ring.in_flight()), (0, 30), "they wait without tags");
    assert_eq!((b.bios(), b.promised()), (30, 0), "each has got the bio that was promised to it");
    assert!(b.sorted().is_empty());
    puppet.script().seen.clear();
    drop(frozen);
    b.ring.reap();
    assert_eq!(puppet.sectors_seen(), apart(30).map(|at| at * 8).collect::<Vec<_>>(), "in order");
    assert_eq!(b.sorted(), done(apart(30)));
    assert_eq!((b.bios(), b.promised(), b.ring.in_flight()), (0, 0, 0));
}

#[test]
fn a_frozen_device_finds_a_bio_for_each_record_however_few_there_are() {
    let (busy, puppet) = (Puppet::new().holding(), Puppet::new().limits(|limits| limits.max_sectors = 8));
    let (other, device) = (busy.device(), puppet.device());
    let mut b = bench_with(&device, 64);
    let on_other = b.ring.attach(&other).expect("attached");
    b.find_open();
    let frozen = device.freeze(SOON).expect("it is idle");
    let all = b.ring.io().bios().available();
    // Records on the frozen device, and I/O that is split into as many pieces as there are bios.
    let mut sqes = b.reads(apart(40));
    let addr = b.memory.as_mut_ptr() as u64;
    sqes.extend((0..20).map(|n| rw(opcode::READ, b.fd, n << 20, addr, 64 << 10, n)));
    b.submit(&sqes);
    assert!(b.bios() + b.promised() <= all, "no bio is given away that is promised");
    push(&mut b.ring, &[rw(opcode::READ, on_other, 0, addr, 4096, 77)]);
    b.ring.submit().expect("room");
    drop(frozen);
    busy.script().finish = u32::MAX;
    b.ring.drain();
    let mut all: Vec<_> = reaped(&mut b.ring);
    all.sort_unstable();
    let expected: Vec<_> = (0..20).map(|n| (n, 64 << 10)).chain([(77, 4096)]).chain(done(apart(40))).collect();
    assert_eq!(all, expected);
}

#[test]
fn bios_that_are_promised_are_not_given_away() {
    let puppet = Puppet::new().holding().limits(|limits| limits.max_sectors = 8);
    let device = puppet.device();
    let mut b = bench_with(&device, 32);
    let sqes = b.reads(apart(30));
    b.submit(&sqes);
    assert_eq!(b.promised(), 30);
    let addr = b.memory.as_mut_ptr() as u64;
    // Each would take 16 bios. Together they need more than are left.
    let long: Vec<_> = (0..16).map(|n| rw(opcode::READ, b.fd, (n + 1) << 20, addr, 64 << 10, n)).collect();
    b.submit(&long);
    assert!(b.ring.io().bios().available() < 64 && b.promised() >= 30);
    // Refused records are held back as bios while the queue is frozen, so their promised bios must be there.
    puppet.script().accept = 0;
    puppet.script().finish = u32::MAX;
    b.ring.reap();
    puppet.script().accept = u32::MAX;
    b.ring.drain();
    let mut all = reaped(&mut b.ring);
    all.sort_unstable();
    assert_eq!(all, (0..16).map(|n| (n, 64 << 10)).chain(done(apart(30))).collect::<Vec<_>>());
    assert_eq!((b.bios(), b.promised()), (0, 0));
}

#[test]
fn what_a_quiesced_or_unwilling_driver_leaves_keeps_its_record() {
    let puppet = Puppet::new();
    let device = puppet.device();
    let mut b = bench(&device);
    b.find_open();
    let quiet = device.quiesce(SOON).expect("nobody is inside");
    let sqes = b.reads(apart(10));
    b.submit(&sqes);
    assert_eq!((device.accounted().total(), b.bios()), (10, 0), "they keep their tags");
    drop(quiet);
    puppet.script().accept = 4;
    b.ring.reap();
    b.ring.reap();
    assert_eq!(reaped(&mut b.ring), done(apart(4)));
    // Refused before a freeze, the requests are split by the freeze.
    let frozen = std::thread::scope(|scope| {
        let freezer = scope.spawn(|| device.freeze(SOON).expect("the ring polls"));
        while !freezer.is_finished() {
            b.ring.reap();
        }
        freezer.join().expect("no panic")
    });
    assert_eq!((device.in_flight().total(), b.ring.in_flight(), b.bios()), (0, 6, 6));
    puppet.script().accept = u32::MAX;
    drop(frozen);
    b.ring.drain();
    assert_eq!(reaped(&mut b.ring), done(apart(10).skip(4)));
}

#[test]
fn without_tags_the_rest_waits_and_comes_in_order() {
    let puppet = Puppet::new().depth(7).holding();
    let device = puppet.device();
    let mut b = bench(&device);
    let sqes = b.reads(apart(40));
    b.submit(&sqes);
    assert_eq!((device.in_flight().total(), b.ring.in_flight(), b.bios()), (7, 40, 33));
    puppet.script().finish = u32::MAX;
    b.ring.drain();
    assert_eq!(puppet.sectors_seen(), apart(40).map(|at| at * 8).collect::<Vec<_>>());
    assert_eq!(reaped(&mut b.ring), done(apart(40)));
}

#[test]
fn host_wide_tags_serve_records_of_several_rings() {
    let puppet = Puppet::new().host_depth(8).holding();
    let device = puppet.device();
    let (mut a, mut b) = (bench(&device), bench(&device));
    let sqes = a.reads(apart(6));
    a.submit(&sqes);
    let sqes = b.reads(apart(6));
    b.submit(&sqes);
    assert_eq!(device.in_flight().total(), 8, "no more than the host has");
    puppet.script().finish = u32::MAX;
    for _ in 0..10 {
        a.ring.reap();
        b.ring.reap();
    }
    assert_eq!((a.sorted(), b.sorted()), (done(apart(6)), done(apart(6))));
    assert_eq!(device.in_flight().total(), 0);
}

#[test]
fn another_thread_may_complete_records() {
    let device = open_device("null:size=1G,complete=thread,latency=1ms").expect("a device");
    let mut b = bench(&device);
    for _ in 0..20 {
        let sqes = b.reads(apart(32));
        b.submit(&sqes);
        assert_eq!(b.ring.wait(32, Some(SOON)), Waited::Ready(32));
        assert_eq!(b.sorted(), done(apart(32)));
    }
    assert_eq!(device.stats().op(Op::Read).ios, 640);
}

#[test]
fn an_error_is_the_result_of_its_record_alone() {
    let puppet = Puppet::new();
    puppet.script().fail = vec![(Op::Write, Status::IoErr)];
    let device = puppet.device();
    let mut b = bench(&device);
    let sqes: Vec<_> =
        apart(12).map(|at| b.block(if at % 2 == 0 { opcode::READ } else { opcode::WRITE }, at)).collect();
    b.submit(&sqes);
    let expected: Vec<_> = apart(12).map(|at| (1000 + at, if at % 2 == 0 { 4096 } else { EIO })).collect();
    assert_eq!(b.sorted(), expected);
    let stats = device.stats();
    assert_eq!((stats.op(Op::Write).ios, stats.op(Op::Write).errors, stats.op(Op::Read).errors), (6, 6, 0));
    assert_eq!((b.ring.in_flight(), b.promised()), (0, 0));
}

#[test]
fn neighbours_go_in_one_request_and_end_each_for_itself() {
    let puppet = Puppet::new();
    let device = puppet.device();
    let mut b = bench(&device);
    let addr = b.memory.as_mut_ptr() as u64;
    let piece = |fd, off, len, n: u64| rw(opcode::READ, fd, off, addr + n * 4096, len, n);
    // Four ascending reads of several lengths, three descending ones, and two that are not adjacent to any.
    let fd = b.fd;
    let sqes = [
        piece(fd, 0, 4096, 0),
        piece(fd, 4096, 4096, 1),
        piece(fd, 8192, 512, 2),
        piece(fd, 8704, 4096, 3),
        piece(fd, 1 << 20, 4096, 4),
        piece(fd, (1 << 20) - 4096, 4096, 5),
        piece(fd, (1 << 20) - 8192, 4096, 6),
        piece(fd, 2 << 20, 4096, 7),
        piece(fd, 4 << 20, 4096, 8),
    ];
    b.submit(&sqes);
    let seen: Vec<_> = puppet.script().seen.iter().map(|seen| (seen.sector, seen.bytes, seen.vecs.len())).collect();
    let back = (2048 - 16, 12288, 3);
    assert_eq!(seen, [(0, 12800, 4), back, (4096, 4096, 1), (8192, 4096, 1)]);
    let bases: Vec<_> = puppet.script().seen[1].vecs.iter().map(|vec| vec.base() as u64 - addr).collect();
    assert_eq!(bases, [6 * 4096, 5 * 4096, 4 * 4096], "in the order of the device");
    let expected: Vec<_> = sqes.iter().map(|sqe| (sqe.user_data, sqe.len as i32)).collect();
    assert_eq!(b.sorted(), expected);
    let stats = device.stats();
    let read = stats.op(Op::Read);
    assert_eq!((read.ios, read.merges, read.sectors), (4, 5, 7 * 8 + 1 + 8));
    assert_eq!((b.bios(), b.promised()), (0, 0));
}

#[test]
fn merges_keep_to_the_limits() {
    let puppet = Puppet::new().limits(|limits| limits.max_sectors = 32);
    let device = puppet.device();
    let mut b = bench(&device);
    let sqes = b.reads(0..10);
    b.submit(&sqes);
    let seen: Vec<_> = puppet.script().seen.iter().map(|seen| (seen.sector, seen.bytes)).collect();
    assert_eq!(seen, [(0, 16384), (32, 16384), (64, 8192)]);
    assert_eq!(b.sorted(), done(0..10));
}

#[test]
fn cqes_beyond_the_queue_wait_in_order() {
    let puppet = Puppet::new();
    let device = puppet.device();
    let mut ring = Ring::builder().entries(16).cq_entries(16).in_flight(64).polled(true).build().expect("a ring");
    let fd = ring.attach(&device).expect("attached");
    let mut b = Bench { ring, fd, memory: buf(4096) };
    for round in 0..3 {
        let sqes = b.reads(apart(16).map(|at| at + 100 * round));
        b.submit(&sqes);
        b.ring.reap();
    }
    assert!(b.ring.cq_overflowed());
    let mut all = Vec::new();
    while all.len() < 48 {
        let some = reaped(&mut b.ring);
        assert!(!some.is_empty() && some.len() <= 16);
        all.extend(some);
    }
    assert_eq!(all, done((0..3).flat_map(|round| apart(16).map(move |at| at + 100 * round))));
    assert!(!b.ring.cq_overflowed());
}

#[test]
fn slots_and_records_share_the_bound_on_what_is_in_flight() {
    let puppet = Puppet::new().holding();
    let device = puppet.device();
    let mut ring = Ring::builder().entries(16).cq_entries(32).in_flight(32).polled(true).build().expect("a ring");
    let fd = ring.attach(&device).expect("attached");
    let mut b = Bench { ring, fd, memory: buf(4096) };
    let sqes = b.reads(apart(16));
    b.submit(&sqes);
    let addr = b.memory.as_mut_ptr() as u64;
    let vec = [addr, 4096];
    let vectored = |n: u64| rw(opcode::READV, fd, n << 20, vec.as_ptr() as u64, 1, n);
    b.submit(&(1..=10).map(vectored).collect::<Vec<_>>());
    let more = b.reads(apart(16).map(|at| at + 200));
    push(&mut b.ring, &more);
    assert_eq!(b.ring.submit().expect("some are taken"), 6);
    assert!(b.ring.submit().is_err(), "32 are in flight");
    assert_eq!(b.ring.in_flight(), 32);
    puppet.script().finish = u32::MAX;
    b.ring.reap();
    assert_eq!(reaped(&mut b.ring).len(), 32);
    assert_eq!(b.ring.submit().expect("there is room"), 10);
    b.ring.drain();
    assert_eq!(reaped(&mut b.ring).len(), 10);
}

#[test]
fn drains_and_chains_wait_for_records() {
    let puppet = Puppet::new().holding();
    let device = puppet.device();
    let mut b = bench(&device);
    let sqes = b.reads(apart(4));
    b.submit(&sqes);
    let linked = Sqe { flags: IOSQE_IO_LINK, ..b.block(opcode::READ, 50) };
    let behind = b.block(opcode::READ, 60);
    b.submit(&[linked, behind, nop(1, IOSQE_IO_DRAIN), nop(2, 0)]);
    b.ring.reap();
    assert!(reaped(&mut b.ring).is_empty(), "the drain waits for all, what is behind it for the drain");
    puppet.script().finish = 5;
    b.ring.reap();
    assert_eq!(reaped(&mut b.ring), done(apart(4).chain([50])));
    puppet.script().finish = u32::MAX;
    b.ring.drain();
    assert_eq!(reaped(&mut b.ring), [(1060, 4096), (1, 0), (2, 0)]);
}

#[test]
fn a_record_is_not_found_by_a_cancel() {
    let puppet = Puppet::new().holding();
    let device = puppet.device();
    let mut b = bench(&device);
    let sqes = b.reads([5]);
    b.submit(&sqes);
    assert_eq!(b.ring.cancel(Cancel::user_data(1005)).map_err(|errno| -errno.0), Err(ENOENT), "the device has it");
    assert_eq!(b.ring.cancel(Cancel::everything()), Ok(0));
    puppet.script().finish = u32::MAX;
    assert_eq!(b.sorted(), done([5]));
}

#[test]
fn an_overdue_record_is_ended_once_by_its_driver() {
    let puppet = Puppet::new().holding();
    puppet.script().ends_overdue = true;
    let device = puppet.device_with_timeout(Duration::from_millis(100));
    let (clock, time) = Clock::virtual_clock();
    let mut ring = Ring::builder().entries(64).polled(true).clock(clock).build().expect("a ring");
    let fd = ring.attach(&device).expect("attached");
    let mut b = Bench { ring, fd, memory: buf(4096) };
    let sqes = b.reads(apart(3));
    b.submit(&sqes);
    // Other I/O uses the remaining tags. The three stay the same requests.
    for _ in 0..20 {
        time.advance(Duration::from_millis(10));
        let _ = b.ring.wait(1, Some(Duration::ZERO));
        (0..300).for_each(|_| b.ring.reap());
    }
    assert_eq!(puppet.script().overdue, [0, 1, 2]);
    assert_eq!(b.sorted(), apart(3).map(|at| (1000 + at, -110)).collect::<Vec<_>>());
    assert_eq!((b.ring.in_flight(), device.in_flight().total()), (0, 0));
}

#[test]
fn a_tag_that_is_used_again_is_another_request_to_the_timeout() {
    let puppet = Puppet::new();
    puppet.script().ends_overdue = true;
    let device = puppet.device_with_timeout(Duration::from_millis(100));
    let (clock, time) = Clock::virtual_clock();
    let mut ring = Ring::builder().entries(64).polled(true).clock(clock).build().expect("a ring");
    let fd = ring.attach(&device).expect("attached");
    let mut b = Bench { ring, fd, memory: buf(4096) };
    for at in 0..40 {
        puppet.script().finish = 0;
        let sqes = b.reads([3 * at]);
        b.submit(&sqes);
        time.advance(Duration::from_millis(30));
        // Each walk of the timeout finds it in flight.
        (0..300).for_each(|_| b.ring.reap());
        puppet.script().finish = 1;
        assert_eq!(b.sorted(), done([3 * at]));
    }
    assert_eq!(puppet.script().overdue, [], "none was there for long");
}

#[test]
fn a_detached_file_stays_for_its_records() {
    let puppet = Puppet::new().holding();
    let device = puppet.device();
    let mut b = bench(&device);
    let sqes = b.reads(apart(5));
    b.submit(&sqes);
    b.ring.detach(b.fd).expect("it is attached");
    let users = || std::sync::Arc::strong_count(&puppet.script);
    let open = users();
    let late = b.reads([99]);
    b.submit(&late);
    b.ring.reap();
    assert_eq!(reaped(&mut b.ring), [(1099, -9)], "new requests find no file");
    puppet.script().finish = 3;
    b.ring.reap();
    b.ring.reap();
    assert_eq!((reaped(&mut b.ring), users()), (done(apart(3)), open), "two use it still");
    puppet.script().finish = u32::MAX;
    b.ring.reap();
    assert_eq!(reaped(&mut b.ring), done(apart(5).skip(3)));
    assert_eq!(users(), open - 1, "the device is closed after the last");
}

#[test]
fn a_replaced_buffer_stays_for_its_records() {
    let puppet = Puppet::new().holding();
    let device = puppet.device();
    let mut b = bench(&device);
    b.ring.register_buffers(vec![buf(8192), buf(8192)]).expect("registered");
    let (base, _) = b.ring.buffer_range(0).expect("registered");
    let fixed = |user_data, addr, off| Sqe { buf_index: 0, ..rw(opcode::READ_FIXED, b.fd, off, addr, 4096, user_data) };
    let sqes = [fixed(1, base, 0), fixed(2, base + 4096, 1 << 20)];
    b.submit(&sqes);
    assert_eq!(b.bios(), 0);
    assert!(b.ring.buffer(0).is_none() && b.ring.buffer_mut(0).is_none(), "the device writes to it");
    assert!(b.ring.buffer(1).is_some());
    assert!(b.ring.update_buffer(0, Some(buf(4096))).expect("there is one").is_none(), "it is not given back in use");
    assert!(b.ring.buffer(0).is_some(), "nobody uses the new one");
    let bases: Vec<u64> = puppet.script().seen.iter().map(|seen| seen.vecs[0].base() as u64).collect();
    assert_eq!(bases, [base, base + 4096]);
    puppet.script().finish = 1;
    b.ring.reap();
    puppet.script().finish = u32::MAX;
    b.ring.reap();
    b.ring.reap();
    assert_eq!(reaped(&mut b.ring), [(1, 4096), (2, 4096)]);
    assert!(b.ring.update_buffer(0, None).expect("there is one").is_some(), "the new one comes back");
}

#[test]
fn a_ring_that_is_dropped_lets_go_of_its_records() {
    for spec in ["null:size=1G,latency=1h", "null:size=1G,complete=thread,latency=20ms"] {
        let device = open_device(spec).expect("a device");
        let mut b = bench(&device);
        let sqes = b.reads(apart(20));
        b.submit(&sqes);
        assert_eq!(device.in_flight().total(), 20);
        drop(b);
        assert_eq!(device.in_flight().total(), 0, "{spec}");
        assert_eq!(device.stats().op(Op::Read).ios, 20);
    }
    // Held back by the gate, in both ways.
    let puppet = Puppet::new();
    let device = puppet.device();
    let mut b = bench(&device);
    b.find_open();
    let quiet = device.quiesce(SOON).expect("idle");
    let sqes = b.reads(apart(5));
    b.submit(&sqes);
    drop(b);
    drop(quiet);
    let mut b = bench(&device);
    b.find_open();
    let frozen = device.freeze(SOON).expect("idle");
    let sqes = b.reads(apart(5));
    b.submit(&sqes);
    drop(b);
    drop(frozen);
    assert_eq!((device.in_flight().total(), puppet.sectors_seen().len()), (0, 2));
}

#[test]
fn non_plain_sqe_takes_slot_path() {
    let puppet = Puppet::new().limits(|limits| limits.dma_alignment = 512);
    let device = puppet.device();
    let mut b = bench(&device);
    let (size, addr) = (puppet.size, b.memory.as_mut_ptr() as u64);
    let fd = b.fd;
    let read = |off, addr, len, n| rw(opcode::READ, fd, off, addr, len, n);
    let sqes = [
        read(0, addr, 4096, 0),
        read(size - 4096, addr, 4096, 1),
        read(size - 4096, addr, 8192, 2),
        read(size, addr, 4096, 3),
        read(100, addr, 4096, 4),
        read(0, addr, 100, 5),
        read(0, addr + 1, 4096, 6),
        read(0, addr, 0, 7),
        read(0, 0, 4096, 8),
        read(u64::MAX - 4095, addr, 4096, 9),
        Sqe { op_flags: 1 << 30, ..read(0, addr, 4096, 10) },
        Sqe { pad2: 4, ..read(0, addr, 4096, 11) },
        read(1 << 20, addr, 4096, 12),
    ];
    let results: BTreeMap<u64, i32> = run(&mut b.ring, &sqes).into_iter().collect();
    let expected = [4096, 4096, 4096, 0, -22, -22, -22, 0, -14, -22, -95, -22, 4096];
    assert_eq!(results, (0..13).zip(expected).collect());
}
