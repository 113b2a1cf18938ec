//! Marks of bad blocks: they are set, made durable, and removed here.
//!
//! Owns the order of a mark and its record (M1 to M3 of [`marks`](crate::state::sums::marks)). Does not own the marks.
//!
//! Called by reads, by writes at their end, by copies of shared units, and by scrubs.

use sheave_base::status::Status;

use crate::engine::inner::PoolInner;
use crate::format::MAX_MARKS;
use crate::format::record::Record;
use crate::state::State;
use crate::state::account::Spender;
use crate::state::phase::Phase;
use crate::state::sums::marks::Mismatch;

impl PoolInner {
    /// Marks a block that did not match its checksum. Returns false if the block has been written since, or is being
    /// written. The caller returns the error to a reader only after [`PoolInner::make_marks_durable`] (M1).
    ///
    /// # Errors
    ///
    /// `IoErr` when the next checkpoint has no room for the mark.
    pub(crate) fn mark(&self, found: Mismatch) -> Result<bool, Status> {
        let mut state = self.lock();
        if self.read_only || state.phase == Phase::DeletesOnly {
            return Ok(self.mark_locked(&mut state, found));
        }
        let paid = self.pay(state, Spender::EndOfWrite, |state| state.cost_of_marks(&[found]));
        let mut state = paid.map_err(|_| Status::IoErr)?;
        Ok(self.mark_locked(&mut state, found))
    }

    fn mark_locked(&self, state: &mut State, found: Mismatch) -> bool {
        let Some(sums) = &self.sums else { return false };
        // Set before the stripe is checked (M4): a write that this check does not see finds the mark at its end.
        let fresh = sums.set_mark(found.block);
        if !sums.is_as_found(&found) {
            if fresh {
                sums.clear_mark(found.block);
            }
            return false;
        }
        if fresh {
            self.record_mark(state, found.block, true);
        }
        true
    }

    /// Makes all set marks durable. A reader may get the error about a block only afterwards. Otherwise the mark could
    /// be missing after a crash, and the block would count as good.
    pub(crate) fn make_marks_durable(&self) -> Result<(), Status> {
        let Some(sums) = &self.sums else { return Ok(()) };
        let Some(set) = sums.marks_to_write() else { return Ok(()) };
        self.commit().map_err(|_| Status::IoErr)?;
        sums.marks_are_durable(set);
        Ok(())
    }

    /// Removes the marks of `blocks`, which were written as a whole or allocated anew (M2). Returns true if any was
    /// marked.
    pub(crate) fn unmark(&self, state: &mut State, blocks: std::ops::Range<u64>) -> bool {
        let Some(sums) = &self.sums else { return false };
        let mut any = false;
        for block in blocks {
            if sums.clear_mark(block) {
                any = true;
                self.record_mark(state, block, false);
            }
        }
        any
    }

    /// Called when a unit is allocated: removes the marks of its blocks, which are from its former use.
    pub(crate) fn unmark_unit(&self, state: &mut State, unit: u64) {
        let Some(sums) = &self.sums else { return };
        if sums.has_marks(sums.region(unit)) {
            self.unmark(state, sums.blocks_of(unit));
        }
    }

    /// Called after a unit was copied to a unit that is not in use yet: copies the checksums of its blocks. Also marks
    /// the copies of blocks that are in `bad` or were marked before. The marks are in the commit that makes the copy
    /// durable.
    pub(crate) fn copied(&self, state: &mut State, from: u64, to: u64, bad: &[Mismatch]) {
        let Some(sums) = &self.sums else { return };
        sums.copied(from, to);
        bad.iter().for_each(|found| _ = self.mark_locked(state, *found));
        for (from, to) in sums.blocks_of(from).zip(sums.blocks_of(to)) {
            let is_bad = sums.is_marked(from) || bad.iter().any(|found| found.block == from);
            if is_bad && sums.set_mark(to) {
                self.record_mark(state, to, true);
            }
        }
    }

    /// Records a change of a mark (M3). If it continues the last record, that record is extended.
    fn record_mark(&self, state: &mut State, block: u64, bad: bool) {
        let (Some(sums), Some(regions)) = (&self.sums, &mut state.sums) else { return };
        if self.read_only || state.phase == Phase::DeletesOnly || !regions.knows_marks() {
            return;
        }
        regions.mark_changed(sums.region_of(block));
        match state.pending.last_mut() {
            Some(Record::Mark { bad: last, first, count })
                if *last == bad && *first + *count == block && *count < MAX_MARKS =>
            {
                *count += 1;
                if let Some(recent) = &mut state.recent {
                    recent.push(&Record::Mark { bad, first: block, count: 1 });
                }
            }
            _ => self.record(state, Record::Mark { bad, first: block, count: 1 }),
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use sheave_drivers::open_device;
    use sheave_iomap::File;
    use sheave_iomap::completion_plan::MayBlock;
    use sheave_iomap::mapping::Intent;

    use super::*;
    use crate::format::BLOCK_SHIFT;
    use crate::{Checksum, CreateOptions, OpenOptions, Pool};

    /// A write comes after the look that found the block bad and before the mark: the reader looks again, and gets no
    /// error.
    #[test]
    fn a_block_that_was_written_since_it_was_found_bad_is_not_marked() {
        let device = open_device("ram:size=16M").unwrap();
        let options = CreateOptions { checksum: Checksum::Crc32c, ..CreateOptions::default() };
        Pool::create(&device, &options).unwrap();
        let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
        let inner = &pool.inner;
        let sums = inner.sums.as_ref().unwrap();
        let volume = pool.create_volume("v", 1 << 20).unwrap();
        let place = volume.map_blocking(0, 4096, Intent::Write, &MayBlock::on_worker()).unwrap();
        let block = place.addr >> BLOCK_SHIFT;
        let found = || Mismatch { block, word: sums.stripes.quiet(block).unwrap() };
        let marks = || {
            let pending = &inner.lock().pending;
            (sums.is_marked(block), pending.iter().filter(|record| matches!(record, Record::Mark { .. })).count())
        };
        let before = found();
        sums.stripes.begin(block);
        assert_eq!((inner.mark(before), marks()), (Ok(false), (false, 0)), "a write is under way");
        sums.stripes.end(block);
        assert_eq!((inner.mark(before), marks()), (Ok(false), (false, 0)), "it was written");
        assert_eq!((inner.mark(found()), marks()), (Ok(true), (true, 1)));
        assert_eq!((inner.mark(found()), marks()), (Ok(true), (true, 1)), "once");
        // A marked block stays marked until the write under way takes the mark off.
        sums.stripes.begin(block);
        assert_eq!((inner.mark(before), marks()), (Ok(false), (true, 1)));
        sums.stripes.end(block);
    }
}
