//! Replay's use of the leaf cache: caching, prefetching, and applying records to cached leaves.
//!
//! Owns the rules according to which leaves enter and leave the [cache](super::known) (K1), and discards in cached
//! leaves. The cache exists only during a replay.
//!
//! Called by recovery, and by changes of maps.

use sheave_base::sync::atomic::Ordering;

use super::Entry;
use super::known::{Known, Space};
use super::tree::{EntryPlace, Tree};
use crate::format::record::Record;

/// Number of records prefetched together: the largest number of unit records that a journal block can have.
pub(crate) const ASKED: usize = 128;

/// Places of the units of prefetched records. Valid until anything is removed from the cache.
pub(crate) struct Asked {
    places: [EntryPlace; ASKED],
    /// Value of `Known::forgotten` at the prefetch.
    forgotten: u64,
}

/// Place of an uncached unit: no leaf has number 0.
const NOWHERE: EntryPlace = EntryPlace { leaf: 0, slot: 0 };

impl Tree {
    /// Called at the start of a replay.
    pub(crate) fn begin_to_know(&mut self) {
        self.known = Some(Box::new(Known::new()));
    }

    /// Called at the end of a replay.
    pub(crate) fn know_nothing(&mut self) {
        self.known = None;
    }

    /// Returns the place of a unit if its leaf is cached (K1).
    #[inline]
    pub(crate) fn known(&self, volume: u32, unit: u64) -> Option<EntryPlace> {
        let geometry = &self.map.geometry;
        let leaf = self.known.as_ref()?.leaf(volume, unit >> geometry.leaf_shift)?;
        Some(EntryPlace { leaf, slot: unit as usize & (geometry.leaf_entries() - 1) })
    }

    /// Caches the leaf of `place`, which [`Tree::own`] returned for the unit.
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

    /// Sets the unit and the written bits of an entry, whatever it had before. Only for replay, which has no concurrent
    /// lookups.
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

    /// Replaces an entry, in a pool whose entries have the written bits. Returns true if the old entry had a unit.
    fn exchange_replayed(&mut self, EntryPlace { leaf, slot }: EntryPlace, new: Entry) -> bool {
        let Some(word) = self.map.leaves.word(leaf, slot) else { return false };
        let old = Entry(word.load(Ordering::Relaxed)); // Relaxed, both: no lookups during a replay.
        word.store(new.0, Ordering::Relaxed);
        let (old_bits, bits) = (old.bits(), new.bits());
        if old_bits != bits {
            self.leaves.add_written(leaf, (bits & !old_bits).count_ones(), (old_bits & !bits).count_ones());
        }
        old.is_alloc()
    }

    /// Turns an allocated entry into a hole. Owners of units are not counted yet, so none is removed.
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

    /// Unmaps `count` units of a cached leaf from a place on. Returns true if this emptied the leaf.
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

    /// Called when the paths of a volume stop being exclusive.
    pub(crate) fn forget_ways(&mut self, volume: u32) {
        if let Some(known) = &mut self.known {
            known.forget_volume(volume);
        }
    }

    /// Prefetches the data that up to [`ASKED`] records will change, and returns the places of units in cached leaves.
    /// First all places are loaded, then all entries. No load depends on another of the same step, so the processor
    /// overlaps many of them, which it could not if the records were applied one by one.
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
        // Keeps the compiler from dropping the loads, whose values are not used.
        std::hint::black_box(all);
        Asked { places, forgotten: known.forgotten() }
    }

    /// Applies a record that gives space to a unit whose place was prefetched. `at` is the record's index in that
    /// batch. Returns the pool unit, or `None` if the record must be applied the normal way. A journal may have
    /// millions of these records.
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

    #[inline]
    fn forgotten(&self) -> u64 {
        self.known.as_ref().map_or(0, |known| known.forgotten())
    }
}
