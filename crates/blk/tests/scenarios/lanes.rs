//! Lanes, the fast path of plain I/O, have the same effect as submitting bio by bio.

use std::time::Duration;

use sheave_base::rng::Rng;
use sheave_base::status::Status;
use sheave_blk::bio::{BIO_FUA, BIO_NOMERGE, BIO_PREFLUSH, NO_FIXED_BUF, Op, Segment};
use sheave_blk::ctx::lane::{Alone, PlainIo, PlainKind, PlainRunOf};
use sheave_blk::ctx::{EndIo, PlainEnd};
use sheave_blk::stats::Stage;

use crate::support::{BLOCK, BLOCK_SECTORS, Puppet, Rig, address, vec_at};

/// One I/O of a lane: owner, block, blocks.
type Io = (u32, u64, u32);

/// Submits these through one lane. Returns the number that found a bio.
fn lane(rig: &mut Rig, op: Op, flags: u16, ios: &[Io]) -> usize {
    let route = rig.ctx.route(rig.devices[0].0).expect("one leg");
    let mut lane = rig.ctx.lane(route, PlainKind::new(op == Op::Write, flags, NO_FIXED_BUF)).expect("attached");
    let mut taken = 0;
    for &(owner, block, blocks) in ios {
        let bytes = blocks * BLOCK;
        let vec = vec_at(address(owner), bytes as usize);
        taken += usize::from(lane.submit(owner, block * BLOCK_SECTORS, vec));
    }
    lane.finish();
    taken
}

/// Submits these bio by bio, without a lane. Returns the number that found a bio.
fn one_by_one(rig: &mut Rig, op: Op, flags: u16, ios: &[Io]) -> usize {
    ios.iter()
        .filter(|&&(owner, block, blocks)| rig.io_flags(op, flags, block * BLOCK_SECTORS, blocks * BLOCK, owner))
        .count()
}

fn singles(owners: std::ops::Range<u32>) -> Vec<Io> {
    owners.map(|owner| (owner, u64::from(owner) * 2, 1)).collect()
}

/// Way in which a submitter passes its I/Os to a lane.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// One after the other, each with a bio.
    BioByBio,
    /// All at once, as plain records.
    AsARun,
}

/// Returns the issue times in microseconds of `count` reads of one lane, for a submitter that takes 1 us for each, and
/// the number of clock reads.
#[allow(unsafe_code)]
fn stamps(way: Way, age: Duration, count: u32) -> (Vec<u64>, u64) {
    let puppet = Puppet::new();
    let mut rig = Rig::with(256, true, &[&puppet.device()]);
    // After its first I/O the context takes the fast path.
    rig.read(999, 999);
    rig.drain();
    puppet.script().seen.clear();
    rig.ctx.set_stamp_age(age);
    rig.time.set(0);
    let reads = rig.time.reads();
    let time = rig.time.clone();
    let us = Duration::from_micros(1);
    rig.ctx.start_plug(count);
    let route = rig.ctx.route(rig.devices[0].0).expect("one leg");
    let mut lane = rig.ctx.lane(route, READS).expect("attached");
    let sector = |at: u32| u64::from(at) * 2 * BLOCK_SECTORS;
    match way {
        Way::BioByBio => (0..count).for_each(|at| {
            assert!(lane.submit(at, sector(at), vec_at(address(at), BLOCK as usize)));
            time.advance(us);
        }),
        Way::AsARun => {
            let time = &time;
            let run = PlainRunOf { owner: 0, bytes: BLOCK };
            let from = |from: usize| {
                (from as u32..count).map(move |at| {
                    time.advance(us);
                    // SAFETY: the driver of these tests touches no memory.
                    unsafe { PlainIo::new(u64::from(at), sector(at), address(at)) }
                })
            };
            assert_eq!(lane.submit_run(run, count as usize, from), count as usize);
        }
    }
    lane.finish();
    rig.ctx.finish_plug();
    let reads = rig.time.reads() - reads;
    rig.drain();
    (puppet.script().seen.iter().map(|seen| seen.issued_at / 1000).collect(), reads)
}

/// Returns a plain read of one block.
#[allow(unsafe_code)]
fn record(owner: u32) -> PlainIo {
    // SAFETY: the driver of these tests touches no memory.
    unsafe { PlainIo::new(u64::from(owner), u64::from(owner) * 2 * BLOCK_SECTORS, address(owner)) }
}

