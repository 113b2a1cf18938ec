//! The null device in its three modes of completion. Real time is only ever a lower bound here.

use crate::open_device;
use sheave_base::clock::Clock;

use super::*;
use crate::support::Rig;
use sheave_blk::bio::{NO_FIXED_BUF, Op};
use sheave_blk::ctx::{BioSpec, IoCtx, IoCtxOptions};

fn null(complete: Complete, latency: Duration) -> Null {
    Null { size: 1 << 30, latency, complete, depth: 16, block: 512, host_depth: None }
}

fn device(null: &Null) -> Device {
    Device::from_driver("null:", Box::new(null.clone()))
}

/// Makes a ring on real time.
fn real_ctx() -> IoCtx {
    let clock = Clock::real();
    let options = IoCtxOptions { bios: 64, kring_entries: 8, iopoll: false, stats: true, clock };
    IoCtx::new(options).unwrap()
}

/// Reads with `ctx` asleep between polls. Returns the owners in the order of their ends.
fn run_asleep(ctx: &mut IoCtx, bdev: u16, reads: u32) -> Vec<u32> {
    let mut ended = Vec::new();
    ctx.start_plug(reads);
    for owner in 0..reads {
        let spec = BioSpec { bdev, op: Op::Discard, flags: 0, sector: u64::from(owner) * 9, bytes: 512, owner };
        assert!(ctx.submit(&spec, &[], NO_FIXED_BUF));
    }
    ctx.finish_plug();
    while !ctx.is_idle() {
        ctx.wait(1, None);
        ctx.poll(&mut |owner: u32, status: Status| {
            assert!(status.is_ok());
            ended.push(owner);
        });
    }
    ended
}

#[test]
fn a_sleeping_ring_wakes_for_timer_and_thread() {
    for complete in [Complete::Poll, Complete::Timer, Complete::Thread] {
        for latency_us in [0, 300, 3000] {
            let latency = Duration::from_micros(if complete == Complete::Poll { 0 } else { latency_us });
            let device = device(&null(complete, latency));
            let mut ctx = real_ctx();
            let bdev = ctx.attach(&device).unwrap();
            let start = Instant::now();
            // More reads than the depth end in order, in several rounds.
            assert_eq!(run_asleep(&mut ctx, bdev, 40), (0..40).collect::<Vec<_>>());
            assert!(start.elapsed() >= latency * 3, "40 requests at depth 16 take three latencies");
            assert_eq!(device.stats().op(Op::Discard).ios, 40);
            assert_eq!(device.in_flight().total(), 0);
        }
    }
}

#[test]
fn the_latency_is_honoured_on_the_rings_clock() {
    let mut rig = Rig::new(&[&device(&null(Complete::Timer, Duration::from_micros(10)))]);
    rig.read(0, 0);
    rig.time.advance(Duration::from_micros(4));
    rig.read(2, 1);
    rig.time.advance(Duration::from_nanos(5_999));
    rig.poll();
    assert!(rig.ended.is_empty());
    rig.time.advance(Duration::from_nanos(1));
    rig.poll();
    assert_eq!(rig.take_ok(), [0]);
    rig.time.advance(Duration::from_micros(4));
    rig.poll();
    assert_eq!(rig.take_ok(), [1]);
    assert_eq!(rig.device().stats().op(Op::Read).split.time_ns, 20_000);
}

#[test]
fn polled_requests_are_held_until_the_next_poll() {
    let mut rig = Rig::new(&[&device(&null(Complete::Poll, Duration::ZERO))]);
    rig.read(0, 0);
    assert_eq!(rig.in_flight(), 1);
    assert!(rig.ended.is_empty(), "never inside submit");
    rig.poll();
    assert_eq!(rig.take_ok(), [0]);
}

