//! Blocks that were told bad: they stay so until they are written anew.
//!
//! Owns which blocks those are. A checksum alone does not keep a block bad: after a crash the checksums of open regions
//! are computed from what lies on the device. A mark does. It is a record of the journal first, then a part of the page
//! of its region.
//!
//! - M1: a mark is durable before anybody is told of its block
//!   ([`make_marks_durable`](crate::engine::inner::PoolInner::make_marks_durable)).
//!   Not so in a pool that is open read-only, or that a program made which knew no marks, as long as it is not
//!   upgraded: there marks are kept until the pool is closed.
//! - M2: a mark goes when its block has been written as a whole, or when its unit is given out anew: never by reading.
//! - M3: a mark and its record change under one hold of the pool's lock, so the journal has them in their order.
//! - M4: a write that began before the mark was set keeps it from being set, or sees it at its end. The mark's flag is
//!   set before the stripe of the block is looked at, and the stripe of a write changes before it looks at the flag.
//!
//! Memory: 128 bytes a region that has marks, 32 MiB for a TiB of which nothing can be read.

use sheave_base::sync::atomic::Ordering;

use super::{MarkTable, Sums};
use crate::format::page::sums::Marked;

/// Flag of a region: it has marked blocks.
const MARKED: u32 = 4;

/// A block that did not match between two looks at its stripe.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mismatch {
    /// Its number in the pool.
    pub(crate) block: u64,
    /// The word of its stripe at both looks.
    pub(crate) word: u64,
}

impl Sums {
    /// Whether the region has marked blocks.
    #[inline]
    pub(crate) fn has_marks(&self, region: u64) -> bool {
        // SeqCst: M4
        self.flags(region).is_some_and(|flags| flags.load(Ordering::SeqCst) & MARKED != 0)
    }

    /// Whether a block was told bad and has not been written since.
    pub(crate) fn is_marked(&self, block: u64) -> bool {
        let (region, at) = self.place(block);
        self.has_marks(region) && self.marks(region)[at >> 6] >> (at & 63) & 1 != 0
    }

    /// The marks of a region.
    pub(crate) fn marks(&self, region: u64) -> Marked {
        self.table().regions.get(&region).copied().unwrap_or_default()
    }

    /// How many blocks are marked.
    pub(crate) fn marked_blocks(&self) -> u64 {
        self.table().regions.values().flatten().map(|word| u64::from(word.count_ones())).sum()
    }

    /// The regions with marked blocks.
    pub(crate) fn marked_regions(&self) -> Vec<u64> {
        self.table().regions.keys().copied().collect()
    }

    fn table(&self) -> sheave_base::sync::MutexGuard<'_, MarkTable> {
        self.marks.0.lock().expect("invariant: no panic under this lock")
    }

    /// Marks a block of a region that has memory; false if it was marked.
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

    /// Takes a mark off; false if there was none.
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

    /// Recovery: the marks of a region's page. The region has memory.
    pub(crate) fn load_marks(&self, region: u64, marks: &Marked) {
        if *marks != Marked::default()
            && let Some(flags) = self.flags(region)
        {
            flags.fetch_or(MARKED, Ordering::SeqCst); // SeqCst: M4
            self.table().regions.insert(region, *marks);
        }
    }

    /// Recovery: a `MARK` or `UNMARK` record, for blocks of one unit whose region has memory. Word by word: a record
    /// speaks of 256 blocks, and a journal has many.
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

    /// How many marks have been set, if not all of them are surely durable.
    pub(crate) fn marks_to_write(&self) -> Option<u64> {
        let table = self.table();
        (table.durable < table.set).then_some(table.set)
    }

    /// So many marks, counted from the first, are durable.
    pub(crate) fn marks_are_durable(&self, set: u64) {
        let mut table = self.table();
        table.durable = table.durable.max(set);
    }

    /// Whether no write to a block has begun since it was found bad (M4).
    pub(crate) fn is_as_found(&self, found: &Mismatch) -> bool {
        self.stripes.quiet(found.block) == Some(found.word)
    }

    /// Recovery: all marks are on the device.
    pub(crate) fn marks_replayed(&self) {
        let mut table = self.table();
        table.durable = table.set;
    }
}
