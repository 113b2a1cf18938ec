//! How much work changes of maps come to: under one hold of the pool's lock, and for who replays them.
//!
//! Owns the counts and their bounds. The changes themselves are in [`tree`](super::tree) and [`tops`](super::tops).
//!
//! - W1: what is done under one hold of the lock looks at [`MAX_HELD`] entries at most; debug builds panic beyond.
//! - W2: all pages of a checkpoint are made under one hold of the lock: [`MAX_PAGES`] at most, counted as the first.
//! - W3: what changes have cost since the last checkpoint ([`Tree::cost`]), as far as a few bytes of a record stand for
//!   it, makes one due at [`MOST_COST`]: copies of maps, nodes that are made, discards of parts of leaves, sizes.
//!   Replaying the journal costs as much again, and is refused when it costs much more ([`Bounds`]).
//!
//! Called under the pool's lock, and by recovery.

use super::tree::Tree;
use crate::format::journal::Bounds;

/// Most entries that are looked at under one hold of the pool's lock: those of the used slots of two tops, for a copy
/// that is undone; a commit and what passes the gate are well below. `docs/volumes.md` has the bound of each holder.
#[cfg(any(debug_assertions, test))]
pub(crate) const MAX_HELD: u64 = 1 << 19;

/// Most pages that a checkpoint makes: 16,384 nodes of maps and what is above them, 22,508 pages of checksums, and the
/// table of 65,000 volumes.
#[cfg(any(debug_assertions, test))]
pub(crate) const MAX_PAGES: u64 = 1 << 16;

/// Cost of changes that makes a checkpoint due (W3).
pub(crate) const MOST_COST: u64 = Bounds::MOST_COST / 4;

impl Tree {
    /// So many entries more have been looked at, outside of the tree.
    pub(crate) fn count_work(&mut self, entries: usize) {
        self.work += entries as u64;
    }

    /// A slot of a map is shared with another one.
    pub(super) fn count_slot(&mut self) {
        self.work += 1;
        self.look(1);
        self.cost += Bounds::SLOT_COST;
    }

    /// A node is made.
    pub(super) fn count_node(&mut self) {
        self.cost += Bounds::NODE_COST;
    }

    /// So many entries or words of nodes have been looked at, or zeroed: counted for tests alone.
    #[inline(always)]
    pub(super) fn look(&mut self, _entries: usize) {
        #[cfg(test)]
        {
            self.looked += _entries as u64;
        }
    }

    /// A record's leaf is looked for from the number of its volume on: counted for tests alone.
    #[inline(always)]
    pub(crate) fn walk(&mut self) {
        #[cfg(test)]
        {
            self.walked += 1;
        }
    }

    /// Some units of a leaf are discarded, not all.
    pub(crate) fn count_part(&mut self) {
        self.cost += Bounds::PART_COST;
    }

    /// A volume has another size, which will be in the journal.
    pub(crate) fn count_size(&mut self) {
        self.cost += Bounds::SIZE_COST;
    }

    /// Recovery is over: what it has looked at was under no lock.
    pub(crate) fn forget_work(&mut self) {
        self.work = 0;
    }

    /// The lock was taken: what was done under the hold before had a bound (W1).
    #[cfg(any(debug_assertions, test))]
    pub(crate) fn begin_hold(&mut self) {
        let work = std::mem::take(&mut self.work);
        debug_assert!(work <= MAX_HELD, "{work} entries were looked at under one hold of the pool's lock");
        self.most_work = self.most_work.max(work);
    }

    /// So many pages are made under this hold of the lock (W2).
    #[cfg(any(debug_assertions, test))]
    pub(crate) fn count_pages(&mut self, pages: u64) {
        debug_assert!(pages <= MAX_PAGES, "{pages} pages are made under one hold of the pool's lock");
        self.most_pages = self.most_pages.max(pages);
    }
}
