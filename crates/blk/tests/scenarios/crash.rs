//! Flush and FUA against a device that may lose power at any moment: writes that were acknowledged as durable are on
//! the medium.
//!
//! The device does the worst that it may: it ends requests in any order, a flush covers only writes that had completed
//! when it arrived, and cached blocks reach the medium at random times. The version of a write is the number of its
//! bio.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sheave_base::rng::Rng;
use sheave_base::status::Status;
use sheave_base::sync::{Arc, Mutex};
use sheave_blk::bio::{BIO_FUA, BIO_PREFLUSH, Op};
use sheave_blk::driver::{Capabilities, Driver, HctxOpen, HwEnv, HwQueue, NextEvent, TimedOut};
use sheave_blk::limits::Limits;
use sheave_blk::request::{DoneList, RQ_FUA, Rq, RqList, RqTable};
use sheave_blk::{Device, DeviceError};

use crate::support::{BLOCK, BLOCK_SECTORS, Rig, address};

const BLOCKS: u64 = 24;

/// Versions by block.
type Image = BTreeMap<u64, u32>;

#[derive(Debug, Default)]
struct State {
    cache: Image,
    medium: Image,
    flushes: u32,
    fua: u32,
}

impl State {
    fn settle(&mut self, block: u64, version: u32) {
        let have = self.medium.entry(block).or_default();
        *have = (*have).max(version);
    }
}

#[derive(Clone, Debug)]
struct Disk {
    caps: Capabilities,
    depth: u16,
    host_depth: Option<u16>,
    state: Arc<Mutex<State>>,
    seed: u64,
    /// Share of requests that fail, in percent.
    errors: u64,
}

#[allow(unsafe_code)] // A driver vouches for the memory of its requests.
// SAFETY: D7: its queues take every request within the limits that it reports.
unsafe impl Driver for Disk {
    fn limits(&self) -> Limits {
        Limits::default().queue_depth(self.depth).max_sectors(2 * BLOCK_SECTORS as u32)
    }

    fn capabilities(&self) -> Capabilities {
        self.caps
    }

    fn size_bytes(&self) -> u64 {
        BLOCKS * u64::from(BLOCK)
    }

    fn host_wide_depth(&self) -> Option<u16> {
        self.host_depth
    }

    fn open_hctx(&self, open: &mut HctxOpen<'_>) -> Result<Box<dyn HwQueue>, DeviceError> {
        let rng = Rng::new(self.seed ^ u64::from(open.hctx) << 32);
        Ok(Box::new(DiskQueue { disk: self.clone(), held: Vec::new(), rng }))
    }
}

#[derive(Debug)]
struct Held {
    rq: Rq,
    op: Op,
    fua: bool,
    /// Of a write: the blocks that it writes. Of a flush: the content of the cache when it came.
    blocks: Image,
}

#[derive(Debug)]
struct DiskQueue {
    disk: Disk,
    held: Vec<Held>,
    rng: Rng,
}

impl DiskQueue {
    fn finish(&mut self, at: usize, done: &mut DoneList) {
        let held = self.held.swap_remove(at);
        let mut state = self.disk.state.lock().unwrap();
        let failed = self.rng.percent(self.disk.errors);
        for (&block, &version) in &held.blocks {
            let durable = held.op == Op::Flush || held.fua || !self.disk.caps.volatile_cache;
            match (failed, durable) {
                // A write that failed may have reached the cache or not.
                (true, _) if held.op == Op::Flush || self.rng.percent(50) => {}
                (_, true) => state.settle(block, version),
                (_, false) => drop(state.cache.insert(block, version)),
            }
        }
        done.push(held.rq, if failed { Status::IoErr } else { Status::Ok });
    }
}

