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
pub(crate) const ASKED: usize = 128;

/// Where units are that records were asked for: right as long as nothing known is forgotten.
pub(crate) struct Asked {
    places: [EntryPlace; ASKED],
    /// How often something had been forgotten.
    forgotten: u64,
}

/// No leaf has number 0.
const NOWHERE: EntryPlace = EntryPlace { leaf: 0, slot: 0 };

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
            with_space.take(used as usize).for_each(|(slot, _)| space.0[slot / 64] |= 1 << (slot % 64));
            space
        };
        if let Some(known) = &mut self.known {
            known.learn(volume, unit >> shift, place.leaf, space);
        }
    }

    /// A unit has this space and these written blocks, whatever it had. Nobody looks anything up.
    pub(crate) fn set_replayed(&mut self, place: EntryPlace, phys: u64, written: &[u64; 4]) {
        debug_assert!(self.counts_later);
        let entry = Entry::at(phys);
        let had = if self.map.geometry.has_bits_in_entries() {
            let all = (1 << self.map.geometry.blocks()) - 1;
            let bits = written[0] & all;
            let full = if bits == all { Entry::FULL } else { 0 };
            self.exchange_replayed(place, entry.with(full).with_bits(bits))
        } else {
            let had = self.entry(place).is_alloc();
            let full = if self.store_bits(place, written) { Entry::FULL } else { 0 };
            self.store(place, entry.with(full));
            had
        };
        if !had {
            self.leaves.add_used(place.leaf, 1);
            self.note_space(place, true);
        }
    }

    /// Another entry in the place of one, in a pool whose entries have the written bits; whether that had space.
    fn exchange_replayed(&mut self, EntryPlace { leaf, slot }: EntryPlace, new: Entry) -> bool {
        let Some(word) = self.map.leaves.word(leaf, slot) else { return false };
        let old = Entry(word.load(Ordering::Relaxed)); // Relaxed, both: nobody else is here yet.
        word.store(new.0, Ordering::Relaxed);
        let (old_bits, bits) = (old.bits(), new.bits());
        if old_bits != bits {
            self.leaves.add_written(leaf, (bits & !old_bits).count_ones(), (old_bits & !bits).count_ones());
        }
        old.is_alloc()
    }

    /// Makes a hole of an entry with space, whose unit has all its owners still.
    fn unmap_replayed(&mut self, place: EntryPlace) {
        if !self.map.geometry.has_bits_in_entries() {
            self.make_hole(place);
            return;
        }
        if self.exchange_replayed(place, Entry::NONE) {
            self.leaves.sub_used(place.leaf);
            self.note_space(place, false);
        }
    }

    /// Makes holes of so many units of a known leaf, from this place on; whether the leaf is empty then, and was not
    /// before.
    pub(crate) fn unmap_known(&mut self, EntryPlace { leaf, slot }: EntryPlace, count: u64) -> bool {
        let Some(known) = &self.known else { return false };
        let space = known.space(leaf, slot, slot + count as usize);
        let mut any = false;
        for (at, word) in space.0.into_iter().enumerate() {
            let mut left = word;
            while left != 0 {
                let place = EntryPlace { leaf, slot: at * 64 + left.trailing_zeros() as usize };
                self.unmap_replayed(place);
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

    /// Loads what these records are about to change, [`ASKED`] of them at most, and says where it is, as far as that is
    /// known. None of these loads waits for another one, as the changes do: first the places of all, then what lies
    /// there, so that the processor has as many under way as it can.
    pub(crate) fn ask_for(&self, records: &[Record]) -> Asked {
        let mut places = [NOWHERE; ASKED];
        let Some(known) = &self.known else { return Asked { places, forgotten: 0 } };
        let (shift, last) = (self.map.geometry.leaf_shift, self.map.geometry.leaf_entries() - 1);
        for (place, record) in places.iter_mut().zip(records) {
            let (Record::Set { volume, unit, .. } | Record::Run { volume, unit, .. }) = record else { continue };
            if let Some(leaf) = known.leaf(*volume, *unit >> shift) {
                *place = EntryPlace { leaf, slot: *unit as usize & last };
            }
        }
        let mut all = 0;
        for place in places.into_iter().filter(|place| place.leaf != 0) {
            all ^= self.entry(place).0 ^ u64::from(self.leaves.node(place.leaf).used) ^ known.has_space(place.leaf);
        }
        std::hint::black_box(all);
        Asked { places, forgotten: known.forgotten() }
    }

    /// Does what the record says, if it gives a unit space whose place is known: the unit of the pool. `at`: which of
    /// the records that were asked for it is. A journal may have millions of these.
    #[inline]
    pub(crate) fn replay_at(&mut self, asked: &Asked, at: usize, record: &Record) -> Option<u64> {
        let Record::Set { phys, written, .. } = record else { return None };
        let place = *asked.places.get(at).filter(|place| place.leaf != 0)?;
        if *phys == 0 || asked.forgotten != self.forgotten() {
            return None;
        }
        self.set_replayed(place, *phys, written);
        Some(*phys)
    }

    /// How often something known was forgotten.
    #[inline]
    fn forgotten(&self) -> u64 {
        self.known.as_ref().map_or(0, |known| known.forgotten())
    }
}
