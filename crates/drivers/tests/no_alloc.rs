//! Nothing allocates on submit, poll or wait once a ring is warm: a counting allocator watches every kind of I/O.
#![cfg(not(shuttle))]
#![allow(unsafe_code)] // Memory of bios is named by address.

use std::time::Duration;

use sheave_base::clock::Clock;
use sheave_base::status::Status;
use sheave_blk::bio::{BIO_FUA, BIO_PREFLUSH, BVec, NO_FIXED_BUF, Op};
use sheave_blk::ctx::lane::PlainKind;
use sheave_blk::ctx::{BioSpec, IoCtx, IoCtxOptions};
use sheave_blk::driver::{Capabilities, Driver, HctxOpen, HwEnv, HwQueue, NextEvent, TimedOut};
use sheave_blk::limits::Limits;
use sheave_blk::request::{DoneList, RqList, RqQueue, RqTable};
use sheave_blk::{Device, DeviceError, linear};
use sheave_drivers::open_device;
use sheave_testkit::allocations::{Counting, allocations};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Makes a vector of memory that does not exist: no driver here touches it.
fn vec_at(base: usize, len: usize) -> BVec {
    // SAFETY: no driver here accesses the memory of a request.
    unsafe { BVec::new(base, len) }
}

/// A device that needs all paths of the block layer: it has small limits and a volatile cache, and refuses requests.
#[derive(Debug)]
struct Picky {
    host_depth: Option<u16>,
}

#[derive(Debug)]
struct PickyQueue {
    held: RqQueue,
    turn: u32,
}

#[allow(unsafe_code)] // Whoever makes a driver vouches for the memory of its requests.
// SAFETY: D7: its queues take whatever it says that they take.
unsafe impl Driver for Picky {
    fn limits(&self) -> Limits {
        Limits::default()
            .queue_depth(16)
            .max_sectors(16)
            .max_segments(6)
            .max_discard_sectors(64)
            .max_write_zeroes_sectors(64)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default().volatile_cache(true).discard(true).write_zeroes(true)
    }

    fn size_bytes(&self) -> u64 {
        1 << 30
    }

    fn host_wide_depth(&self) -> Option<u16> {
        self.host_depth
    }

    fn open_hctx(&self, open: &mut HctxOpen<'_>) -> Result<Box<dyn HwQueue>, DeviceError> {
        Ok(Box::new(PickyQueue { held: RqQueue::with_depth(open.depth), turn: 0 }))
    }
}

#[allow(unsafe_code)] // Whoever makes a driver vouches for the memory of its requests.
// SAFETY: D1 to D6: each request ends once, where it came, and its memory is not touched afterwards.
unsafe impl HwQueue for PickyQueue {
    fn queue_rqs(&mut self, list: &mut RqList, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) {
        while let Some(rq) = list.pop() {
            self.turn += 1;
            if self.turn.is_multiple_of(7) {
                return list.unpop(rq);
            }
            self.held.push(rq);
        }
    }

    fn poll(&mut self, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, done: &mut DoneList) {
        self.held.complete_all(done);
    }

    fn next_event(&self) -> NextEvent {
        if self.held.is_empty() { NextEvent::Idle } else { NextEvent::Ready }
    }

    fn timed_out(&mut self, _: u16, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) -> TimedOut {
        TimedOut::Waiting
    }

    fn shutdown(&mut self, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, done: &mut DoneList) {
        self.held.complete_all(done);
    }
}

struct Ring {
    ctx: IoCtx,
    bdev: u16,
    ended: u32,
}

impl Ring {
    fn new(device: &Device) -> Ring {
        let clock = Clock::real();
        let options = IoCtxOptions { bios: 64, kring_entries: 8, iopoll: false, stats: true, clock };
        let mut ctx = IoCtx::new(options).unwrap();
        let bdev = ctx.attach(device).unwrap();
        Ring { ctx, bdev, ended: 0 }
    }

    fn submit(&mut self, op: Op, flags: u16, sector: u64, bytes: u32, vecs: &[BVec]) {
        let spec = BioSpec { bdev: self.bdev, op, flags, sector, bytes, owner: 0 };
        while !self.ctx.submit(&spec, vecs, NO_FIXED_BUF) {
            self.poll();
        }
    }

    fn poll(&mut self) {
        let ended = &mut self.ended;
        self.ctx.poll(&mut |_: u32, status: Status| *ended += u32::from(status.is_ok()));
    }

    fn drain(&mut self) {
        while !self.ctx.is_idle() {
            self.ctx.wait(1, Some(Duration::from_millis(1)));
            self.poll();
        }
    }