#[allow(unsafe_code)] // A driver vouches for the memory of its requests.
// SAFETY: D1 to D6: each request ends once, where it came, and its memory is not touched afterwards.
unsafe impl HwQueue for DiskQueue {
    fn queue_rqs(&mut self, list: &mut RqList, rqs: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) {
        while let Some(rq) = list.pop() {
            if self.rng.percent(10) {
                return list.unpop(rq);
            }
            let request = rqs.get(&rq);
            let (op, fua) = (request.op, request.flags & RQ_FUA != 0);
            let mut state = self.disk.state.lock().unwrap();
            let mut blocks = Image::new();
            if op == Op::Flush {
                assert!(self.disk.caps.volatile_cache, "no flush without a cache");
                assert!(self.held.iter().all(|held| held.op != Op::Flush), "C1: one flush at a time");
                state.flushes += 1;
                blocks = state.cache.clone();
            } else {
                let caps = self.disk.caps;
                assert!(!fua || (caps.fua && caps.volatile_cache), "FUA only where it is known and needed");
                state.fua += u32::from(fua);
                let mut block = request.sector / BLOCK_SECTORS;
                for vec in rqs.segments(rq.tag()) {
                    for _ in 0..vec.len() / BLOCK as usize {
                        blocks.insert(block, (vec.base() >> 24) as u32 - 1);
                        block += 1;
                    }
                }
            }
            drop(state);
            self.held.push(Held { rq, op, fua, blocks });
        }
    }

    fn poll(&mut self, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, done: &mut DoneList) {
        // A cached block reaches the medium at a random time.
        if self.rng.percent(20) {
            let mut state = self.disk.state.lock().unwrap();
            let at = self.rng.below(BLOCKS);
            if let Some(&version) = state.cache.get(&at) {
                state.settle(at, version);
            }
        }
        while !self.held.is_empty() && self.rng.percent(60) {
            let at = self.rng.below(self.held.len() as u64) as usize;
            self.finish(at, done);
        }
    }

    fn next_event(&self) -> NextEvent {
        if self.held.is_empty() { NextEvent::Idle } else { NextEvent::Ready }
    }

    fn timed_out(&mut self, _: u16, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) -> TimedOut {
        TimedOut::Waiting
    }

    fn shutdown(&mut self, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, done: &mut DoneList) {
        while !self.held.is_empty() {
            self.finish(0, done);
        }
    }
}

/// A bio in flight.
#[derive(Debug)]
struct Sent {
    op: Op,
    flags: u16,
    blocks: std::ops::Range<u64>,
    /// Writes that had completed when it was submitted.
    before: Image,
}

/// Two rings on one disk, and the durability that their programs may rely on.
struct Run {
    rigs: [Rig; 2],
    state: Arc<Mutex<State>>,
    sent: BTreeMap<u32, Sent>,
    busy: BTreeSet<u64>,
    completed: Image,
    rng: Rng,
    owner: u32,
    name: String,
}

impl Run {
    fn new(disk: &Disk, name: String) -> Run {
        let device = Device::from_driver("disk", Box::new(disk.clone()));
        // Few bios, so that the sequences run out of them.
        let rigs = [Rig::with(24, true, &[&device]), Rig::with(6, true, &[&device])];
        let (state, rng) = (disk.state.clone(), Rng::new(disk.seed.wrapping_mul(77)));
        let (sent, busy, completed) = (BTreeMap::new(), BTreeSet::new(), Image::new());
        Run { rigs, state, sent, busy, completed, rng, owner: 0, name }
    }

    fn submit(&mut self) {
        let ring = self.rng.below(2) as usize;
        let (op, flags) = match self.rng.below(8) {
            0 => (Op::Flush, 0),
            1 => (Op::Write, BIO_FUA),
            2 => (Op::Write, BIO_PREFLUSH),
            3 => (Op::Write, BIO_PREFLUSH | BIO_FUA),
            _ => (Op::Write, 0),
        };
        let first = self.rng.below(BLOCKS);
        let blocks = first..(first + 1 + self.rng.below(4)).min(BLOCKS);
        if op == Op::Write && blocks.clone().any(|block| self.busy.contains(&block)) {
            return;
        }
        let blocks = if op == Op::Flush { 0..0 } else { blocks };
        let bytes = (blocks.end - blocks.start) as u32 * BLOCK;
        self.owner += 1;
        if self.rigs[ring].io_flags(op, flags, blocks.start * BLOCK_SECTORS, bytes, self.owner) {
            self.busy.extend(blocks.clone());
            let before =
                if op == Op::Flush || flags & BIO_PREFLUSH != 0 { self.completed.clone() } else { Image::new() };
            self.sent.insert(self.owner, Sent { op, flags, blocks, before });
        }
    }

