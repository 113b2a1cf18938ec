//! What waits for a commit: which units, sizes and records, and what each of them is as a record.
//!
//! Owns the lists of the [state](State) that a commit takes, and how they come back when it fails. Each unit on them
//! has `LISTED` set in its entry.
//!
//! Called under the pool's lock by commits and by who changes a volume.

use super::State;
use super::extent_map::Entry;
use super::extent_map::tree::EntryPlace;
use super::plan::Taken;
use crate::format::record::Record;

impl State {
    /// Whether there is nothing to record.
    pub(crate) fn is_clean(&self) -> bool {
        self.dirty.is_empty() && self.pending.is_empty() && self.grown.is_empty()
    }

    /// The size of a volume, for the journal; none if it has gone.
    pub(crate) fn size_of(&self, volume: u32) -> Option<Record> {
        let size = self.table.get(volume)?.size_to_write();
        Some(Record::Resize { volume, size })
    }

    /// The size of a volume has grown, and units of it with it: both are for the same commit.
    pub(crate) fn list_grown(&mut self, volume: u32) {
        if let Some(vol) = self.table.get_mut(volume)
            && !vol.grown
        {
            vol.grown = true;
            self.tree.count_size();
            self.grown.push(volume);
        }
    }

    /// Takes a volume off the list of those that have grown; its record, if it was there.
    pub(crate) fn unlist_grown(&mut self, volume: u32) -> Option<Record> {
        let vol = self.table.get_mut(volume).filter(|vol| vol.grown)?;
        vol.grown = false;
        self.grown.retain(|id| *id != volume);
        self.size_of(volume)
    }

    /// Where a volume's unit is, as it is now, if there is a leaf for it.
    pub(crate) fn find(&self, volume: u32, unit: u64) -> Option<(EntryPlace, Entry)> {
        let spot = self.tree.map.find(&self.table.get(volume)?.core.top, unit);
        (spot.leaf != 0).then_some((EntryPlace { leaf: spot.leaf, slot: spot.slot }, spot.entry))
    }

    /// What a unit is now, for the journal; none if the volume has gone.
    pub(crate) fn record_of(&self, volume: u32, unit: u64) -> Option<Record> {
        self.table.get(volume)?;
        let nothing = Record::Set { volume, unit, phys: 0, written: [0; 4] };
        let Some((place, entry)) = self.find(volume, unit) else { return Some(nothing) };
        let written = self.tree.bits(place);
        if !entry.is_alloc() || written == [0; 4] {
            return Some(nothing);
        }
        Some(Record::Set { volume, unit, phys: entry.phys(), written })
    }

    /// Takes all that waits; from here on changes are for the next commit.
    pub(crate) fn take(&mut self) -> Taken {
        let units = std::mem::take(&mut self.dirty);
        self.tree.count_work(units.len() + self.pending.len());
        for &(volume, unit) in &units {
            if let Some((place, entry)) = self.find(volume, unit) {
                self.tree.store(place, entry.without(Entry::LISTED));
            }
        }
        let grown = std::mem::take(&mut self.grown);
        for id in &grown {
            if let Some(vol) = self.table.get_mut(*id) {
                vol.grown = false;
            }
        }
        Taken {
            units,
            grown,
            recorded: std::mem::take(&mut self.recorded),
            pending: std::mem::take(&mut self.pending),
            freed: std::mem::take(&mut self.tree.freed),
        }
    }

    /// The commit failed: all of it waits again, before what came since.
    pub(crate) fn untake(&mut self, mut taken: Taken) {
        for (volume, unit) in taken.units {
            let found = self.find(volume, unit);
            match found {
                Some((_, entry)) if entry.any(Entry::LISTED) => continue,
                Some((place, entry)) => self.tree.store(place, entry.with(Entry::LISTED)),
                None => {}
            }
            self.dirty.push((volume, unit));
        }
        taken.pending.append(&mut self.pending);
        self.pending = taken.pending;
        taken.grown.into_iter().for_each(|id| self.list_grown(id));
        self.recorded.append(&mut taken.recorded);
        let since = std::mem::replace(&mut self.tree.freed, taken.freed);
        self.tree.freed.append(since);
    }

    /// Turns the changes of a volume that wait for a commit into records.
    pub(crate) fn record_changes_of(&mut self, id: u32) {
        let (ours, others): (Vec<_>, Vec<_>) = std::mem::take(&mut self.dirty).into_iter().partition(|at| at.0 == id);
        self.dirty = others;
        let size = self.unlist_grown(id);
        self.pending.extend(size);
        for &(volume, unit) in &ours {
            self.pending.extend(self.record_of(volume, unit));
            if let Some((place, entry)) = self.find(volume, unit) {
                self.tree.store(place, entry.without(Entry::LISTED));
            }
        }
        self.recorded.extend(ours);
    }
}
