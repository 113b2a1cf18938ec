//! The end of an I/O on a volume with checksums when it must read from the device.
//!
//! Owns the treatment of writes that overlap in one block, and of mismatches. The part that needs no read runs on a
//! ring's thread without blocking, in [`data`](crate::state::sums::data).
//!
//! - D2: a write to a block that has a [mark](super::marks) removes the mark, durably, before the write ends: its
//!   caller may rely on it being durable then.
//! - D3: a write fails if its blocks must be read back and cannot be read. Such a block may contain another write that
//!   has succeeded before, so it becomes [unknown](crate::state::sums::unknown) and is not reported as bad.
//!
//! Called by volumes on a worker, by copies of shared units, and by scrubs.

use sheave_base::buf::Buf;
use sheave_base::status::Status;
use sheave_base::sync::atomic::Ordering;
use sheave_base::wait;
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::{Mapping, MappingKind, SummedDone};

use crate::device::block_io::BlockIo;
use crate::device::reader::{MAX_UNREADABLE, read_again};
use crate::engine::inner::PoolInner;
use crate::format::BLOCK;
use crate::format::BLOCK_SHIFT;
use crate::state::sums::data::{blocks, is_summed};
use crate::state::sums::marks::Mismatch;
use crate::state::sums::{Sums, crc};

/// Largest number of attempts to read a block that writes keep changing. Then the read of the whole range starts again.
const LOOKS: u32 = 4;

/// The proven state of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Look {
    /// The block matches its checksum.
    Good,
    /// Writes were under way at every attempt to read the block.
    Busy,
    /// The block does not match, and is to be marked.
    Bad(Mismatch),
    /// The block was marked before, and has not been written since.
    Marked,
}

impl Sums {
    /// Ends an I/O on a thread that may block.
    pub(crate) fn end_blocking(&self, pool: &PoolInner, done: &SummedDone<'_>, token: &MayBlock) -> Result<(), Status> {
        if done.write { self.end_write_blocking(pool, done) } else { self.verify_blocking(pool, done, token) }
    }

    /// Ends a write that found a mark, or whose blocks may contain something else because it failed or overlapped
    /// another write. Removes the marks only if the write succeeded: reading a bad block back does not make it good
    /// (S3, D2).
    fn end_write_blocking(&self, pool: &PoolInner, done: &SummedDone<'_>) -> Result<(), Status> {
        let unmarked = if done.status.is_ok() { self.written_anew(pool, done) } else { Ok(()) };
        self.end_or_read_back(&*pool.io, done).and(unmarked)
    }

    /// Ends a checksummed write. If it failed or overlapped another write, reads its blocks back and stores the
    /// checksums of their present content (S3).
    pub(crate) fn end_or_read_back(&self, io: &dyn BlockIo, done: &SummedDone<'_>) -> Result<(), Status> {
        if self.end_alone(done).is_ok() {
            return Ok(());
        }
        // One thread at a time reads back. Of two threads, the one that read earlier could otherwise store its checksum
        // later.
        let one = wait::lock(&self.repair);
        let mut result = if done.status.is_ok() { Ok(()) } else { Err(done.status) };
        for piece in done.pieces.iter().filter(is_summed) {
            result = result.and(self.read_back(io, piece));
        }
        drop(one);
        // The write ends after its checksums are stored: until then its blocks cannot be found bad (S4).
        let written = done.pieces.iter().filter(is_summed).flat_map(blocks);
        written.for_each(|block| self.stripes.end(block));
        result
    }

    /// Removes the marks of blocks that were written (D2). This precedes the end of the write, so that a read between
    /// the two steps does not fail because of the old mark.
    fn written_anew(&self, pool: &PoolInner, done: &SummedDone<'_>) -> Result<(), Status> {
        let mut state = pool.lock();
        let pieces = done.pieces.iter().filter(is_summed);
        let any = pieces.fold(false, |any, piece| pool.unmark(&mut state, blocks(piece)) | any);
        drop(state);
        if any { pool.commit() } else { Ok(()) }
    }

