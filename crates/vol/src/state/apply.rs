//! The effect of each journal record on the state, shared by the operation itself and by its replay.
//!
//! Owns the meaning of records. Does not decide when they are recorded. Callers ensure that nothing uses the parts that
//! a record changes.
//!
//! - I1: applying a record a second time changes nothing. A record about a volume that does not exist is skipped.
//! - I2: a volume that receives the map of another one receives its damage too. Only replay meets damage here: an open
//!   pool copies no damaged map.
//!
//! Called by operations under the pool's lock, and by recovery.

use sheave_base::status::Status;
use sheave_base::sync::Arc;

use crate::format::BLOCK_SHIFT;
use crate::format::page::PageRef;
use crate::format::page::table::VolumeEntry;
use crate::format::record::Record;
use crate::state::State;
use crate::state::extent_map::Entry;
use crate::state::extent_map::tree::EntryPlace;
use crate::state::table::{Vol, VolumeCore};

impl State {
    pub(crate) fn apply(&mut self, record: &Record) -> Result<(), Status> {
        match record {
            Record::Set { volume, unit, phys, written } => self.apply_set(*volume, *unit, *phys, written),
            Record::Run { volume, unit, count, phys } => self.apply_run(*volume, *unit, *count, *phys),
            Record::Create { .. } | Record::Copy { .. } => self.apply_new(record),
            Record::Rename { volume, name } => match self.table.get(*volume) {
                Some(vol) if vol.name != *name => {
                    self.table.rename(*volume, name).then_some(()).ok_or(Status::Conflict)
                }
                _ => Ok(()),
            },
            Record::Resize { volume, size } => self.apply_resize(*volume, *size),
            Record::Limit { volume, max_size } => {
                if let Some(vol) = self.table.get(*volume) {
                    vol.core.set_max_size(*max_size);
                }
                Ok(())
            }
            Record::Delete { volume } => {
                if let Some(mut vol) = self.detach(*volume) {
                    while self.drop_some(&mut vol) {}
                }
                Ok(())
            }
            Record::Rollback { volume, source } => self.apply_rollback(*volume, *source),
            Record::Intent { first, count } => {
                let regions = self.sb.geometry().regions(self.sb.total_units);
                self.sums.as_mut().map_or(Ok(()), |sums| sums.replay_intent(*first..(first + count).min(regions)))
            }
            Record::Mark { bad, first, count } => match &mut self.sums {
                Some(sums) => sums.replay_marks(*first..*first + *count, *bad),
                None => Ok(()),
            },
            Record::Identity { volume, identity } => {
                self.table.set_identity(*volume, *identity);
                Ok(())
            }
            Record::Interim { volume, interim } => {
                self.table.set_interim(*volume, *interim);
                Ok(())
            }
            Record::Origin { volume, origin } => {
                self.table.set_origin(*volume, *origin);
                Ok(())
            }
        }
    }

    /// Applies `Create` and `Copy`.
    fn apply_new(&mut self, record: &Record) -> Result<(), Status> {
        let (volume, grows, size, max_size, created, name) = match record {
            Record::Create { volume, grows, size, max_size, created, name }
            | Record::Copy { volume, grows, size, max_size, created, name, .. } => {
                (*volume, *grows, *size, *max_size, *created, name)
            }
            _ => return Ok(()),
        };
        let (source, snapshot) = match *record {
            Record::Copy { source, snapshot, .. } => (source, snapshot),
            _ => (0, false),
        };
        let family = match self.table.get(source) {
            Some(from) => from.family,
            None if source == 0 => volume,
            None => return Ok(()),
        };
        if self.table.get(volume).is_some() {
            return Ok(());
        }
        self.insert(&VolumeEntry {
            id: volume,
            snapshot,
            grows,
            size,
            max_size,
            created,
            origin: source,
            family,
            root: PageRef::NONE,
            root_level: 0,
            identity: None,
            interim: None,
            name: name.clone(),
        })?;
        if source == 0 {
            return Ok(());
        }
        // A copy with only part of its map must not become visible: the missing part would read as zeroes.
        self.share(source, volume).inspect_err(|_| _ = self.detach(volume))
    }

    fn insert(&mut self, entry: &VolumeEntry) -> Result<(), Status> {
        if !self.table.insert(Vol::from_entry(entry)) {
            return Err(Status::Conflict);
        }
        self.table.charge(entry.id);
        self.set_reserve();
        Ok(())
    }

