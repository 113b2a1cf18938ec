//! What a replay remembers of maps, and asks for before it needs it.
//!
//! Owns when leaves become [known](super::known) and are forgotten (K1). Nothing is known outside of a replay.
//!
//! Called by recovery, and by changes of maps.

use super::known::Known;
use super::tree::{EntryPlace, Tree};
use crate::format::record::Record;

impl Tree {
    /// A replay begins.
    pub(crate) fn begin_to_know(&mut self) {
        self.known = Some(Box::new(Known::new()));
    }

    /// It has ended.
    pub(crate) fn know_nothing(&mut self) {
        self.known = None;
    }

    /// The place of a unit, if its leaf is known (K1).
    #[inline]
    pub(crate) fn known(&self, volume: u32, unit: u64) -> Option<EntryPlace> {
        let geometry = &self.map.geometry;
        let leaf = self.known.as_ref()?.leaf(volume, unit >> geometry.leaf_shift)?;
        Some(EntryPlace { leaf, slot: unit as usize & (geometry.leaf_entries() - 1) })
    }

    /// A unit of a volume has this place, which [`Tree::own`] gave.
    pub(crate) fn learn(&mut self, volume: u32, unit: u64, place: EntryPlace) {
        let shift = self.map.geometry.leaf_shift;
        if let Some(known) = &mut self.known {
            known.learn(volume, unit >> shift, place.leaf);
        }
    }

    /// The ways of a volume are not its own any more.
    pub(crate) fn forget_ways(&mut self, volume: u32) {
        if let Some(known) = &mut self.known {
            known.forget_volume(volume);
        }
    }

    /// Loads what these records are about to change. None of these loads waits for another one, as the changes do.
    pub(crate) fn ask_for(&self, records: &[Record]) {
        let mut all = 0;
        for record in records {
            let (Record::Set { volume, unit, .. } | Record::Run { volume, unit, .. }) = record else { continue };
            if let Some(place) = self.known(*volume, *unit) {
                all ^= self.entry(place).0 ^ u64::from(self.leaves.node(place.leaf).used);
            }
        }
        std::hint::black_box(all);
    }
}
