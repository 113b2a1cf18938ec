//! Effects of each fault on a request: what the device underneath sees, how the request ends, and that it ends once.
//! The device underneath refuses, holds and fails requests as the test requires, so that every order of events occurs.

#[path = "../../blk/tests/support/mod.rs"]
mod support;

use std::time::Duration;

use sheave_base::status::Status;
use sheave_base::sync::Arc;
use sheave_blk::bio::{BIO_NOMERGE, Op};
use sheave_drivers::fault::{self, FaultCounts, FaultKind, FaultPlan};
use sheave_drivers::open_device;

use support::{BLOCK, BLOCK_SECTORS, Puppet, Rig, address, vec_at};

const LATER: Duration = Duration::from_millis(7);
const TIMEOUT: Duration = Duration::from_secs(1);

fn over(puppet: &Puppet, plan: &FaultPlan) -> (Rig, Arc<FaultCounts>) {
    let plan = FaultPlan { delay_time: LATER, timeout: Some(TIMEOUT), ..plan.clone() };
    let (device, counts) = fault::over("fault", &puppet.device(), &plan).expect("good rates");
    (Rig::new(&[&device]), counts)
}

fn always(kind: FaultKind) -> FaultPlan {
    FaultPlan::new(3).with(kind, 1.0)
}

/// Returns a plan with some of every fault that ends by itself.
fn mixed(seed: u64) -> FaultPlan {
    let kinds = [FaultKind::Error, FaultKind::Short, FaultKind::Torn, FaultKind::Delay, FaultKind::Misdirect];
    kinds.into_iter().fold(FaultPlan::new(seed), |plan, kind| plan.with(kind, 0.12))
}

/// Walks the timeouts `n` times, a quarter of the time limit apart.
fn walk(rig: &mut Rig, n: u32) {
    for _ in 0..n {
        rig.time.advance(TIMEOUT / 4);
        rig.ctx.wait(1, Some(Duration::ZERO));
        rig.poll();
    }
}

/// Sector and bytes of each request that the device saw, and the status of each I/O.
type Outcome = (Vec<(u64, u32)>, Vec<(u32, Status)>);

/// Makes writes of one to eight blocks, far apart. Returns their results.
fn run(puppet: &Puppet, plan: &FaultPlan) -> Outcome {
    let (mut rig, _) = over(puppet, plan);
    for owner in 0..60 {
        assert!(rig.io(Op::Write, u64::from(owner) * 1000, BLOCK * (1 + owner % 8), owner));
        rig.poll();
    }
    rig.time.advance(LATER);
    rig.drain();
    let mut ended = rig.take_ended();
    ended.sort_unstable_by_key(|end| end.0);
    let seen = puppet.script().seen.iter().map(|seen| (seen.sector, seen.bytes)).collect();
    (seen, ended)
}

#[test]
fn the_same_seed_gives_the_same_faults() {
    let one = run(&Puppet::new(), &mixed(5));
    assert_eq!(one, run(&Puppet::new(), &mixed(5)));
    assert_ne!(one, run(&Puppet::new(), &mixed(6)));
    assert!(one.1.iter().map(|end| end.0).eq(0..60), "each ends once");
}

#[test]
fn refusals_change_no_decision() {
    let one = run(&Puppet::new(), &mixed(5));
    for seed in 0..20 {
        let puppet = Puppet::new();
        let (mut rig, counts) = over(&puppet, &mixed(5));
        for owner in 0..60 {
            // None, one or two of the waiting requests are taken each time.
            puppet.script().accept = (owner * 7 + seed) % 3;
            assert!(rig.io(Op::Write, u64::from(owner) * 1000, BLOCK * (1 + owner % 8), owner));
            rig.poll();
        }
        puppet.script().accept = u32::MAX;
        rig.time.advance(LATER);
        rig.drain();
        let mut ended = rig.take_ended();
        ended.sort_unstable_by_key(|end| end.0);
        assert_eq!(ended, one.1, "seed {seed}");
        let mut seen: Vec<_> = puppet.script().seen.iter().map(|seen| (seen.sector, seen.bytes)).collect();
        let mut expect = one.0.clone();
        seen.sort_unstable();
        expect.sort_unstable();
        assert_eq!(seen, expect, "seed {seed}");
        let errors = ended.iter().filter(|end| end.1 == Status::IoErr).count() as u64;
        assert_eq!(counts.total() - counts.get(FaultKind::Delay) - counts.get(FaultKind::Misdirect), errors);
        assert_eq!(rig.in_flight(), 0);
    }
}

