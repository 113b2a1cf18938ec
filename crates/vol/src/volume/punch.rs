//! Holes: discard, write-zeroes, punch hole.
//!
//! Owns the release of space. Whole units become holes. In other units the covered blocks lose their bits, and the unit
//! is released with its last block. If a block is covered in part, that part is zeroed by a write.
//!
//! - H1: blocks outside the range keep their data, and writes to them that are in flight are not lost.
//! - H2: the work is done in pieces, so that nobody waits long for the lock.
//! - H3: if the volume ends within its last block, that block loses its bit only while the volume still ends there.
//! - H4: a hole waits for the copies of units that are in flight when it begins. Later copies wait until the hole has
//!   had the lock. While it waits, it holds nothing that copies in flight could need.

use sheave_base::buf::Buf;
use sheave_base::status::Status;
use sheave_base::sync::MutexGuard;
use sheave_iomap::completion_plan::MayBlock;

use super::Volume;
use crate::format::BLOCK_SHIFT;
use crate::format::record::Record;
use crate::state::State;
use crate::state::account::Spender;
use crate::state::extent_map::Entry;

const BLOCK: u64 = 1 << BLOCK_SHIFT;

/// Result of punching whole blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Punched {
    Done,
    /// Not all blocks were punched: the last one reaches beyond the end that was asked for, and the volume no longer
    /// ends there. The bytes behind that end may have been written.
    EndMoved,
}

impl Volume {
    /// Makes `pos..pos + len` read as zeroes and releases as much of its space as possible.
    pub(crate) fn punch(&self, pos: u64, len: u64, may_block: &MayBlock) -> Result<(), Status> {
        let end = pos + len;
        let (first, last) = (pos.next_multiple_of(BLOCK), end & !(BLOCK - 1));
        if first > last {
            return self.zero_part(pos, len, may_block);
        }
        if pos < first {
            self.zero_part(pos, first - pos, may_block)?;
        }
        // If the range ends where the volume does, the bytes behind the end belong to no other block: the last is
        // punched whole.
        let mut last = if end == self.size() { end.next_multiple_of(BLOCK) } else { last };
        if last < end {
            self.zero_part(last, end - last, may_block)?;
        }
        let slot = 1u64 << (self.pool.map.geometry.slot_shift() + self.pool.map.geometry.unit_shift);
        let mut at = first;
        while at < last {
            if may_block.is_cancelled() {
                return Err(Status::Canceled);
            }
            // H2: one slot of the map at a time.
            let stop = ((at | (slot - 1)) + 1).min(last);
            match self.punch_blocks(at, stop, end, may_block)? {
                Punched::Done => at = stop,
                Punched::EndMoved => {
                    last = end & !(BLOCK - 1);
                    self.zero_part(last, end - last, may_block)?;
                }
            }
        }
        if self.pool.lock().is_overdue() { self.pool.commit() } else { Ok(()) }
    }

    fn size(&self) -> u64 {
        self.core.size()
    }

    /// Returns true if `to` lies beyond `end`, the end that the caller gave, and the volume no longer ends at `end`: it
    /// has grown, or the change that made it smaller may be undone.
    fn end_moved(&self, state: &State, to: u64, end: u64) -> Result<bool, Status> {
        Ok(to > end && state.vol(self.core.id)?.size_to_write() > end)
    }

