//! Single I/Os, submitted and waited for one at a time. Each goes straight from the SQE to its driver, without slot,
//! bio and plug, and straight to its CQE if the driver ends it at once. Its result must equal that of the normal path,
//! for every result of the driver, after any change since the I/O before it, and with any other work of the ring.

use std::collections::VecDeque;
use std::io::Write as _;
use std::time::Duration;

use sheave_base::buf::Buf;
use sheave_base::clock::Clock;
use sheave_base::rng::Rng;
use sheave_base::status::Status;
use sheave_blk::Device;
use sheave_blk::bio::Op;
use sheave_uring::prep;
use sheave_uring::sqe::{IOSQE_FIXED_FILE, Sqe, opcode};
use sheave_uring::{Fd, Ring};

use crate::support::{Puppet, buf, push, reaped, rw};

const SOON: Duration = Duration::from_secs(10);
const EIO: i32 = -5;
const EBADF: i32 = -9;
const EFAULT: i32 = -14;
const BLOCK: u32 = 4096;

/// A polled ring, with a device and memory for its I/O.
struct Bench {
    ring: Ring,
    fd: Fd,
    memory: Buf,
    next: u64,
}

impl Bench {
    fn new(device: &Device) -> Bench {
        let mut ring = Ring::builder().entries(4).polled(true).build().expect("a ring");
        let fd = ring.attach(device).expect("attached");
        let mut bench = Bench { ring, fd, memory: buf(16 << 10), next: 0 };
        // The first read takes the normal path. The second matches it, on a ring with no other work.
        (0..2).for_each(|_| assert_eq!(bench.read(7), i32::try_from(BLOCK).unwrap()));
        bench
    }

    fn sqe(&mut self, opcode: u8, at: u64) -> Sqe {
        self.next += 1;
        rw(opcode, self.fd, at * u64::from(BLOCK), self.memory.as_mut_ptr() as u64, BLOCK, self.next)
    }

    /// Submits one SQE and waits for it. Returns its result.
    fn one(&mut self, sqe: Sqe) -> i32 {
        push(&mut self.ring, &[sqe]);
        assert_eq!(self.ring.submit_and_wait(1).expect("there is room"), 1);
        let got = reaped(&mut self.ring);
        assert_eq!(got.len(), 1, "one for one: {got:?}");
        assert_eq!(got[0].0, sqe.user_data);
        assert_eq!(self.ring.in_flight(), 0);
        got[0].1
    }

    fn read(&mut self, at: u64) -> i32 {
        let sqe = self.sqe(opcode::READ, at);
        self.one(sqe)
    }
}

fn in_call() -> Puppet {
    let puppet = Puppet::new();
    puppet.script().in_call = true;
    puppet
}

#[test]
fn each_is_one_request_for_its_driver_and_is_counted() {
    for puppet in [Puppet::new(), in_call()] {
        let device = puppet.device();
        let mut b = Bench::new(&device);
        let before = device.stats();
        for at in 0..100 {
            assert_eq!(b.read(at), 4096);
            let seen = puppet.script().seen.pop().expect("the driver had it");
            assert_eq!((seen.op, seen.sector, seen.bytes), (Op::Read, at * 8, BLOCK));
            assert_eq!((seen.tag, seen.vecs.len()), (0, 1), "the lowest tag is free again");
        }
        let write = b.sqe(opcode::WRITE, 3);
        assert_eq!(b.one(write), 4096);
        let (reads, writes) = (device.stats().op(Op::Read).clone(), device.stats().op(Op::Write).clone());
        assert_eq!((reads.ios - before.op(Op::Read).ios, writes.ios), (100, 1));
        assert_eq!((writes.sectors, reads.split.latency.iter().sum::<u64>()), (8, reads.ios));
        assert_eq!(device.in_flight().total(), 0);
        assert_eq!((b.ring.io().bios().live(), b.ring.io().bios().promised()), (0, 0));
    }
}

