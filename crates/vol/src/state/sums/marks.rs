//! Blocks that were told bad: they stay so until they are written anew.
//!
//! Owns which blocks those are. A checksum alone does not keep a block bad: after a crash the checksums of open regions
//! are computed from what lies on the device. A mark does. It is a record of the journal first, then a part of the page
//! of its region.
//!
//! - M1: a mark is durable before anybody is told of its block ([`PoolInner::make_marks_durable`]).
//! - M2: a mark goes when its block has been written as a whole, or when its unit is given out anew: never by reading.
//! - M3: a mark and its record change under one hold of the pool's lock, so the journal has them in their order.
//! - M4: a write that began before the mark was set keeps it from being set, or sees it at its end. The mark's flag is
//!   set before the stripe of the block is looked at, and the stripe of a write changes before it looks at the flag.
//!
//! Memory: 128 bytes a region that has marks, 32 MiB for a TiB of which nothing can be read.

use std::collections::BTreeMap;

use sheave_base::status::Status;
use sheave_base::sync::Mutex;
use sheave_base::sync::atomic::Ordering;

use super::Sums;
use crate::engine::inner::{PoolInner, State};
use crate::format::MAX_MARKS;
use crate::format::page::sums::Marked;
use crate::format::record::Record;
use crate::state::account::Spender;

/// Flag of a region: it has marked blocks.
const MARKED: u32 = 4;

/// A block that did not match between two looks at its stripe.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mismatch {
    /// Its number in the pool.
    pub(crate) block: u64,
    /// The word of its stripe at both looks.
    pub(super) word: u64,
}

/// The marks of a pool.
#[derive(Debug, Default)]
pub(super) struct Marks(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    regions: BTreeMap<u64, Marked>,
    /// How many marks were set, and how many of the first of them are surely durable.
    set: u64,
    durable: u64,
}

impl Sums {
    /// Whether the region has marked blocks.
    #[inline]
    pub(super) fn has_marks(&self, region: u64) -> bool {
        // SeqCst: M4
        self.flags(region).is_some_and(|flags| flags.load(Ordering::SeqCst) & MARKED != 0)
    }

    /// Whether a block was told bad and has not been written since.
    pub(crate) fn is_marked(&self, block: u64) -> bool {
        let (region, at) = self.place(block);
        self.has_marks(region) && self.marks(region)[at >> 6] >> (at & 63) & 1 != 0
    }

    /// The marks of a region.
    pub(super) fn marks(&self, region: u64) -> Marked {
        self.table().regions.get(&region).copied().unwrap_or_default()
    }

    /// How many blocks are marked.
    pub(crate) fn marked_blocks(&self) -> u64 {
        self.table().regions.values().flatten().map(|word| u64::from(word.count_ones())).sum()
    }

    fn table(&self) -> sheave_base::sync::MutexGuard<'_, Table> {
        self.marks.0.lock().expect("invariant: no panic under this lock")
    }

    /// Marks a block of a region that has memory; false if it was marked.
    fn set_mark(&self, block: u64) -> bool {
        let (region, at) = self.place(block);
        if let Some(flags) = self.flags(region) {
            flags.fetch_or(MARKED, Ordering::SeqCst); // SeqCst: M4
        }
        let mut table = self.table();
        let word = &mut table.regions.entry(region).or_default()[at >> 6];
        let fresh = *word >> (at & 63) & 1 == 0;
        *word |= 1 << (at & 63);
        table.set += u64::from(fresh);
        fresh
    }

    /// Takes a mark off; false if there was none.
    fn clear_mark(&self, block: u64) -> bool {
        let (region, at) = self.place(block);
        if !self.has_marks(region) {
            return false;
        }
        let mut table = self.table();
        let Some(marks) = table.regions.get_mut(&region) else { return false };
        let had = marks[at >> 6] >> (at & 63) & 1 != 0;
        marks[at >> 6] &= !(1 << (at & 63));
        if *marks == Marked::default() {
            table.regions.remove(&region);
            if let Some(flags) = self.flags(region) {
                flags.fetch_and(!MARKED, Ordering::SeqCst); // SeqCst: M4
            }
        }
        had
    }

    /// Recovery: the marks of a region's page. The region has memory.
    pub(super) fn load_marks(&self, region: u64, marks: &Marked) {
        if *marks != Marked::default()
            && let Some(flags) = self.flags(region)
        {
            flags.fetch_or(MARKED, Ordering::SeqCst); // SeqCst: M4
            self.table().regions.insert(region, *marks);
        }
    }

    /// Recovery: a `MARK` or `UNMARK` record, for blocks whose regions have memory.
    pub(super) fn replay_mark(&self, block: u64, bad: bool) {
        _ = if bad { self.set_mark(block) } else { self.clear_mark(block) };
    }

    /// Recovery: all marks are on the device.
    pub(super) fn marks_replayed(&self) {
        let mut table = self.table();
        table.durable = table.set;
    }
}