#[test]
fn an_error_does_nothing() {
    let puppet = Puppet::new();
    let (mut rig, counts) = over(&puppet, &always(FaultKind::Error));
    for (owner, op) in [Op::Read, Op::Write, Op::Discard, Op::WriteZeroes].into_iter().enumerate() {
        assert!(rig.io(op, owner as u64 * 100, BLOCK, owner as u32));
    }
    rig.drain();
    assert_eq!(rig.take_ended(), (0..4).map(|owner| (owner, Status::IoErr)).collect::<Vec<_>>());
    assert!(puppet.script().seen.is_empty());
    assert_eq!((counts.get(FaultKind::Error), rig.in_flight()), (4, 0));
}

#[test]
fn short_and_torn_transfer_a_first_part_and_fail() {
    for (kind, op) in [(FaultKind::Short, Op::Read), (FaultKind::Short, Op::Write), (FaultKind::Torn, Op::Write)] {
        let puppet = Puppet::new();
        let (mut rig, counts) = over(&puppet, &always(kind));
        let base = address(0);
        let vecs = [vec_at(base, 1536), vec_at(base + 4096, 512), vec_at(base + 9000, 2048)];
        for owner in 0..40 {
            assert!(rig.vecs(op, u64::from(owner) * 100, &vecs, owner));
        }
        rig.drain();
        assert!(rig.take_ended().iter().all(|end| end.1 == Status::IoErr), "{kind:?} {op:?}");
        let (mut shortest, mut longest) = (u32::MAX, 0);
        for seen in &puppet.script().seen {
            assert_eq!((seen.op, seen.sector % 100, seen.bytes % 512), (op, 0, 0));
            // The memory consists of the first bytes of the vectors, and no more.
            assert_eq!(seen.vecs.iter().map(|vec| vec.len() as u32).sum::<u32>(), seen.bytes);
            let cut = seen.vecs.len() - 1;
            assert_eq!(seen.vecs[..cut], vecs[..cut]);
            assert_eq!(seen.vecs[cut].base(), vecs[cut].base());
            (shortest, longest) = (shortest.min(seen.bytes), longest.max(seen.bytes));
        }
        assert_eq!((shortest, longest), (512, 4096 - 512), "{kind:?} {op:?}");
        assert_eq!(counts.get(kind), 40);
        // The statistics count the requests with their original lengths.
        let have = rig.device().stats().op(op).clone();
        assert_eq!((have.ios, have.sectors, have.errors), (40, 320, 40));
    }
}

#[test]
fn one_block_cannot_be_torn_apart() {
    let puppet = Puppet::new().limits(|limits| limits.logical_block = BLOCK);
    let (mut rig, _) = over(&puppet, &always(FaultKind::Torn));
    assert!(rig.write(3, 0) && rig.io(Op::WriteZeroes, 0, 2 * BLOCK, 1) && rig.read(3, 2));
    rig.drain();
    let mut ended = rig.take_ended();
    ended.sort_unstable_by_key(|end| end.0);
    assert_eq!(ended, [(0, Status::IoErr), (1, Status::IoErr), (2, Status::Ok)]);
    let seen: Vec<_> = puppet.script().seen.iter().map(|seen| (seen.op, seen.bytes)).collect();
    assert_eq!(seen, [(Op::WriteZeroes, BLOCK), (Op::Read, BLOCK)]);
}

#[test]
fn a_merged_request_is_cut_across_its_bios() {
    let puppet = Puppet::new();
    let (mut rig, _) = over(&puppet, &always(FaultKind::Torn));
    rig.ctx.start_plug(4);
    for owner in 0..4 {
        assert!(rig.write(u64::from(owner), owner));
    }
    rig.ctx.finish_plug();
    rig.drain();
    assert_eq!(rig.take_ended(), (0..4).map(|owner| (owner, Status::IoErr)).collect::<Vec<_>>());
    let script = puppet.script();
    let [seen] = &script.seen[..] else { panic!("one request") };
    assert!(seen.bytes < 4 * BLOCK && seen.bytes == seen.vecs.iter().map(|vec| vec.len() as u32).sum::<u32>());
}