#[test]
fn the_time_between_two_is_in_neither() {
    let (clock, time) = Clock::virtual_clock();
    let device = in_call().device();
    let mut ring = Ring::builder().entries(4).polled(true).clock(clock).build().expect("a ring");
    let fd = ring.attach(&device).expect("attached");
    let mut memory = buf(4096);
    for n in 0..50 {
        push(&mut ring, &[rw(opcode::READ, fd, n * 4096, memory.as_mut_ptr() as u64, 4096, n)]);
        ring.submit_and_wait(1).expect("there is room");
        assert_eq!(reaped(&mut ring), [(n, 4096)]);
        time.advance(Duration::from_millis(1));
    }
    let reads = device.stats().op(Op::Read).clone();
    assert_eq!((reads.ios, reads.split.time_ns), (50, 0), "a stamp is of its own I/O, and not of the one before");
}

#[test]
fn driver_error_refusal_and_hold_of_single_io() {
    let puppet = in_call();
    let device = puppet.device();
    let mut b = Bench::new(&device);
    puppet.script().fail = vec![(Op::Read, Status::IoErr)];
    assert_eq!(b.read(1), EIO);
    assert_eq!(device.stats().op(Op::Read).errors, 1);
    puppet.script().fail.clear();
    assert_eq!(b.read(2), 4096);
    // A refused I/O goes first when the driver takes requests again.
    puppet.script().accept = 0;
    let sqe = b.sqe(opcode::READ, 3);
    push(&mut b.ring, &[sqe]);
    assert_eq!(b.ring.submit().expect("there is room"), 1);
    b.ring.reap();
    assert_eq!((reaped(&mut b.ring), b.ring.in_flight()), (vec![], 1));
    puppet.script().accept = u32::MAX;
    b.ring.drain();
    assert_eq!(reaped(&mut b.ring), [(sqe.user_data, 4096)]);
    // A held I/O is in flight.
    (puppet.script().in_call, puppet.script().finish) = (false, 0);
    let sqe = b.sqe(opcode::READ, 4);
    push(&mut b.ring, &[sqe]);
    assert_eq!(b.ring.submit().expect("there is room"), 1);
    assert_eq!((device.in_flight().reads, b.ring.in_flight(), b.ring.io().bios().promised()), (1, 1, 1));
    puppet.script().finish = u32::MAX;
    b.ring.drain();
    assert_eq!((reaped(&mut b.ring).len(), device.in_flight().total()), (1, 0));
}

#[test]
fn a_gate_that_closes_holds_it_back() {
    for quiesce in [false, true] {
        let device = in_call().device();
        let mut b = Bench::new(&device);
        let queue = &device.legs()[0].queue;
        let gate = if quiesce { queue.quiesce(SOON) } else { queue.freeze(SOON) }.expect("nothing is in flight");
        let sqe = b.sqe(opcode::READ, 1);
        push(&mut b.ring, &[sqe]);
        assert_eq!(b.ring.submit().expect("there is room"), 1);
        b.ring.reap();
        assert_eq!((reaped(&mut b.ring), b.ring.in_flight()), (vec![], 1));
        assert_eq!(device.in_flight().total(), 0, "the driver has nothing");
        drop(gate);
        b.ring.drain();
        assert_eq!(reaped(&mut b.ring), [(sqe.user_data, 4096)]);
        assert_eq!(b.read(2), 4096);
    }
}

