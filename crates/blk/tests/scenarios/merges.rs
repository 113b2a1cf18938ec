//! Merging under the plug: adjacent bios share one request, within the limits, and each still ends by itself.

use std::time::Duration;

use sheave_base::rng::Rng;
use sheave_base::status::Status;
use sheave_blk::bio::{BIO_FUA, BIO_NOMERGE, NO_FIXED_BUF, Op};
use sheave_blk::ctx::lane::{PlainIo, PlainKind, PlainRunOf};

use crate::support::{BLOCK, BLOCK_SECTORS, Puppet, Rig, address, vec_at};

/// Submits reads or writes of these blocks under one plug. Returns the resulting requests as (first block, blocks).
fn requests(puppet: &Puppet, bios: &[(Op, u16, u64)]) -> Vec<(u64, u64)> {
    let mut rig = Rig::new(&[&puppet.device()]);
    rig.ctx.start_plug(bios.len() as u32);
    for (owner, &(op, flags, block)) in bios.iter().enumerate() {
        assert!(rig.io_flags(op, flags, block * BLOCK_SECTORS, BLOCK, owner as u32));
    }
    rig.ctx.finish_plug();
    rig.drain();
    let mut ended = rig.take_ok();
    ended.sort_unstable();
    assert_eq!(ended, (0..bios.len() as u32).collect::<Vec<_>>(), "each bio ends once");
    let merged = bios.len() as u64 - puppet.script().seen.len() as u64;
    let stats = rig.device().stats();
    assert_eq!(Op::ALL.iter().map(|&op| stats.op(op).merges).sum::<u64>(), merged);
    assert_eq!(Op::ALL.iter().map(|&op| stats.op(op).sectors).sum::<u64>(), bios.len() as u64 * BLOCK_SECTORS);
    let seen = puppet.script().seen.clone();
    seen.iter().map(|seen| (seen.sector / BLOCK_SECTORS, u64::from(seen.bytes / BLOCK))).collect()
}

fn reads(blocks: &[u64]) -> Vec<(Op, u16, u64)> {
    blocks.iter().map(|&block| (Op::Read, 0, block)).collect()
}

#[test]
fn back_and_front() {
    let puppet = Puppet::new();
    assert_eq!(requests(&puppet, &reads(&[10, 11, 12, 9, 8, 13])), [(8, 6)]);
    let order: Vec<usize> = puppet.script().seen[0].vecs.iter().map(|vec| vec.base()).collect();
    assert_eq!(order, [4, 3, 0, 1, 2, 5].map(address), "memory in the order of the device");
}

#[test]
fn only_the_last_request_is_looked_at() {
    assert_eq!(requests(&Puppet::new(), &reads(&[1, 5, 2])), [(1, 1), (5, 1), (2, 1)]);
}

#[test]
fn not_across_operations_or_over_a_gap_or_twice() {
    let bios = [(Op::Read, 0, 1), (Op::Write, 0, 2), (Op::Write, 0, 4), (Op::Write, 0, 4), (Op::Write, 0, 5)];
    assert_eq!(requests(&Puppet::new(), &bios), [(1, 1), (2, 1), (4, 1), (4, 2)]);
}

#[test]
fn not_where_it_is_forbidden() {
    let nomerge = [(Op::Read, BIO_NOMERGE, 1), (Op::Read, 0, 2), (Op::Read, BIO_NOMERGE, 3), (Op::Read, 0, 4)];
    assert_eq!(requests(&Puppet::new(), &nomerge), [(1, 1), (2, 1), (3, 1), (4, 1)]);
    let fua = [(Op::Write, 0, 1), (Op::Write, BIO_FUA, 2), (Op::Write, 0, 3)];
    let native = Puppet::new().caps(|caps| (caps.volatile_cache, caps.fua) = (true, true));
    assert_eq!(requests(&native, &fua), [(1, 1), (2, 1), (3, 1)]);
    assert_eq!(requests(&Puppet::new(), &fua), [(1, 3)], "without a volatile cache FUA means nothing");
}

#[test]
fn within_the_limits() {
    let run: Vec<u64> = (0..10).collect();
    let sectors = Puppet::new().limits(|limits| limits.max_sectors = 4 * 8);
    assert_eq!(requests(&sectors, &reads(&run)), [(0, 4), (4, 4), (8, 2)]);
    let segments = Puppet::new().limits(|limits| limits.max_segments = 3);
    assert_eq!(requests(&segments, &reads(&run)), [(0, 3), (3, 3), (6, 3), (9, 1)]);
    let chunks = Puppet::new().limits(|limits| limits.chunk_sectors = 4 * 8);
    assert_eq!(requests(&chunks, &reads(&[2, 3, 4, 5, 7, 6, 8])), [(2, 2), (4, 2), (6, 2), (8, 1)]);
    let front: Vec<u64> = (0..6).rev().collect();
    let chunks = Puppet::new().limits(|limits| limits.chunk_sectors = 4 * 8);
    assert_eq!(requests(&chunks, &reads(&front)), [(4, 2), (0, 4)], "front merges stop at the boundary too");
}

