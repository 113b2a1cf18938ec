//! Sweeps: reads of many blocks at once, each block with its own status.
//!
//! Owns the batching: adjacent blocks are read as one run, and all runs of a batch together, with the queue depth of
//! [`BlockIo::read_many`]. A batch that fails is read again block by block, so that one bad sector costs only one
//! block. Does not own the content of the blocks.
//!
//! Called by the offline check, by scrubs, and by comparisons of volumes.

use sheave_base::buf::Buf;
use sheave_base::status::Status;

use crate::device::block_io::BlockIo;
use crate::format::block::Block;
use crate::format::{BLOCK, BLOCK_BYTES};

/// Longest single read, in bytes.
const RUN_BYTES: usize = 1 << 20;

/// Memory for a batch of blocks, and the status of each.
pub(crate) struct Sweep {
    memory: Buf,
    statuses: Vec<Status>,
}

impl Sweep {
    /// Creates a sweep for batches of at most `blocks` blocks.
    pub(crate) fn new(blocks: usize) -> Result<Sweep, Status> {
        let memory = Buf::zeroed(blocks * BLOCK, BLOCK).map_err(|_| Status::NoMem)?;
        Ok(Sweep { memory, statuses: Vec::with_capacity(blocks) })
    }

    /// Returns the most blocks of a batch.
    pub(crate) fn most(&self) -> usize {
        self.memory.len() / BLOCK
    }

    /// Reads the blocks at `addresses`. Addresses beyond [`Sweep::most`] are ignored.
    pub(crate) fn read(&mut self, io: &dyn BlockIo, addresses: &[u64]) {
        let addresses = &addresses[..addresses.len().min(self.most())];
        self.statuses.clear();
        self.statuses.resize(addresses.len(), Status::Ok);
        let mut runs: Vec<(u64, &mut [u8])> = Vec::new();
        let mut rest: &mut [u8] = &mut self.memory;
        let mut from = 0;
        while from < addresses.len() {
            let start = addresses[from];
            let follows =
                |count: usize| addresses.get(from + count) == Some(&start.wrapping_add(count as u64 * BLOCK_BYTES));
            let count = (1..RUN_BYTES / BLOCK).find(|count| !follows(*count)).unwrap_or(RUN_BYTES / BLOCK);
            let (run, more) = rest.split_at_mut(count * BLOCK);
            runs.push((start, run));
            rest = more;
            from += count;
        }
        if io.read_many(&mut runs).is_ok() {
            return;
        }
        for ((block, status), &at) in self.memory.chunks_mut(BLOCK).zip(&mut self.statuses).zip(addresses) {
            *status = io.read(at, block).err().unwrap_or(Status::Ok);
        }
    }

    /// Returns block `at` of the batch, or the status with which its read failed.
    pub(crate) fn block(&self, at: usize) -> Result<&Block, Status> {
        match self.statuses.get(at) {
            Some(Status::Ok) => {
                let block = self.memory.get(at * BLOCK..(at + 1) * BLOCK).and_then(|block| block.try_into().ok());
                block.ok_or(Status::Invalid)
            }
            Some(status) => Err(*status),
            None => Err(Status::Invalid),
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