const READS: PlainKind = PlainKind::new(false, 0, NO_FIXED_BUF);
const RUN: PlainRunOf = PlainRunOf { owner: 5, bytes: BLOCK };

/// Owner that takes its records in runs, as a ring does.
#[derive(Default)]
struct Rows(Vec<u64>);

impl EndIo for Rows {
    fn end_io(&mut self, owner: u32, _: Status) {
        panic!("a bio of {owner}");
    }

    fn end_run(&mut self, _: u32, most: usize, end_at: impl FnMut(usize) -> Option<PlainEnd>) {
        self.0.extend((0..most).map_while(end_at).map(|end| end.cookie));
    }

    fn end_plain(&mut self, _: u32, end: PlainEnd, status: Status) {
        panic!("record {} by itself: {status:?}", end.cookie);
    }
}

/// Submits `count` reads as one run, in a plug of their own.
fn plugged_run(rig: &mut Rig, count: u32) {
    rig.ctx.start_plug(count);
    let route = rig.ctx.route(rig.devices[0].0).expect("one leg");
    let mut lane = rig.ctx.lane(route, READS).expect("attached");
    assert_eq!(lane.submit_run(RUN, count as usize, |from| (from as u32..count).map(record)), count as usize);
    lane.finish();
    rig.ctx.finish_plug();
}

#[test]
fn records_of_one_run_that_end_a_few_at_a_time_all_end() {
    let puppet = Puppet::new().holding();
    let mut rig = Rig::with(64, true, &[&puppet.device()]);
    rig.read(999, 999);
    puppet.script().finish = 1;
    rig.drain();
    puppet.script().finish = 0;
    rig.take_ok();
    plugged_run(&mut rig, 32);
    let mut ended = Rows::default();
    for left in (0..32).step_by(8).rev() {
        puppet.script().finish = 8;
        assert_eq!(rig.ctx.poll(&mut ended), 8);
        assert_eq!((rig.in_flight(), rig.ctx.is_idle()), (left, left == 0));
    }
    assert_eq!(ended.0, (0..32).collect::<Vec<u64>>());
}

#[test]
fn what_is_sent_alone_counts_once_however_it_ends() {
    for (in_call, accepted) in [(false, 1), (true, 1), (false, 0)] {
        let puppet = Puppet::new();
        let mut rig = Rig::with(64, true, &[&puppet.device()]);
        let route = rig.ctx.route(rig.devices[0].0).expect("one leg");
        // The lane that was open last is of the same kind.
        lane(&mut rig, Op::Read, 0, &singles(0..1));
        rig.drain();
        rig.take_ok();
        (puppet.script().in_call, puppet.script().accept) = (in_call, accepted);
        let sectors = rig.device().size_bytes() >> 9;
        let ended = &mut rig.ended;
        let sent = rig.ctx.send_alone((route, route.lane_id(READS), sectors), RUN, record(7), &mut |owner, status| {
            ended.push((owner, status));
        });
        // An owner without room gets the end in the next poll, as for an I/O that the driver holds.
        assert_eq!(sent, Alone::Sent);
        assert!(!rig.ctx.is_idle());
        puppet.script().accept = u32::MAX;
        rig.drain();
        assert_eq!(rig.take_ok(), [5], "in call: {in_call}, accepted: {accepted}");
        assert_eq!((rig.device().accounted().total(), rig.in_flight()), (0, 0));
    }
}

/// Returns each time repeated by its number of requests.
fn in_rows(rows: &[(u64, usize)]) -> Vec<u64> {
    rows.iter().flat_map(|&(us, many)| std::iter::repeat_n(us, many)).collect()
}

#[test]
fn the_requests_of_a_lane_share_stamps_as_the_bound_on_their_age_says() {
    let us = Duration::from_micros;
    for way in [Way::BioByBio, Way::AsARun] {
        // A batch has at most 32 requests. It is then sent, and its time discarded. Each call of the driver reads the
        // clock once more.
        assert_eq!(stamps(way, us(50), 48), (in_rows(&[(0, 32), (32, 16)]), 2 + 2), "{way:?}");
        assert_eq!(stamps(way, us(16), 32), (in_rows(&[(0, 32)]), 1 + 1), "{way:?}: within the bound when looked at");
        assert_eq!(stamps(way, us(15), 32), (in_rows(&[(0, 16), (16, 16)]), 2 + 1), "{way:?}: beyond it, at the 17th");
        assert_eq!(stamps(way, Duration::ZERO, 20), ((0..20).collect(), 20 + 1), "{way:?}: no stamp is shared");
        assert_eq!(stamps(way, Duration::MAX, 48), (in_rows(&[(0, 32), (32, 16)]), 2 + 2), "{way:?}: one a batch");
    }
}

