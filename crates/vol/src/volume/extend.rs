//! Writes beyond the end of a volume that grows.
//!
//! Owns the space that such a write gets, and the resulting size. Space beyond the end is given without written bits,
//! like any other space. The end of the write sets the bits and raises the size under one hold of the lock, and one
//! commit records both. So the size never covers data that is missing, before a crash or after it.
//!
//! - E1: only bits that were set beyond the size raise it. A write that failed or lost its space to a cut does not.
//! - E2: sizes are whole blocks, so no block has bytes on both sides of the end. Between the old end and a write far
//!   beyond it no bits are set, and it reads as zeroes.
//! - E3: while the volume is being cut nothing beyond the new end gets bits: a write that ends there began before the
//!   cut.
//! - E4: a copy whose point in time is not fixed grows with its source.

use sheave_base::status::Status;
use sheave_iomap::Mapping;
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::mapping::Intent;

use super::Volume;
use crate::format::BLOCK_BYTES;
use crate::format::record::Record;
use crate::state::State;
use crate::state::extent_map::Entry;

impl Volume {
    /// Returns the volume's block size: that of the pool, but at least `BLOCK_BYTES` if the volume grows (E2).
    pub(super) fn block(&self) -> u64 {
        let block = self.pool.block_bytes();
        if self.core.grows { block.max(BLOCK_BYTES) } else { block }
    }

    /// Does the work of `map` for a range that is not entirely inside the volume.
    pub(super) fn extend(&self, pos: u64, len: u64, intent: Intent) -> Result<Mapping, Status> {
        if intent == Intent::Write {
            self.note_write()?;
        }
        let len = self.cut_off(pos, len)?;
        self.map_other(None, pos, len, intent)
    }

    /// Returns the number of bytes, among `len` bytes from `pos`, that lie before the volume's largest size. Returns an
    /// error for parts of blocks (E2).
    fn cut_off(&self, pos: u64, len: u64) -> Result<u64, Status> {
        if (pos | len) & (BLOCK_BYTES - 1) != 0 {
            return Err(Status::Invalid);
        }
        let left = self.core.reach().saturating_sub(pos);
        if left == 0 { Err(Status::FileTooBig) } else { Ok(len.min(left)) }
    }

    /// Does the work of `map_blocking` for a writer, anywhere in a volume that grows.
    pub(super) fn extend_blocking(&self, pos: u64, len: u64, may_block: &MayBlock) -> Result<Mapping, Status> {
        let mapping = self.make_writable(pos, self.cut_off(pos, len)?, may_block);
        if mapping == Err(Status::NoSpc) {
            self.give_back(may_block)?;
        }
        mapping
    }

    /// Returns the position up to which the end of a write may set bits (E3).
    pub(super) fn end_for_writes(&self, state: &State) -> u64 {
        let cutting = state.table.is_cutting(self.core.id);
        if self.core.grows && !cutting { u64::MAX } else { self.core.size().next_multiple_of(BLOCK_BYTES) }
    }

    /// Called when bits were set up to `end` and their units were listed for the next commit. Raises the size to `end`
    /// and lists it for the same commit (E1).
    pub(super) fn raise(&self, state: &mut State, end: u64) {
        if !self.core.grows || end <= self.core.size() {
            return;
        }
        state.raise(self.core.id, end);
        state.list_grown(self.core.id);
        let State { recent, table, .. } = state;
        if let (Some(recent), Some(vol)) = (recent, table.get(self.core.id)) {
            recent.push(&Record::Resize { volume: self.core.id, size: vol.size_to_write() });
        }
        // The record of the copy's birth has its size, so the copy needs no record of its own.
        let copy = state.table.get(self.core.id).and_then(|vol| vol.settling).filter(|id| *id != self.core.id);
        if let Some(copy) = copy {
            state.raise(copy, end);
        }
    }

    /// Releases the space beyond the end that no write in flight uses. Called for a write that found the pool full:
    /// that write no longer uses the space that it was given before.
    ///
    /// The units are recalled first (`RECALLED`), so that a writer that wants one from then on marks it again. The flag
    /// stays if a write to the unit is in flight, even if the wait for that write fails. That write may end meanwhile
    /// and raise the size over the unit. Holes and cuts must then know that other writes are in flight there.
    fn give_back(&self, may_block: &MayBlock) -> Result<(), Status> {
        loop {
            let mut state = self.quiet(may_block, |_| 0)?;
            match state.table.get_mut(self.core.id) {
                None => return Ok(()),
                // One thread at a time: it clears `HANDED` and keeps the units that get the flag again, so no other
                // thread may clear the flag meanwhile.
                Some(vol) if vol.giving_back => drop(self.pool.wait(state)),
                Some(vol) => {
                    vol.giving_back = true;
                    break;
                }
            }
        }
        let given = self.give_back_alone(may_block);
        if let Some(vol) = self.pool.lock().table.get_mut(self.core.id) {
            vol.giving_back = false;
        }
        self.pool.wake();
        given
    }

    fn give_back_alone(&self, may_block: &MayBlock) -> Result<(), Status> {
        let mut state = self.quiet(may_block, |_| 0)?;
        let mut leaves = Vec::new();
        self.each_beyond(&mut state, |volume, state, unit| {
            if let Some((place, entry)) = state.find(volume.core.id, unit) {
                state.tree.store(place, entry.without(Entry::HANDED).with(Entry::RECALLED));
                if leaves.last() != Some(&place.leaf) {
                    leaves.push(place.leaf);
                }
            }
            Ok(())
        })?;
        drop(state);
        if leaves.is_empty() {
            return Ok(());
        }
        self.wait_for_writers(may_block)?;
        // Two pages for each: the leaf itself, and an index node.
        let nodes = 2 * leaves.len() as u64;
        let mut state = self.quiet(may_block, |state| nodes + state.cost_of_units(self.core.id, 0, 0))?;
        self.each_beyond(&mut state, |volume, state, unit| {
            match state.find(volume.core.id, unit) {
                // A writer that was given the unit meanwhile has marked it again.
                Some((_, entry)) if !entry.any(Entry::HANDED) => state.unmap_units(&volume.core, unit, 1),
                _ => Ok(()),
            }
        })
    }

    /// Calls `each` for the units beyond the end that have space. Called under the lock.
    fn each_beyond(
        &self,
        state: &mut State,
        mut each: impl FnMut(&Volume, &mut State, u64) -> Result<(), Status>,
    ) -> Result<(), Status> {
        let geometry = self.pool.map.geometry;
        let slots = state.vol(self.core.id)?.slots;
        let (mut unit, end) = (geometry.units_of(self.core.size()), slots << geometry.slot_shift());
        while unit < end {
            let spot = self.pool.map.find(&self.core.top, unit);
            if spot.leaf == 0 {
                unit = (unit | ((1 << geometry.leaf_shift) - 1)) + 1;
                continue;
            }
            if spot.entry.is_alloc() {
                each(self, state, unit)?;
            }
            unit += 1;
        }
        Ok(())
    }
}

impl State {
    /// Raises the size to `size` if it is less, and also the largest size, which may have been lowered while writes
    /// were in flight.
    fn raise(&mut self, id: u32, size: u64) {
        if let Some(vol) = self.table.get(id) {
            vol.core.set_max_size(vol.core.max_size().max(size));
            vol.core.set_size(vol.core.size().max(size));
        }
    }
}