#[test]
fn table_changes_invalidate_cached_run() {
    let (first, second) = (in_call(), in_call());
    let (one, two) = (first.device(), second.device());
    let mut b = Bench::new(&one);
    let other = b.ring.attach(&two).expect("attached");
    b.ring.register_files(&[b.fd]).expect("files");
    let fixed = |b: &mut Bench| {
        let mut sqe = b.sqe(opcode::READ_FIXED, 5);
        (sqe.fd, sqe.flags, sqe.buf_index) = (0, IOSQE_FIXED_FILE, 0);
        sqe
    };
    b.ring.register_buffers(vec![buf(8192)]).expect("buffers");
    let base = b.ring.buffer_range(0).expect("registered").0;
    let at = |b: &mut Bench, addr: u64| {
        let sqe = fixed(b);
        b.one(Sqe { addr, ..sqe })
    };
    (0..3).for_each(|_| assert_eq!(at(&mut b, base), 4096));
    assert_eq!(second.script().seen.len(), 0);
    b.ring.update_file(0, other).expect("an entry");
    (0..2).for_each(|_| assert_eq!(at(&mut b, base + 4096), 4096));
    assert_eq!(second.script().seen.len(), 2, "the other file");
    assert_eq!(at(&mut b, base + 8192), EFAULT, "behind the buffer");
    let old = b.ring.update_buffer(0, Some(buf(16384))).expect("a place").expect("nobody uses it");
    assert_eq!(at(&mut b, base), EFAULT, "the old buffer");
    drop(old);
    let base = b.ring.buffer_range(0).expect("registered").0;
    (0..2).for_each(|_| assert_eq!(at(&mut b, base + 12288), 4096));
    b.ring.unregister_files();
    assert_eq!(at(&mut b, base), EBADF);
    assert_eq!(b.read(1), 4096);
    b.ring.detach(b.fd).expect("attached");
    assert_eq!(b.read(1), EBADF);
}

#[test]
fn a_device_that_shrinks_ends_where_it_ends_now() {
    let device = in_call().device();
    let mut b = Bench::new(&device);
    let last = (device.size_bytes() >> 12) - 1;
    assert_eq!(b.read(last), 4096);
    device.legs()[0].queue.set_capacity(last << 12);
    assert_eq!(b.read(last), 0, "behind the end");
    assert_eq!(b.read(last - 1), 4096);
    device.legs()[0].queue.set_capacity((last + 1) << 12);
    assert_eq!(b.read(last), 4096);
}

#[test]
fn a_full_cq_keeps_the_order() {
    let device = in_call().device();
    let mut b = Bench::new(&device);
    let mut expected = VecDeque::new();
    // No CQE is read: 8 fit into the CQ, the others stay in the overflow list.
    for n in 0..12 {
        let sqe = b.sqe(opcode::READ, n);
        push(&mut b.ring, &[sqe]);
        assert_eq!(b.ring.submit_and_wait(0).expect("there is room"), 1);
        expected.push_back((sqe.user_data, 4096));
    }
    b.ring.drain();
    let mut got = VecDeque::new();
    while got.len() < expected.len() {
        let some = reaped(&mut b.ring);
        assert!(!some.is_empty(), "some are missing: {got:?}");
        got.extend(some);
    }
    assert_eq!(got, expected);
    assert!(!b.ring.cq_overflowed());
}

#[test]
fn messages_and_typed_operations_come_through_between() {
    let device = in_call().device();
    let mut b = Bench::new(&device);
    let handle = b.ring.handle();
    for n in 0..100 {
        if n % 3 == 0 {
            handle.send(1 << 40 | n, 0).expect("there is room");
        }
        if n % 5 == 0 {
            let read = prep::read(b.fd, buf(4096)).offset(n * 4096).user_data(1 << 50 | n);
            b.ring.push(read).expect("there is room");
            b.ring.submit_and_wait(1).expect("there is room");
        }
        let sqe = b.sqe(opcode::READ, n);
        push(&mut b.ring, &[sqe]);
        b.ring.submit_and_wait(1).expect("there is room");
        b.ring.drain();
        let got: Vec<u64> = reaped(&mut b.ring).iter().map(|(user_data, _)| *user_data).collect();
        assert!(got.contains(&sqe.user_data), "{n}: {got:?}");
        assert_eq!(got.contains(&(1 << 40 | n)), n % 3 == 0, "{n}: {got:?}");
        assert_eq!(got.contains(&(1 << 50 | n)), n % 5 == 0, "{n}: {got:?}");
    }
}