    /// Stores the checksums of the blocks as the device has them. A block that cannot be read becomes unknown (D3).
    fn read_back(&self, io: &dyn BlockIo, piece: &Mapping) -> Result<(), Status> {
        let whole = Buf::zeroed(piece.len as usize, BLOCK).map_err(|_| Status::NoMem);
        let whole = whole.and_then(|mut memory| io.read(piece.addr, &mut memory).map(|()| memory));
        let result = match &whole {
            Ok(memory) => {
                blocks(piece)
                    .zip(memory.chunks_exact(BLOCK))
                    .for_each(|(number, block)| self.set_read(number, crc(block)));
                Ok(())
            }
            Err(_) => self.read_back_each(io, blocks(piece)),
        };
        self.mark_dirty(self.region_at(piece.addr));
        result
    }

    fn read_back_each(&self, io: &dyn BlockIo, blocks: std::ops::Range<u64>) -> Result<(), Status> {
        let mut memory = Buf::zeroed(BLOCK, BLOCK);
        let mut result = Ok(());
        for number in blocks {
            let read = match &mut memory {
                Ok(block) => read_again(io, number << BLOCK_SHIFT, block).map(|()| crc(block)),
                Err(_) => Err(Status::NoMem),
            };
            match read {
                Ok(sum) => self.set_read(number, sum),
                Err(status) => {
                    self.doubt(number, MAX_UNREADABLE);
                    result = Err(status);
                }
            }
        }
        result
    }

    /// Called when a block of a read did not match its checksum: either it was written during the read, or it is bad.
    fn verify_blocking(&self, pool: &PoolInner, done: &SummedDone<'_>, token: &MayBlock) -> Result<(), Status> {
        let read = done.pieces.iter().filter(is_summed).filter(|piece| piece.kind == MappingKind::Mapped);
        for piece in read {
            let first = blocks(piece).start;
            let mut result = Ok(());
            let from = piece.offset - done.pos;
            let all = done.memory.each_block(from, piece.len, BLOCK, &mut |number, block| {
                if self.get(first + number) != Some(crc(block)) || self.is_marked(first + number) {
                    result = if token.is_cancelled() {
                        Err(Status::Canceled)
                    } else {
                        let to = from + (number << BLOCK_SHIFT);
                        self.answer(pool, first + number, &mut |good| done.memory.put(to, good))
                    };
                }
                result.is_ok()
            });
            result?;
            if !all {
                return Err(Status::Invalid);
            }
        }
        Ok(())
    }

    /// Passes the current content of block `number` to `put`.
    ///
    /// # Errors
    ///
    /// `Protection` if the block is bad (marked durably first), `Again` if writes keep changing it.
    fn answer(&self, pool: &PoolInner, number: u64, put: &mut dyn FnMut(&[u8]) -> bool) -> Result<(), Status> {
        let mut good = Buf::zeroed(BLOCK, BLOCK).map_err(|_| Status::NoMem)?;
        match self.settle(&*pool.io, number, &mut good)? {
            Look::Good => return if put(&good) { Ok(()) } else { Err(Status::Invalid) },
            Look::Busy => return Err(Status::Again),
            Look::Bad(found) if !pool.mark(found)? => return Err(Status::Again),
            Look::Bad(_) | Look::Marked => {}
        }
        self.mismatches.fetch_add(1, Ordering::Relaxed); // Relaxed: a statistic.
        pool.make_marks_durable()?;
        Err(Status::Protection)
    }

    /// Reads a block into `to` until it matches its checksum, or is proven not to (S4).
    pub(crate) fn settle(&self, io: &dyn BlockIo, number: u64, to: &mut [u8]) -> Result<Look, Status> {
        let mut memory = Buf::zeroed(BLOCK, BLOCK).map_err(|_| Status::NoMem)?;
        for _ in 0..LOOKS {
            if self.is_marked(number) {
                return Ok(Look::Marked);
            }
            let before = self.stripes.quiet(number);
            io.read(number << BLOCK_SHIFT, &mut memory)?;
            if self.get(number) == Some(crc(&memory)) {
                to.copy_from_slice(&memory);
                return Ok(Look::Good);
            }
            // The stripe did not change during the read: no write explains the mismatch (S4).
            if let Some(word) = before.filter(|_| self.stripes.quiet(number) == before) {
                // The checksum of the block was unknown, so the checksum of the data just read is accepted.
                if self.learn(number, crc(&memory)) {
                    to.copy_from_slice(&memory);
                    return Ok(Look::Good);
                }
                return Ok(Look::Bad(Mismatch { block: number, word }));
            }
        }
        Ok(Look::Busy)
    }

