//! The journal for a scan: one piece of it in memory at a time.
//!
//! Owns that piece. A journal may have 64 MiB, most of which is read once. Allocating memory for all of it would take
//! longer than reading it.
//!
//! Called by the replay, which reads neighbouring blocks one after the other.

use std::collections::BTreeMap;

use sheave_base::buf::{Buf, BufError};
use sheave_base::status::Status;

use crate::device::block_io::BlockIo;
use crate::format::block::Block;
use crate::format::journal::Blocks;
use crate::format::{BLOCK, JOURNAL_START};

/// Number of blocks per read.
const PIECE: usize = 64;

/// Reads the journal of a pool.
pub(super) struct Window<'a> {
    io: &'a dyn BlockIo,
    blocks: usize,
    bytes: Buf,
    /// Place of the first block in memory, and number of blocks in memory.
    has: (usize, usize),
    /// The blocks that the device cannot read, which are served as blank. `None` outside of a rescue.
    passed: Option<BTreeMap<usize, Status>>,
}

impl<'a> Window<'a> {
    pub(super) fn new(io: &'a dyn BlockIo, blocks: usize, rescue: bool) -> Result<Window<'a>, BufError> {
        let passed = rescue.then(BTreeMap::new);
        Ok(Window { io, blocks, bytes: Buf::zeroed(PIECE * BLOCK, BLOCK)?, has: (0, 0), passed })
    }

    /// Returns the byte address and error of each block that was passed over.
    pub(super) fn into_passed(self) -> impl Iterator<Item = (u64, Status)> {
        let passed = self.passed.unwrap_or_default().into_iter();
        passed.map(|(place, status)| (JOURNAL_START + (place * BLOCK) as u64, status))
    }

    /// Reads a piece into memory. If that fails in a rescue, reads its blocks one by one.
    fn read(&mut self, first: usize, count: usize) -> Result<(), Status> {
        let at = |place: usize| JOURNAL_START + (place * BLOCK) as u64;
        let bytes = &mut self.bytes[..count * BLOCK];
        let Err(status) = self.io.read(at(first), bytes) else { return Ok(()) };
        let passed = self.passed.as_mut().ok_or(status)?;
        for (place, block) in (first..).zip(bytes.chunks_exact_mut(BLOCK)) {
            if let Err(status) = self.io.read(at(place), block) {
                block.fill(0);
                passed.insert(place, status);
            }
        }
        Ok(())
    }
}

impl Blocks for Window<'_> {
    fn count(&self) -> usize {
        self.blocks
    }

    fn block(&mut self, place: usize) -> Result<&Block, Status> {
        let (first, count) = self.has;
        if !(first..first + count).contains(&place) {
            let first = place - place % PIECE;
            let count = PIECE.min(self.blocks.saturating_sub(first));
            // Empty until the read has succeeded: an error leaves unknown bytes in the piece.
            self.has = (0, 0);
            self.read(first, count)?;
            self.has = (first, count);
        }
        let (blocks, _) = self.bytes.as_chunks::<BLOCK>();
        blocks.get(place - self.has.0).ok_or(Status::IoErr)
    }
}
