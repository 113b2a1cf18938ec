//! What an I/O on a volume with checksums does at its end, as far as that takes no reading.
//!
//! Owns the order at the end of a write: checksums stored, region marked, write ended. All of it runs on a ring's
//! thread and never blocks; what takes reading is in [`verify`](crate::engine::sums::verify).
//!
//! - D1: every `begin` of a write is followed by one `end`, whatever became of the data.

use sheave_base::status::Status;
use sheave_iomap::mapping::MapFlags;
use sheave_iomap::{Mapping, MappingKind, SummedDone};

use super::{Sums, crc};
use crate::format::BLOCK;
use crate::format::BLOCK_SHIFT;

/// The blocks of a mapping, by their numbers in the pool.
pub(crate) fn blocks(piece: &Mapping) -> std::ops::Range<u64> {
    let first = piece.addr >> BLOCK_SHIFT;
    first..first + (piece.len >> BLOCK_SHIFT)
}

pub(crate) fn is_summed(piece: &&Mapping) -> bool {
    piece.flags.any(MapFlags::SUMMED)
}

impl Sums {
    /// A bio of a write to this mapping is about to be sent.
    pub(crate) fn begin(&self, piece: &Mapping) {
        blocks(piece).for_each(|block| self.stripes.begin(block));
    }

    /// It was not sent.
    pub(crate) fn abort(&self, piece: &Mapping) {
        blocks(piece).for_each(|block| self.stripes.end(block));
    }

    /// The end of an I/O; `Again` when that takes reading.
    pub(crate) fn end(&self, done: &SummedDone<'_>) -> Result<(), Status> {
        if done.write { self.end_write(done) } else { self.verify(done) }
    }

    fn end_write(&self, done: &SummedDone<'_>) -> Result<(), Status> {
        if done.pieces.iter().filter(is_summed).any(|piece| self.meets_mark(piece)) {
            return Err(Status::Again);
        }
        self.end_alone(done)
    }

    /// `Again` when what lies on the device is to be read: the write failed, or was not alone.
    pub(crate) fn end_alone(&self, done: &SummedDone<'_>) -> Result<(), Status> {
        if !done.status.is_ok() || !self.store(done) {
            return Err(Status::Again);
        }
        let written = || done.pieces.iter().filter(is_summed).flat_map(blocks);
        if written().any(|block| self.stripes.clashes(block)) {
            return Err(Status::Again);
        }
        // Another write to a later block may begin just now, and that block stays as it is until this write ends.
        if self.stripes.end_all_alone(written()) { Ok(()) } else { Err(Status::Again) }
    }

    /// Whether a mapping has marked blocks: a load for each region, as long as it has none.
    fn meets_mark(&self, piece: &Mapping) -> bool {
        let regions = self.region_at(piece.addr)..=self.region_at(piece.addr + piece.len - 1);
        regions.into_iter().any(|region| self.has_marks(region)) && blocks(piece).any(|block| self.is_marked(block))
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

    fn verify(&self, done: &SummedDone<'_>) -> Result<(), Status> {
        let read = done.pieces.iter().filter(is_summed).filter(|piece| piece.kind == MappingKind::Mapped);
        for piece in read {
            let first = blocks(piece).start;
            let good = done.memory.each_block(piece.offset - done.pos, piece.len, BLOCK, &mut |number, block| {
                self.get(first + number) == Some(crc(block))
            });
            if !good || self.meets_mark(piece) {
                return Err(Status::Again);
            }
        }
        Ok(())
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
