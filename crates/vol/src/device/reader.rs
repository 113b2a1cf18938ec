//! Reading many pages: sorted by address, in long runs, a bounded number at a time.
//!
//! Owns the order of reads. Does not own what is in the pages.

use sheave_base::buf::Buf;
use sheave_base::status::Status;

use crate::device::block_io::BlockIo;
use crate::error::PoolError;
use crate::format::block::Block;
use crate::format::{BLOCK, BLOCK_BYTES};

/// Pages read at a time: 16 MiB.
const BATCH: usize = 4096;
/// Longest single read.
const RUN_BYTES: usize = 1 << 20;

/// Something that wants the page at an address.
pub(crate) trait Want {
    fn address(&self) -> u64;
}

/// Reads the page of each, in the order of their addresses, and gives it to `take`.
pub(crate) fn read_pages<W: Want>(
    io: &dyn BlockIo,
    mut wants: Vec<W>,
    take: &mut dyn FnMut(&W, &Block) -> Result<(), PoolError>,
) -> Result<(), PoolError> {
    wants.sort_unstable_by_key(Want::address);
    let most = wants.len().min(BATCH);
    let failed = |status: Status| PoolError::Io {
        what: "reading metadata pages".into(),
        status,
        fix: "Check the device and its cables, and try again".into(),
    };
    let mut memory = Buf::zeroed(most * BLOCK, BLOCK).map_err(|_| failed(Status::NoMem))?;
    for batch in wants.chunks(BATCH) {
        let mut runs: Vec<(u64, &mut [u8])> = Vec::new();
        let mut rest: &mut [u8] = &mut memory;
        let mut from = 0;
        while from < batch.len() {
            let start = batch[from].address();
            let follows = |count: usize| {
                batch.get(from + count).is_some_and(|want| want.address() == start + count as u64 * BLOCK_BYTES)
            };
            let count = (1..RUN_BYTES / BLOCK).find(|count| !follows(*count)).unwrap_or(RUN_BYTES / BLOCK);
            let (run, more) = rest.split_at_mut(count * BLOCK);
            runs.push((start, run));
            rest = more;
            from += count;
        }
        io.read_many(&mut runs).map_err(failed)?;
        for (at, want) in batch.iter().enumerate() {
            if let Some(block) = block_at(&memory, at) {
                take(want, block)?;
            }
        }
    }
    Ok(())
}

/// A block of a larger buffer.
fn block_at(bytes: &[u8], number: usize) -> Option<&Block> {
    bytes.get(number * BLOCK..(number + 1) * BLOCK)?.try_into().ok()
}
