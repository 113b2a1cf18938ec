//! Permitted contents of a device's blocks: the writes to each block, oldest first, and how they ended.
//!
//! A write is identified by its stamp, which fills its blocks; stamp 0 is zeroes. Writes to one block never overlap in
//! time (the program takes care of that), so their order is known.
//!
//! Invariants:
//! - M1: a block holds its last successful write, or a failed one after that: a failed write leaves old or new blocks
//!   behind.
//! - M2: after a power cut a block holds any of its writes from the last one on that is known to be durable.

use std::ops::Range;

/// Bytes of a block, the unit in which devices of these tests fail.
pub const BLOCK: usize = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Pending,
    Failed,
    /// Succeeded at this time of the model.
    Done(u64),
}

#[derive(Clone, Debug)]
struct Write {
    stamp: u64,
    fate: Fate,
}

#[derive(Debug)]
pub struct Model {
    blocks: Vec<Vec<Write>>,
    now: u64,
}

impl Model {
    /// Makes the model of a device of zeroes.
    pub fn new(blocks: usize) -> Model {
        Model { blocks: vec![vec![Write { stamp: 0, fate: Fate::Done(0) }]; blocks], now: 0 }
    }

    /// Returns the time of the model, which grows with every end of a write.
    pub fn now(&self) -> u64 {
        self.now
    }

    pub fn start(&mut self, range: Range<usize>, stamp: u64) {
        self.blocks[range].iter_mut().for_each(|writes| writes.push(Write { stamp, fate: Fate::Pending }));
    }

    pub fn end(&mut self, range: Range<usize>, stamp: u64, ok: bool) {
        self.now += 1;
        let fate = if ok { Fate::Done(self.now) } else { Fate::Failed };
        for writes in &mut self.blocks[range] {
            pending(writes, stamp).fate = fate;
        }
    }

    /// Removes a write that was cancelled before it began.
    pub fn forget(&mut self, range: Range<usize>, stamp: u64) {
        for writes in &mut self.blocks[range] {
            let at = writes.iter().position(|write| write.stamp == stamp && write.fate == Fate::Pending);
            writes.remove(at.expect("a write ends once"));
        }
    }

    /// Records that all writes that had ended at `since` are durable.
    pub fn flushed(&mut self, since: u64) {
        for writes in &mut self.blocks {
            let durable = |write: &Write| matches!(write.fate, Fate::Done(at) if at <= since);
            // A later flush may have ended before this one, and left no write so old.
            writes.drain(..writes.iter().rposition(durable).unwrap_or(0));
        }
    }

    /// Records that the last successful write to the range is durable: it was a write with DSYNC.
    pub fn durable(&mut self, range: Range<usize>) {
        self.blocks[range].iter_mut().for_each(|writes| drop(writes.drain(..last_done(writes))));
    }

    /// Returns true if M1 permits this stamp.
    pub fn may_hold(&self, block: usize, stamp: u64) -> bool {
        let writes = &self.blocks[block];
        writes[last_done(writes)..].iter().any(|write| write.stamp == stamp && write.fate != Fate::Pending)
    }

    /// Returns true if M2 permits this stamp.
    pub fn may_survive(&self, block: usize, stamp: u64) -> bool {
        self.blocks[block].iter().any(|write| write.stamp == stamp)
    }

    /// Returns the writes of a block, for a message.
    pub fn history(&self, block: usize) -> String {
        format!("{:?}", self.blocks[block])
    }
}

fn last_done(writes: &[Write]) -> usize {
    writes.iter().rposition(|write| matches!(write.fate, Fate::Done(_))).expect("the first succeeded")
}

fn pending(writes: &mut [Write], stamp: u64) -> &mut Write {
    let found = writes.iter_mut().find(|write| write.stamp == stamp && write.fate == Fate::Pending);
    found.expect("a write ends once")
}

/// Fills memory for blocks from `block` on.
pub fn fill(memory: &mut [u8], block: usize, stamp: u64) {
    for (at, bytes) in memory.chunks_mut(BLOCK).enumerate() {
        bytes.copy_from_slice(&content(block + at, stamp));
    }
}

fn content(block: usize, stamp: u64) -> [u8; BLOCK] {
    let mut bytes = [0; BLOCK];
    if stamp != 0 {
        for (at, word) in bytes.chunks_mut(8).enumerate() {
            let value = if at == 0 { stamp } else { stamp.wrapping_mul(0x9e37_79b9) ^ (block * BLOCK + at) as u64 };
            word.copy_from_slice(&value.to_le_bytes());
        }
    }
    bytes
}

/// Returns the stamp of a block's bytes; `None` if no write to this block can have made them.
pub fn stamp_of(bytes: &[u8], block: usize) -> Option<u64> {
    let stamp = u64::from_le_bytes(bytes[..8].try_into().expect("a block has 8 bytes"));
    (bytes == content(block, stamp)).then_some(stamp)
}
