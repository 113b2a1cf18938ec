//! Allocation units of a pool: owner counts and free units.
//!
//! Owns the number of owners of each unit, the free units, and the reserve. Does not decide when a released unit
//! becomes free ([`limbo`](crate::state::limbo)), and does not own the pages in metadata units ([`pages`]).
//!
//! - I1: free + data + metadata + limbo + fixed = all units, at any time.
//! - I2: a free unit has no owner. Data never takes the last `reserve` free units; metadata may.
//! - I3: the owner count never overflows: a unit has at most one owner per volume, and there are fewer volumes than
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

pub(crate) const MAX_OWNERS: u16 = u16::MAX - 8;
/// Owner count of a metadata unit.
const META: u16 = u16::MAX;
/// Owner count of a unit that is never data nor free: superblocks, their copies, journal, labels.
const FIXED: u16 = u16::MAX - 1;

/// Largest number of chunks that one call of `find_window` visits.
const WINDOW_CHUNKS: usize = 8;
/// Largest number of bitmap words that a search for the longest free runs visits: 16 million units, if all are in use.
const MOST_SEARCHED: u64 = 1 << 18;
/// Fraction of the pool that must stay free if copies of shared units take whole windows: an eighth, given as a shift.
const PLENTY_SHIFT: u32 = 3;

/// Number of units by use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) total: u64,
    pub(crate) free: u64,
    pub(crate) data: u64,
    pub(crate) meta: u64,
    pub(crate) fixed: u64,
    pub(crate) limbo: u64,
}

/// The allocation units of a pool.
#[derive(Debug)]
pub(crate) struct Units {
    chunks: Chunks,
    counts: Counts,
    /// First unit that the next search examines. It moves on with each allocation, so that consecutive allocations are
    /// adjacent.
    cursor: u64,
    meta_cursor: u64,
    window_cursor: u64,
    /// Freed units to discard. `None` while background discard is off.
    stale: Option<Stale>,
    /// Number of units in `counts.limbo` that are set aside while they are discarded.
    aside: u64,
    /// Number of units in `counts.limbo` that are in [`quarantine`](crate::state::quarantine). The list below has their
    /// runs, except those in barred chunks.
    quarantined: u64,
    quarantine: Vec<(u64, u64)>,
    /// Number of free units that only metadata may take (I2).
    pub(crate) reserve: u64,
    /// Range of free counts (first, length) within which the space state cannot change.
    calm: (u64, u64),
}

