//! Accounting of metadata pages: the pages that the next checkpoint needs, and the rule for operations that add to
//! them.
//!
//! A checkpoint writes its pages beside those in use, so it needs as many free pages. The pages that it replaces become
//! free only afterwards. A pool without enough free pages for its next checkpoint could no longer flush, delete or
//! close. So every change first reserves the pages that it will make dirty.
//!
//! Owns the numbers and the rule. Does not own the pages ([`alloc::pages`](crate::state::alloc::pages)), nor what a
//! checkpoint writes ([`checkpoint`](crate::engine::checkpoint)).
//!
//! - M1: the free pages suffice for the next checkpoint, and for the bare volume table of the checkpoint after it: with
//!   the latter a delete is always possible, however few pages the next checkpoint leaves.
//! - M2: [`State::pages_due`] is never less than the number of pages that a checkpoint writes. Each change of the
//!   volume table, of a map and of checksum regions updates its terms, so a query costs a few additions. The volume
//!   table counts in full, whatever has changed: a checkpoint may have to repack it.
//! - M3: operations that free space may use pages that are closed to operations which take space ([`Spender`]). So a
//!   pool that is full for writes still takes discards, and one that is full for discards still flushes, deletes and
//!   closes.
//! - M4: on a device that allocates space when it is written, M1 holds for the free pages that certainly have space
//!   there, without the others ([`stock`](crate::engine::stock)).
//!
//! Called under the pool's lock by volumes and by changes of the table, before they change anything. A caller that
//! drops the lock between the check and the change must check again, as others may have used the pages meanwhile.

use crate::format::journal::Bounds;
use crate::format::superblock::Geometry;
use crate::state::sums::marks::Mismatch;

use crate::format::page::index::upper_pages;
use crate::format::settings::Checksum;
use crate::state::State;
use crate::state::sums::regions::Regions;

/// Pages to reserve for a change that may add an entry to the volume table: for the next checkpoint, and for the one
/// after it.
pub(crate) const ENTRY_COST: u64 = 6;
/// Map nodes that a change of one unit makes dirty, or a change of a range within one slot: an index node, and the
/// leaves of both ends.
const NODES_COST: u64 = 3;
/// Checksum pages for a unit that is copied, or that is reused and loses the marks of its former use: the page of its
/// region, and the index page above.
const COPY_COST: u64 = 2;

/// Kind of an operation that needs pages. Each kind leaves a share of the spare pages to the kinds listed after it
/// (M3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spender {
    /// New volumes, copies, renames: leave half of the spare pages.
    Table,
    /// Writes that take space: leave a quarter.
    Write,
    /// Discards, overwrites in pools with checksums, shrinking and rollback: leave an eighth.
    Discard,
    /// Completion of a write whose data is on the device: leaves only what flushes and deletes need.
    EndOfWrite,
}

/// Upper limit of the pages with space that writes leave for discards, flushes and deletes.
const MOST_EXTRA: u64 = 256;

/// Most dirty nodes: half as many as a journal may change.
const MOST_DIRTY: u64 = Bounds::MOST_NODES / 2;

/// Free units that only metadata may take, for a pool of this size.
pub(crate) fn reserve_units(geometry: &Geometry) -> u64 {
    geometry.reserve_units()
}

impl State {
    /// Upper bound of the pages that the next checkpoint writes (M2).
    pub(crate) fn pages_due(&self) -> u64 {
        let sums = self.sums.as_ref().map_or(0, Regions::pages_due);
        let kept = self.kept.rewrite.unwrap_or(0) + self.kept.upper_due;
        self.tree.dirty_nodes() + self.table.upper_due() + self.table.bare_pages() + sums + kept
    }

    /// Returns whether an operation of kind `who` may add `more` pages to the next checkpoint (M1, M3).
    pub(crate) fn can_pay(&self, more: u64, who: Spender) -> bool {
        let due = self.pages_due() + more;
        self.has_room(due, who) && self.tree.pages.stock() >= self.stock_wanted(due, who)
    }

    /// Returns whether enough pages are free. Counts pages for which the host may lack space too.
    pub(crate) fn has_room(&self, due: u64, who: Spender) -> bool {
        self.tree.pages.available(&self.tree.units) >= self.wanted(due, who)
    }

    /// Free pages required when the next checkpoint needs `due`.
    fn wanted(&self, due: u64, who: Spender) -> u64 {
        let left = match who {
            Spender::Table => self.spare_pages / 2,
            Spender::Write => self.spare_pages / 4,
            Spender::Discard => self.spare_pages / 8,
            Spender::EndOfWrite => 0,
        };
        due + self.table.bare_pages() + left
    }