#[test]
fn any_mixture_ends_each_once() {
    let mut rng = Rng::new(0x5EA4E);
    for _ in 0..50 {
        let puppet = in_call();
        let device = puppet.device();
        let mut b = Bench::new(&device);
        let (mut open, mut ended) = (Vec::new(), 0_u64);
        for _ in 0..400 {
            let mut script = puppet.script();
            script.in_call = rng.below(3) != 0;
            script.accept = if rng.below(4) == 0 { rng.below(2) as u32 } else { u32::MAX };
            script.finish = if rng.below(4) == 0 { rng.below(2) as u32 } else { u32::MAX };
            drop(script);
            let many = (1 + rng.below(3)).min(b.ring.sq_space().into());
            for _ in 0..many {
                let opcode = if rng.below(4) == 0 { opcode::WRITE } else { opcode::READ };
                let at = rng.below(1000);
                let sqe = b.sqe(opcode, at);
                push(&mut b.ring, &[sqe]);
                open.push(sqe.user_data);
            }
            match rng.below(3) {
                // An error means too much in flight; the SQEs stay in the SQ.
                0 => drop(b.ring.submit_and_wait(0)),
                1 => drop(b.ring.submit()),
                _ => b.ring.reap(),
            }
            for (user_data, res) in reaped(&mut b.ring) {
                assert_eq!(res, 4096);
                let at = open.iter().position(|have| *have == user_data).expect("each ends once");
                open.swap_remove(at);
                ended += 1;
            }
        }
        (puppet.script().accept, puppet.script().finish) = (u32::MAX, u32::MAX);
        while ended < b.next - 2 {
            b.ring.drain();
            b.ring.submit().expect("nothing is in flight");
            b.ring.drain();
            let some = reaped(&mut b.ring).len() as u64;
            assert_ne!(some, 0, "none is lost");
            ended += some;
        }
        assert_eq!(ended, b.next - 2, "and none is told twice");
        assert_eq!(device.in_flight().total(), 0);
    }
}

/// Returns a sleeping ring with a host file of 64 KiB, in which all bytes of each block are its number. `None` on a
/// host without kernel rings.
fn on_a_file() -> Option<(tempfile::NamedTempFile, Device, Bench)> {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    let blocks: Vec<u8> = (0..16).flat_map(|block| [block; BLOCK as usize]).collect();
    file.write_all(&blocks).expect("written");
    let device = sheave_drivers::open_device(&format!("file:{}", file.path().display())).expect("opened");
    let mut ring = Ring::builder().entries(4).build().expect("a ring");
    let fd = match ring.attach(&device) {
        Ok(fd) => fd,
        Err(error) => {
            sheave_testkit::skip(&format!("no kernel ring here: {error}"));
            return None;
        }
    };
    let mut bench = Bench { ring, fd, memory: buf(16 << 10), next: 0 };
    // The first two reads arm the wake-up of a sleeping ring, and set the pattern for the next ones.
    (0..3).for_each(|_| assert_eq!(bench.read(7), i32::try_from(BLOCK).unwrap()));
    Some((file, device, bench))
}

#[test]
fn on_a_file_each_has_its_bytes_and_leaves_nothing_behind() {
    let Some((_file, device, mut b)) = on_a_file() else { return };
    let before = device.stats();
    for at in 0..100 {
        assert_eq!(b.read(at % 16), 4096);
        assert!(b.memory.iter().take(4096).all(|&byte| u64::from(byte) == at % 16), "block {}", at % 16);
        assert_eq!((b.ring.io().bios().live(), b.ring.io().bios().promised()), (0, 0));
        assert_eq!((device.in_flight().total(), b.ring.io().is_idle()), (0, true));
    }
    let reads = device.stats().op(Op::Read).clone();
    assert_eq!(reads.ios - before.op(Op::Read).ios, 100);
    assert_eq!(reads.sectors - before.op(Op::Read).sectors, 800);
    assert_eq!(reads.split.latency.iter().sum::<u64>(), reads.ios, "each has its time");
    b.ring.detach(b.fd).expect("nothing of it is in flight");
}