#[test]
fn all_bios_of_a_request_share_its_fate() {
    let puppet = Puppet::new();
    puppet.script().fail = vec![(Op::Read, Status::Medium)];
    let mut rig = Rig::new(&[&puppet.device()]);
    rig.ctx.start_plug(3);
    (0..3).for_each(|n| assert!(rig.read(n, n as u32)));
    rig.ctx.finish_plug();
    rig.drain();
    assert_eq!(rig.take_ended(), [0, 1, 2].map(|owner| (owner, Status::Medium)));
    assert_eq!(rig.device().stats().op(Op::Read).errors, 1);
}

#[test]
fn random_batches_cover_every_bio_once_within_the_limits() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let (max, segs) = (1 + rng.below(6), 1 + rng.below(6) as u16);
        let chunk = rng.below(4) * 2;
        let puppet = Puppet::new().limits(|limits| {
            limits.max_sectors = (max * BLOCK_SECTORS) as u32;
            limits.max_segments = segs;
            limits.chunk_sectors = (chunk * BLOCK_SECTORS) as u32;
        });
        let bios: Vec<_> =
            (0..40).map(|_| (if rng.percent(50) { Op::Read } else { Op::Write }, 0, rng.below(12))).collect();
        let mut covered = [0; 12];
        for (first, blocks) in requests(&puppet, &bios) {
            assert!(blocks <= max && blocks <= u64::from(segs), "seed {seed}");
            assert!(chunk == 0 || first / chunk == (first + blocks - 1) / chunk, "seed {seed}");
            (first..first + blocks).for_each(|block| covered[block as usize] += 1);
        }
        bios.iter().for_each(|bio| covered[bio.2 as usize] -= 1);
        assert!(covered.iter().all(|&left| left == 0), "seed {seed}");
        for seen in &puppet.script().seen {
            assert_eq!(seen.vecs.iter().map(|vec| vec.len()).sum::<usize>(), seen.bytes as usize);
            assert!(seen.vecs.len() <= usize::from(segs), "seed {seed}");
        }
    }
}

#[test]
fn the_rest_of_a_split_merges_with_what_follows_unless_forbidden() {
    for (flags, expect) in [(0, &[(0, 2), (2, 2)][..]), (BIO_NOMERGE, &[(0, 2), (2, 1), (3, 1)])] {
        let puppet = Puppet::new().limits(|limits| limits.max_sectors = 2 * 8);
        let mut rig = Rig::new(&[&puppet.device()]);
        rig.ctx.start_plug(2);
        rig.io_flags(Op::Read, flags, 0, 3 * BLOCK, 0);
        rig.read(3, 1);
        rig.ctx.finish_plug();
        rig.drain();
        let seen: Vec<_> = puppet.script().seen.iter().map(|seen| (seen.sector / 8, seen.bytes / BLOCK)).collect();
        assert_eq!(seen, expect);
    }
}

/// No request is gathered behind one of this length.
const LONG: u32 = 128 << 10;

/// Way in which reads of one length are submitted.
#[derive(Clone, Copy, Debug)]
enum Way {
    Bios,
    LaneOfBios,
    Run,
}

/// Submits reads of `bytes` each at these blocks under one plug. Returns the number of requests offered by each call of
/// the driver: first for the calls before the plug was closed, then for all calls.
fn offers(way: Way, bytes: u32, blocks: &[u64]) -> (Vec<usize>, Vec<usize>) {
    let puppet = Puppet::new();
    let mut rig = Rig::new(&[&puppet.device()]);
    // The first I/O of a queue takes the slow path, because the gate was not read before.
    rig.read(100_000, 99);
    rig.drain();
    rig.take_ok();
    puppet.script().offers.clear();
    rig.ctx.start_plug(blocks.len() as u32);
    let sectors = blocks.iter().map(|block| block * BLOCK_SECTORS);
    if let Way::Bios = way {
        sectors.zip(0..).for_each(|(sector, at)| assert!(rig.io(Op::Read, sector, bytes, at)));
    } else {
        let route = rig.ctx.route(rig.devices[0].0).expect("one leg");
        let mut lane = rig.ctx.lane(route, PlainKind::new(false, 0, NO_FIXED_BUF)).expect("attached");
        if let Way::LaneOfBios = way {
            sectors
                .zip(0..)
                .for_each(|(sector, at)| assert!(lane.submit(at, sector, vec_at(address(at), bytes as usize))));
        } else {
            #[allow(unsafe_code)]
            // SAFETY: the driver of these tests touches no memory.
            let io = |sector| unsafe { PlainIo::new(0, sector, address(0)) };
            let run = PlainRunOf { owner: 7, bytes };
            let most = blocks.len();
            assert_eq!(lane.submit_run(run, most, |from| sectors.clone().skip(from).map(io)), most);
        }
        lane.finish();
    }
    let before = puppet.script().offers.clone();
    rig.ctx.finish_plug();
    let all = puppet.script().offers.clone();
    rig.drain();
    assert_eq!(rig.take_ok().len(), blocks.len());
    (before, all)
}