#[test]
fn a_delayed_request_goes_down_when_it_is_due() {
    let puppet = Puppet::new();
    let (mut rig, counts) = over(&puppet, &always(FaultKind::Delay));
    assert!(rig.write(1, 0));
    rig.time.advance(LATER / 2);
    assert!(rig.write(9, 1));
    rig.poll();
    rig.time.advance(LATER / 2);
    // The device has no room at this moment. The request is offered again later, and the ring does not spin.
    puppet.script().accept = 0;
    rig.poll();
    assert_eq!((puppet.sectors_seen().len(), rig.ended.len()), (0, 0));
    puppet.script().accept = u32::MAX;
    rig.poll();
    rig.poll();
    assert_eq!((puppet.sectors_seen(), rig.take_ok()), (vec![BLOCK_SECTORS], vec![0]));
    rig.time.advance(LATER / 2);
    rig.drain();
    assert_eq!((puppet.sectors_seen(), rig.take_ok()), (vec![BLOCK_SECTORS, 9 * BLOCK_SECTORS], vec![1]));
    assert_eq!(counts.get(FaultKind::Delay), 2);
}

#[test]
fn a_ring_sleeps_until_a_delay_is_over() {
    let under = open_device("null:size=1M").expect("a good spec");
    let plan = FaultPlan { delay_time: Duration::from_millis(2), ..always(FaultKind::Delay) };
    let (device, _) = fault::over("fault", &under, &plan).expect("good rates");
    let clock = sheave_base::clock::Clock::real();
    let options = sheave_blk::ctx::IoCtxOptions { bios: 8, kring_entries: 8, iopoll: false, stats: true, clock };
    let mut ctx = sheave_blk::ctx::IoCtx::new(options).expect("a ring");
    let bdev = ctx.attach(&device).expect("attaches");
    let spec = sheave_blk::ctx::BioSpec { bdev, op: Op::Discard, flags: 0, sector: 0, bytes: BLOCK, owner: 4 };
    assert!(ctx.submit(&spec, &[], sheave_blk::bio::NO_FIXED_BUF));
    let (mut ended, mut waits) = (Vec::new(), 0);
    while ended.is_empty() {
        ctx.wait(1, None);
        waits += 1;
        ctx.poll(&mut |owner, status| ended.push((owner, status)));
    }
    assert_eq!(ended, [(4, Status::Ok)]);
    assert!(waits < 20, "{waits} waits for one delay: the ring does not sleep");
}

#[test]
fn a_dropped_flush_is_acknowledged_and_not_sent() {
    let puppet = Puppet::new().caps(|caps| caps.volatile_cache = true);
    let (mut rig, counts) = over(&puppet, &always(FaultKind::DroppedFlush));
    assert!(rig.write(1, 0));
    rig.drain();
    assert!(rig.flush(1));
    rig.drain();
    assert_eq!(rig.take_ok(), [0, 1]);
    assert_eq!((puppet.sectors_seen(), counts.get(FaultKind::DroppedFlush)), (vec![BLOCK_SECTORS], 1));
    assert!(puppet.script().seen.iter().all(|seen| seen.op != Op::Flush));
}

#[test]
fn a_stuck_request_is_ended_by_the_timeout_walk_and_no_sooner() {
    let puppet = Puppet::new().caps(|caps| caps.volatile_cache = true);
    let (mut rig, counts) = over(&puppet, &always(FaultKind::Stuck));
    assert!(rig.write(1, 0) && rig.flush(1) && rig.read(7, 2));
    walk(&mut rig, 4);
    assert_eq!((rig.ended.len(), rig.in_flight()), (0, 3));
    walk(&mut rig, 2);
    let mut ended = rig.take_ended();
    ended.sort_unstable_by_key(|end| end.0);
    assert_eq!(ended, [(0, Status::Timeout), (1, Status::Timeout), (2, Status::Timeout)]);
    assert_eq!((counts.get(FaultKind::Stuck), rig.in_flight(), puppet.script().seen.len()), (3, 0, 0));
    assert!(rig.ctx.is_idle());
}

