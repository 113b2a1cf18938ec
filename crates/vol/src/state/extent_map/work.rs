//! Counters of the work of map changes: under one hold of the pool's lock, and for a later replay.
//!
//! Owns the counters and their bounds. The changes are in [`tree`](super::tree) and [`tops`](super::tops).
//!
//! - W1: one hold of the lock visits at most [`MAX_HELD`] entries; debug builds panic beyond that.
//! - W2: all pages of a checkpoint are made under one hold of the lock: at most [`MAX_PAGES`]; debug builds panic
//!   beyond.
//! - W3: [`Tree::cost`] sums the map changes since the last checkpoint that a few bytes of a record can cause: copies
//!   of maps, new nodes, discards of parts of leaves, sizes. A checkpoint is due at [`MOST_COST`]. Replaying the
//!   journal does the same work again, and is refused if the cost is much higher ([`Bounds`]).
//!
//! Called under the pool's lock, and by recovery.

use super::tree::Tree;
use crate::format::journal::Bounds;

/// Largest number of entries visited under one hold of the pool's lock. The largest hold undoes a copy, and visits the
/// used slots of two tops; a commit, or a part of the deferred-free queue, visits far fewer. `docs/concepts/volumes.md`
/// has the bound of each holder.
#[cfg(any(debug_assertions, test))]
pub(crate) const MAX_HELD: u64 = 1 << 19;

/// Largest number of pages that a checkpoint makes: 16,384 map nodes and the pages above them, 22,508 checksum pages,
/// and the table of 65,000 volumes.
#[cfg(any(debug_assertions, test))]
pub(crate) const MAX_PAGES: u64 = 1 << 16;

/// Cost at which a checkpoint is due (W3).
pub(crate) const MOST_COST: u64 = Bounds::MOST_COST / 4;

impl Tree {
    /// Counts entries visited outside of the tree.
    pub(crate) fn count_work(&mut self, entries: usize) {
        self.work += entries as u64;
    }

    /// Counts a slot shared with another map.
    pub(super) fn count_slot(&mut self) {
        self.work += 1;
        self.look(1);
        self.cost += Bounds::SLOT_COST;
    }

    pub(super) fn count_node(&mut self) {
        self.cost += Bounds::NODE_COST;
    }

    /// Counts entries or node words visited or zeroed, in tests only.
    #[inline(always)]
    pub(super) fn look(&mut self, _entries: usize) {
        #[cfg(test)]
        {
            self.looked += _entries as u64;
        }
    }

    /// Counts a replayed record that needs a walk from the volume's top, in tests only.
    #[inline(always)]
    pub(crate) fn walk(&mut self) {
        #[cfg(test)]
        {
            self.walked += 1;
        }
    }

    /// Counts a discard of part of a leaf.
    pub(crate) fn count_part(&mut self) {
        self.cost += Bounds::PART_COST;
    }

    /// Counts a change of size that will be in the journal.
    pub(crate) fn count_size(&mut self) {
        self.cost += Bounds::SIZE_COST;
    }

    /// Called at the end of recovery, whose work was not done under the lock.
    pub(crate) fn forget_work(&mut self) {
        self.work = 0;
    }

    /// Called when the lock is taken: checks the work of the previous hold (W1).
    #[cfg(any(debug_assertions, test))]
    pub(crate) fn begin_hold(&mut self) {
        let work = std::mem::take(&mut self.work);
        debug_assert!(work <= MAX_HELD, "{work} entries were looked at under one hold of the pool's lock");
        self.most_work = self.most_work.max(work);
    }

    /// Counts pages made under this hold of the lock (W2).
    #[cfg(any(debug_assertions, test))]
    pub(crate) fn count_pages(&mut self, pages: u64) {
        debug_assert!(pages <= MAX_PAGES, "{pages} pages are made under one hold of the pool's lock");
        self.most_pages = self.most_pages.max(pages);
    }
}
