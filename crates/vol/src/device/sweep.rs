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

    /// Returns the largest number of blocks in a batch.
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
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Device whose blocks contain their number; some cannot be read.
    struct Numbered {
        bad: Vec<u64>,
        reads: Mutex<Vec<(u64, usize)>>,
    }

    impl BlockIo for Numbered {
        fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), Status> {
            self.reads.lock().unwrap().push((at / BLOCK_BYTES, buf.len() / BLOCK));
            for (number, block) in (at / BLOCK_BYTES..).zip(buf.chunks_mut(BLOCK)) {
                if self.bad.contains(&number) {
                    return Err(Status::Medium);
                }
                block.fill(number as u8);
            }
            Ok(())
        }

        fn write(&self, _: u64, _: &[u8]) -> Result<(), Status> {
            Err(Status::ReadOnly)
        }

        fn flush(&self) -> Result<(), Status> {
            Ok(())
        }

        fn discard(&self, _: u64, _: u64) -> Result<(), Status> {
            Ok(())
        }

        fn size_bytes(&self) -> u64 {
            1 << 30
        }
    }

    fn numbered(bad: &[u64]) -> Numbered {
        Numbered { bad: bad.to_vec(), reads: Mutex::default() }
    }

    #[test]
    fn neighbours_are_read_in_one_run() {
        let io = numbered(&[]);
        let mut sweep = Sweep::new(8).unwrap();
        sweep.read(&io, &[5, 6, 7, 9, 3].map(|number| number * BLOCK_BYTES));
        assert_eq!(*io.reads.lock().unwrap(), [(5, 3), (9, 1), (3, 1)]);
        for (at, number) in [5, 6, 7, 9, 3].into_iter().enumerate() {
            assert!(sweep.block(at).unwrap().iter().all(|byte| *byte == number));
        }
        assert!(sweep.block(5).is_err(), "nobody asked for it");
        sweep.read(&io, &[1]);
        assert!(sweep.block(0).is_ok() && sweep.block(1).is_err(), "of the batch before");
        sweep.read(&io, &[0; 9]);
        assert!(sweep.block(7).is_ok() && sweep.block(8).is_err(), "no more than there is memory for");
    }

    #[test]
    fn one_bad_block_costs_one_block() {
        let io = numbered(&[6]);
        let mut sweep = Sweep::new(8).unwrap();
        sweep.read(&io, &[5, 6, 7, 9].map(|number| number * BLOCK_BYTES));
        let read: Vec<bool> = (0..4).map(|at| sweep.block(at).is_ok()).collect();
        assert_eq!(read, [true, false, true, true]);
        assert_eq!(sweep.block(1), Err(Status::Medium));
        assert_eq!(sweep.block(2).unwrap()[0], 7);
    }
}
