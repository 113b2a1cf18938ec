//! Reading many pages: sorted by address, in long runs, a bounded number at a time.
//!
//! Owns the order of reads. If a batch cannot be read as a whole, reads each of its pages singly. Does not own the
//! content of pages.

use sheave_base::buf::Buf;
use sheave_base::status::Status;

use crate::device::block_io::BlockIo;
use crate::error::PoolError;
use crate::format::block::Block;
use crate::format::{BLOCK, BLOCK_BYTES};

/// Number of pages read at a time: 16 MiB.
const BATCH: usize = 4096;
/// Longest single read, in bytes.
const RUN_BYTES: usize = 1 << 20;
/// Largest number of pages that the device may fail to read before the walk fails: a disk may take seconds for each.
pub(crate) const MAX_UNREADABLE: usize = 256;

/// Number of attempts to read a block that has no second copy, before it counts as unreadable.
pub(crate) const READS: usize = 3;

/// Reads a block. Repeats a failed read, because its error may be transient.
pub(crate) fn read_again(io: &dyn BlockIo, at: u64, block: &mut [u8]) -> Result<(), Status> {
    let mut result = io.read(at, block);
    for _ in 1..READS {
        result = result.or_else(|_| io.read(at, block));
    }
    result
}

/// Request for the page at an address.
pub(crate) trait Want {
    fn address(&self) -> u64;
    /// Returns the address of the second copy, if the page has one.
    fn second_copy(&self, unit_bytes: u64) -> Option<u64>;
    /// Returns true if `block` is exactly the requested page.
    fn vouches_for(&self, block: &Block) -> bool;
}

/// Returns the error for metadata that the device cannot read.
pub(crate) fn failed(status: Status) -> PoolError {
    PoolError::Io {
        what: "reading metadata pages".into(),
        status,
        fix: "Check the device and its cables, and try again".into(),
    }
}

/// Receiver of each page, or of the status with which its read failed.
pub(crate) type TakeEach<'a, W> = dyn FnMut(&W, Result<&Block, Status>) -> Result<(), PoolError> + 'a;

/// Returns the second copy of a page if the first is bad and the second is good, and then appends the address of the
/// first copy to `bad`. Otherwise returns `first` unchanged.
fn or_second<'a, W: Want>(
    io: &dyn BlockIo,
    unit_bytes: u64,
    want: &W,
    first: Result<&'a Block, Status>,
    memory: &'a mut Block,
    bad: &mut Vec<u64>,
) -> Result<&'a Block, Status> {
    let Some(second) = want.second_copy(unit_bytes) else { return first };
    if first.is_ok_and(|block| want.vouches_for(block)) || io.read(second, memory).is_err() {
        return first;
    }
    if !want.vouches_for(memory) {
        return first;
    }
    bad.push(want.address());
    Ok(memory)
}

/// Reads the pages of `wants` in the order of their addresses, and passes each page, or the status with which its read
/// failed, to `take`. Fails after more than [`MAX_UNREADABLE`] failed reads. If the first copy of a page is bad and the
/// second is good, `take` gets the second, and `bad` the address of the first.
pub(crate) fn read_each<W: Want>(
    io: &dyn BlockIo,
    unit_bytes: u64,
    mut wants: Vec<W>,
    bad: &mut Vec<u64>,
    take: &mut TakeEach<'_, W>,
) -> Result<(), PoolError> {
    wants.sort_unstable_by_key(Want::address);
    let most = wants.len().min(BATCH);
    let mut memory = Buf::zeroed(most * BLOCK, BLOCK).map_err(|_| failed(Status::NoMem))?;
    let (mut unreadable, mut second) = (0, [0; BLOCK]);
    for batch in wants.chunks(BATCH) {
        if io.read_many(&mut runs_of(batch, &mut memory)).is_ok() {
            for (at, want) in batch.iter().enumerate() {
                if let Some(block) = block_at(&memory, at) {
                    take(want, or_second(io, unit_bytes, want, Ok(block), &mut second, bad))?;
                }
            }
            continue;
        }
        for want in batch {
            let mut block = [0; BLOCK];
            let read = io.read(want.address(), &mut block).map(|()| &block);
            let read = or_second(io, unit_bytes, want, read, &mut second, bad);
            unreadable += usize::from(read.is_err());
            match read {
                Err(status) if unreadable > MAX_UNREADABLE => return Err(failed(status)),
                read => take(want, read)?,
            }
        }
    }
    Ok(())
}

/// Returns the reads of a batch. Its pages get consecutive places in `memory`, and pages at consecutive addresses share
/// a read.
fn runs_of<'a, W: Want>(batch: &[W], memory: &'a mut [u8]) -> Vec<(u64, &'a mut [u8])> {
    let mut runs = Vec::new();
    let (mut rest, mut from) = (memory, 0);
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
    runs
}

fn block_at(bytes: &[u8], number: usize) -> Option<&Block> {
    bytes.get(number * BLOCK..(number + 1) * BLOCK)?.try_into().ok()
}