#[test]
fn on_a_file_what_fails_is_told_and_the_next_goes_on() {
    let Some((file, _device, mut b)) = on_a_file() else { return };
    file.as_file().set_len(4096).expect("cut behind the ring's back");
    assert_eq!(b.read(8), EIO, "there is no block 8 any more");
    for _ in 0..3 {
        assert_eq!(b.read(0), 4096);
        assert_eq!(b.read(8), 0, "the device has heard of its new end");
    }
}

#[test]
fn on_a_file_a_message_is_heard_between_two() {
    let Some((_file, _device, mut b)) = on_a_file() else { return };
    let message = (1 << 40, 7);
    for round in 0..20 {
        b.ring.handle().send(message.0, message.1).expect("sent");
        let heard = (0..8).any(|at| {
            let sqe = b.sqe(opcode::READ, at);
            push(&mut b.ring, &[sqe]);
            b.ring.submit_and_wait(1).expect("there is room");
            reaped(&mut b.ring).contains(&message)
        });
        assert!(heard, "round {round}: who reads block by block hears of nothing else");
        // Takes the read behind the message.
        let _ = b.ring.wait(1, Some(Duration::from_millis(100)));
        reaped(&mut b.ring);
    }
}

#[test]
fn on_a_file_a_wait_for_two_hears_the_second_from_elsewhere() {
    let Some((_file, _device, mut b)) = on_a_file() else { return };
    let handle = b.ring.handle();
    let sqe = b.sqe(opcode::READ, 5);
    push(&mut b.ring, &[sqe]);
    let sender = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        handle.send(1 << 40, 7).expect("sent");
    });
    b.ring.submit_and_wait(2).expect("there is room");
    // On a busy machine the message may come before the read is sent.
    let mut ended = reaped(&mut b.ring);
    ended.sort_unstable();
    assert_eq!(ended, [(sqe.user_data, 4096), (1 << 40, 7)]);
    sender.join().expect("sent");
}

#[test]
fn on_a_file_several_are_waited_for_one_by_one() {
    let Some((_file, device, mut b)) = on_a_file() else { return };
    let before = device.stats().op(Op::Read).ios;
    let (mut free, mut open) = (vec![0_u64, 1, 2, 3], Vec::new());
    let (mut sent, mut ended) = (0, 0);
    while ended < 200 {
        while sent < 200
            && let Some(place) = free.pop()
        {
            let block = sent * 7 % 16; // Never adjacent to the block before, so that reads do not merge.
            let sqe = b.sqe(opcode::READ, block);
            b.memory[place as usize * 4096..][..4096].fill(0xEE);
            push(&mut b.ring, &[Sqe { addr: sqe.addr + place * 4096, ..sqe }]);
            open.push((sqe.user_data, place, block));
            sent += 1;
        }
        b.ring.submit_and_wait(1).expect("there is room");
        let some = reaped(&mut b.ring);
        assert!(!some.is_empty(), "one was waited for");
        for (user_data, res) in some {
            let at = open.iter().position(|(have, ..)| *have == user_data).expect("each ends once");
            let (_, place, block) = open.swap_remove(at);
            assert_eq!(res, 4096);
            let bytes = &b.memory[place as usize * 4096..][..4096];
            assert!(bytes.iter().all(|&byte| u64::from(byte) == block), "block {block} at place {place}");
            free.push(place);
            ended += 1;
        }
        assert_eq!(b.ring.in_flight() as usize, open.len());
        assert_eq!(b.ring.io().bios().promised() as usize, open.len());
    }
    let reads = device.stats().op(Op::Read).clone();
    assert_eq!((reads.ios - before, device.in_flight().total()), (200, 0));
    assert_eq!(reads.split.latency.iter().sum::<u64>(), reads.ios, "each has its time");
    assert!(b.ring.io().is_idle());
}