    /// Verifies the data of a unit that is being copied, which `copy` holds, and appends the unit's bad blocks to
    /// `bad`. `first` is the number of the unit's first block. No writes go to such a unit.
    ///
    /// # Errors
    ///
    /// `Again` if writes to other blocks of the same stripes never stop.
    pub(crate) fn verify_copy(
        &self,
        io: &dyn BlockIo,
        first: u64,
        copy: &mut [u8],
        bad: &mut Vec<Mismatch>,
    ) -> Result<(), Status> {
        for (number, block) in (first..).zip(copy.chunks_exact_mut(BLOCK)) {
            if self.get(number) == Some(crc(block)) || self.is_marked(number) {
                continue;
            }
            match self.settle(io, number, block)? {
                Look::Good | Look::Marked => {}
                Look::Bad(found) => bad.push(found),
                Look::Busy => return Err(Status::Again),
            }
        }
        Ok(())
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::format::superblock::Geometry;

    const NUMBER: u64 = 5;

    /// A device of one block, which is written while it is read.
    struct Written<'a> {
        sums: &'a Sums,
        block: Mutex<[u8; BLOCK]>,
        /// Content of the writes that come during the next reads, in reverse order.
        next: Mutex<Vec<u8>>,
    }

    impl BlockIo for Written<'_> {
        fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), Status> {
            assert_eq!((at, buf.len()), (NUMBER << BLOCK_SHIFT, BLOCK));
            let mut block = self.block.lock().unwrap();
            buf.copy_from_slice(&*block);
            if let Some(next) = self.next.lock().unwrap().pop() {
                self.sums.stripes.begin(NUMBER);
                block.fill(next);
                self.sums.set(NUMBER, crc(&*block));
                assert!(self.sums.stripes.end_alone(NUMBER));
            }
            Ok(())
        }

        fn write(&self, _: u64, _: &[u8]) -> Result<(), Status> {
            Err(Status::NotSupp)
        }

        fn flush(&self) -> Result<(), Status> {
            Ok(())
        }

        fn discard(&self, _: u64, _: u64) -> Result<(), Status> {
            Err(Status::NotSupp)
        }

        fn size_bytes(&self) -> u64 {
            1 << 30
        }
    }

    /// Settles a block that holds 1, has the checksum of `sum`, and is written with each of `next` while it is read.
    fn settled(sum: u8, next: &[u8]) -> (Look, u8) {
        let sums = Sums::new(&Geometry::new(1 << 16, 1 << 20, 16));
        assert!(sums.arena.make(0));
        sums.set(NUMBER, crc(&[sum; BLOCK]));
        let next = Mutex::new(next.iter().rev().copied().collect());
        let io = Written { sums: &sums, block: Mutex::new([1; BLOCK]), next };
        let mut good = [0; BLOCK];
        let look = sums.settle(&io, NUMBER, &mut good).unwrap();
        (look, good[9])
    }

    /// S4. The write ends between the read and the second look: the data read is from before, the checksum from after.
    #[test]
    fn a_block_that_was_written_while_it_was_read_is_no_mismatch() {
        assert!(matches!(settled(1, &[]), (Look::Good, 1)));
        assert!(matches!(settled(2, &[]), (Look::Bad(Mismatch { block: NUMBER, .. }), _)), "it is what nobody wrote");
        assert!(matches!(settled(1, &[7]), (Look::Good, 7)));
        assert!(matches!(settled(2, &[7]), (Look::Good, 7)), "it was, and has been written since");
        assert!(matches!(settled(1, &[7, 8, 9]), (Look::Good, 9)));
        assert!(matches!(settled(1, &[7, 8, 9, 10, 11]), (Look::Busy, _)), "one write after the other");
    }
}