    /// Punches whole blocks within one slot of the map. The last of them may reach beyond `end`.
    fn punch_blocks(&self, from: u64, to: u64, end: u64, may_block: &MayBlock) -> Result<Punched, Status> {
        let geometry = self.pool.map.geometry;
        let unit_bytes = geometry.unit_bytes();
        let (first, last) = (from.div_ceil(unit_bytes), to >> geometry.unit_shift);
        if first > last {
            return self.punch_unit(from, to, end, may_block);
        }
        if from < first << geometry.unit_shift {
            let punched = self.punch_unit(from, first << geometry.unit_shift, end, may_block)?;
            if punched == Punched::EndMoved {
                return Ok(punched);
            }
        }
        if last << geometry.unit_shift < to {
            let punched = self.punch_unit(last << geometry.unit_shift, to, end, may_block)?;
            if punched == Punched::EndMoved {
                return Ok(punched);
            }
        }
        if first == last {
            return Ok(Punched::Done);
        }
        let cost = |state: &State| match self.has_space(first, last) {
            true => state.cost_of_units(self.core.id, last - 1, last - 1),
            false => 0,
        };
        let mut guard = self.quiet(may_block, cost)?;
        let state = &mut *guard;
        if !self.has_space(first, last) {
            return Ok(Punched::Done);
        }
        if self.end_moved(state, last << geometry.unit_shift, end)? {
            return Ok(Punched::EndMoved);
        }
        state.unmap_units(&self.core, first, last - first)?;
        let record = Record::Run { volume: self.core.id, unit: first, count: last - first, phys: 0 };
        self.pool.record(state, record);
        Ok(Punched::Done)
    }

    /// Returns true if any unit of a range within one slot has space. A discard of holes changes nothing, and must take
    /// no checkpoint pages.
    fn has_space(&self, first: u64, last: u64) -> bool {
        let leaf = 1u64 << self.pool.map.geometry.leaf_shift;
        let mut at = first;
        while at < last {
            let spot = self.pool.map.find(&self.core.top, at);
            if spot.entry.is_alloc() {
                return true;
            }
            at = if spot.leaf == 0 { (at | (leaf - 1)) + 1 } else { at + 1 };
        }
        false
    }

    /// Punches some blocks of one unit, but not all. The last of them may reach beyond `end`.
    fn punch_unit(&self, from: u64, to: u64, end: u64, may_block: &MayBlock) -> Result<Punched, Status> {
        let geometry = self.pool.map.geometry;
        let unit = from >> geometry.unit_shift;
        let first = ((from & (geometry.unit_bytes() - 1)) >> BLOCK_SHIFT) as u32;
        let count = ((to - from) >> BLOCK_SHIFT) as u32;
        loop {
            let cost = |state: &State| match self.has_space(unit, unit + 1) {
                true => state.cost_of_units(self.core.id, unit, unit),
                false => 0,
            };
            let mut guard = self.quiet(may_block, cost)?;
            let entry = self.pool.map.find(&self.core.top, unit).entry;
            if !entry.is_alloc() {
                return Ok(Punched::Done);
            }
            if entry.any(Entry::WRITERS) {
                // First writes to other blocks of the unit may be in flight. They must not be lost (H1), so the unit
                // may be given back only after they have ended.
                guard = self.without_writers(guard, unit, may_block)?;
                if !guard.can_pay(cost(&guard), Spender::Discard) {
                    continue;
                }
            }
            let state = &mut *guard;
            // Checked under the lock that clears the blocks: the volume may have grown during every wait (H3).
            if self.end_moved(state, to, end)? {
                return Ok(Punched::EndMoved);
            }
            if state.clear_blocks(&self.core, unit, first, count)? {
                match state.find(self.core.id, unit) {
                    Some((place, entry)) if entry.is_alloc() => self.pool.list(state, &self.core, unit, place, entry),
                    _ => self.pool.record(state, Record::Run { volume: self.core.id, unit, count: 1, phys: 0 }),
                }
            }
            return Ok(Punched::Done);
        }
    }

