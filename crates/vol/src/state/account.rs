//! The account of metadata: how many pages the next checkpoint needs, and who may make it need more.
//!
//! A checkpoint writes its pages beside those in use, so it has to find as many that are free; the pages that it
//! replaces are free after it only. A pool whose next checkpoint finds too few could not flush, delete or close any
//! more. So every change that makes pages dirty is paid for before it is made.
//!
//! Owns the numbers and the rule. Does not own the pages ([`alloc::pages`](crate::state::alloc::pages)), nor what a
//! checkpoint writes ([`checkpoint`](crate::engine::checkpoint)).
//!
//! - M1: the free pages are enough for the next checkpoint and for the bare volume table of one after it. The second
//!   one pays for a delete, whatever the first one left.
//! - M2: [`State::pages_due`] is never less than what a checkpoint writes. Each change of the table of volumes, of a
//!   map and of the regions of checksums keeps it up to date, so that asking costs a few additions. The table counts
//!   as a whole, whatever has changed in it: a checkpoint may have to pack it anew.
//! - M3: who gives space back may use pages that who takes space may not ([`Spender`]), so that a pool that is full for
//!   writes still takes discards, and one that is full for discards still flushes, deletes and closes.
//! - M4: on a device that gives space when it is written, so many of the free pages have space for certain that M1
//!   holds for these alone ([`stock`](crate::engine::stock)).
//!
//! Called under the pool's lock by volumes and by changes of the table, before they change anything. Who lets the lock
//! go between the question and the change asks again: others may have used meanwhile what there was.

use crate::format::journal::Bounds;
use crate::format::superblock::Geometry;
use crate::state::sums::marks::Mismatch;

use crate::format::page::index::upper_pages;
use crate::format::settings::Checksum;
use crate::state::State;
use crate::state::sums::regions::Regions;

/// Pages of a table of volumes that may become longer by one entry: of this checkpoint, and of the next.
pub(crate) const ENTRY_COST: u64 = 6;
/// Nodes of a map that a change of one unit, or of both ends of a range in one slot, makes dirty: an index node, and
/// the leaves of both ends.
const NODES_COST: u64 = 3;
/// Pages of checksums for a unit that is copied, or that takes off the marks of whose it was before: that of its
/// region, and the index page above.
const COPY_COST: u64 = 2;

/// Who wants pages; what each leaves to those below it (M3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spender {
    /// New volumes, copies, names: they leave half of the spare pages.
    Table,
    /// Writes that take space leave a quarter.
    Write,
    /// Discards, overwrites in pools with checksums, shrinking and rollback leave an eighth.
    Discard,
    /// The end of a write whose data is on the device leaves what flushes and deletes need.
    EndOfWrite,
}

/// Pages that writes leave for discards, flushes and deletes, at most.
const MOST_EXTRA: u64 = 256;

/// Nodes that may be dirty, at most: half as many as a journal may change.
const MOST_DIRTY: u64 = Bounds::MOST_NODES / 2;

/// Free units that data does not get, for a pool of this size.
pub(crate) fn reserve_units(geometry: &Geometry) -> u64 {
    geometry.reserve_units()
}

impl State {
    /// Pages that the next checkpoint writes, at most (M2).
    pub(crate) fn pages_due(&self) -> u64 {
        let sums = self.sums.as_ref().map_or(0, Regions::pages_due);
        let kept = self.kept.rewrite.unwrap_or(0) + self.kept.upper_due;
        self.tree.dirty_nodes() + self.table.upper_due() + self.table.bare_pages() + sums + kept
    }

    /// Whether the next checkpoint may need `more` pages than now, for this spender (M1, M3).
    pub(crate) fn can_pay(&self, more: u64, who: Spender) -> bool {
        let due = self.pages_due() + more;
        self.has_room(due, who) && self.tree.pages.stock() >= self.stock_wanted(due, who)
    }

