//! What a replay remembers of maps, and asks for before it needs it.
//!
//! Owns when leaves become [known](super::known) and are forgotten (K1), and discards in them. Nothing is known outside
//! of a replay.
//!
//! Called by recovery, and by changes of maps.

use sheave_base::sync::atomic::Ordering;

use super::Entry;
use super::known::{Known, Space};
use super::tree::{EntryPlace, Tree};
use crate::format::record::Record;

/// Records that are asked for together: most that a block of the journal has of those that units are about.
const ASKED: usize = 128;

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
        let (map, used) = (&self.map, self.leaves.node(place.leaf).used);
        let space = || {
            let mut space = Space::default();
            let words = map.leaves.node(place.leaf).unwrap_or_default().iter().enumerate();
            // Relaxed: under the lock.
            let with_space = words.filter(|(_, word)| Entry(word.load(Ordering::Relaxed)).is_alloc());
            with_space.take(used as usize).for_each(|(slot, _)| space[slot / 64] |= 1 << (slot % 64));
            space
        };
        if let Some(known) = &mut self.known {
            known.learn(volume, unit >> shift, place.leaf, space);
        }
    }

    /// Makes holes of so many units of a known leaf, from this place on; whether the leaf is empty then, and was not
    /// before.
    pub(crate) fn unmap_known(&mut self, EntryPlace { leaf, slot }: EntryPlace, count: u64) -> bool {
        let Some(known) = &self.known else { return false };
        let space = known.space(leaf, slot, slot + count as usize);
        let mut any = false;
        for (at, word) in space.into_iter().enumerate() {
            let mut left = word;
            while left != 0 {
                let place = EntryPlace { leaf, slot: at * 64 + left.trailing_zeros() as usize };
                self.make_hole(place);
                self.look(1);
                left &= left - 1;
                any = true;
            }
        }
        any && self.leaves.node(leaf).used == 0
    }

    /// The ways of a volume are not its own any more.
    pub(crate) fn forget_ways(&mut self, volume: u32) {
        if let Some(known) = &mut self.known {
            known.forget_volume(volume);
        }
    }

    /// Loads what these records are about to change. None of these loads waits for another one, as the changes do:
    /// first the places of all, then what lies there, so that the processor has as many under way as it can.
    pub(crate) fn ask_for(&self, records: &[Record]) {
        let mut all = 0;
        for records in records.chunks(ASKED) {
            let mut places = [EntryPlace { leaf: 0, slot: 0 }; ASKED];
            for (place, record) in places.iter_mut().zip(records) {
                let (Record::Set { volume, unit, .. } | Record::Run { volume, unit, .. }) = record else { continue };
                *place = self.known(*volume, *unit).unwrap_or(*place);
            }
            for place in places.into_iter().filter(|place| place.leaf != 0) {
                all ^= self.entry(place).0 ^ u64::from(self.leaves.node(place.leaf).used);
            }
        }
        std::hint::black_box(all);
    }
}