    /// Waits until no write to the unit is in flight, and keeps new ones out until the lock is released. The unit is
    /// busy during the wait, so that no other thread concludes that it has no writers.
    fn without_writers<'a>(
        &'a self,
        mut guard: MutexGuard<'a, State>,
        unit: u64,
        may_block: &MayBlock,
    ) -> Result<MutexGuard<'a, State>, Status> {
        // On a shared path the unit would be busy for its other owners too.
        let place = guard.own(&self.core, unit)?;
        if !guard.tree.entry(place).any(Entry::WRITERS) {
            return Ok(guard);
        }
        self.set_busy(&mut guard, place, true);
        drop(guard);
        let quiet = self.wait_for_writers(may_block);
        let mut guard = self.pool.lock();
        if quiet.is_ok() {
            let entry = guard.tree.entry(place);
            guard.tree.store(place, entry.without(Entry::WRITERS));
        }
        // Set last, because a ring that found `READY` and `WRITERS` together would begin a first write that this wait
        // has missed.
        self.set_busy(&mut guard, place, false);
        self.pool.wake();
        quiet.map(|()| guard)
    }

    /// Returns the lock when no unit of the volume is being copied and the next checkpoint can take `cost` more pages.
    /// If this has to wait for copies, no further copies begin (H4).
    pub(super) fn quiet(
        &self,
        may_block: &MayBlock,
        cost: impl Fn(&State) -> u64,
    ) -> Result<MutexGuard<'_, State>, Status> {
        let mut waits = false;
        let quiet = self.quiet_at_last(may_block, cost, &mut waits);
        if !waits {
            return quiet;
        }
        let (mut guard, failed) = match quiet {
            Ok(guard) => (guard, None),
            Err(status) => (self.pool.lock(), Some(status)),
        };
        if let Some(vol) = guard.table.get_mut(self.core.id) {
            vol.holes = vol.holes.saturating_sub(1);
        }
        self.pool.wake();
        failed.map_or(Ok(guard), Err)
    }

    /// Loop of [`Volume::quiet`]. Sets `waits` when it has counted itself among the holes that wait for copies of the
    /// volume.
    fn quiet_at_last(
        &self,
        may_block: &MayBlock,
        cost: impl Fn(&State) -> u64,
        waits: &mut bool,
    ) -> Result<MutexGuard<'_, State>, Status> {
        let mut guard = self.pool.lock();
        loop {
            if may_block.is_cancelled() {
                return Err(Status::Canceled);
            }
            let vol = guard.table.get_mut(self.core.id).ok_or(Status::Offline)?;
            if vol.busy > 0 && !*waits {
                *waits = true;
                vol.holes += 1;
            }
            if vol.settling.is_some() || vol.busy > 0 {
                guard = self.pool.wait(guard);
            } else if guard.is_dirty_full() || guard.is_overdue() {
                drop(guard);
                self.pool.relieve()?;
                guard = self.pool.lock();
            } else if guard.can_pay(cost(&guard), Spender::Discard) {
                return Ok(guard);
            } else {
                guard = self.pool.pay(guard, Spender::Discard, &cost)?;
            }
        }
    }

    /// Zeroes a part of a block with a write. Does nothing to an unwritten block, which reads as zeroes already.
    fn zero_part(&self, pos: u64, len: u64, may_block: &MayBlock) -> Result<(), Status> {
        let geometry = self.pool.map.geometry;
        let unit = pos >> geometry.unit_shift;
        let block = ((pos & (geometry.unit_bytes() - 1)) >> BLOCK_SHIFT) as u32;
        loop {
            let spot = self.pool.map.find(&self.core.top, unit);
            if !spot.entry.is_alloc() || !self.pool.map.written_run(spot.leaf, spot.slot, block, 1).0 {
                return Ok(());
            }
            match self.make_writable_within(pos, len, pos + len, may_block) {
                // The volume was cut before this place meanwhile: nothing is left to zero.
                Err(Status::NoSpc) if pos >= self.end_of_units() => return Ok(()),
                made => _ = made?,
            }
            let mut guard = self.quiet(may_block, |_| 0)?;
            let state = &mut *guard;
            let spot = self.pool.map.find(&self.core.top, unit);
            if spot.tagged || spot.entry.stops_writes() || !spot.entry.is_alloc() {
                continue;
            }
            let (place, entry) = state.find(self.core.id, unit).ok_or(Status::Offline)?;
            self.set_busy(state, place, true);
            drop(guard);
            let at = (entry.phys() << geometry.unit_shift) + (pos & (geometry.unit_bytes() - 1));
            let zeroes = Buf::zeroed(len as usize, BLOCK as usize).map_err(|_| Status::NoMem);
            let written = zeroes.and_then(|zeroes| self.pool.io.write(at, &zeroes));
            self.set_busy(&mut self.pool.lock(), place, false);
            self.pool.wake();
            return written;
        }
    }
}