#[test]
fn each_lane_of_a_plug_has_the_time_of_its_batch() {
    let puppet = Puppet::new();
    let mut rig = Rig::new(&[&puppet.device()]);
    rig.time.set(1_000_000_000);
    rig.ctx.start_plug(12);
    lane(&mut rig, Op::Read, 0, &singles(0..3));
    lane(&mut rig, Op::Write, 0, &singles(3..6));
    rig.read(900, 6);
    lane(&mut rig, Op::Write, 0, &singles(7..10));
    rig.ctx.finish_plug();
    rig.time.advance(Duration::from_nanos(100));
    rig.drain();
    let stats = rig.device().stats();
    assert_eq!((stats.op(Op::Read).ios, stats.op(Op::Read).split.time_ns), (4, 400));
    assert_eq!((stats.op(Op::Write).ios, stats.op(Op::Write).split.time_ns), (6, 600));
    assert_eq!(rig.take_ok().len(), 10);
}

#[test]
fn a_lane_in_an_open_plug_has_no_older_time_than_the_plug_allows() {
    let puppet = Puppet::new();
    let device = puppet.device();
    let mut rig = Rig::new(&[&device]);
    let time_ns = |device: &sheave_blk::Device| device.stats().op(Op::Read).split.time_ns;
    rig.read(999, 999);
    rig.drain();
    rig.ctx.start_plug(15);
    lane(&mut rig, Op::Read, 0, &singles(0..1));
    rig.time.advance(Duration::from_secs(10));
    lane(&mut rig, Op::Read, 0, &singles(1..8));
    // Another lane, within the age limit, takes the time of the one before.
    rig.time.advance(Duration::from_micros(50));
    let reads = rig.time.reads();
    lane(&mut rig, Op::Read, BIO_NOMERGE, &singles(8..15));
    assert_eq!(rig.time.reads(), reads);
    rig.ctx.finish_plug();
    rig.drain();
    assert_eq!(time_ns(&device), 10_000_050_000 + 14 * 50_000, "one waited for 10 s, the others did not");
}

#[test]
fn a_plug_of_one_lane_looks_at_the_cycle_counter_every_16_requests() {
    let puppet = Puppet::new();
    let mut rig = Rig::with(256, true, &[&puppet.device()]);
    rig.read(999, 999);
    rig.drain();
    // One read for the batch, and one for the call that passes it to the driver.
    for (batch, reads, looks) in [(1, 2, 0), (16, 2, 0), (32, 2, 1)] {
        let before = (rig.time.reads(), rig.time.looks());
        rig.ctx.start_plug(batch);
        lane(&mut rig, Op::Read, 0, &singles(0..batch));
        rig.ctx.finish_plug();
        assert_eq!((rig.time.reads() - before.0, rig.time.looks() - before.1), (reads, looks), "batch of {batch}");
        rig.drain();
    }
}

#[test]
fn what_a_lane_leaves_waiting_goes_on_with_polls_alone() {
    // Held up by the gate.
    let puppet = Puppet::new();
    let mut rig = Rig::new(&[&puppet.device()]);
    rig.read(0, 0);
    rig.drain();
    for frozen in [true, false] {
        rig.drain();
        rig.take_ok();
        let device = rig.device().clone();
        let guard = if frozen { device.freeze(Duration::ZERO) } else { device.quiesce(Duration::ZERO) };
        lane(&mut rig, Op::Read, 0, &singles(0..3));
        lane(&mut rig, Op::Read, 0, &singles(3..6));
        rig.poll();
        drop(guard);
        rig.drain();
        assert_eq!(rig.take_ok(), (0..6).collect::<Vec<u32>>());
    }
    // Held up because another ring has the tags of a host-wide set.
    let puppet = Puppet::new().host_depth(2).holding();
    let device = puppet.device();
    let (mut rig, mut other) = (Rig::new(&[&device]), Rig::new(&[&device]));
    rig.poll();
    lane(&mut other, Op::Read, 0, &singles(0..2));
    lane(&mut rig, Op::Read, 0, &singles(2..4));
    rig.poll();
    puppet.script().finish = u32::MAX;
    other.drain();
    rig.drain();
    assert_eq!(rig.take_ok(), [2, 3]);
}