    fn poll(&mut self, ring: usize) {
        self.rigs[ring].poll();
        for (owner, status) in self.rigs[ring].take_ended() {
            let sent = self.sent.remove(&owner).expect("each bio ends once");
            self.busy.retain(|block| !sent.blocks.contains(block));
            if !status.is_ok() {
                continue;
            }
            if sent.op == Op::Flush || sent.flags & BIO_PREFLUSH != 0 {
                self.check_durable(&sent.before, owner);
            }
            let written: Image = sent.blocks.map(|block| (block, owner)).collect();
            if sent.flags & BIO_FUA != 0 {
                self.check_durable(&written, owner);
            }
            self.completed.extend(written);
        }
        self.check_order();
    }

    /// Asserts that `what` would survive a crash at this moment.
    fn check_durable(&self, what: &Image, owner: u32) {
        let medium = &self.state.lock().unwrap().medium;
        for (block, version) in what {
            let have = medium.get(block).copied().unwrap_or_default();
            assert!(have >= *version, "{}: bio {owner} ended, block {block} has {have}, not {version}", self.name);
        }
    }

    /// Asserts that no write with PREFLUSH is on the medium before the data that it must flush.
    fn check_order(&self) {
        for (owner, sent) in self.sent.iter().filter(|(_, sent)| sent.flags & BIO_PREFLUSH != 0) {
            let medium = self.state.lock().unwrap().medium.clone();
            if sent.blocks.clone().any(|block| medium.get(&block) == Some(owner)) {
                self.check_durable(&sent.before, *owner);
            }
        }
    }

    fn step(&mut self) {
        let ring = self.rng.below(2) as usize;
        match self.rng.below(20) {
            0 => self.rigs[ring].ctx.start_plug(4),
            1 => return self.freeze_gathered(ring),
            2 => {
                let gate = self.rigs[ring].device().quiesce(Duration::ZERO);
                self.submit();
                self.poll(1 - ring);
                drop(gate);
                return;
            }
            3..8 => return self.poll(ring),
            _ => return self.submit(),
        }
        (0..4).for_each(|_| self.submit());
        self.rigs[ring].ctx.finish_plug();
    }

    /// Freezes while requests are only gathered: they are taken apart and start again.
    fn freeze_gathered(&mut self, ring: usize) {
        self.drain();
        self.rigs[ring].ctx.start_plug(4);
        (0..4).for_each(|_| self.submit());
        let gate = self.rigs[ring].device().freeze(Duration::ZERO);
        self.rigs[ring].ctx.finish_plug();
        (0..2).for_each(|ring| self.poll(ring));
        drop(gate);
    }

    fn drain(&mut self) {
        for turn in 0.. {
            assert!(turn < 100_000, "{}: does not end: {:?}", self.name, self.sent);
            self.poll(turn % 2);
            if self.rigs.iter().all(|rig| rig.ctx.is_idle()) {
                break;
            }
        }
    }

    fn run(mut self) -> State {
        for _ in 0..400 {
            self.step();
        }
        self.drain();
        assert!(self.sent.is_empty(), "{}: never ended: {:?}", self.name, self.sent);
        std::mem::take(&mut *self.state.lock().unwrap())
    }
}

fn disk(seed: u64, volatile_cache: bool, fua: bool, errors: u64) -> Disk {
    let caps = Capabilities::default().volatile_cache(volatile_cache).fua(fua);
    let host_depth = seed.is_multiple_of(3).then_some(3);
    Disk { caps, depth: 1 + (seed % 5) as u16, host_depth, state: Arc::default(), seed, errors }
}

fn crash_model(volatile_cache: bool, fua: bool) {
    let (mut flushes, mut fuas) = (0, 0);
    for seed in 0..60 {
        for errors in [0, 10] {
            let disk = disk(seed, volatile_cache, fua, errors);
            let state = Run::new(&disk, format!("seed {seed}, {errors} % errors")).run();
            flushes += state.flushes;
            fuas += state.fua;
        }
    }
    assert_eq!(flushes > 0, volatile_cache);
    assert_eq!(fuas > 0, volatile_cache && fua);
}

#[test]
fn without_a_cache_everything_is_durable_by_itself() {
    crash_model(false, false);
    crash_model(false, true);
}

#[test]
fn with_a_cache_and_no_fua() {
    crash_model(true, false);
}

#[test]
fn with_a_cache_and_fua() {
    crash_model(true, true);
}

#[test]
fn addresses_name_their_owner() {
    assert_eq!((address(7) >> 24) - 1, 7, "the disk reads versions from addresses");
}
