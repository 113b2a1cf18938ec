//! Completion of I/O on volumes with checksums, when nothing must be read from the device.
//!
//! Owns the order of a write's completion: checksums are stored, the region is marked dirty, the write ends in its
//! stripes. All of it runs on a ring's thread and never blocks; completions that must read are in
//! [`verify`](crate::engine::sums::verify).
//!
//! - D1: every `begin` of a write is followed by one `end`, whether the write succeeded or not.

use sheave_base::status::Status;
use sheave_iomap::mapping::MapFlags;
use sheave_iomap::{Mapping, MappingKind, SummedDone};

use super::{Sums, crc};
use crate::format::BLOCK;
use crate::format::BLOCK_SHIFT;

/// Returns the pool blocks of a mapping.
pub(crate) fn blocks(piece: &Mapping) -> std::ops::Range<u64> {
    let first = piece.addr >> BLOCK_SHIFT;
    first..first + (piece.len >> BLOCK_SHIFT)
}

pub(crate) fn is_summed(piece: &&Mapping) -> bool {
    piece.flags.any(MapFlags::SUMMED)
}

impl Sums {
    /// Called before the bio of a write to this mapping is submitted.
    pub(crate) fn begin(&self, piece: &Mapping) {
        blocks(piece).for_each(|block| self.stripes.begin(block));
    }

    /// Called in place of `end` if that bio was not submitted.
    pub(crate) fn abort(&self, piece: &Mapping) {
        blocks(piece).for_each(|block| self.stripes.end(block));
    }

    /// Completes an I/O. Fails with `Again` if blocks must be read from the device first.
    pub(crate) fn end(&self, done: &SummedDone<'_>) -> Result<(), Status> {
        if done.write { self.end_write(done) } else { self.verify(done) }
    }

    fn end_write(&self, done: &SummedDone<'_>) -> Result<(), Status> {
        if done.pieces.iter().filter(is_summed).any(|piece| self.meets_mark(piece)) {
            return Err(Status::Again);
        }
        self.end_alone(done)
    }

    /// Completes a write whose blocks have no marks, or whose marks the caller removes. Fails with `Again` if its
    /// blocks must be read back: the write failed, or overlapped another one.
    pub(crate) fn end_alone(&self, done: &SummedDone<'_>) -> Result<(), Status> {
        if !done.status.is_ok() || !self.store(done) {
            return Err(Status::Again);
        }
        let written = || done.pieces.iter().filter(is_summed).flat_map(blocks);
        if written().any(|block| self.stripes.clashes(block)) {
            return Err(Status::Again);
        }
        // Another write may begin on a later block after the check above, and clash with this one. `end_all_alone` then
        // ends none of the blocks.
        if self.stripes.end_all_alone(written()) { Ok(()) } else { Err(Status::Again) }
    }

    /// Returns true if a mapping has marked blocks. Needs one load for each region without marks.
    fn meets_mark(&self, piece: &Mapping) -> bool {
        let regions = self.region_at(piece.addr)..=self.region_at(piece.addr + piece.len - 1);
        regions.into_iter().any(|region| self.has_marks(region)) && blocks(piece).any(|block| self.is_marked(block))
    }

    /// Stores the checksums of the written data. Returns false if the memory does not match the mappings.
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

    /// Copies the checksums of a unit to its copy. Also copies checksums that do not match the data, so that the copy
    /// of a bad block is bad.
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