#[test]
fn what_is_delayed_too_long_or_underneath_times_out_too() {
    let puppet = Puppet::new().holding();
    puppet.script().ends_overdue = true;
    let plan = FaultPlan { delay_time: TIMEOUT * 10, ..always(FaultKind::Delay) };
    let (device, _) = fault::over("fault", &puppet.device_with_timeout(TIMEOUT), &plan).expect("good rates");
    let mut rig = Rig::new(&[&device]);
    assert!(rig.write(1, 0));
    walk(&mut rig, 6);
    assert_eq!(rig.take_ended(), [(0, Status::Timeout)]);
    let (mut rig, _) = over(&puppet, &always(FaultKind::Torn));
    assert!(rig.io(Op::Write, 0, 4 * BLOCK, 1));
    walk(&mut rig, 6);
    assert_eq!((rig.take_ended(), rig.in_flight()), (vec![(1, Status::Timeout)], 0));
    assert_eq!(rig.device().stats().op(Op::Write).sectors, 4 * BLOCK_SECTORS);
}

#[test]
fn a_misdirected_request_goes_elsewhere_within_the_limits() {
    let puppet = Puppet::new().limits(|limits| {
        limits.chunk_sectors = 64;
        limits.logical_block = 1024;
    });
    let (mut rig, counts) = over(&puppet, &always(FaultKind::Misdirect));
    let sectors = puppet.size >> 9;
    for owner in 0..60 {
        let sector = [0, 1, sectors / 64 - 1][owner as usize % 3] * 64 + 16;
        assert!(rig.io_flags(Op::Write, BIO_NOMERGE, sector, BLOCK, owner));
        rig.drain();
        assert_eq!(rig.take_ok(), [owner]);
        let seen = puppet.script().seen.pop().expect("it went somewhere");
        assert!(seen.sector != sector && seen.sector + BLOCK_SECTORS <= sectors, "{} for {sector}", seen.sector);
        assert_eq!((seen.sector % 64, seen.bytes), (16, BLOCK));
    }
    assert_eq!(counts.get(FaultKind::Misdirect), 60);
}

#[test]
fn nothing_is_misdirected_out_of_a_partition_or_from_all_of_a_device() {
    let puppet = Puppet::new();
    let piece = sheave_blk::linear::partition("p", &puppet.device(), 1 << 20, 1 << 20).expect("it fits");
    let (device, counts) = fault::over("fault", &piece, &always(FaultKind::Misdirect)).expect("good rates");
    let mut rig = Rig::new(&[&device]);
    let reach = 2048..4096;
    for owner in 0..60 {
        assert!(rig.write(u64::from(owner), owner));
        rig.drain();
        let seen = puppet.script().seen.pop().expect("it went somewhere");
        assert!(reach.contains(&seen.sector) && reach.contains(&(seen.sector + BLOCK_SECTORS - 1)));
        assert_ne!(seen.sector, 2048 + u64::from(owner) * BLOCK_SECTORS);
        assert_eq!(seen.sector % BLOCK_SECTORS, 0, "where another block of this size would be");
    }
    assert_eq!(counts.get(FaultKind::Misdirect), 60);
    assert!(rig.io(Op::Discard, 0, 1 << 20, 60));
    rig.drain();
    assert_eq!(puppet.sectors_seen(), [2048]);
    assert_eq!((rig.take_ok().len(), counts.get(FaultKind::Misdirect)), (61, 60));
}

#[test]
fn the_status_of_the_device_underneath_stands() {
    let puppet = Puppet::new();
    puppet.script().fail = vec![(Op::Write, Status::NoSpc)];
    for kind in [FaultKind::Torn, FaultKind::Misdirect, FaultKind::Delay] {
        let (mut rig, _) = over(&puppet, &always(kind));
        assert!(rig.io(Op::Write, 800, 4 * BLOCK, 0));
        rig.time.advance(LATER);
        rig.drain();
        rig.time.advance(LATER);
        rig.drain();
        assert_eq!(rig.take_ended(), [(0, Status::NoSpc)], "{kind:?}");
        assert_eq!(rig.device().stats().op(Op::Write).sectors, 4 * BLOCK_SECTORS);
    }
}

