//! What waits for a commit: which units, sizes and records, and what each of them is as a record.
//!
//! Owns the lists of the [state](State) that a commit takes, and what of them comes back when it fails.
//!
//! - L1: an entry has `LISTED` only if its volume's unit stands in the list, so that its next change may rely on that
//!   (I3 of [`entry`](super::extent_map::entry)). So who sets it has just changed the entry for one volume, on a way of
//!   that volume's own or while a copy of it settles; nothing else sets it.
//! - L2: no copy is born with a listed unit: what waits is turned into records before the record of the copy.
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
        #[cfg(any(debug_assertions, test))]
        self.met.taken();
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

    /// A commit of records failed, and a checkpoint was required (`Next::require`): its records wait again, before what
    /// came since, and what it let go waits for the checkpoint.
    ///
    /// Units are not listed again, nor are sizes: the checkpoint has every entry and every size as they are when it is
    /// planned. The unit of a volume may be another's too by now: a copy may share its leaf, a rollback may have put
    /// the leaf of a snapshot there, a hole or a smaller size may have taken it away (L1). Only `DIRTY` is left to be
    /// taken off, as of units whose records are written already.
    pub(crate) fn untake(&mut self, mut taken: Taken) {
        debug_assert!(
            self.next.is_required() || taken.units.is_empty() && taken.grown.is_empty(),
            "only a checkpoint makes durable what is not listed again"
        );
        #[cfg(any(debug_assertions, test))]
        self.count_untaken(&taken);
        taken.pending.append(&mut self.pending);
        self.pending = taken.pending;
        self.recorded.append(&mut taken.recorded);
        self.recorded.append(&mut taken.units);
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

/// What debug builds check and count, for the crash simulator and for tests.
#[cfg(any(debug_assertions, test))]
mod checked;