impl State {
    /// What marks for these blocks, which are of one region, add to the next checkpoint, at most.
    pub(crate) fn cost_of_marks(&self, bad: &[Mismatch]) -> u64 {
        let (Some(regions), Some(found)) = (&self.sums, bad.first()) else { return 0 };
        regions.cost_of(regions.sums.place(found.block).0)
    }
}

impl PoolInner {
    /// Marks a block that did not match; false if it has been written, or is being written, since. Nobody may be told
    /// before [`PoolInner::make_marks_durable`] (M1).
    ///
    /// # Errors
    ///
    /// `IoErr` when the next checkpoint has no room for the mark.
    pub(crate) fn mark(&self, found: Mismatch) -> Result<bool, Status> {
        let mut state = self.lock();
        if self.read_only {
            return Ok(self.mark_locked(&mut state, found));
        }
        let paid = self.pay(state, Spender::EndOfWrite, |state| state.cost_of_marks(&[found]));
        let mut state = paid.map_err(|_| Status::IoErr)?;
        Ok(self.mark_locked(&mut state, found))
    }

    fn mark_locked(&self, state: &mut State, found: Mismatch) -> bool {
        let Some(sums) = &self.sums else { return false };
        let fresh = sums.set_mark(found.block);
        if sums.stripes.quiet(found.block) != Some(found.word) {
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

    /// Makes all marks durable that have been set. What was not written down must not be told: it could be good after
    /// a crash.
    pub(crate) fn make_marks_durable(&self) -> Result<(), Status> {
        let Some(sums) = &self.sums else { return Ok(()) };
        let (set, durable) = {
            let table = sums.table();
            (table.set, table.durable)
        };
        if durable >= set {
            return Ok(());
        }
        self.commit().map_err(|_| Status::IoErr)?;
        let mut table = sums.table();
        table.durable = table.durable.max(set);
        Ok(())
    }

    /// These blocks have been written as a whole, or nobody has what was in them (M2). Whether any was marked.
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

    /// A unit is given out: what its blocks were marked for is gone.
    pub(crate) fn unmark_unit(&self, state: &mut State, unit: u64) {
        let Some(sums) = &self.sums else { return };
        if sums.has_marks(sums.region(unit)) {
            self.unmark(state, unit << sums.unit_shift..(unit + 1) << sums.unit_shift);
        }
    }

    /// A unit was copied to one that is not in use yet. Its blocks take their checksums along, and `bad` ones and those
    /// marked are marked in the copy, in the commit that has the copy.
    pub(crate) fn copied(&self, state: &mut State, from: u64, to: u64, bad: &[Mismatch]) {
        let Some(sums) = &self.sums else { return };
        sums.copied(from, to);
        bad.iter().for_each(|found| _ = self.mark_locked(state, *found));
        let (from, to) = (from << sums.unit_shift, to << sums.unit_shift);
        for at in 0..1 << sums.unit_shift {
            let is_bad = sums.is_marked(from + at) || bad.iter().any(|found| found.block == from + at);
            if is_bad && sums.set_mark(to + at) {
                self.record_mark(state, to + at, true);
            }
        }
    }

    /// The record of a change of a mark (M3); one that continues the last makes that longer.
    fn record_mark(&self, state: &mut State, block: u64, bad: bool) {
        if self.read_only {
            return;
        }
        if let (Some(sums), Some(regions)) = (&self.sums, &mut state.sums) {
            regions.mark_changed(sums.place(block).0);
        }
        match state.pending.last_mut() {
            Some(Record::Mark { bad: last, first, count })
                if *last == bad && *first + *count == block && *count < MAX_MARKS =>
            {
                *count += 1;
            }
            _ => self.record(state, Record::Mark { bad, first: block, count: 1 }),
        }
    }
}