    /// Shares the map of `from` with `to`, whose map is empty. If memory is short, `to` stays empty.
    pub(crate) fn share(&mut self, from: u32, to: u32) -> Result<(), Status> {
        let source = self.vol(from)?;
        let (source, slots, damage) = (Arc::clone(&source.core), source.slots, source.damage.clone());
        self.note_copied(from);
        let vol = self.table.get_mut(to).ok_or(Status::Offline)?;
        vol.damage = damage; // I2
        let target = Arc::clone(&vol.core);
        vol.slots = vol.slots.max(slots);
        // The paths of both maps are shared from here on, so the cache of a replay must not have them (K1 of `known`).
        [from, to].into_iter().for_each(|id| self.tree.forget_ways(id));
        let shared = self.tree.share(&source.top, &target.top, slots);
        self.table.charge(to);
        shared
    }

    /// Removes a volume from the table. Its map remains, to be dropped by `drop_some`.
    pub(crate) fn detach(&mut self, volume: u32) -> Option<Vol> {
        let vol = self.table.remove(volume)?;
        vol.upper.iter().for_each(|page| self.tree.pages.give_up(*page));
        self.set_reserve();
        Some(vol)
    }

    /// Drops one slot of the map of a detached volume. Returns false when no slot is left.
    pub(crate) fn drop_some(&mut self, vol: &mut Vol) -> bool {
        let Some(slot) = vol.core.top.last_used(vol.slots) else { return false };
        vol.slots = slot;
        self.tree.drop_slot(&vol.core.top, slot as u32);
        true
    }

    fn apply_set(&mut self, volume: u32, unit: u64, phys: u64, written: &[u64; 4]) -> Result<(), Status> {
        if phys == 0 {
            return self.apply_run(volume, unit, 1, 0);
        }
        let place = match self.tree.known(volume, unit) {
            Some(place) => place,
            None => {
                let Some(vol) = self.table.get(volume) else { return Ok(()) };
                if vol.damage.is_some() && self.is_lost(volume, unit) {
                    if let Some(sums) = &mut self.sums {
                        sums.replay_unit(phys);
                    }
                    self.keep(Record::Set { volume, unit, phys, written: *written });
                    return Ok(());
                }
                let core = Arc::clone(&vol.core);
                self.tree.walk();
                let place = self.own(&core, unit)?;
                self.tree.learn(volume, unit, place);
                place
            }
        };
        if let Some(sums) = &mut self.sums {
            sums.replay_unit(phys);
        }
        self.tree.set_replayed(place, phys, written);
        Ok(())
    }

    fn apply_run(&mut self, volume: u32, unit: u64, count: u64, phys: u64) -> Result<(), Status> {
        if phys == 0 && self.unmap_known(volume, unit, count) {
            return Ok(());
        }
        let Some(vol) = self.table.get(volume) else { return Ok(()) };
        if phys == 0 {
            let core = Arc::clone(&vol.core);
            self.tree.walk();
            if vol.damage.is_some() {
                return self.unmap_or_keep(&core, unit..unit.saturating_add(count));
            }
            return self.unmap_units(&core, unit, count);
        }
        (0..count).try_for_each(|at| self.apply_set(volume, unit + at, phys + at, &[u64::MAX; 4]))
    }

    /// Unmaps units of one cached leaf during replay. Returns false, and changes nothing, if the leaf is not cached, or
    /// if the range is a whole leaf or reaches beyond it.
    fn unmap_known(&mut self, volume: u32, unit: u64, count: u64) -> bool {
        let entries = self.tree.map.geometry.leaf_entries() as u64;
        let Some(place) = self.tree.known(volume, unit) else { return false };
        // `unmap_units` drops a whole leaf at once, and handles ranges of several leaves.
        if count == entries || place.slot as u64 + count > entries {
            return false;
        }
        self.tree.count_part();
        if self.tree.unmap_known(place, count)
            && let Some(vol) = self.table.get(volume)
        {
            self.tree.prune(&vol.core.top, unit);
        }
        true
    }

    fn apply_resize(&mut self, volume: u32, size: u64) -> Result<(), Status> {
        let Some(vol) = self.table.get(volume) else { return Ok(()) };
        let core = &vol.core;
        self.tree.count_size();
        core.set_max_size(core.max_size().max(size));
        let shrinks = size < core.size();
        core.set_size(size);
        if shrinks && vol.damage.is_some() {
            let core = Arc::clone(core);
            return self.cut_or_keep(&core, size);
        }
        if shrinks && core.top.used() > 0 {
            let core = Arc::clone(core);
            while self.cut_some(&core, size)? {}
        }
        Ok(())
    }

    /// Unmaps part of the map beyond `size`. Returns false when no unit is left there.
    pub(crate) fn cut_some(&mut self, core: &Arc<VolumeCore>, size: u64) -> Result<bool, Status> {
        let geometry = self.tree.map.geometry;
        let first = geometry.units_of(size);
        let slots = self.vol(core.id)?.slots;
        let last = core.top.last_used(slots).filter(|slot| slot << geometry.slot_shift() >= first);
        if let Some(slot) = last {
            self.tree.drop_slot(&core.top, slot as u32);
            let vol = self.table.get_mut(core.id).ok_or(Status::Offline)?;
            vol.slots = slot;
            self.table.charge(core.id);
            return Ok(true);
        }
        self.unmap_units(core, first, (slots << geometry.slot_shift()).saturating_sub(first))?;
        let inside = size & (geometry.unit_bytes() - 1);
        if inside != 0 {
            let blocks = inside.div_ceil(1 << BLOCK_SHIFT) as u32;
            self.clear_blocks(core, first - 1, blocks, geometry.blocks() - blocks)?;
        }
        Ok(false)
    }

