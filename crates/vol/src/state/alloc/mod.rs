//! Allocation units of a pool: who has them, which are free.
//!
//! Owns the number of owners of each unit, the free ones, and the reserve. Does not own when a unit that was given up
//! may be used again ([`limbo`](crate::state::limbo)), nor the pages in metadata units ([`pages`]).
//!
//! - I1: free + data + metadata + limbo + fixed = all units, at any time.
//! - I2: a free unit has no owner; data does not get the last `reserve` free units, metadata does.
//! - I3: the number of owners never overflows: a unit has one owner a volume at most, and volumes are fewer than
//!   [`MAX_OWNERS`].
//!
//! Called under the pool's lock, and by recovery.

pub(crate) mod bitmap;
mod chunks;
pub(crate) mod pages;
mod stale;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use chunks::Chunks;
use stale::Stale;

/// Most owners of a unit.
pub(crate) const MAX_OWNERS: u16 = u16::MAX - 8;
/// The unit holds metadata pages.
const META: u16 = u16::MAX;
/// The unit is neither data nor free, ever: superblocks, their copies, journal, labels.
const FIXED: u16 = u16::MAX - 1;

/// Chunks of units that one search for a window looks into, before it is given up.
const WINDOW_CHUNKS: usize = 8;
/// Words of bitmaps that a search for the longest free runs looks at: of 16 million units, if all are in use.
const MOST_SEARCHED: u64 = 1 << 18;
/// The part of the pool that stays free when copies of shared units take their neighbours along: an eighth.
const PLENTY_SHIFT: u32 = 3;

/// How many units are what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) total: u64,
    pub(crate) free: u64,
    pub(crate) data: u64,
    pub(crate) meta: u64,
    pub(crate) fixed: u64,
    pub(crate) limbo: u64,
}

/// The units of a pool.
#[derive(Debug)]
pub(crate) struct Units {
    chunks: Chunks,
    counts: Counts,
    /// Where the next allocation looks first, so that allocations follow each other.
    cursor: u64,
    meta_cursor: u64,
    /// Where the next search for a window begins.
    window_cursor: u64,
    /// Units that became free, while these are to be discarded.
    stale: Option<Stale>,
    /// Of those in limbo: set aside while they are discarded.
    aside: u64,
    /// Of those in limbo: kept from everybody ([`quarantine`](crate::state::quarantine)); in runs, as far as they are
    /// not chunks that are barred.
    quarantined: u64,
    quarantine: Vec<(u64, u64)>,
    /// Free units that data does not get.
    pub(crate) reserve: u64,
    /// While so many are free, from the first on and the second in number, nobody need be told.
    calm: (u64, u64),
}

impl Units {
    /// All units free.
    pub(crate) fn new(total: u64) -> Units {
        let mut units = Units {
            chunks: Chunks::new(),
            counts: Counts::default(),
            cursor: 0,
            meta_cursor: total - total / 16,
            window_cursor: 0,
            stale: None,
            aside: 0,
            quarantined: 0,
            quarantine: Vec::new(),
            reserve: 0,
            calm: (0, u64::MAX),
        };
        units.grow(total);
        units
    }

