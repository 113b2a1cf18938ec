//! What an I/O on a volume with checksums does at its end.
//!
//! Owns the order at the end of a write (checksums stored, region marked, write ended), what becomes of writes to one
//! block at once, and what a mismatch means. The quick halves run on a ring's thread and never block.
//!
//! - D1: every `begin` of a write is followed by one `end`, whatever became of the data.

use sheave_base::buf::Buf;
use sheave_base::status::Status;
use sheave_base::sync::atomic::Ordering;
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::mapping::MAP_SUMMED;
use sheave_iomap::{Mapping, MappingKind, SummedDone};

use super::{BLOCK_SHIFT, Sums, crc};
use crate::BlockIo;
use crate::format::BLOCK;

/// How often a block is read before a write that is always in the way makes the whole read begin anew.
const LOOKS: u32 = 4;

/// The blocks of a mapping, by their numbers in the pool.
fn blocks(piece: &Mapping) -> std::ops::Range<u64> {
    let first = piece.addr >> BLOCK_SHIFT;
    first..first + (piece.len >> BLOCK_SHIFT)
}

fn is_summed(piece: &&Mapping) -> bool {
    piece.flags & MAP_SUMMED != 0
}

impl Sums {
    /// A bio of a write to this mapping is about to be sent.
    pub(crate) fn begin(&self, piece: &Mapping) {
        blocks(piece).for_each(|block| self.stripes.begin(block));
    }

    /// It was not sent.
    pub(crate) fn abort(&self, piece: &Mapping) {
        blocks(piece).for_each(|block| _ = self.stripes.end(block));
    }

    /// The end of an I/O; `Again` when that takes reading.
    pub(crate) fn end(&self, done: &SummedDone<'_>) -> Result<(), Status> {
        if done.write { self.end_write(done) } else { self.verify(done) }
    }

    /// The same where it may block.
    pub(crate) fn end_blocking(&self, io: &dyn BlockIo, done: &SummedDone<'_>, token: &MayBlock) -> Result<(), Status> {
        if done.write { self.end_write_blocking(io, done) } else { self.verify_blocking(io, done, token) }
    }

    fn end_write(&self, done: &SummedDone<'_>) -> Result<(), Status> {
        if !done.status.is_ok() || !self.store(done) {
            return Err(Status::Again);
        }
        let written = || done.pieces.iter().filter(is_summed).flat_map(blocks);
        if written().any(|block| self.stripes.clashes(block)) {
            return Err(Status::Again);
        }
        let clashed = written().fold(false, |clashed, block| self.stripes.end(block) | clashed);
        if !clashed {
            return Ok(());
        }
        // Another began just now. As if this one had begun anew: what it does next is right whoever ends first.
        written().for_each(|block| self.stripes.begin(block));
        Err(Status::Again)
    }

    /// Sums up what was written; false when the memory is not what the mappings say.
    fn store(&self, done: &SummedDone<'_>) -> bool {
        done.pieces.iter().filter(is_summed).all(|piece| {
            let first = blocks(piece).start;
            let all = done.memory.each_block(piece.offset - done.pos, piece.len, BLOCK, &mut |number, block| {
                self.set(first + number, crc(block));
                true
            });
            self.mark_dirty(self.region_at(piece.addr));
            all
        })
    }

    /// What is on the device is not surely what was written: it failed, or another wrote the same. Reads it back (S3).
    fn end_write_blocking(&self, io: &dyn BlockIo, done: &SummedDone<'_>) -> Result<(), Status> {
        let one = self.repair.lock().expect("invariant: no panic under this lock");
        let mut result = if done.status.is_ok() { Ok(()) } else { Err(done.status) };
        for piece in done.pieces.iter().filter(is_summed) {
            result = result.and(self.read_back(io, piece));
        }
        drop(one);
        let written = done.pieces.iter().filter(is_summed).flat_map(blocks);
        written.for_each(|block| _ = self.stripes.end(block));
        result
    }

    fn read_back(&self, io: &dyn BlockIo, piece: &Mapping) -> Result<(), Status> {
        let mut memory = Buf::zeroed(piece.len as usize, BLOCK).map_err(|_| Status::NoMem)?;
        io.read(piece.addr, &mut memory)?;
        for (number, block) in blocks(piece).zip(memory.chunks_exact(BLOCK)) {
            self.set(number, crc(block));
        }
        self.mark_dirty(self.region_at(piece.addr));
        Ok(())
    }

    fn verify(&self, done: &SummedDone<'_>) -> Result<(), Status> {
        let read = done.pieces.iter().filter(is_summed).filter(|piece| piece.kind == MappingKind::Mapped);
        for piece in read {
            let first = blocks(piece).start;
            let good = done.memory.each_block(piece.offset - done.pos, piece.len, BLOCK, &mut |number, block| {
                self.get(first + number) == Some(crc(block))
            });
            if !good {
                return Err(Status::Again);
            }
        }
        Ok(())
    }

    /// Some block does not match: it was written meanwhile, or it is not what was written.
    fn verify_blocking(&self, io: &dyn BlockIo, done: &SummedDone<'_>, token: &MayBlock) -> Result<(), Status> {
        let read = done.pieces.iter().filter(is_summed).filter(|piece| piece.kind == MappingKind::Mapped);
        for piece in read {
            let first = blocks(piece).start;
            let mut result = Ok(());
            let all = done.memory.each_block(piece.offset - done.pos, piece.len, BLOCK, &mut |number, block| {
                if self.get(first + number) != Some(crc(block)) {
                    result = if token.is_cancelled() {
                        Err(Status::Canceled)
                    } else {
                        self.settle(io, first + number, block)
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

    /// Reads a block until it matches, or surely does not (S4). `Again`: it is being written all the time.
    pub(crate) fn settle(&self, io: &dyn BlockIo, number: u64, to: &mut [u8]) -> Result<(), Status> {
        let mut memory = Buf::zeroed(BLOCK, BLOCK).map_err(|_| Status::NoMem)?;
        for _ in 0..LOOKS {
            let before = self.stripes.quiet(number);
            io.read(number << BLOCK_SHIFT, &mut memory)?;
            if self.get(number) == Some(crc(&memory)) {
                to.copy_from_slice(&memory);
                return Ok(());
            }
            if before.is_some() && self.stripes.quiet(number) == before {
                self.mismatches.fetch_add(1, Ordering::Relaxed); // Relaxed: a statistic.
                return Err(Status::Protection);
            }
        }
        Err(Status::Again)
    }

    /// A unit was copied: its blocks take their checksums along, also those that do not match.
    pub(crate) fn copied(&self, from: u64, to: u64) {
        let blocks = 1 << self.unit_shift;
        let (from, start) = (from << self.unit_shift, to << self.unit_shift);
        for block in 0..blocks {
            if let Some(sum) = self.get(from + block) {
                self.set(start + block, sum);
            }
        }
        self.mark_dirty(self.region(to));
    }
}
