//! Holes: discard, write-zeroes, punch hole.
//!
//! Owns giving space back. Whole units become holes; of others the blocks lose their bits, and the unit goes with the
//! last of them; of blocks that are covered in part, the part is zeroed by writing.
//!
//! - H1: blocks outside the range keep what they have, and writes to them that are under way are not lost.
//! - H2: it goes on in pieces, so that nobody waits long for the lock.
//! - H3: a last block that the volume's end lies in loses its bit only while the volume ends there.
//! - H4: a hole waits for the copies of units that are under way when it comes, and for none that begin after it: they
//!   wait until it has the lock. It holds nothing meanwhile that those under way could want.

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

/// What has become of whole blocks that were to lose what they have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Punched {
    Done,
    /// Not all of them have: the last one reaches beyond the end that was asked for, and the volume does not end there
    /// any more. What lies behind that end may have been written.
    EndMoved,
}

impl Volume {
    /// Makes `pos..pos + len` read as zeroes and gives back what it can.
    pub(crate) fn punch(&self, pos: u64, len: u64, may_block: &MayBlock) -> Result<(), Status> {
        let end = pos + len;
        let (first, last) = (pos.next_multiple_of(BLOCK), end & !(BLOCK - 1));
        if first > last {
            return self.zero_part(pos, len, may_block);
        }
        if pos < first {
            self.zero_part(pos, first - pos, may_block)?;
        }
        // What lies behind the end of the volume belongs to its last block.
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

    /// Whether `to`, up to which whole blocks are to lose what they have, is too far: beyond `end`, up to which
    /// somebody wants that, and the volume does not end there. It may have become larger since it did, or be about to
    /// have the size again that it had before a smaller one.
    fn end_moved(&self, state: &State, to: u64, end: u64) -> Result<bool, Status> {
        Ok(to > end && state.vol(self.core.id)?.size_to_write() > end)
    }

    /// Whole blocks within one slot of the map, the last of which may reach beyond `end`.
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

    /// Whether any unit of a range within one slot has space: a discard of holes changes nothing.
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

    /// Some blocks of one unit, not all, the last of which may reach beyond `end`.
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
                // Somebody may be writing other blocks of the unit for the first time: these writes are not to be
                // lost (H1), so the unit may be given back only when they have ended.
                guard = self.without_writers(guard, unit, may_block)?;
                if !guard.can_pay(cost(&guard), Spender::Discard) {
                    continue;
                }
            }
            let state = &mut *guard;
            // Under the lock that clears them: the volume may have become larger during every wait (H3).
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

    /// Waits until no write to the unit is under way. Until the lock is let go again none begins; and nobody else takes
    /// the unit for one without writers meanwhile.
    fn without_writers<'a>(
        &'a self,
        mut guard: MutexGuard<'a, State>,
        unit: u64,
        may_block: &MayBlock,
    ) -> Result<MutexGuard<'a, State>, Status> {
        // On a way that others have too the unit would be busy for them.
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
        // Last: who found both flags would write for the first time, after the writers that were waited for.
        self.set_busy(&mut guard, place, false);
        self.pool.wake();
        quiet.map(|()| guard)
    }

    /// The lock, when nothing of the volume is being copied and there is room for a change that makes the next
    /// checkpoint need `cost` pages more. From when it has to wait for copies on no others begin (H4).
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

    /// As [`Volume::quiet`]; `waits` when the volume counts this one among its holes that wait.
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

    /// Zeroes a part of a block by writing; what is not written reads as zeroes already.
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
                // The volume was cut before this place meanwhile: nothing of it is left to zero.
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
