//! Marks of bad blocks: a block reported bad stays bad until it is rewritten.
//!
//! Owns the set of marked blocks. A checksum alone does not keep a block bad: after a crash, the checksums of open
//! regions are computed from the data on the device. So a bad block also gets a mark. The mark is first a journal
//! record, then part of the page of its region.
//!
//! - M1: a mark is durable before its block is reported as bad
//!   ([`make_marks_durable`](crate::engine::inner::PoolInner::make_marks_durable)). Exceptions are a read-only pool and
//!   a pool not yet upgraded from a version without marks: there marks live in memory until the pool is closed.
//! - M2: a mark is removed when its block has been written as a whole or when its unit is allocated anew, never by
//!   reading.
//! - M3: a mark and its record change under one hold of the pool's lock, so the journal has marks in the order of their
//!   changes.
//! - M4: a write that began before the mark was set either prevents the mark, or finds it when the write ends: the
//!   `MARKED` flag is set before the block's stripe is checked, and a write changes the stripe before it reads the
//!   flag.
//!
//! Memory: 128 bytes per region with marks, so 32 MiB for a TiB of unreadable data.

use sheave_base::sync::atomic::Ordering;

use super::{MarkTable, Sums};
use crate::format::page::sums::Marked;

/// Flag of a region, like `OPEN` and `DIRTY`: the region has marked blocks.
const MARKED: u32 = 4;

/// A block whose checksum did not match between two looks at its stripe.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mismatch {
    /// Number of the block in the pool.
    pub(crate) block: u64,
    /// Word of the stripe at both looks.
    pub(crate) word: u64,
}

impl Sums {
    #[inline]
    pub(crate) fn has_marks(&self, region: u64) -> bool {
        // SeqCst: M4
        self.flags(region).is_some_and(|flags| flags.load(Ordering::SeqCst) & MARKED != 0)
    }

    /// Returns true if a block was reported bad and has not been rewritten since.
    pub(crate) fn is_marked(&self, block: u64) -> bool {
        let (region, at) = self.place(block);
        self.has_marks(region) && self.marks(region)[at >> 6] >> (at & 63) & 1 != 0
    }

    pub(crate) fn marks(&self, region: u64) -> Marked {
        self.table().regions.get(&region).copied().unwrap_or_default()
    }

    pub(crate) fn marked_blocks(&self) -> u64 {
        self.table().regions.values().flatten().map(|word| u64::from(word.count_ones())).sum()
    }

    pub(crate) fn marked_regions(&self) -> Vec<u64> {
        self.table().regions.keys().copied().collect()
    }

    fn table(&self) -> sheave_base::sync::MutexGuard<'_, MarkTable> {
        self.marks.0.lock().expect("invariant: no panic under this lock")
    }

    /// Marks a block, whose region must have memory. Returns false if it was marked already.
    pub(crate) fn set_mark(&self, block: u64) -> bool {
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

    /// Removes a mark. Returns false if there was none.
    pub(crate) fn clear_mark(&self, block: u64) -> bool {
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

    /// Recovery: sets the marks of a region from its page. The region must have memory.
    pub(crate) fn load_marks(&self, region: u64, marks: &Marked) {
        if *marks != Marked::default()
            && let Some(flags) = self.flags(region)
        {
            flags.fetch_or(MARKED, Ordering::SeqCst); // SeqCst: M4
            self.table().regions.insert(region, *marks);
        }
    }

    /// Recovery: applies a `MARK` or `UNMARK` record to blocks of one unit, whose region must have memory. Works on
    /// whole words, because a record may cover 256 blocks and a journal may have many records.
    pub(crate) fn replay_marks(&self, block: u64, count: u64, bad: bool) {
        let (region, first) = self.place(block);
        if !bad && !self.has_marks(region) {
            return;
        }
        let Some(flags) = self.flags(region) else { return };
        let mut table = self.table();
        let marks = table.regions.entry(region).or_default();
        let (mut at, end, mut fresh) = (first, first + count as usize, 0);
        while at < end {
            let here = (64 - (at & 63)).min(end - at);
            let mask = (u64::MAX >> (64 - here)) << (at & 63);
            let word = &mut marks[at >> 6];
            fresh += u64::from((mask & !*word).count_ones());
            *word = if bad { *word | mask } else { *word & !mask };
            at += here;
        }
        if *marks == Marked::default() {
            table.regions.remove(&region);
            flags.fetch_and(!MARKED, Ordering::SeqCst); // SeqCst: M4
        } else if bad {
            table.set += fresh;
            flags.fetch_or(MARKED, Ordering::SeqCst); // SeqCst: M4
        }
    }

    /// Returns the number of marks set so far, if some of them may not be durable.
    pub(crate) fn marks_to_write(&self) -> Option<u64> {
        let table = self.table();
        (table.durable < table.set).then_some(table.set)
    }

    /// Called when the first `set` marks that were set are durable.
    pub(crate) fn marks_are_durable(&self, set: u64) {
        let mut table = self.table();
        table.durable = table.durable.max(set);
    }

    /// Returns true if no write to the block has begun since it was found bad (M4).
    pub(crate) fn is_as_found(&self, found: &Mismatch) -> bool {
        self.stripes.quiet(found.block) == Some(found.word)
    }

    /// Recovery: called when all marks are on the device.
    pub(crate) fn marks_replayed(&self) {
        let mut table = self.table();
        table.durable = table.set;
    }
}