    fn apply_rollback(&mut self, volume: u32, source: u32) -> Result<(), Status> {
        if self.table.get(source).is_none() {
            return Ok(());
        }
        let Some(vol) = self.table.get(volume) else { return Ok(()) };
        let core = Arc::clone(&vol.core);
        let old = self.exchange(volume, source)?;
        old.into_iter().for_each(|id| self.tree.put_exchanged(&core.top, id));
        Ok(())
    }

    /// Gives `volume` the map and the size of `source`. Returns the index nodes of its old map, which the caller
    /// releases one at a time.
    pub(crate) fn exchange(&mut self, volume: u32, source: u32) -> Result<Vec<u32>, Status> {
        let (vol, from) = (self.vol(volume)?, self.vol(source)?);
        let (core, had) = (Arc::clone(&vol.core), vol.slots);
        let (from, has, damage) = (Arc::clone(&from.core), from.slots, from.damage.clone());
        [volume, source].into_iter().for_each(|id| self.tree.forget_ways(id));
        let old = self.tree.exchange(&from.top, &core.top, (has, had))?;
        core.set_max_size(from.max_size());
        core.set_size(from.size());
        self.note_copied(source);
        self.drop_kept(volume);
        let vol = self.table.get_mut(volume).ok_or(Status::Offline)?;
        (vol.slots, vol.damage) = (has, damage); // I2
        self.table.charge(volume);
        Ok(old)
    }

    pub(crate) fn unmap_units(&mut self, core: &Arc<VolumeCore>, from: u64, count: u64) -> Result<(), Status> {
        let geometry = self.tree.map.geometry;
        let slots = self.vol(core.id)?.slots;
        let end = from.saturating_add(count).min(slots << geometry.slot_shift());
        let mut at = from;
        while at < end {
            let (leaf, slot) = (1 << geometry.leaf_shift, 1 << geometry.slot_shift());
            let used = core.top.next_used(at >> geometry.slot_shift(), slots);
            let from_used = used.map_or(end, |used| used << geometry.slot_shift());
            if from_used > at {
                at = from_used;
                continue;
            }
            if at & (slot - 1) == 0 && end - at >= slot {
                self.tree.drop_slot(&core.top, (at >> geometry.slot_shift()) as u32);
                self.table.charge(core.id);
                at += slot;
                continue;
            }
            let next = ((at | (leaf - 1)) + 1).min(end);
            if self.tree.map.find(&core.top, at).leaf == 0 {
                at = next;
                continue;
            }
            self.table.charge(core.id);
            if next - at == leaf {
                self.tree.drop_leaf(&core.top, at)?;
            } else {
                self.unmap_in_leaf(core, at, next)?;
            }
            at = next;
        }
        Ok(())
    }

    fn unmap_in_leaf(&mut self, core: &Arc<VolumeCore>, from: u64, to: u64) -> Result<(), Status> {
        // Holes are counted too: the units had space when the record was written, and a replay may find holes in their
        // place.
        self.tree.count_part();
        let spot = self.tree.map.find(&core.top, from);
        let with_space = self.tree.with_space(EntryPlace { leaf: spot.leaf, slot: spot.slot }, to - from);
        if with_space == 0 {
            return Ok(());
        }
        let first = self.own(core, from)?;
        self.tree.unmap_some(&core.top, first, with_space);
        self.tree.prune(&core.top, from);
        Ok(())
    }

    /// Clears the written bits of blocks of a unit; a unit without written blocks becomes a hole. Returns true if
    /// anything changed.
    pub(crate) fn clear_blocks(
        &mut self,
        core: &Arc<VolumeCore>,
        unit: u64,
        first: u32,
        count: u32,
    ) -> Result<bool, Status> {
        let spot = self.tree.map.find(&core.top, unit);
        if !spot.entry.is_alloc() || self.tree.map.written_run(spot.leaf, spot.slot, first, count) == (false, count) {
            return Ok(false);
        }
        self.tree.count_part();
        let place = self.own(core, unit)?;
        let entry = self.tree.entry(place);
        self.tree.store(place, entry.without(Entry::FULL));
        self.tree.set_bits(place, first, count, false);
        if !self.tree.written(place).1 && !entry.any(Entry::WRITERS) {
            self.tree.unmap(&core.top, place);
            self.tree.prune(&core.top, unit);
        }
        Ok(true)
    }
}
