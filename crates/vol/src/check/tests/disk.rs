//! A disk in memory that can fail, and a pool on it, written by the codecs alone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use sheave_base::status::Status;

use super::super::model::Model;
use super::super::repair::Repair;
use super::super::walk::Walk;
use super::super::{CheckProgress, Progress};
use super::{checkpointed, committed};
use crate::BlockIo;
use crate::format::block::{Block, identify, samples};
use crate::format::journal::{Commit, Ring};
use crate::format::page::{PageRef, label};
use crate::format::superblock::Superblock;
use crate::format::{BLOCK, BLOCK_BYTES, kind};

pub const UNIT: u64 = 65536;
const UNITS: u64 = 1024;

#[derive(Default)]
struct State {
    blocks: BTreeMap<u64, Box<Block>>,
    bad: BTreeSet<u64>,
    writes: u64,
    left: u64,
    /// Number of single reads, and of batches.
    reads: (u64, u64),
}

pub struct Disk {
    size: u64,
    state: Mutex<State>,
}

impl Clone for Disk {
    /// Returns another disk with the same bytes, whose counters are zero.
    fn clone(&self) -> Disk {
        let disk = Disk::new(self.size);
        disk.lock().blocks = self.lock().blocks.clone();
        disk
    }
}

impl Disk {
    pub fn new(size: u64) -> Disk {
        Disk { size, state: Mutex::new(State { left: u64::MAX, ..State::default() }) }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no test panics in it")
    }

    /// Returns the number of blocks written through the trait.
    pub fn writes(&self) -> u64 {
        self.lock().writes
    }

    /// Returns the numbers of single reads and of batches.
    pub fn reads(&self) -> (u64, u64) {
        self.lock().reads
    }

    /// Makes all writes after this many fail; they have no effect.
    pub fn fail_after(&self, writes: u64) {
        self.lock().left = writes;
    }

    pub fn unreadable(&self, at: u64) {
        self.lock().bad.insert(at);
    }

    pub fn change(&self, at: u64, change: impl FnOnce(&mut Block)) {
        change(self.lock().blocks.entry(at).or_insert_with(|| Box::new([0; BLOCK])));
    }

    pub fn superblock(&self, sb: &Superblock) {
        self.change(sb.slot(), |block| _ = sb.encode(block));
    }

    pub fn forget_writes(&self) {
        self.lock().writes = 0;
    }

    /// Returns the leaf with index 300 that volume 1 wrote.
    pub fn leaf_shared_by_vm(&self) -> u64 {
        let state = self.lock();
        let leaf = state
            .blocks
            .iter()
            .find(|(_, block)| identify(block).is_ok_and(|(head, _)| (head.kind, head.index) == (kind::LEAF, 300)));
        *leaf.expect("there is one").0
    }
}

impl BlockIo for Disk {
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), Status> {
        assert!(at.is_multiple_of(BLOCK_BYTES) && at + buf.len() as u64 <= self.size, "{at} is on the disk");
        let mut state = self.lock();
        state.reads.0 += 1;
        for (chunk, at) in buf.chunks_mut(BLOCK).zip((at..).step_by(BLOCK)) {
            if state.bad.contains(&at) {
                return Err(Status::Medium);
            }
            match state.blocks.get(&at) {
                Some(block) => chunk.copy_from_slice(&block[..]),
                None => chunk.fill(0),
            }
        }
        Ok(())
    }

    fn write(&self, at: u64, buf: &[u8]) -> Result<(), Status> {
        assert!(at.is_multiple_of(BLOCK_BYTES) && at + buf.len() as u64 <= self.size, "{at} is on the disk");
        for (chunk, at) in buf.chunks(BLOCK).zip((at..).step_by(BLOCK)) {
            let mut state = self.lock();
            if state.writes >= state.left {
                return Err(Status::IoErr);
            }
            state.writes += 1;
            state.blocks.entry(at).or_insert_with(|| Box::new([0; BLOCK])).copy_from_slice(chunk);
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), Status> {
        Ok(())
    }

    fn discard(&self, _: u64, _: u64) -> Result<(), Status> {
        Ok(())
    }

    fn size_bytes(&self) -> u64 {
        self.size
    }

    fn read_many(&self, pieces: &mut [(u64, &mut [u8])]) -> Result<(), Status> {
        let singles = self.lock().reads.0;
        let result = pieces.iter_mut().try_for_each(|(at, buf)| self.read(*at, buf));
        let mut state = self.lock();
        state.reads = (singles, state.reads.1 + 1);
        result
    }
}

/// A pool with content, its newest superblock, its pages, and the numbers of the journal blocks to replay.
pub struct Pool {
    pub disk: Disk,
    pub sb: Superblock,
    pub pages: Vec<u64>,
    pub journal: Vec<u64>,
}

/// Creates an empty pool of 64 MiB in two members.
pub fn formatted() -> (Disk, Superblock) {
    let disk = Disk::new(UNITS * UNIT);
    let sb = Superblock {
        generation: 0,
        total_units: UNITS,
        table: PageRef::NONE,
        volumes: 0,
        next_volume: 1,
        incarnation: 1,
        replay_seq: 0,
        members: vec![(0, 700 * UNIT), (700 * UNIT, 324 * UNIT)],
        ..samples::superblock(UNIT as u32)
    };
    disk.superblock(&sb);
    disk.change(sb.members[1].0, |block| _ = label::encode(block, &sb, 1));
    (disk, sb)
}

/// Writes the model as a checkpoint does, in a pool that was not closed.
pub fn checkpoint(disk: &Disk, sb: &Superblock, model: &Model) -> Superblock {
    let used = |unit: u64| !(600..650).contains(&unit);
    let writer =
        Repair { io: disk, sb, alone: false, next_seq: 100, copies: &[], labels: &[], used: &used, doubles: false };
    let mut sb = writer.write(model).expect("there is room");
    disk.superblock(&sb);
    sb.generation += 1;
    sb.clean = false;
    disk.superblock(&sb);
    disk.forget_writes();
    sb
}

pub fn pool() -> Pool {
    let (disk, sb) = formatted();
    let mut model = Model::new(sb.geometry(), 1, sb.journal_blocks);
    checkpointed(&mut model);
    let sb = checkpoint(&disk, &sb, &model);
    let mut walk = Walk::new(&disk, &sb);
    let mut progress = Progress { at: CheckProgress::default(), tell: &mut |_| () };
    walk.read(&mut progress).expect("reads");
    let mut pages: Vec<u64> = walk.pages.keys().copied().collect();
    pages.sort_unstable();
    let ring = Ring::of(&sb);
    let mut seq = sb.replay_seq;
    let mut journal = Vec::new();
    for records in committed() {
        let mut commit = Commit::with_capacity(1);
        records.iter().for_each(|record| commit.push(&sb.geometry(), record));
        commit.seal(&ring, seq);
        for (at, bytes) in commit.pieces(&ring, seq) {
            disk.write(at, bytes).expect("a good disk");
        }
        journal.push(seq);
        seq += commit.blocks();
    }
    disk.forget_writes();
    Pool { disk, sb, pages, journal }
}