#[test]
fn a_shutdown_ends_what_is_held_above_and_below() {
    for kind in FaultKind::ALL {
        let puppet = Puppet::new().holding().caps(|caps| caps.volatile_cache = true);
        let (mut rig, _) = over(&puppet, &FaultPlan::new(1).with(kind, 0.5));
        for owner in 0..30 {
            assert!(rig.io(Op::Write, u64::from(owner) * 100, 2 * BLOCK, owner));
        }
        assert!(rig.flush(30));
        rig.poll();
        rig.shutdown();
        let mut owners: Vec<u32> = rig.take_ended().iter().map(|end| end.0).collect();
        owners.sort_unstable();
        assert!(owners.into_iter().eq(0..31), "{kind:?}");
        assert_eq!(rig.in_flight(), 0);
    }
}

#[test]
fn what_another_thread_ends_is_mended_too() {
    let under = open_device("null:size=1G,complete=thread").expect("a good spec");
    let (device, counts) = fault::over("fault", &under, &mixed(11)).expect("good rates");
    let mut rig = Rig::new(&[&device]);
    for owner in 0..400 {
        while !rig.io(Op::Write, u64::from(owner) * 1000, 4 * BLOCK, owner) {
            rig.ctx.wait(1, Some(Duration::from_millis(1)));
            rig.time.advance(Duration::from_millis(1));
            rig.poll();
        }
    }
    while !rig.ctx.is_idle() {
        rig.ctx.wait(1, Some(Duration::from_millis(1)));
        rig.time.advance(Duration::from_millis(1));
        rig.poll();
    }
    let mut ended = rig.take_ended();
    ended.sort_unstable_by_key(|end| end.0);
    assert!(ended.iter().map(|end| end.0).eq(0..400), "each ends once");
    let failed = ended.iter().filter(|end| end.1 == Status::IoErr).count() as u64;
    let failing = [FaultKind::Error, FaultKind::Short, FaultKind::Torn];
    assert_eq!(failed, failing.iter().map(|&kind| counts.get(kind)).sum::<u64>());
    assert!(FaultKind::ALL.iter().filter(|&&kind| counts.get(kind) > 0).count() >= 5);
    let stats = rig.device().stats().op(Op::Write).clone();
    assert_eq!((stats.ios, stats.sectors, stats.errors), (400, 400 * 4 * BLOCK_SECTORS, failed));
}

#[test]
fn faults_stack() {
    let puppet = Puppet::new();
    let (inner, _) = fault::over("inner", &puppet.device(), &always(FaultKind::Misdirect)).expect("good rates");
    let (device, counts) = fault::over("outer", &inner, &always(FaultKind::Torn)).expect("good rates");
    let mut rig = Rig::new(&[&device]);
    assert!(rig.io(Op::Write, 800, 4 * BLOCK, 0));
    rig.drain();
    assert_eq!((rig.take_ended(), counts.total()), (vec![(0, Status::IoErr)], 1));
    let script = puppet.script();
    assert!(script.seen[0].sector != 800 && script.seen[0].bytes < 4 * BLOCK);
    assert_eq!(rig.device().stats().op(Op::Write).sectors, 4 * BLOCK_SECTORS);
}

#[test]
fn host_wide_tags_stay_host_wide() {
    let puppet = Puppet::new().host_depth(6).holding();
    let under = puppet.device();
    let (device, _) = fault::over("fault", &under, &always(FaultKind::Misdirect)).expect("good rates");
    let mut rig = Rig::new(&[&device, &under]);
    for owner in 0..8 {
        assert!(rig.io_to(owner as usize % 2, Op::Write, 0, u64::from(owner) * 100, BLOCK, owner));
    }
    let mut tags: Vec<u16> = puppet.script().seen.iter().map(|seen| seen.tag).collect();
    tags.sort_unstable();
    assert!(tags.into_iter().eq(0..6), "a tag is one request's, whichever way it came");
    puppet.script().finish = u32::MAX;
    rig.drain();
    assert_eq!(rig.take_ok().len(), 8);
}