    /// Whether there are enough free pages, with space or without.
    pub(crate) fn has_room(&self, due: u64, who: Spender) -> bool {
        self.tree.pages.available(&self.tree.units) >= self.wanted(due, who)
    }

    /// Free pages that there must be when the next checkpoint needs `due`.
    fn wanted(&self, due: u64, who: Spender) -> u64 {
        let left = match who {
            Spender::Table => self.spare_pages / 2,
            Spender::Write => self.spare_pages / 4,
            Spender::Discard => self.spare_pages / 8,
            Spender::EndOfWrite => 0,
        };
        due + self.table.bare_pages() + left
    }

    /// Pages with space that there must be when the next checkpoint needs `due` (M4).
    pub(crate) fn stock_wanted(&self, due: u64, who: Spender) -> u64 {
        let extra = (self.spare_pages / 4).min(MOST_EXTRA);
        let left = match who {
            Spender::Table | Spender::Write => extra,
            Spender::Discard => extra / 2,
            Spender::EndOfWrite => 0,
        };
        due + self.table.bare_pages() + left
    }

    /// Whether a checkpoint could help who cannot pay: it makes all pages clean and frees those that were given up.
    pub(crate) fn can_pay_after_checkpoint(&self, more: u64, who: Spender) -> bool {
        let free = self.tree.pages.available(&self.tree.units) + self.tree.pages.given_up();
        let (due, stock) = (self.table.bare_pages() + more, self.tree.pages.stock());
        let stock = stock.saturating_add(self.tree.pages.given_up());
        free >= self.wanted(due, who) && stock >= self.stock_wanted(due, who)
    }

    /// What a change of units `first..=last` of a volume adds to the next checkpoint, at most.
    pub(crate) fn cost_of_units(&self, volume: u32, first: u64, last: u64) -> u64 {
        let geometry = &self.tree.map.geometry;
        let nodes = |shift: u32| (last >> shift) - (first >> shift);
        let nodes = NODES_COST + nodes(geometry.leaf_shift) + nodes(geometry.slot_shift());
        let slots = (last >> geometry.slot_shift()) + 1;
        // A copy that is being made, which a write changes too, was charged for when it was made, and no checkpoint has
        // it yet.
        let copy = if self.sums.is_some() { COPY_COST } else { 0 };
        nodes + self.table.upper_more(volume, slots) + copy
    }

    /// What a new volume with the map of another adds to the next checkpoint, at most.
    pub(crate) fn cost_of_map(&self, volume: u32) -> u64 {
        self.table.get(volume).map_or(0, |vol| upper_pages(vol.slots, vol.core.top.used()))
    }

    /// What marks for these blocks, which are of one region, add to the next checkpoint, at most.
    pub(crate) fn cost_of_marks(&self, bad: &[Mismatch]) -> u64 {
        let (Some(regions), Some(found)) = (&self.sums, bad.first()) else { return 0 };
        let region = regions.sums.region_of(found.block);
        regions.cost_of(region..region + 1)
    }

    /// What opening these regions for writes adds to the next checkpoint, at most.
    pub(crate) fn cost_of_intent(&self, regions: std::ops::Range<u64>) -> u64 {
        self.sums.as_ref().map_or(0, |sums| sums.cost_of(regions))
    }

    /// Sets what depends on the size of the pool and on the number of its volumes.
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
        // What is kept free for pages is data's no more, and need not be reserved.
        let pages = (spare + table + sums).div_ceil(per_unit).saturating_sub(tree.pages.stocked_units());
        tree.units.reserve = tree.pages.copies() * pages;
    }

    /// Whether metadata has little room; `is_low`: whether it had. New volumes are refused a little later.
    pub(crate) fn is_metadata_low(&self, is_low: bool) -> bool {
        let left = if is_low { self.spare_pages * 7 / 8 } else { self.spare_pages * 3 / 4 };
        let sums = self.sums.as_ref().map_or(0, Regions::pages_due);
        self.tree.pages.available(&self.tree.units) < 2 * self.table.bare_pages() + sums + left
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