#[test]
fn flags_are_heeded() {
    for flags in [0, BIO_FUA, BIO_PREFLUSH, BIO_FUA | BIO_PREFLUSH, BIO_NOMERGE] {
        for (cache, fua) in [(false, false), (true, false), (true, true)] {
            let puppets = [(); 2].map(|()| Puppet::new().caps(|caps| (caps.volatile_cache, caps.fua) = (cache, fua)));
            let [mut by_lane, mut by_bio] = puppets.each_ref().map(|puppet| Rig::new(&[&puppet.device()]));
            // After its first I/O the context takes the fast path.
            for rig in [&mut by_lane, &mut by_bio] {
                rig.read(0, 99);
                rig.drain();
            }
            lane(&mut by_lane, Op::Write, flags, &singles(0..4));
            one_by_one(&mut by_bio, Op::Write, flags, &singles(0..4));
            by_lane.drain();
            by_bio.drain();
            let asked = |puppet: &Puppet| {
                let mut all: Vec<_> =
                    puppet.script().seen.iter().map(|seen| (seen.op as u8, seen.sector, seen.flags)).collect();
                all.sort_unstable();
                all
            };
            let flushes = |puppet: &Puppet| puppet.script().seen.iter().filter(|seen| seen.op == Op::Flush).count();
            assert_eq!(
                flushes(&puppets[0]) > 0,
                flushes(&puppets[1]) > 0,
                "flags {flags:#x}, cache {cache}, FUA {fua}"
            );
            let writes = |puppet: &Puppet| {
                asked(puppet).into_iter().filter(|seen| seen.0 == Op::Write as u8).collect::<Vec<_>>()
            };
            assert_eq!(writes(&puppets[0]), writes(&puppets[1]), "flags {flags:#x}, cache {cache}, FUA {fua}");
        }
    }
}

#[test]
fn a_lane_without_bios_says_so() {
    let puppet = Puppet::new().holding();
    let mut rig = Rig::with(3, true, &[&puppet.device()]);
    assert_eq!(lane(&mut rig, Op::Read, 0, &singles(0..5)), 3);
    puppet.script().finish = u32::MAX;
    rig.drain();
    assert_eq!(rig.take_ok(), [0, 1, 2]);
}

#[test]
fn a_route_is_invalid_after_detach() {
    let mut rig = Rig::new(&[&Puppet::new().device()]);
    let route = rig.ctx.route(rig.devices[0].0).unwrap();
    rig.ctx.detach(rig.devices[0].0, &mut |_: u32, _| unreachable!("nothing is on its way"));
    let kind = PlainKind::new(false, 0, NO_FIXED_BUF);
    assert!(rig.ctx.lane(route, kind).is_none());
    assert!(rig.ctx.route(rig.devices[0].0).is_none() && rig.ctx.route(99).is_none());
}

/// Result of a random program: each bio's end, and the requests that the device got.
type Outcome = (Vec<(u32, Status)>, Vec<(u8, u64, u32, Vec<Segment>)>);