impl Units {
    pub(crate) fn new(total: u64) -> Units {
        let mut units = Units {
            chunks: Chunks::new(),
            counts: Counts::default(),
            cursor: 0,
            // Metadata is kept together near the end of the pool, which data reaches last.
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

    /// Grows the pool to `total` units; the new ones are free.
    pub(crate) fn grow(&mut self, total: u64) {
        let from = self.counts.total;
        self.chunks.grow(total);
        self.counts.total = total;
        self.counts.free += total - from;
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns the number of free units that data may take.
    pub(crate) fn available(&self) -> u64 {
        self.counts.free.saturating_sub(self.reserve)
    }

    /// Returns true if the number of free units is within the range given to [`Units::set_calm`].
    #[inline]
    pub(crate) fn is_calm(&self) -> bool {
        self.counts.free.wrapping_sub(self.calm.0) < self.calm.1
    }

    /// Sets the range of free counts, `from..from + count`, in which the space state cannot change.
    pub(crate) fn set_calm(&mut self, from: u64, count: u64) {
        self.calm = (from, count);
    }

    /// Allocates a unit for data, with one owner.
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

    /// Finds `count` adjacent free units, aligned to `count`, for [`Units::alloc_at`]. `count` is a power of two of at
    /// most 64. Returns `None` if free space is short or a bounded search finds none.
    pub(crate) fn find_window(&mut self, count: u64) -> Option<u64> {
        if self.available() < count + (self.counts.total >> PLENTY_SHIFT) {
            return None;
        }
        let found = self.chunks.next_window(self.window_cursor, count, WINDOW_CHUNKS);
        self.window_cursor = found.map_or_else(|next| next, |first| first + count);
        found.ok()
    }

    /// Allocates a given free unit for data, with one owner.
    pub(crate) fn alloc_at(&mut self, unit: u64) {
        self.take(unit, 1);
        self.counts.data += 1;
    }

    /// Allocates a unit for metadata, also from the reserve.
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

    /// Marks a free unit as fixed. Returns false if it is not free.
    pub(crate) fn fix(&mut self, unit: u64) -> bool {
        self.claim(unit, FIXED)
    }

    /// Recovery: marks a unit as metadata. Returns true also if it was metadata already.
    pub(crate) fn claim_meta(&mut self, unit: u64) -> bool {
        self.is_meta(unit) || self.claim(unit, META)
    }

    /// Recovery: adds an owner to a unit found in a map. Returns false if the unit cannot be data.
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

    /// Returns the number of owners of a data unit; 0 for any other.
    pub(crate) fn owners(&self, unit: u64) -> u16 {
        Some(self.chunks.owners(unit)).filter(|owners| *owners <= MAX_OWNERS).unwrap_or(0)
    }

    /// Adds an owner. Returns false if the unit is not data, or has the largest possible number of owners.
    pub(crate) fn get(&mut self, unit: u64) -> bool {
        match self.chunks.owners_mut(unit) {
            Some(owners) if (1..MAX_OWNERS).contains(owners) => *owners += 1,
            _ => return false,
        }
        true
    }

    /// Removes an owner. Returns true if that was the last: the unit is in limbo then, until [`Units::release`].
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

    pub(crate) fn next_free(&self, from: u64) -> Option<u64> {
        self.chunks.next_free(from)
    }

    /// Moves a free unit to limbo until [`Units::bring_back`], so that nobody can allocate it while it is discarded.
    pub(crate) fn set_aside(&mut self, unit: u64) {
        self.take(unit, 0);
        self.counts.limbo += 1;
        self.aside += 1;
    }

    /// Frees a unit that was set aside, without listing it for discard again.
    pub(crate) fn bring_back(&mut self, unit: u64) {
        self.aside -= 1;
        self.set_free(unit);
    }

    pub(crate) fn aside(&self) -> u64 {
        self.aside
    }

    /// Moves all free units to limbo until [`Units::end_quarantine`], except the runs of `sure` (first, count;
    /// ascending): a map that cannot be read may refer to them.
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

    /// Ends the quarantine. Units in barred chunks are free at once. The returned runs stay in limbo for the caller to
    /// release in parts.
    pub(crate) fn end_quarantine(&mut self) -> Vec<(u64, u64)> {
        let free = self.chunks.unbar();
        self.counts.limbo -= free;
        self.counts.free += free;
        self.quarantined = 0;
        std::mem::take(&mut self.quarantine)
    }

    /// Returns at most `most` runs of free units (first, count; ascending): the longest that a bounded search finds,
    /// starting where data is allocated next.
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

    pub(crate) fn quarantined(&self) -> u64 {
        self.quarantined
    }

    /// Recovery: returns true if a unit is in quarantine. Valid only while limbo has no other units.
    pub(crate) fn is_quarantined(&self, unit: u64) -> bool {
        unit < self.counts.total && !self.chunks.is_free(unit) && self.chunks.owners(unit) == 0
    }

    /// Turns the list of freed units for background discard on or off.
    pub(crate) fn keep_stale(&mut self, on: bool) {
        match on {
            true => _ = self.stale.get_or_insert_default(),
            false => self.stale = None,
        }
    }

    pub(crate) fn keeps_stale(&self) -> bool {
        self.stale.is_some()
    }

    /// Returns the number of listed units, freed and not discarded since.
    pub(crate) fn stale_units(&self) -> u64 {
        self.stale.as_ref().map_or(0, Stale::units)
    }

    /// Removes the next listed unit that is still free. Examines at most `most` units, and subtracts the number
    /// examined from `most`.
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

    /// Puts units that [`Units::next_stale`] returned, and that were not discarded, back on the list.
    pub(crate) fn list_again(&mut self, units: impl Iterator<Item = u64>) {
        if let Some(stale) = &mut self.stale {
            units.for_each(|unit| stale.push(unit));
        }
    }

    /// Frees a unit in limbo.
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

    /// Frees a metadata unit without pages, at once: metadata is read through durable references only, so there are no
    /// readers to wait for.
    pub(crate) fn release_meta(&mut self, unit: u64) {
        debug_assert!(self.is_meta(unit), "unit {unit} is not metadata");
        if let Some(stale) = &mut self.stale {
            stale.push(unit);
        }
        self.counts.meta -= 1;
        self.counts.free += 1;
        self.chunks.release(unit);
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.chunks.memory_bytes()
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