    /// Adds free units at the end.
    pub(crate) fn grow(&mut self, total: u64) {
        let from = self.counts.total;
        self.chunks.grow(total);
        self.counts.total = total;
        self.counts.free += total - from;
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    /// Free units that data may have.
    pub(crate) fn available(&self) -> u64 {
        self.counts.free.saturating_sub(self.reserve)
    }

    /// Whether the number of free units is still within what [`Units::set_calm`] said.
    #[inline]
    pub(crate) fn is_calm(&self) -> bool {
        self.counts.free.wrapping_sub(self.calm.0) < self.calm.1
    }

    /// Nothing changes for anybody while `from..from + count` units are free.
    pub(crate) fn set_calm(&mut self, from: u64, count: u64) {
        self.calm = (from, count);
    }

    /// A unit for data, with one owner.
    pub(crate) fn alloc(&mut self) -> Option<u64> {
        if self.counts.free <= self.reserve {
            return None;
        }
        let unit = self.chunks.next_free(self.cursor).or_else(|| self.chunks.next_free(0))?;
        self.cursor = unit + 1;
        self.take(unit, 1);
        self.counts.data += 1;
        Some(unit)
    }

    /// The first of `count` free units that lie together and begin at a multiple of `count`, a power of two of 64 at
    /// most; [`Units::alloc_at`] takes them. `None` when little is free, or none was found soon.
    pub(crate) fn find_window(&mut self, count: u64) -> Option<u64> {
        if self.available() < count + (self.counts.total >> PLENTY_SHIFT) {
            return None;
        }
        let found = self.chunks.next_window(self.window_cursor, count, WINDOW_CHUNKS);
        self.window_cursor = found.map_or_else(|next| next, |first| first + count);
        found.ok()
    }

    /// A certain free unit for data, with one owner.
    pub(crate) fn alloc_at(&mut self, unit: u64) {
        self.take(unit, 1);
        self.counts.data += 1;
    }

    /// A unit for metadata; the reserve is for this.
    pub(crate) fn alloc_meta(&mut self) -> Option<u64> {
        let unit = self.chunks.next_free(self.meta_cursor).or_else(|| self.chunks.next_free(0))?;
        self.meta_cursor = unit + 1;
        self.take(unit, META);
        self.counts.meta += 1;
        Some(unit)
    }

    fn take(&mut self, unit: u64, owners: u16) {
        self.chunks.take(unit, owners);
        self.counts.free -= 1;
    }

    /// Takes a free unit for what is never data; false if it is not free.
    pub(crate) fn fix(&mut self, unit: u64) -> bool {
        self.claim(unit, FIXED)
    }

    /// Takes a certain unit for metadata, as recovery finds it; true also if it is metadata already.
    pub(crate) fn claim_meta(&mut self, unit: u64) -> bool {
        self.is_meta(unit) || self.claim(unit, META)
    }

    /// One more owner for a unit that recovery found in a map; false if it cannot be data.
    pub(crate) fn claim_data(&mut self, unit: u64) -> bool {
        self.claim(unit, 1) || self.get(unit)
    }

    fn claim(&mut self, unit: u64, owners: u16) -> bool {
        if !self.chunks.is_free(unit) {
            return false;
        }
        self.take(unit, owners);
        match owners {
            META => self.counts.meta += 1,
            FIXED => self.counts.fixed += 1,
            _ => self.counts.data += 1,
        }
        true
    }

    pub(crate) fn is_meta(&self, unit: u64) -> bool {
        self.chunks.owners(unit) == META
    }

    /// Owners of a unit of data.
    pub(crate) fn owners(&self, unit: u64) -> u16 {
        Some(self.chunks.owners(unit)).filter(|owners| *owners <= MAX_OWNERS).unwrap_or(0)
    }

    /// One more owner; false for what is not data or has too many.
    pub(crate) fn get(&mut self, unit: u64) -> bool {
        match self.chunks.owners_mut(unit) {
            Some(owners) if (1..MAX_OWNERS).contains(owners) => *owners += 1,
            _ => return false,
        }
        true
    }

    /// One owner less. True when that was the last: then the unit is in limbo, until [`Units::release`].
    #[must_use]
    pub(crate) fn put(&mut self, unit: u64) -> bool {
        let left = match self.chunks.owners_mut(unit) {
            Some(owners) if (1..=MAX_OWNERS).contains(owners) => {
                *owners -= 1;
                *owners
            }
            _ => {
                debug_assert!(false, "unit {unit} has no owner to put");
                return false;
            }
        };
        if left > 0 {
            return false;
        }
        self.counts.data -= 1;
        self.counts.limbo += 1;
        true
    }

    /// The first free unit from `from` on.
    pub(crate) fn next_free(&self, from: u64) -> Option<u64> {
        self.chunks.next_free(from)
    }

    /// A free unit goes to limbo, until [`Units::bring_back`]: nobody gets it meanwhile.
    pub(crate) fn set_aside(&mut self, unit: u64) {
        self.take(unit, 0);
        self.counts.limbo += 1;
        self.aside += 1;
    }

    /// A unit that was set aside is free as before.
    pub(crate) fn bring_back(&mut self, unit: u64) {
        self.aside -= 1;
        self.set_free(unit);
    }

    /// Units that are set aside.
    pub(crate) fn aside(&self) -> u64 {
        self.aside
    }

    /// All units that are free, but for those of `sure` (first, number; ascending), go to limbo until
    /// [`Units::end_quarantine`]: somebody may have them who cannot be asked.
    pub(crate) fn begin_quarantine(&mut self, sure: &[(u64, u64)]) {
        let mut from = 0;
        for (first, count) in sure.iter().copied().chain([(self.counts.total, 0)]) {
            let taken = self.chunks.bar(from, first, &mut self.quarantine);
            self.counts.free -= taken;
            self.counts.limbo += taken;
            self.quarantined += taken;
            from = first + count;
        }
    }

    /// Nobody has the units of the quarantine. Those in whole chunks are free at once; the runs of the others may leave
    /// limbo, a part at a time.
    pub(crate) fn end_quarantine(&mut self) -> Vec<(u64, u64)> {
        let free = self.chunks.unbar();
        self.counts.limbo -= free;
        self.counts.free += free;
        self.quarantined = 0;
        std::mem::take(&mut self.quarantine)
    }

    /// Runs of free units (first, number; ascending), `most` at most, the longest of those that a bounded search finds
    /// from where units are taken next.
    pub(crate) fn longest_free(&self, most: usize) -> Vec<(u64, u64)> {
        let mut longest = BinaryHeap::with_capacity(most + 1);
        let mut keep = |(first, count): (u64, u64)| {
            longest.push(Reverse((count, first)));
            if longest.len() > most {
                longest.pop();
            }
        };
        let mut last: Option<(u64, u64)> = None;
        self.chunks.free_runs(self.cursor, MOST_SEARCHED, &mut |first, count| match &mut last {
            Some((begin, units)) if *begin + *units == first => *units += count,
            _ => _ = last.replace((first, count)).map(&mut keep),
        });
        last.map(&mut keep);
        let mut runs: Vec<_> = longest.into_iter().map(|Reverse((count, first))| (first, count)).collect();
        runs.sort_unstable();
        runs
    }

    /// Units in quarantine.
    pub(crate) fn quarantined(&self) -> u64 {
        self.quarantined
    }

    /// Recovery: whether a unit is in quarantine, for nothing is in limbo yet.
    pub(crate) fn is_quarantined(&self, unit: u64) -> bool {
        unit < self.counts.total && !self.chunks.is_free(unit) && self.chunks.owners(unit) == 0
    }

    /// From now on units that become free are listed, or are not.
    pub(crate) fn keep_stale(&mut self, on: bool) {
        match on {
            true => _ = self.stale.get_or_insert_default(),
            false => self.stale = None,
        }
    }

    /// Whether units that become free are listed.
    pub(crate) fn keeps_stale(&self) -> bool {
        self.stale.is_some()
    }

    /// Units that became free and were not discarded since.
    pub(crate) fn stale_units(&self) -> u64 {
        self.stale.as_ref().map_or(0, Stale::units)
    }

    /// The next unit that became free and is free; `most` are looked at.
    pub(crate) fn next_stale(&mut self, most: &mut u64) -> Option<u64> {
        let stale = self.stale.as_mut()?;
        while *most > 0 {
            *most -= 1;
            let unit = stale.pop()?;
            if self.chunks.is_free(unit) {
                return Some(unit);
            }
        }
        None
    }

    /// Units that [`Units::next_stale`] gave, and that were not discarded.
    pub(crate) fn list_again(&mut self, units: impl Iterator<Item = u64>) {
        if let Some(stale) = &mut self.stale {
            units.for_each(|unit| stale.push(unit));
        }
    }

    /// A unit leaves limbo and is free.
    pub(crate) fn release(&mut self, unit: u64) {
        if let Some(stale) = &mut self.stale {
            stale.push(unit);
        }
        self.set_free(unit);
    }

    fn set_free(&mut self, unit: u64) {
        debug_assert!(!self.chunks.is_free(unit) && self.chunks.owners(unit) == 0, "unit {unit} is not in limbo");
        self.counts.limbo -= 1;
        self.counts.free += 1;
        self.chunks.release(unit);
    }

    /// A metadata unit without pages is free at once: nobody reads metadata but through what is durable.
    pub(crate) fn release_meta(&mut self, unit: u64) {
        debug_assert!(self.is_meta(unit), "unit {unit} is not metadata");
        if let Some(stale) = &mut self.stale {
            stale.push(unit);
        }
        self.counts.meta -= 1;
        self.counts.free += 1;
        self.chunks.release(unit);
    }

    /// Bytes of memory.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.chunks.memory_bytes()
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