    /// Runs every kind of I/O, alone and under a plug.
    fn everything(&mut self) {
        let vec = vec_at(4096, 4096);
        for n in 0..100 {
            self.submit(Op::Read, 0, n * 16, 4096, &[vec]);
        }
        self.drain();
        for _ in 0..3 {
            self.ctx.start_plug(50);
            for n in 0..50 {
                self.submit(Op::Write, 0, n * 8, 4096, &[vec]);
            }
            self.ctx.finish_plug();
            self.drain();
        }
        // Split by size and by segments, with short and long vectors.
        self.submit(Op::Read, 0, 0, 1 << 20, &[vec_at(4096, 1 << 20)]);
        self.drain();
        self.submit(Op::Write, 0, 0, 9 * 4096, &[vec; 9]);
        self.submit(Op::Write, 0, 1000, 5 * 512, &[vec_at(4096, 512); 5]);
        self.drain();
        self.submit(Op::Discard, 0, 0, 1 << 20, &[]);
        self.submit(Op::WriteZeroes, 0, 0, 1 << 18, &[]);
        self.drain();
        for flags in [BIO_FUA, BIO_PREFLUSH, BIO_FUA | BIO_PREFLUSH] {
            self.submit(Op::Write, flags, 64, 4096, &[vec]);
            self.submit(Op::Flush, 0, 0, 0, &[]);
        }
        self.drain();
        // I/O that fails at once.
        self.submit(Op::Read, 0, 1 << 40, 4096, &[vec]);
        self.drain();
        let route = self.ctx.route(self.bdev).unwrap();
        for op in [Op::Read, Op::Write] {
            let kind = PlainKind::new(op == Op::Write, 0, NO_FIXED_BUF);
            let mut lane = self.ctx.lane(route, kind).unwrap();
            (0..40).for_each(|n| assert!(lane.submit(0, n * 16, vec)));
            lane.finish();
            self.drain();
        }
    }
}

fn check(name: &str, device: &Device) {
    let mut ring = Ring::new(device);
    for _ in 0..3 {
        ring.everything();
    }
    let before = ring.ended;
    let count = allocations(|| ring.everything());
    assert!(ring.ended > before + 300);
    assert_eq!(count, 0, "{name}: a warm ring allocates nothing");
}

#[test]
fn the_allocator_counts() {
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(1)))), 1);
    assert_eq!(allocations(|| ()), 0);
}

#[test]
fn a_warm_ring_allocates_nothing() {
    for spec in ["null:", "null:complete=timer,depth=20", "null:complete=timer,latency=1us", "null:host_depth=9"] {
        check(spec, &open_device(spec).unwrap());
    }
    let faults = "fault:error=0.02,short=0.02,torn=0.02,delay=0.1,delay_time=1us,misdirect=0.1";
    for spec in [format!("{faults},over=null:"), format!("{faults},over=null:complete=timer,depth=20")] {
        check(&spec, &open_device(&spec).unwrap());
    }
    check("small limits", &Device::from_driver("picky", Box::new(Picky { host_depth: None })));
    check("host-wide tags", &Device::from_driver("picky", Box::new(Picky { host_depth: Some(5) })));
}

#[test]
fn the_owner_of_a_ring_allocates_nothing_for_completions_from_a_thread() {
    check("thread", &open_device("null:complete=thread,depth=20").unwrap());
}

#[test]
fn a_reading_of_in_flight_allocates_nothing_whatever_the_device_is_made_of() {
    let whole = open_device("null:size=1G,latency=60s").expect("the spec is right");
    let other = open_device("null:size=1G").expect("the spec is right");
    let part = linear::partition("part", &whole, 1 << 20, 1 << 20).expect("fits");
    let inner = linear::partition("inner", &part, 4096, 1 << 16).expect("fits");
    let both = linear::concatenate("both", &[inner.clone(), other, part.clone()]).expect("fits");
    let clock = Clock::real();
    let options = IoCtxOptions { bios: 64, kring_entries: 8, iopoll: false, stats: true, clock };
    let mut ctx = IoCtx::new(options).expect("a context can be made");
    let bdev = ctx.attach(&inner).expect("attaches");
    let spec = BioSpec { bdev, op: Op::Read, flags: 0, sector: 0, bytes: 4096, owner: 0 };
    assert!(ctx.submit(&spec, &[vec_at(4096, 4096)], NO_FIXED_BUF));
    for device in [&whole, &part, &inner, &both] {
        let mut reads = 0;
        let count = allocations(|| reads = device.in_flight().reads + device.accounted().reads);
        assert_eq!((count, reads), (0, 2), "{}", device.name());
    }
    ctx.shutdown(&mut |_, _| {});
}