const WAYS: [Way; 3] = [Way::Bios, Way::LaneOfBios, Way::Run];

#[test]
fn nothing_is_gathered_behind_a_long_request() {
    let apart: Vec<u64> = (0..8).map(|at| at * 1000).collect();
    for way in WAYS {
        assert_eq!(offers(way, LONG, &apart), (vec![1; 7], vec![1; 8]), "{way:?}");
        assert_eq!(offers(way, LONG - BLOCK, &apart), (vec![], vec![8]), "shorter ones go together, {way:?}");
    }
}

#[test]
fn a_request_merged_to_full_length_is_sent_before_a_non_adjacent_io() {
    let beside: Vec<u64> = (0..4).map(|at| 500 + at * u64::from(LONG / BLOCK)).collect();
    for way in WAYS {
        assert_eq!(offers(way, LONG, &beside), (vec![], vec![1]), "a neighbour still goes in, {way:?}");
        let mut blocks: Vec<u64> = (0..u64::from(LONG / BLOCK)).collect();
        blocks.extend([1000, 2000]);
        assert_eq!(offers(way, BLOCK, &blocks), (vec![1], vec![1, 2]), "{way:?}");
        blocks.remove(0);
        assert_eq!(offers(way, BLOCK, &blocks), (vec![], vec![3]), "one block shorter, {way:?}");
    }
}

#[test]
fn each_piece_of_a_long_bio_goes_before_the_next_is_cut() {
    let puppet = Puppet::new().limits(|limits| limits.max_sectors = LONG / 512);
    let mut rig = Rig::new(&[&puppet.device()]);
    rig.ctx.start_plug(1);
    rig.io(Op::Read, 0, 4 * LONG, 0);
    assert_eq!(puppet.script().offers, [1, 1, 1], "the last piece may find a neighbour");
    rig.ctx.finish_plug();
    rig.drain();
    assert_eq!(rig.take_ok(), [0]);
    // If a piece is held back, the rest waits uncut.
    puppet.script().accept = 1;
    rig.ctx.start_plug(1);
    rig.io(Op::Read, 0, 4 * LONG, 1);
    rig.ctx.finish_plug();
    puppet.script().accept = u32::MAX;
    rig.drain();
    assert_eq!(rig.take_ok(), [1]);
    let seen: Vec<u64> = puppet.script().seen[4..].iter().map(|seen| seen.sector).collect();
    assert_eq!(seen, [0, 1, 2, 3].map(|piece| piece * u64::from(LONG / 512)));
}

#[test]
fn a_run_does_not_go_on_behind_a_long_request_that_is_held_back() {
    let puppet = Puppet::new();
    let mut rig = Rig::new(&[&puppet.device()]);
    rig.read(100_000, 99);
    rig.drain();
    rig.take_ok();
    rig.ctx.start_plug(2);
    rig.io(Op::Read, 0, LONG, 0);
    let device = rig.device().clone();
    let gate = device.freeze(Duration::ZERO).unwrap();
    let route = rig.ctx.route(rig.devices[0].0).expect("one leg");
    let mut lane = rig.ctx.lane(route, PlainKind::new(false, 0, NO_FIXED_BUF)).expect("attached");
    #[allow(unsafe_code)]
    // SAFETY: the driver of these tests touches no memory.
    let io = unsafe { PlainIo::new(0, 8000, address(0)) };
    let run = PlainRunOf { owner: 1, bytes: BLOCK };
    assert_eq!(lane.submit_run(run, 1, |_| std::iter::once(io)), 0, "it would go before what waits");
    lane.finish();
    rig.ctx.finish_plug();
    drop(gate);
    rig.drain();
    assert_eq!(rig.take_ok(), [0]);
}

#[test]
fn what_comes_behind_a_long_request_that_is_held_back_waits_behind_it() {
    for freeze in [false, true] {
        let puppet = Puppet::new();
        let mut rig = Rig::new(&[&puppet.device()]);
        rig.read(100_000, 99);
        rig.drain();
        rig.take_ok();
        rig.ctx.start_plug(3);
        rig.io(Op::Read, 0, LONG, 0);
        let device = rig.device().clone();
        let gate = freeze.then(|| device.freeze(Duration::ZERO).unwrap());
        if !freeze {
            puppet.script().accept = 0;
        }
        rig.read(1000, 1);
        rig.read(2000, 2);
        rig.ctx.finish_plug();
        rig.poll();
        assert_eq!(puppet.sectors_seen().len(), 1, "freeze: {freeze}");
        drop(gate);
        puppet.script().accept = u32::MAX;
        rig.drain();
        assert_eq!(puppet.sectors_seen()[1..], [0, 8000, 16000], "freeze: {freeze}");
        assert_eq!(rig.take_ok(), [0, 1, 2]);
    }
}
