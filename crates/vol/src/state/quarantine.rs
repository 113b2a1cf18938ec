//! Quarantine: protects the space that a damaged map may refer to, while the pool stays in use.
//!
//! The owners of space are derived from the maps. An unreadable map page hides its children: units of data, and pages
//! of the map. They look free, or as if a related volume were their only owner. The page may become readable again, so
//! none of that space may be reused or changed in place as long as the page is needed.
//!
//! Owns the extent of that space, and the end of the quarantine. Does not own the units and pages
//! ([`alloc`](super::alloc)), nor the record of damaged pages ([`Vol::damage`](super::table::Vol)).
//!
//! - Q1: a unit without an owner in any map is known to be free only if it became free since the opening, was added by
//!   growth, or is in the [list of free units](crate::format::page::free) of the checkpoint. All others stay in
//!   quarantine until it ends. Free pages are in quarantine too if a page above the leaves is damaged, because it may
//!   refer to any of them.
//! - Q2: related volumes share units and pages only at the same place of their maps. So their nodes at the place of a
//!   damaged page get an extra parent: writers then copy everything below, and no page or unit there becomes free.
//!   Volumes of other families share nothing with the map, so the units that they release become free as usual.
//! - Q3: every checkpoint keeps the reference to a damaged page in its place. Journal records about that place are kept
//!   beside the maps ([`kept`](super::kept)). If there are too many of them, or no page is left for the checkpoint, no
//!   checkpoint is written: the pool permits deletes only, as in [`cramped`](crate::engine::cramped).
//! - Q4: the quarantine ends when it is durable that no volume with a damaged map is left: each was deleted, or rolled
//!   back to an undamaged snapshot.
//!
//! Begun by recovery, ended by commits.

use std::ops::Range;

use sheave_base::sync::atomic::Ordering;

use super::State;
use super::extent_map::{INDEX_SHIFT, TAG, id_of};
use super::freed::{Freed, Held};
use super::table::LostPage;
use crate::state::account::Spender;

/// Slots of a top that the place of a page covers.
fn slots_of(page: &LostPage) -> Range<u64> {
    let shift = INDEX_SHIFT * u32::from(page.level.saturating_sub(1));
    let first = if page.level == 0 { page.number >> INDEX_SHIFT } else { page.number << shift };
    first..first + (1 << shift)
}

impl State {
    /// Recovery: begins the quarantine if a map is damaged. Exempts the units of `sure` (first, count; ascending),
    /// which are known to be free. Called after owners have been counted.
    pub(crate) fn begin_quarantine(&mut self, sure: &[(u64, u64)]) {
        let mut lost: Vec<(u32, LostPage)> = Vec::new();
        for vol in self.table.iter() {
            let pages = vol.damage.iter().flat_map(|lost| &lost.pages).flat_map(|pages| pages.iter());
            lost.extend(pages.map(|page| (vol.family, *page)));
        }
        if self.table.first_damaged().is_none() {
            return;
        }
        let sure = &self.without_kept(sure);
        // Relatives share damaged pages, so each page is listed once per volume; once per family is enough.
        lost.sort_unstable_by_key(|(family, page)| (*family, page.level, page.number, page.page.address));
        lost.dedup_by_key(|(family, page)| (*family, page.level, page.number, page.page.address));
        self.tree.units.begin_quarantine(sure);
        if lost.iter().any(|(_, page)| page.level > 0) {
            self.tree.pages.begin_quarantine();
        }
        let mut held = Held::default();
        for (family, page) in lost {
            let relatives: Vec<u32> = self.table.iter().filter(|vol| vol.family == family).map(|vol| vol.id).collect();
            relatives.into_iter().for_each(|id| self.hold_in_place_of(id, &page, &mut held));
        }
        self.quarantine = Some(held);
        self.set_reserve();
    }

    /// Adds an extra parent to the nodes that `volume` has at the place of a damaged page (Q2).
    fn hold_in_place_of(&mut self, volume: u32, page: &LostPage, held: &mut Held) {
        let State { table, tree, .. } = self;
        let Some(vol) = table.get(volume) else { return };
        let (top, slots) = (&vol.core.top, slots_of(page));
        let mut next = top.next_used(slots.start, slots.end.min(vol.slots));
        while let Some(slot) = next {
            next = top.next_used(slot + 1, slots.end.min(vol.slots));
            // Relaxed, here and below: recovery runs before any other user of the maps.
            let index = id_of(top.word(slot as u32).map_or(0, |word| word.load(Ordering::Relaxed)));
            // Skips the empty node of the damaged page itself. `TAG` and the extra parent make writers copy the node
            // (Q2).
            if page.level > 0 {
                if index != 0 && tree.index.node(index).page != page.page {
                    if held.index.insert(index) {
                        tree.index.get(index);
                    }
                    top.set_word(slot as u32, u64::from(index) | TAG);
                }
                continue;
            }
            let Some(word) = tree.map.index.word(index, page.number as usize & ((1 << INDEX_SHIFT) - 1)) else {
                continue;
            };
            let leaf = id_of(word.load(Ordering::Relaxed));
            if leaf != 0 && tree.leaves.node(leaf).page != page.page {
                if held.leaves.insert(leaf) {
                    tree.leaves.get(leaf);
                }
                word.store(u64::from(leaf) | TAG, Ordering::Relaxed);
            }
        }
    }

    /// Returns true if damaged maps permit the first checkpoint (Q3) and there are pages for it.
    pub(crate) fn has_pages_for_first(&self) -> bool {
        self.quarantine.is_none() || !self.kept.is_too_much && self.has_room(self.pages_due(), Spender::EndOfWrite)
    }

    /// Returns true if a commit of the present state ends the quarantine once it is durable (Q4).
    pub(crate) fn ends_quarantine(&self) -> bool {
        self.quarantine.is_some() && self.table.first_damaged().is_none()
    }

    /// Ends the quarantine, when it is durable that no damaged map is left (Q4).
    pub(crate) fn end_quarantine(&mut self) {
        let Some(Held { index, leaves }) = self.quarantine.take() else { return };
        self.end_kept();
        let tree = &mut self.tree;
        let mut freed = Freed::of_units(tree.units.end_quarantine());
        tree.pages.end_quarantine(&mut tree.units);
        // The extra parents are dropped in parts, like the releases of volumes (I3 of `limbo`).
        freed.shared_index.extend(index);
        freed.shared_leaves.extend(leaves);
        self.limbo.pass(freed);
        self.set_reserve();
    }

    /// Returns a sentence for the user about the free space that the quarantine withholds, or `None` without a
    /// quarantine.
    pub(crate) fn why_kept(&self) -> Option<String> {
        self.quarantine.as_ref()?;
        let (vol, damage) = self.table.first_damaged()?;
        let bytes = self.tree.units.quarantined() << self.tree.map.geometry.unit_shift;
        Some(format!(
            "{bytes} free bytes are kept from use, since the map of volume '{}' is damaged at byte {} and may have \
             them; 'sheave volume delete' of each damaged volume gives them back",
            vol.name, damage.at
        ))
    }
}
