//! The journal as a scan asks for it: a piece of it in memory at a time.
//!
//! Owns the piece. A journal may have 64 MiB, of which most is read through once; memory for all of it would have to be
//! made first, which costs more than to read it.
//!
//! Called by the replay, which asks for neighbouring blocks.

use sheave_base::buf::{Buf, BufError};
use sheave_base::status::Status;

use crate::device::block_io::BlockIo;
use crate::format::block::Block;
use crate::format::journal::Blocks;
use crate::format::{BLOCK, JOURNAL_START};

/// Blocks that are read at once.
const PIECE: usize = 64;

/// Reads the journal of a pool.
pub(super) struct Window<'a> {
    io: &'a dyn BlockIo,
    blocks: usize,
    bytes: Buf,
    /// The place of the first block that is in memory, and how many are.
    has: (usize, usize),
}

impl<'a> Window<'a> {
    pub(super) fn new(io: &'a dyn BlockIo, blocks: usize) -> Result<Window<'a>, BufError> {
        Ok(Window { io, blocks, bytes: Buf::zeroed(PIECE * BLOCK, BLOCK)?, has: (0, 0) })
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
            self.has = (0, 0);
            self.io.read(JOURNAL_START + (first * BLOCK) as u64, &mut self.bytes[..count * BLOCK])?;
            self.has = (first, count);
        }
        let (blocks, _) = self.bytes.as_chunks::<BLOCK>();
        blocks.get(place - self.has.0).ok_or(Status::IoErr)
    }
}
