//! Prepares the map for a write: space for a hole, an unshared path through the map, a unit of its own, a written first
//! block.
//!
//! Owns the slow half of `map`, `map_blocking` and `end_write`. Readers and crashes are safe by this order:
//!
//! 1. space is given without written bits, so readers see zeroes;
//! 2. the data is written;
//! 3. `end_write` sets the bits if the volume still has the unit, and lists the unit for the next commit.
//!
//! A shared unit is copied first ([`relocate`](super::relocate)). Nothing is copied while a snapshot settles, because
//! writes that began before the snapshot may still reach the unit.
//!
//! - W1: the code that clears `READY` sets it again on every path, as its last change. From that store on, rings write
//!   without the lock, in the way that the entry then permits.
//! - W2: a block is written in part only after all of it is written: its rest is zeroed first, while no other write to
//!   the unit is in flight.

use std::time::{Duration, Instant};

use sheave_base::beside::Activity;
use sheave_base::buf::Buf;
use sheave_base::status::Status;
use sheave_base::sync::MutexGuard;
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::mapping::MapFlags;
use sheave_iomap::{Mapping, MappingKind};

use super::Volume;
use crate::engine::inner::LOOK_EVERY;
use crate::engine::wait::Waited;
use crate::format::BLOCK_SHIFT;
use crate::options::WhenFull;
use crate::state::State;
use crate::state::account::Spender;
use crate::state::extent_map::Entry;
use crate::state::extent_map::tree::EntryPlace;