/// Runs a random program, whose plain I/O goes through lanes or bio by bio.
fn program(seed: u64, through: fn(&mut Rig, Op, u16, &[Io]) -> usize) -> Outcome {
    let mut rng = Rng::new(seed);
    let puppet =
        Puppet::new().depth(1 + rng.below(40) as u16).caps(|caps| caps.volatile_cache = true).limits(|limits| {
            limits.max_sectors = 8 * (1 + seed as u32 % 5);
            limits.max_segments = 1 + (seed % 4) as u16;
            limits.chunk_sectors = if seed % 3 == 1 { 32 } else { 0 };
        });
    let puppet = if seed % 4 == 3 { puppet.host_depth(5) } else { puppet };
    let mut rig = Rig::with(200, true, &[&puppet.device()]);
    let mut owner = 0;
    for _ in 0..60 {
        let plug = rng.percent(60);
        if plug {
            rig.ctx.start_plug(rng.below(20) as u32);
        }
        for _ in 0..1 + rng.below(3) {
            let op = if rng.percent(50) { Op::Read } else { Op::Write };
            let flags = if rng.percent(10) { BIO_FUA } else { 0 };
            let mut block = rng.below(1000);
            let ios: Vec<Io> = (0..rng.below(12))
                .map(|_| {
                    owner += 1;
                    block = if rng.percent(50) { block + 1 } else { rng.below(1000) };
                    (owner, block, 1 + u32::from(rng.percent(20)) * rng.below(8) as u32)
                })
                .collect();
            let taken = through(&mut rig, op, flags, &ios);
            assert_eq!(taken, ios.len(), "enough bios");
            if rng.percent(10) {
                owner += 1;
                rig.flush(owner);
            }
        }
        if plug {
            rig.ctx.finish_plug();
        }
        rig.drain();
    }
    let mut ended = rig.take_ended();
    ended.sort_unstable_by_key(|end| end.0);
    assert!(ended.iter().map(|end| end.0).eq(1..=owner), "each bio ends once");
    let seen = puppet.script().seen.iter().map(|s| (s.op as u8, s.sector, s.bytes, s.vecs.clone())).collect();
    (ended, seen)
}

/// Returns the sectors that were moved, as sorted (operation, sector, memory).
fn moved(seen: &[(u8, u64, u32, Vec<Segment>)]) -> Vec<(u8, u64, usize)> {
    let mut all = Vec::new();
    for (op, sector, _, vecs) in seen {
        let memory = vecs.iter().flat_map(|vec| (0..vec.len() / 512).map(|at| vec.base() + at * 512));
        all.extend(memory.enumerate().map(|(at, base)| (*op, sector + at as u64, base)));
    }
    all.sort_unstable();
    all
}

#[test]
fn random_programs_do_the_same_by_lane_and_bio_by_bio() {
    for seed in 0..60 {
        let (by_lane, by_bio) = (program(seed, lane), program(seed, one_by_one));
        assert_eq!(by_lane.0, by_bio.0, "seed {seed}");
        assert_eq!(moved(&by_lane.1), moved(&by_bio.1), "seed {seed}");
    }
}

#[test]
fn a_lane_that_is_dropped_sends_what_it_gathered() {
    let puppet = Puppet::new();
    for plugged in [false, true] {
        puppet.script().seen.clear();
        let mut rig = Rig::new(&[&puppet.device()]);
        let route = rig.ctx.route(rig.devices[0].0).expect("one leg");
        if plugged {
            rig.ctx.start_plug(3);
        }
        let mut lane = rig.ctx.lane(route, PlainKind::new(false, 0, NO_FIXED_BUF)).expect("attached");
        for owner in 0..3 {
            assert!(lane.submit(owner, u64::from(owner) * 16, vec_at(address(owner), BLOCK as usize)));
        }
        drop(lane);
        if plugged {
            rig.ctx.finish_plug();
        }
        assert_eq!(puppet.script().seen.len(), 3, "plugged {plugged}: the driver has them");
        rig.drain();
        assert_eq!(rig.take_ok().len(), 3);
    }
}

#[test]
fn a_record_that_was_held_back_before_a_freeze_waits_from_its_own_start_on() {
    const DELAY: Duration = Duration::from_micros(700);
    const LONG: Duration = Duration::from_secs(20);
    let puppet = Puppet::new();
    let mut rig = Rig::new(&[&puppet.device()]);
    rig.time.advance(Duration::from_secs(3600));
    let queue = rig.device().legs()[0].queue.clone();
    puppet.script().accept = 0;
    plugged_run(&mut rig, 4);
    rig.poll();
    let freeze = std::thread::scope(|scope| {
        let freezes = scope.spawn(|| queue.freeze(LONG));
        while !freezes.is_finished() {
            rig.poll();
        }
        freezes.join().expect("no panic").expect("the ring gives its tags back")
    });
    rig.time.advance(DELAY);
    puppet.script().accept = u32::MAX;
    drop(freeze);
    rig.drain();
    let split = rig.device().stats().op(Op::Read).split.clone();
    let (waited, delay) = (Duration::from_nanos(split.stage_ns[Stage::Tag as usize]), 4 * DELAY);
    assert!((delay..delay + Duration::from_millis(4)).contains(&waited), "{waited:?}: {split:?}");
}
