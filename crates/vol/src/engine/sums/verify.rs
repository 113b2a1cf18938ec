//! What an I/O on a volume with checksums does at its end when that takes reading.
//!
//! Owns what becomes of writes to one block at once, and what a mismatch means. The quick halves, which run on a ring's
//! thread, are in [`data`](crate::state::sums::data).
//!
//! - D2: a write to a block that was told bad takes its [mark](super::marks) off, durably, before it ends: it may have
//!   to be durable itself.
//! - D3: a write whose blocks are to be read back, and cannot be, fails. Another write to such a block may have ended
//!   well before, and may be what lies there: so the block is [unknown](crate::state::sums::unknown), and nobody takes
//!   it for bad.
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

/// How often a block is read before a write that is always in the way makes the whole read begin anew.
const LOOKS: u32 = 4;

/// What a block is, surely.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Look {
    /// It matches its checksum.
    Good,
    /// It is being written all the time.
    Busy,
    /// It does not match, and is to be marked.
    Bad(Mismatch),
    /// It was told bad and not written since.
    Marked,
}

impl Sums {
    /// The end of an I/O where it may block.
    pub(crate) fn end_blocking(&self, pool: &PoolInner, done: &SummedDone<'_>, token: &MayBlock) -> Result<(), Status> {
        if done.write { self.end_write_blocking(pool, done) } else { self.verify_blocking(pool, done, token) }
    }

    /// The write met a mark, which goes, or what is on the device is not surely what was written: it failed, or another
    /// wrote the same. Then that is read back (S3). A block that was bad is not made good by reading it.
    fn end_write_blocking(&self, pool: &PoolInner, done: &SummedDone<'_>) -> Result<(), Status> {
        let unmarked = if done.status.is_ok() { self.written_anew(pool, done) } else { Ok(()) };
        self.end_or_read_back(&*pool.io, done).and(unmarked)
    }

    /// The end of a write: alone, or with checksums of what its blocks hold on the device now (S3).
    pub(crate) fn end_or_read_back(&self, io: &dyn BlockIo, done: &SummedDone<'_>) -> Result<(), Status> {
        if self.end_alone(done).is_ok() {
            return Ok(());
        }
        let one = wait::lock(&self.repair);
        let mut result = if done.status.is_ok() { Ok(()) } else { Err(done.status) };
        for piece in done.pieces.iter().filter(is_summed) {
            result = result.and(self.read_back(io, piece));
        }
        drop(one);
        let written = done.pieces.iter().filter(is_summed).flat_map(blocks);
        written.for_each(|block| self.stripes.end(block));
        result
    }

    /// Takes the marks off blocks that were written (D2): before the write ends, so that nobody who looks in between
    /// takes them for bad.
    fn written_anew(&self, pool: &PoolInner, done: &SummedDone<'_>) -> Result<(), Status> {
        let mut state = pool.lock();
        let pieces = done.pieces.iter().filter(is_summed);
        let any = pieces.fold(false, |any, piece| pool.unmark(&mut state, blocks(piece)) | any);
        drop(state);
        if any { pool.commit() } else { Ok(()) }
    }

    /// Stores the checksums of what the device holds. A block that it cannot read is not decided about (D3).
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

    /// Some block does not match: it was written meanwhile, or it is not what was written.
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

    /// Puts the block as it is now; or what its reader is told. `Again`: it is being written all the time.
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

    /// Reads a block until it matches, or surely does not (S4).
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
            if let Some(word) = before.filter(|_| self.stripes.quiet(number) == before) {
                if self.learn(number, crc(&memory)) {
                    to.copy_from_slice(&memory);
                    return Ok(Look::Good);
                }
                return Ok(Look::Bad(Mismatch { block: number, word }));
            }
        }
        Ok(Look::Busy)
    }

    /// The blocks of a copy of a unit that are not what was written to it; their numbers begin with `first`. Nobody
    /// writes to a unit that is being copied. `Again`: writes that share its stripes are always in the way.
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
mod tests;