const BLOCK: u64 = 1 << BLOCK_SHIFT;
/// Upper limit of deadlines, a century: an `Instant` overflows if [`Duration::MAX`] is added to it.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Result of one round of `make_writable`.
pub(super) enum Round<'a> {
    /// The map has a mapping that the writer may use. The number is its length in bytes.
    Ready(u64),
    /// Something changed: look the range up again.
    Look(MutexGuard<'a, State>),
    /// The pool has no space.
    Full(MutexGuard<'a, State>),
}

/// Deadlines of a writer that waits for space.
#[derive(Debug, Default)]
struct Full {
    /// Time until which the writer waits for space that others free.
    deadline: Option<Instant>,
    /// Time for which I/O has delayed deferred frees.
    held: Option<Waited>,
}

impl Volume {
    /// Does the work of `map` for a writer that found no plain mapping. Never waits.
    #[cold]
    pub(super) fn map_missing(&self, pos: u64, len: u64) -> Result<Mapping, Status> {
        let unit = pos >> self.pool.map.geometry.unit_shift;
        let Some(mut state) = self.pool.try_lock() else { return Err(Status::Again) };
        let state = &mut *state;
        let spot = self.pool.map.find(&self.core.top, unit);
        if spot.tagged || spot.entry.stops_writes() || state.is_dirty_full() {
            return Err(Status::Again);
        }
        // New blocks would be recorded before the copy that is settling, although the copy does not contain them.
        if state.vol(self.core.id)?.settling.is_some() {
            return Err(Status::Again);
        }
        // Each of these cases needs I/O: a commit, a look at the superblocks, or zeroes for the rest of a block (W2).
        if state.is_overdue() || self.pool.look_is_due(state) || pos & (BLOCK - 1) != 0 || self.whole(pos, len) == 0 {
            return Err(Status::Again);
        }
        if !state.can_pay(state.cost_of_units(self.core.id, unit, unit), Spender::Write) {
            return Err(Status::Again);
        }
        let (place, entry) = if spot.entry.is_alloc() {
            (EntryPlace { leaf: spot.leaf, slot: spot.slot }, spot.entry)
        } else {
            self.allocate(state, unit)?.ok_or(Status::Again)?
        };
        state.tree.store(place, entry.with(Entry::HANDED));
        self.mapping(state, place, pos, len)
    }

    /// Returns the bytes from `pos`, a block's start, to the end of the last whole block of the range in its unit.
    fn whole(&self, pos: u64, len: u64) -> u64 {
        let unit = self.pool.map.geometry.unit_bytes();
        len.min(unit - (pos & (unit - 1))) & !(BLOCK - 1)
    }

    /// Returns the mapping that a writer may use. Called under the lock, with an unshared path to `place`.
    fn mapping(&self, state: &State, place: EntryPlace, pos: u64, len: u64) -> Result<Mapping, Status> {
        let map = &self.pool.map;
        let entry = state.tree.entry(place);
        let offset = pos & (map.geometry.unit_bytes() - 1);
        let most = self.whole(pos, len);
        let first = (offset >> BLOCK_SHIFT) as u32;
        let (written, run) = map.written_run(place.leaf, place.slot, first, (most >> BLOCK_SHIFT) as u32);
        let (kind, flags) = match written {
            true if entry.any(Entry::DIRTY) => (MappingKind::Mapped, MapFlags::DIRTY),
            true => (MappingKind::Mapped, MapFlags::NONE),
            false => (MappingKind::Unwritten, MapFlags::NEW | MapFlags::DIRTY),
        };
        let addr = (entry.phys() << map.geometry.unit_shift) + offset;
        Ok(Mapping::new(kind, pos, u64::from(run) << BLOCK_SHIFT, addr).flags(flags))
    }

    /// Gives space to a hole. `None` if the pool has none.
    fn allocate(&self, state: &mut State, unit: u64) -> Result<Option<(EntryPlace, Entry)>, Status> {
        if state.tree.units.available() == 0 {
            self.pool.advance_limbo(state);
            if state.tree.units.available() == 0 {
                return Ok(None);
            }
        }
        let place = state.own(&self.core, unit)?;
        let Some(phys) = state.tree.units.alloc() else { return Ok(None) };
        self.pool.unmark_unit(state, phys);
        self.pool.watch_space(state);
        // Not listed: without written bits there is nothing to record.
        let entry = Entry::at(phys).with(Entry::HANDED | Entry::DIRTY);
        state.tree.install(place, entry);
        Ok(Some((place, entry)))
    }

    /// Makes a range writable, for `map_blocking`.
    pub(super) fn make_writable(&self, pos: u64, len: u64, may_block: &MayBlock) -> Result<Mapping, Status> {
        self.make_writable_within(pos, len, 0, may_block)
    }

    /// Does the same as `make_writable` for a range that may reach beyond the volume, up to `end`: cutting a volume
    /// zeroes the rest of its last block, which lies behind the new end. That rest is in the volume's last unit, so no
    /// unit behind it gets space.
    pub(super) fn make_writable_within(
        &self,
        pos: u64,
        len: u64,
        end: u64,
        may_block: &MayBlock,
    ) -> Result<Mapping, Status> {
        let mut full = Full::default();
        let unit = pos >> self.pool.map.geometry.unit_shift;
        let cost = |state: &State| state.cost_of_units(self.core.id, unit, unit);
        self.pool.look_if_due()?;
        let mut state = self.pool.lock();
        loop {
            if may_block.is_cancelled() {
                return Err(Status::Canceled);
            }
            if state.is_overdue() || state.is_dirty_full() {
                drop(state);
                self.pool.relieve()?;
                state = self.pool.lock();
                continue;
            }
            state = match self.pool.pay(state, Spender::Write, cost) {
                Err(Status::NoSpc) => {
                    state = self.wait_for_space(self.pool.lock(), &mut full)?;
                    continue;
                }
                paid => paid?,
            };
            match self.round(state, pos, len, end, may_block)? {
                Round::Ready(len) => match self.pool.map.lookup_write(&self.core.top, pos, len) {
                    Some(mapping) => return Ok(mapping),
                    None => state = self.pool.lock(),
                },
                Round::Look(same) => state = same,
                Round::Full(same) => state = self.wait_for_space(same, &mut full)?,
            }
        }
    }

    /// Returns the end of the last unit that the volume may have.
    pub(super) fn end_of_units(&self) -> u64 {
        self.core.reach().next_multiple_of(self.pool.map.geometry.unit_bytes())
    }

    /// Takes one step towards a plain mapping.
    fn round<'a>(
        &'a self,
        mut guard: MutexGuard<'a, State>,
        pos: u64,
        len: u64,
        end: u64,
        may_block: &MayBlock,
    ) -> Result<Round<'a>, Status> {
        let unit = pos >> self.pool.map.geometry.unit_shift;
        let state = &mut *guard;
        let spot = self.pool.map.find(&self.core.top, unit);
        if state.vol(self.core.id)?.settling.is_some() || spot.entry.is_busy() {
            return Ok(Round::Look(self.pool.wait(guard)));
        }
        // The volume may have shrunk while this waited (V4).
        let end = end.min(self.end_of_units());
        let len = len.min(self.core.reach().max(end).saturating_sub(pos));
        if len == 0 {
            return Err(Status::NoSpc);
        }
        if !spot.entry.is_alloc() {
            return Ok(match self.allocate(state, unit)? {
                Some(_) => Round::Look(guard),
                None => Round::Full(guard),
            });
        }
        let place = state.own(&self.core, unit)?;
        let entry = state.tree.entry(place);
        if entry.is_shared() {
            if state.tree.units.owners(entry.phys()) > 1 {
                return match self.has_waiting_holes(state) {
                    true => Ok(Round::Look(self.pool.wait(guard))),
                    false => self.relocate(guard, unit, place, may_block),
                };
            }
            state.tree.store(place, entry.with(Entry::OWN));
            return Ok(Round::Look(guard));
        }
        let edges = self.unwritten_edges(place, pos, len);
        if edges != [None, None] {
            return match self.has_waiting_holes(state) {
                true => Ok(Round::Look(self.pool.wait(guard))),
                false => self.zero_edges(guard, unit, place, edges, may_block),
            };
        }
        state.tree.store(place, entry.with(Entry::HANDED));
        Ok(Round::Ready(len))
    }

    /// Returns true if holes wait for the end of the volume's copies. These holes precede the next copy.
    fn has_waiting_holes(&self, state: &State) -> bool {
        state.table.get(self.core.id).is_some_and(|vol| vol.holes > 0)
    }

    /// Clears `READY` of a unit to keep others away from it, or sets it again (W1). While a unit of the volume is busy,
    /// none of its units is unmapped and no snapshot of it begins, so `place` stays valid.
    pub(super) fn set_busy(&self, state: &mut State, place: EntryPlace, busy: bool) {
        let entry = state.tree.entry(place);
        state.tree.store(place, if busy { entry.without(Entry::READY) } else { entry.with(Entry::READY) });
        if let Some(vol) = state.table.get_mut(self.core.id) {
            vol.busy = if busy { vol.busy + 1 } else { vol.busy.saturating_sub(1) };
        }
    }

    /// Returns the unwritten blocks that the range covers only in part: at most its first and its last.
    fn unwritten_edges(&self, place: EntryPlace, pos: u64, len: u64) -> [Option<u32>; 2] {
        let geometry = &self.pool.map.geometry;
        let offset = pos & (geometry.unit_bytes() - 1);
        let end = offset + len.min(geometry.unit_bytes() - offset);
        [offset, end].map(|edge| {
            let block = (edge >> BLOCK_SHIFT) as u32;
            let partial = edge & (BLOCK - 1) != 0;
            (partial && !self.pool.map.written_run(place.leaf, place.slot, block, 1).0).then_some(block)
        })
    }

    /// Writes zeroes to blocks, and marks them as written (W2).
    fn zero_edges<'a>(
        &'a self,
        mut guard: MutexGuard<'a, State>,
        unit: u64,
        place: EntryPlace,
        edges: [Option<u32>; 2],
        may_block: &MayBlock,
    ) -> Result<Round<'a>, Status> {
        let has_writers = guard.tree.entry(place).any(Entry::WRITERS);
        let phys = guard.tree.entry(place).phys();
        self.set_busy(&mut guard, place, true);
        drop(guard);
        let quiet = if has_writers { self.wait_for_writers(may_block) } else { Ok(()) };
        // Blocks that were written meanwhile must not be zeroed.
        let edges =
            edges.map(|edge| edge.filter(|block| !self.pool.map.written_run(place.leaf, place.slot, *block, 1).0));
        let zeroed = quiet.and_then(|()| {
            let zeroes = Buf::zeroed(BLOCK as usize, BLOCK as usize).map_err(|_| Status::NoMem)?;
            edges.iter().flatten().try_for_each(|block| {
                let at = (phys << self.pool.map.geometry.unit_shift) + (u64::from(*block) << BLOCK_SHIFT);
                self.pool.write_new(at, &zeroes)
            })
        });
        let mut guard = self.pool.lock();
        let state = &mut *guard;
        // A checkpoint may have been written meanwhile. The first change of the path after it takes pages again, so the
        // cost is computed anew.
        let cost = state.cost_of_units(self.core.id, unit, unit);
        let zeroed = zeroed.and(state.can_pay(cost, Spender::EndOfWrite).then_some(()).ok_or(Status::NoSpc));
        let zeroed = zeroed.and_then(|()| state.own(&self.core, unit).map(drop));
        if zeroed.is_ok() {
            for block in edges.into_iter().flatten() {
                state.tree.set_bits(place, block, 1, true);
            }
            let full = if state.tree.written(place).0 { Entry::FULL } else { 0 };
            let entry = state.tree.entry(place).without(Entry::WRITERS).with(full);
            self.pool.list(state, &self.core, unit, place, entry);
        }
        self.set_busy(state, place, false);
        self.pool.wake();
        zeroed.map(|()| Round::Look(guard))
    }

    /// Waits for the end of every write that got its mapping before this call.
    pub(super) fn wait_for_writers(&self, may_block: &MayBlock) -> Result<(), Status> {
        self.pool.wait_for_io(&self.core, may_block)
    }

    /// Called when the pool is full. Frees deferred units if there are any. Otherwise waits for space that others free,
    /// or fails.
    fn wait_for_space<'a>(
        &'a self,
        mut guard: MutexGuard<'a, State>,
        full: &mut Full,
    ) -> Result<MutexGuard<'a, State>, Status> {
        if !guard.tree.freed.is_empty() {
            drop(guard);
            self.pool.commit()?;
            return Ok(self.pool.lock());
        }
        if !guard.limbo.is_empty() {
            if self.pool.advance_limbo(&mut guard) {
                full.held = None;
                return Ok(guard);
            }
            // I/O of some volume, perhaps of another one, delays the deferred frees.
            let now = Instant::now();
            if full.held.get_or_insert_with(|| Waited::since(now)).left(self.pool.longest_wait, now).is_zero() {
                return Err(Status::NoSpc);
            }
            let someone = guard.limbo.someone();
            drop(guard);
            let _ = someone.is_none_or(|(grace, ticket)| grace.wait(ticket, LOOK_EVERY));
            return Ok(self.pool.lock());
        }
        if guard.tree.units.aside() > 0 {
            // Free units are set aside while they are discarded. The end of the discard makes them available.
            return Ok(self.pool.wait(guard));
        }
        let _running = self.pool.beside.begin(Activity::FullPool);
        let WhenFull::Pause(longest) = self.pool.when_full else { return Err(Status::NoSpc) };
        let until = *full.deadline.get_or_insert_with(|| Instant::now() + longest.min(FOR_EVER));
        if Instant::now() + LOOK_EVERY > until {
            return Err(Status::NoSpc);
        }
        Ok(self.pool.wait(guard))
    }

    /// Called when the data of `pieces` is on the device: marks their unwritten blocks as written.
    ///
    /// # Errors
    ///
    /// `NoSpc` if a checkpoint has taken the maps since the write began, and metadata has no room to change them again.
    pub(super) fn finish_write(&self, pieces: &[Mapping]) -> Result<(), Status> {
        let unwritten = || pieces.iter().filter(|piece| piece.kind == MappingKind::Unwritten);
        let mut overdue = false;
        if unwritten().next().is_some() {
            self.pool.note_host(Status::Ok);
        }
        if self.core.grows {
            // Done under one hold of the lock, so that no reader sees the larger size before all bits of the write are
            // set.
            let cost = |state: &State| unwritten().map(|piece| self.cost_of_end(state, piece)).sum();
            let mut state = self.pool.pay(self.pool.lock(), Spender::EndOfWrite, cost)?;
            unwritten().try_for_each(|piece| self.mark_written(&mut state, piece))?;
            overdue = state.is_overdue();
        } else {
            for piece in unwritten() {
                let cost = |state: &State| self.cost_of_end(state, piece);
                let mut state = self.pool.pay(self.pool.lock(), Spender::EndOfWrite, cost)?;
                self.mark_written(&mut state, piece)?;
                overdue |= state.is_overdue();
            }
        }
        if overdue { self.pool.commit() } else { Ok(()) }
    }

    /// Returns an upper bound of the number of pages that the end of a write to `piece` adds to the next checkpoint.
    fn cost_of_end(&self, state: &State, piece: &Mapping) -> u64 {
        let shift = self.pool.map.geometry.unit_shift;
        let last = piece.offset + piece.len.max(1) - 1;
        state.cost_of_units(self.core.id, piece.offset >> shift, last >> shift)
    }

    /// Sets the bits of the whole blocks of `piece`, in each unit that the volume still has.
    fn mark_written(&self, state: &mut State, piece: &Mapping) -> Result<(), Status> {
        let geometry = self.pool.map.geometry;
        // The volume may have been cut meanwhile: data beyond its end is lost to the cut.
        let (mut pos, end) = (piece.offset, (piece.offset + piece.len).min(self.end_for_writes(state)));
        while pos < end {
            let unit = pos >> geometry.unit_shift;
            let stop = ((unit + 1) << geometry.unit_shift).min(end);
            let phys = (piece.addr + (pos - piece.offset)) >> geometry.unit_shift;
            let first = ((pos & (geometry.unit_bytes() - 1)).div_ceil(BLOCK)) as u32;
            let last = (((stop - 1) & (geometry.unit_bytes() - 1)) + 1) >> BLOCK_SHIFT;
            pos = stop;
            let entry = self.pool.map.find(&self.core.top, unit).entry;
            // The unit was punched or copied meanwhile, or the write has no whole block in it.
            if !entry.is_alloc() || entry.phys() != phys || last as u32 <= first {
                continue;
            }
            let partner = state.table.get(self.core.id).and_then(|vol| vol.settling);
            let place = match partner {
                // The write began before the copy that is being made, so the copy gets the block too.
                Some(_) => self.touch_both(state, unit)?,
                None => state.own(&self.core, unit)?,
            };
            let entry = self.pool.listed(state, &self.core, unit, state.tree.entry(place));
            state.tree.write_blocks(place, entry, first, last as u32 - first);
            // The size comes before the units of the growth, as in a commit.
            self.raise(state, (unit << geometry.unit_shift) + (last << BLOCK_SHIFT));
            state.keep_written((self.core.id, unit, place), entry, first, last as u32 - first);
        }
        Ok(())
    }

    fn touch_both(&self, state: &mut State, unit: u64) -> Result<EntryPlace, Status> {
        let partner = state.vol(self.core.id)?.settling;
        for id in [Some(self.core.id), partner].into_iter().flatten() {
            state.table.charge(id);
        }
        state.tree.touch(&self.core.top, unit).ok_or(Status::Offline)
    }
}
