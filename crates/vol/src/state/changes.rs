//! Changes that wait for a commit: units, sizes and records, and the journal record of each.
//!
//! Owns the lists in the [state](State) that a commit takes. If the commit fails, it returns their items to the state.
//!
//! - L1: an entry has `LISTED` only if the unit of its volume is in the list, and the next change of the entry relies
//!   on that (I3 of [`entry`](super::extent_map::entry)). So `LISTED` is set only by code that has just changed the
//!   entry for one volume, on an exclusive path of that volume or while a copy of the volume settles.
//! - L2: a copy never starts with a listed unit: before its record is added, waiting changes of units become records.
//!
//! Called under the pool's lock by commits and by changes of volumes.

use super::State;
use super::extent_map::Entry;
use super::extent_map::tree::EntryPlace;
use super::plan::Taken;
use super::recent::Recent;
use crate::format::record::Record;

impl State {
    /// Returns true if nothing waits for a commit.
    pub(crate) fn is_clean(&self) -> bool {
        self.dirty.is_empty() && self.pending.is_empty() && self.grown.is_empty()
    }

    /// Returns the size record of a volume; `None` if it is gone.
    pub(crate) fn size_of(&self, volume: u32) -> Option<Record> {
        let size = self.table.get(volume)?.size_to_write();
        Some(Record::Resize { volume, size })
    }

    /// Lists a volume that has grown, so that its size is recorded in the same commit as the units of the growth.
    pub(crate) fn list_grown(&mut self, volume: u32) {
        if let Some(vol) = self.table.get_mut(volume)
            && !vol.grown
        {
            vol.grown = true;
            self.tree.count_size();
            self.grown.push(volume);
        }
    }

    /// Removes a volume from the list of grown volumes. Returns its size record if it was in the list.
    pub(crate) fn unlist_grown(&mut self, volume: u32) -> Option<Record> {
        let vol = self.table.get_mut(volume).filter(|vol| vol.grown)?;
        vol.grown = false;
        self.grown.retain(|id| *id != volume);
        self.size_of(volume)
    }

    /// Returns the present place and entry of a volume's unit, if there is a leaf for it.
    pub(crate) fn find(&self, volume: u32, unit: u64) -> Option<(EntryPlace, Entry)> {
        let spot = self.tree.map.find(&self.table.get(volume)?.core.top, unit);
        (spot.leaf != 0).then_some((EntryPlace { leaf: spot.leaf, slot: spot.slot }, spot.entry))
    }

    /// Returns the record of a unit's present state; `None` if the volume is gone.
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

    /// Returns the reason why recent changes would not survive the death of the process, if they would not.
    pub(crate) fn why_no_recent(&self) -> Option<String> {
        match &self.recent {
            Some(recent) if recent.is_complete() => None,
            Some(_) => Some("too much has changed since the last commit, or the file of changes was cut off".into()),
            None => Some(self.no_recent.clone().unwrap_or_else(|| "the pool is not open for writing".into())),
        }
    }

    /// Tells the recent changes that the commit under way will end before the journal block `seq`, on the present
    /// checkpoint.
    pub(crate) fn mark_recent(&mut self, seq: u64) {
        let generation = self.first_generation();
        self.recent.iter_mut().for_each(|recent| recent.mark(generation, seq));
    }

    /// Returns the generation of the first superblock of the present checkpoint. The one in memory is the second.
    pub(crate) fn first_generation(&self) -> u64 {
        self.sb.generation - 1
    }

    /// Keeps no recent changes any more.
    pub(crate) fn end_recent(&mut self, why: &str) {
        if let Some(recent) = self.recent.take() {
            recent.end();
            self.no_recent = Some(why.into());
        }
    }

    /// Keeps the present state of a unit among the recent changes. Called after each change of a unit that has space,
    /// under the lock of the change.
    #[inline]
    pub(crate) fn keep_recent(&mut self, volume: u32, unit: u64, place: EntryPlace) {
        let Some(recent) = &mut self.recent else { return };
        match self.tree.bits(place) {
            // Such a unit is a hole after a crash, like in its record for a commit.
            [0, 0, 0, 0] => recent.push(&Record::Set { volume, unit, phys: 0, written: [0; 4] }),
            written => recent.set(volume, unit, self.tree.entry(place).phys(), &written[..recent.words()]),
        }
    }

    /// Does the same as [`keep_recent`](Self::keep_recent) after `count` blocks from `first` on were written to a unit
    /// whose entry was `entry` before.
    #[inline]
    pub(crate) fn keep_written(
        &mut self,
        (volume, unit, place): (u32, u64, EntryPlace),
        entry: Entry,
        first: u32,
        count: u32,
    ) {
        match &mut self.recent {
            None => {}
            Some(recent) if self.tree.map.geometry.has_bits_in_entries() => {
                recent.set(volume, unit, entry.phys(), &[entry.bits() | ((1 << count) - 1) << first]);
            }
            Some(_) => self.keep_recent(volume, unit, place),
        }
    }

    /// Takes all waiting changes. Later changes belong to the next commit.
    pub(crate) fn take(&mut self) -> Taken {
        #[cfg(any(debug_assertions, test))]
        self.met.taken();
        self.recent.iter_mut().for_each(Recent::take);
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
            ends_quarantine: self.ends_quarantine(),
            units,
            grown,
            recorded: std::mem::take(&mut self.recorded),
            pending: std::mem::take(&mut self.pending),
            freed: std::mem::take(&mut self.tree.freed),
        }
    }

    /// Takes the changes of a failed commit back, after a checkpoint was required (`Next::require`). Their records wait
    /// again, before newer ones, and their freed units wait for the checkpoint.
    ///
    /// Units and sizes are not listed again, because the checkpoint will contain every entry and every size as they are
    /// when it is planned. Also, the unit may no longer belong to this volume alone: a copy may share its leaf, a
    /// rollback may have put the leaf of a snapshot there, and a hole or a smaller size may have removed it (L1). Only
    /// `DIRTY` remains to be cleared, as for units whose records are already in `pending`.
    pub(crate) fn untake(&mut self, mut taken: Taken) {
        debug_assert!(
            self.next.is_required() || taken.units.is_empty() && taken.grown.is_empty(),
            "only a checkpoint makes durable what is not listed again"
        );
        #[cfg(any(debug_assertions, test))]
        self.count_untaken(&taken);
        self.recent.iter_mut().for_each(Recent::failed);
        taken.pending.append(&mut self.pending);
        self.pending = taken.pending;
        self.recorded.append(&mut taken.recorded);
        self.recorded.append(&mut taken.units);
        let since = std::mem::replace(&mut self.tree.freed, taken.freed);
        self.tree.freed.append(since);
    }

    /// Turns the waiting changes of a volume into records.
    pub(crate) fn record_changes_of(&mut self, id: u32) {
        let (ours, others): (Vec<_>, Vec<_>) = std::mem::take(&mut self.dirty).into_iter().partition(|at| at.0 == id);
        self.dirty = others;
        // The size comes before the units of the growth, as in a commit.
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

/// Checks and counters of debug builds, for the crash simulator and for tests.
#[cfg(any(debug_assertions, test))]
mod checked;
