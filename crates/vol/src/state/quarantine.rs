//! Quarantine: the space that a damaged map may have, while the pool goes on.
//!
//! Who has which space is derived from the maps. A page of a map that gives nothing hides what is behind it: units of
//! data, and pages of the map. They look free, or as if a relative had them alone. The page may be whole again
//! tomorrow, when the device can read it, so none of that may be given to others or changed in place until nobody needs
//! the page any more.
//!
//! Owns which space that is, and when it comes back. Does not own the units and pages ([`alloc`](super::alloc)), nor
//! which pages are damaged ([`Vol::damage`](super::table::Vol)).
//!
//! - Q1: a unit that no map has is nobody's only if it became free since the opening, or the pool grew by it, or the
//!   [list of free units](crate::format::page::free) of the checkpoint has it. All others are out of reach until the
//!   quarantine ends. The same goes for free pages, if a page above the leaves is damaged: it may refer to any of them.
//! - Q2: relatives share units and pages at the same place alone. So the nodes that they have in place of a damaged
//!   page get one more parent, which is nobody: writers copy what is below, and no page and no unit of it becomes free.
//!   Of other families nothing is shared: what they let go is free.
//! - Q3: no checkpoint has anything else in the place of a damaged page. What the journal has of it is kept beside
//!   the maps ([`kept`](super::kept)). Where that is more than can be kept, or where there is no page for the
//!   checkpoint, none is written: the pool takes deletes, as [`cramped`](crate::engine::cramped) does.
//! - Q4: the quarantine ends when it is durable that no volume with a damaged map is left: each was deleted, or rolled
//!   back to a snapshot that is whole.
//!
//! Begun by recovery, ended by commits.

use std::ops::Range;

use sheave_base::sync::atomic::Ordering;

use super::State;
use super::extent_map::{INDEX_SHIFT, TAG, id_of};
use super::freed::{Freed, Held};
use super::table::LostPage;
use crate::state::account::Spender;

/// The slots of a top that a page of this place stands for.
fn slots_of(page: &LostPage) -> Range<u64> {
    let shift = INDEX_SHIFT * u32::from(page.level.saturating_sub(1));
    let first = if page.level == 0 { page.number >> INDEX_SHIFT } else { page.number << shift };
    first..first + (1 << shift)
}

impl State {
    /// Recovery: if a map is damaged, keeps what it may have from everybody, but for units of `sure` (first, number;
    /// ascending), which nobody has for certain. Owners have been counted.
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

    /// The nodes that a volume has in the place of a damaged page get one more parent (Q2).
    fn hold_in_place_of(&mut self, volume: u32, page: &LostPage, held: &mut Held) {
        let State { table, tree, .. } = self;
        let Some(vol) = table.get(volume) else { return };
        let (top, slots) = (&vol.core.top, slots_of(page));
        let mut next = top.next_used(slots.start, slots.end.min(vol.slots));
        while let Some(slot) = next {
            next = top.next_used(slot + 1, slots.end.min(vol.slots));
            // Relaxed, here and below: nobody else is here yet.
            let index = id_of(top.word(slot as u32).map_or(0, |word| word.load(Ordering::Relaxed)));
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

    /// Whether the first checkpoint may be written, as far as damaged maps are concerned (Q3), and has the pages.
    pub(crate) fn has_pages_for_first(&self) -> bool {
        self.quarantine.is_none() || !self.kept.is_too_much && self.has_room(self.pages_due(), Spender::EndOfWrite)
    }

    /// Whether a commit that takes what there is now ends the quarantine when it is durable (Q4).
    pub(crate) fn ends_quarantine(&self) -> bool {
        self.quarantine.is_some() && self.table.first_damaged().is_none()
    }

    /// It is durable that nobody has what was in quarantine (Q4).
    pub(crate) fn end_quarantine(&mut self) {
        let Some(Held { index, leaves }) = self.quarantine.take() else { return };
        self.end_kept();
        let tree = &mut self.tree;
        let mut freed = Freed::of_units(tree.units.end_quarantine());
        tree.pages.end_quarantine(&mut tree.units);
        freed.shared_index.extend(index);
        freed.shared_leaves.extend(leaves);
        self.limbo.pass(freed);
        self.set_reserve();
    }

    /// Why there is less space than the sizes of all volumes would leave, if a damaged map is the reason.
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