    /// Free pages with space required when the next checkpoint needs `due` (M4).
    pub(crate) fn stock_wanted(&self, due: u64, who: Spender) -> u64 {
        let extra = (self.spare_pages / 4).min(MOST_EXTRA);
        let left = match who {
            Spender::Table | Spender::Write => extra,
            Spender::Discard => extra / 2,
            Spender::EndOfWrite => 0,
        };
        due + self.table.bare_pages() + left
    }

    /// Returns whether `who` could add `more` pages after a checkpoint. That would clean all nodes, and free the pages
    /// given up.
    pub(crate) fn can_pay_after_checkpoint(&self, more: u64, who: Spender) -> bool {
        let free = self.tree.pages.available(&self.tree.units) + self.tree.pages.given_up();
        let (due, stock) = (self.table.bare_pages() + more, self.tree.pages.stock());
        let stock = stock.saturating_add(self.tree.pages.given_up());
        free >= self.wanted(due, who) && stock >= self.stock_wanted(due, who)
    }

    /// Upper bound of the pages that a change of units `first..=last` of a volume adds to the next checkpoint.
    pub(crate) fn cost_of_units(&self, volume: u32, first: u64, last: u64) -> u64 {
        let geometry = &self.tree.map.geometry;
        let nodes = |shift: u32| (last >> shift) - (first >> shift);
        let nodes = NODES_COST + nodes(geometry.leaf_shift) + nodes(geometry.slot_shift());
        let slots = (last >> geometry.slot_shift()) + 1;
        // A write to a volume that is being copied may change the unfinished copy too. That adds no pages here: the
        // copy was charged for when it was begun, and no checkpoint contains it yet.
        let copy = if self.sums.is_some() { COPY_COST } else { 0 };
        nodes + self.table.upper_more(volume, slots) + copy
    }

    /// Upper bound of the pages that a new volume with the map of `volume` adds to the next checkpoint.
    pub(crate) fn cost_of_map(&self, volume: u32) -> u64 {
        self.table.get(volume).map_or(0, |vol| upper_pages(vol.slots, vol.core.top.used()))
    }

    /// Upper bound of the pages that marks for these blocks, all of one region, add to the next checkpoint.
    pub(crate) fn cost_of_marks(&self, bad: &[Mismatch]) -> u64 {
        let (Some(regions), Some(found)) = (&self.sums, bad.first()) else { return 0 };
        let region = regions.sums.region_of(found.block);
        regions.cost_of(region..region + 1)
    }

    /// Upper bound of the pages that opening these regions adds to the next checkpoint.
    pub(crate) fn cost_of_intent(&self, regions: std::ops::Range<u64>) -> u64 {
        self.sums.as_ref().map_or(0, |sums| sums.cost_of(regions))
    }

    /// Updates the limits that depend on the size of the pool and the number of its volumes.
    pub(crate) fn set_reserve(&mut self) {
        let tree = &mut self.tree;
        let geometry = self.sb.geometry();
        let per_unit = tree.pages.per_unit();
        let spare = reserve_units(&geometry) * per_unit;
        self.spare_pages = spare;
        (self.dirty_soft, self.dirty_hard) = ((spare / 4).min(8192), (spare / 2).min(MOST_DIRTY));
        let table = (2 * self.table.bare_pages()).saturating_sub(spare / 4);
        let sums = match self.sb.checksum {
            Checksum::None => 0,
            _ => Regions::reserve_pages(geometry.regions(self.sb.total_units)),
        };
        tree.pages.keep = if tree.pages.sparse { spare / 2 + 2 * self.table.bare_pages() + sums } else { 0 };
        // Units in the stock are metadata already. Data cannot take them, so the reserve need not contain them.
        let pages = (spare + table + sums).div_ceil(per_unit).saturating_sub(tree.pages.stocked_units());
        tree.units.reserve = tree.pages.copies() * pages;
    }

    /// Returns whether free metadata space is low. `is_low` is the previous result, for the hysteresis. New volumes are
    /// still accepted for a while after that.
    pub(crate) fn is_metadata_low(&self, is_low: bool) -> bool {
        let left = if is_low { self.spare_pages * 7 / 8 } else { self.spare_pages * 3 / 4 };
        let sums = self.sums.as_ref().map_or(0, Regions::pages_due);
        self.tree.pages.available(&self.tree.units) < 2 * self.table.bare_pages() + sums + left
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
