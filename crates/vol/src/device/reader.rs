//! Reading many pages: sorted by address, in long runs, a bounded number at a time.
//!
//! Owns the order of reads. If a batch cannot be read as a whole, reads each of its pages singly. Does not own the
//! content of pages.

use std::sync::mpsc::sync_channel;
use std::thread;

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
///
/// Several batches are read ahead by a thread, one while `take` works on the one before.
pub(crate) fn read_each<W: Want + Sync>(
    io: &dyn BlockIo,
    unit_bytes: u64,
    mut wants: Vec<W>,
    bad: &mut Vec<u64>,
    take: &mut TakeEach<'_, W>,
) -> Result<(), PoolError> {
    wants.sort_unstable_by_key(Want::address);
    let buffer = || Buf::zeroed(wants.len().min(BATCH) * BLOCK, BLOCK).map_err(|_| failed(Status::NoMem));
    let mut taker = Taker { io, unit_bytes, unreadable: 0, bad, take };
    if wants.len() <= BATCH {
        let mut memory = buffer()?;
        let read = io.read_many(&mut runs_of(&wants, &mut memory));
        return taker.batch(&wants, &memory, read.is_ok());
    }
    let (ready, batches) = sync_channel(1);
    let (spare, free) = sync_channel(2);
    for memory in [buffer()?, buffer()?] {
        // There is room for two, and the receiver is here.
        let _ = spare.send(memory);
    }
    let wants = wants.as_slice();
    // Takes the ends of the channels along: when this returns early, the thread must find them gone.
    thread::scope(move |scope| {
        let (spare, batches) = (spare, batches);
        let ahead = move || {
            for batch in wants.chunks(BATCH) {
                let Ok(mut memory) = free.recv() else { return };
                let is_read = io.read_many(&mut runs_of(batch, &mut memory)).is_ok();
                // Fails if `take` has failed, and nobody wants the rest.
                if ready.send((memory, is_read)).is_err() {
                    return;
                }
            }
        };
        // The closure is dropped if no thread can be started. That ends the channel, and the batches are read here.
        let started = thread::Builder::new().name("sheave-read".into()).spawn_scoped(scope, ahead).is_ok();
        for batch in wants.chunks(BATCH) {
            match batches.recv() {
                Ok((memory, is_read)) => {
                    taker.batch(batch, &memory, is_read)?;
                    // Fails after the last batch.
                    let _ = spare.send(memory);
                }
                Err(_) => {
                    debug_assert!(!started, "the thread reads every batch");
                    taker.batch(batch, &[], false)?;
                }
            }
        }
        Ok(())
    })
}

/// The work on batches that were read.
struct Taker<'a, 'b, W> {
    io: &'a dyn BlockIo,
    unit_bytes: u64,
    unreadable: usize,
    bad: &'a mut Vec<u64>,
    take: &'a mut TakeEach<'b, W>,
}

impl<W: Want> Taker<'_, '_, W> {
    /// Passes the pages of a batch on. A batch that could not be read as a whole is read again page by page.
    fn batch(&mut self, batch: &[W], memory: &[u8], is_read: bool) -> Result<(), PoolError> {
        let Taker { io, unit_bytes, unreadable, bad, take } = self;
        let mut second = [0; BLOCK];
        if is_read {
            for (at, want) in batch.iter().enumerate() {
                if let Some(block) = block_at(memory, at) {
                    take(want, or_second(*io, *unit_bytes, want, Ok(block), &mut second, bad))?;
                }
            }
            return Ok(());
        }
        for want in batch {
            let mut block = [0; BLOCK];
            let read = io.read(want.address(), &mut block).map(|()| &block);
            let read = or_second(*io, *unit_bytes, want, read, &mut second, bad);
            *unreadable += usize::from(read.is_err());
            match read {
                Err(status) if *unreadable > MAX_UNREADABLE => return Err(failed(status)),
                read => take(want, read)?,
            }
        }
        Ok(())
    }
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

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    /// A device whose blocks contain the low byte of their number. One cannot be read.
    struct Numbered {
        bad: u64,
    }

    impl BlockIo for Numbered {
        fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), Status> {
            for (number, block) in (at / BLOCK_BYTES..).zip(buf.chunks_mut(BLOCK)) {
                if number == self.bad {
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
            1 << 40
        }
    }

    struct Page(u64);

    impl Want for Page {
        fn address(&self) -> u64 {
            self.0 * BLOCK_BYTES
        }

        fn second_copy(&self, _: u64) -> Option<u64> {
            None
        }

        fn vouches_for(&self, _: &Block) -> bool {
            true
        }
    }

    /// The numbers of more pages than four batches have, some of them beside each other.
    fn pages() -> Vec<Page> {
        (0..4 * BATCH as u64 + 7).rev().map(|at| Page(at * 2 - at % 2)).collect()
    }

    #[test]
    fn every_page_of_several_batches_comes_once_and_in_order() {
        let (mut seen, mut bad, unreadable) = (Vec::new(), Vec::new(), 2 * (2 * BATCH as u64 + 4));
        let mut take = |page: &Page, block: Result<&Block, Status>| {
            seen.push(page.0);
            match block {
                Ok(block) => assert!(page.0 != unreadable && block.iter().all(|byte| *byte == page.0 as u8)),
                Err(status) => assert_eq!((page.0, status), (unreadable, Status::Medium)),
            }
            Ok(())
        };
        read_each(&Numbered { bad: unreadable }, 65536, pages(), &mut bad, &mut take).expect("one may be unreadable");
        let mut all: Vec<u64> = pages().iter().map(|page| page.0).collect();
        all.reverse();
        assert_eq!(seen, all);
        assert_eq!(bad, []);
    }

    #[test]
    fn a_walk_that_ends_early_leaves_no_thread_waiting() {
        for end in [0, 1, BATCH, 2 * BATCH + 1, 4 * BATCH] {
            let mut many = 0;
            let mut take = |_: &Page, _: Result<&Block, Status>| {
                many += 1;
                if many > end { Err(failed(Status::NoMem)) } else { Ok(()) }
            };
            let walked = read_each(&Numbered { bad: u64::MAX }, 65536, pages(), &mut Vec::new(), &mut take);
            assert!(walked.is_err());
            assert_eq!(many, end + 1);
        }
    }
}