#[test]
fn a_request_that_is_overdue_takes_only_its_own_due_time_with_it() {
    let ms = Duration::from_millis;
    let null = null(Complete::Timer, ms(1000));
    let mut rig = Rig::new(&[&Device::with_timeout("null:", Box::new(null), ms(600))]);
    rig.read(0, 0);
    let pass = |rig: &mut Rig, until: u64| {
        while rig.ctx.clock().precise() < PreciseTs(ms(until).as_nanos() as u64) {
            rig.time.advance(ms(10));
            rig.ctx.wait(1, Some(Duration::ZERO));
            rig.poll();
        }
    };
    pass(&mut rig, 500);
    rig.read(2, 1);
    pass(&mut rig, 1050);
    assert_eq!(rig.take_ended(), [(0, Status::Timeout)], "the second is not due before 1,500 ms");
    assert_eq!(rig.in_flight(), 1);
}

#[test]
fn host_depth_is_one_limit_for_all_rings() {
    let null = Null { host_depth: Some(3), ..null(Complete::Poll, Duration::ZERO) };
    let device = device(&null);
    let (mut a, mut b) = (Rig::new(&[&device]), Rig::new(&[&device]));
    for owner in 0..4 {
        a.read(u64::from(owner) * 2, owner);
        b.read(u64::from(owner) * 2, owner);
    }
    assert_eq!(device.in_flight().total(), 3);
    while !(a.ctx.is_idle() && b.ctx.is_idle()) {
        a.poll();
        b.poll();
        assert!(device.in_flight().total() <= 3);
    }
    assert_eq!((a.take_ok().len(), b.take_ok().len()), (4, 4));
}

#[test]
fn a_ring_dropped_in_the_middle_leaves_no_thread_and_no_request() {
    for complete in [Complete::Poll, Complete::Timer, Complete::Thread] {
        let device = device(&null(complete, Duration::from_millis(1)));
        let mut rig = Rig::new(&[&device]);
        (0..32).for_each(|n| assert!(rig.read(u64::from(n) * 2, n)));
        rig.shutdown();
        assert_eq!(rig.ended.len(), 32);
        let (taken, others): (Vec<_>, Vec<_>) = rig.take_ended().into_iter().partition(|end| end.1.is_ok());
        assert_eq!(taken.len(), 16, "what the device had is done");
        assert!(others.iter().all(|end| end.1 == Status::Canceled), "the rest was never begun");
        assert_eq!(rig.ctx.bios().live(), 0);
        assert_eq!(device.in_flight().total(), 0);
    }
}

#[test]
fn any_operation_succeeds() {
    let mut rig = Rig::new(&[&device(&null(Complete::Poll, Duration::ZERO))]);
    for (owner, op) in Op::ALL.into_iter().enumerate() {
        rig.io(op, 0, if op == Op::Flush { 0 } else { 4096 }, owner as u32);
    }
    rig.io(Op::WriteZeroes, 0, 1 << 30, 5);
    rig.drain();
    let mut ended = rig.take_ok();
    ended.sort_unstable();
    assert_eq!(ended, [0, 1, 2, 3, 4, 5]);
}

#[test]
fn what_keep_covers_is_kept_and_the_rest_is_not() {
    let device = open_device("null:size=1G,keep=1M").expect("a device");
    let mut ctx = real_ctx();
    let bdev = ctx.attach(&device).expect("attached");
    let mut memory = vec![0u8; 4096];
    let base = memory.as_mut_ptr().expose_provenance();
    let mut io = |op, sector| {
        let spec = BioSpec { bdev, op, flags: 0, sector, bytes: 4096, owner: 0 };
        assert!(ctx.submit(&spec, &[crate::support::vec_at(base, 4096)], NO_FIXED_BUF));
        while !ctx.is_idle() {
            ctx.poll(&mut |_: u32, status: Status| assert!(status.is_ok()));
        }
    };
    let kept = (1 << 20) / 512;
    // Sector, and true if a read there finds the written data. The third begins in the kept part and ends behind it.
    for (sector, found) in [(0, true), (kept - 8, true), (kept - 4, true), (kept, false), (1 << 20, false)] {
        memory.fill(7);
        io(Op::Write, sector);
        memory.fill(9);
        io(Op::Read, sector);
        assert_eq!(memory, [if found { 7 } else { 9 }; 4096], "sector {sector}");
    }
    for (spec, word) in [("null:keep=1M,latency=1us", "complete=poll"), ("null:keep=100", "multiple")] {
        let error = open_device(spec).expect_err("refused").to_string();
        assert!(error.contains(word), "{spec}: {error}");
    }
}
