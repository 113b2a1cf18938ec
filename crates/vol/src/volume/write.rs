//! What a write finds missing: space in a hole, a way that no snapshot shares, a unit of its own, a whole first block.
//!
//! Owns the slow half of `map`, `map_blocking`, and `end_write`. The order that keeps promises:
//!
//! 1. space is given without written bits: whoever reads sees zeroes;
//! 2. the data is written;
//! 3. `end_write` sets the bits, if the unit is still the volume's, and lists it for the next commit.
//!
//! A shared unit is copied first ([`relocate`](super::relocate)). While a snapshot settles nothing is copied: writes
//! that began before it may still land.
//!
//! - W1: whoever takes `READY` off sets it again, whatever happens, and as the last of its changes: from that store on
//!   rings write without the lock, by what the entry says then.
//! - W2: a partial block is written only after the whole block is: its rest is zeroed first, when no other write to the
//!   unit is under way.

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
/// Longer than anybody waits: a century, for no clock can tell the end of [`Duration::MAX`].
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 86_400);

/// What `make_writable` has done in one round.
pub(super) enum Round<'a> {
    /// The map has the answer, for so many bytes.
    Ready(u64),
    /// Something changed: look again.
    Look(MutexGuard<'a, State>),
    /// There is no space.
    Full(MutexGuard<'a, State>),
}

/// How long a writer has waited for space.
#[derive(Debug, Default)]
struct Full {
    /// When it waits no longer for what others free.
    deadline: Option<Instant>,
    /// How long I/O has kept back what was let go.
    held: Option<Waited>,
}

impl Volume {
    /// `map` for a writer that found no plain mapping; never waits.
    #[cold]
    pub(super) fn map_missing(&self, pos: u64, len: u64) -> Result<Mapping, Status> {
        let unit = pos >> self.pool.map.geometry.unit_shift;
        let Some(mut state) = self.pool.try_lock() else { return Err(Status::Again) };
        let state = &mut *state;
        let spot = self.pool.map.find(&self.core.top, unit);
        if spot.tagged || spot.entry.stops_writes() || state.is_dirty_full() {
            return Err(Status::Again);
        }
        // What is new while a copy settles would be recorded before the copy, and is not in it.
        if state.vol(self.core.id)?.settling.is_some() {
            return Err(Status::Again);
        }
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

    /// Bytes from `pos`, the start of a block, to the end of the last whole block of the range in its unit.
    fn whole(&self, pos: u64, len: u64) -> u64 {
        let unit = self.pool.map.geometry.unit_bytes();
        len.min(unit - (pos & (unit - 1))) & !(BLOCK - 1)
    }

    /// The mapping of what a writer may use, under the lock, on a way of its own.
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

    /// Gives a hole space; `None` if there is none to give.
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

    /// `map_blocking` for a writer.
    pub(super) fn make_writable(&self, pos: u64, len: u64, may_block: &MayBlock) -> Result<Mapping, Status> {
        self.make_writable_within(pos, len, 0, may_block)
    }

    /// `map_blocking` for a writer of a range that ends at `end` at most, if the volume is not larger: what is zeroed
    /// when a volume is cut lies behind its end. It lies in the volume's last unit: no unit behind that gets space.
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

    /// Where the last unit ends that the volume may have.
    pub(super) fn end_of_units(&self) -> u64 {
        self.core.reach().next_multiple_of(self.pool.map.geometry.unit_bytes())
    }

    /// One step towards a plain mapping.
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
        // The volume may have become smaller while this waited (V4).
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

    /// Whether holes wait until nothing of the volume is being copied: then they go before the next copy.
    fn has_waiting_holes(&self, state: &State) -> bool {
        state.table.get(self.core.id).is_some_and(|vol| vol.holes > 0)
    }

    /// Keeps others off a unit, or lets them in again (W1). Nobody unmaps a volume's units while one is busy, and no
    /// snapshot of it begins, so the place stays what it is.
    pub(super) fn set_busy(&self, state: &mut State, place: EntryPlace, busy: bool) {
        let entry = state.tree.entry(place);
        state.tree.store(place, if busy { entry.without(Entry::READY) } else { entry.with(Entry::READY) });
        if let Some(vol) = state.table.get_mut(self.core.id) {
            vol.busy = if busy { vol.busy + 1 } else { vol.busy.saturating_sub(1) };
        }
    }

    /// The blocks that the range covers in part and that are not written: the first and the last, if so.
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

    /// Makes blocks written by writing zeroes to them (W2).
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
        // What was written meanwhile is not zeroed.
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
        // A checkpoint may have been written meanwhile, so the way may be changed for the first time again.
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

    /// Waits until every write that had its mapping before has ended.
    pub(super) fn wait_for_writers(&self, may_block: &MayBlock) -> Result<(), Status> {
        self.pool.wait_for_io(&self.core, may_block)
    }

    /// The pool is full: takes back what waits in limbo; then fails, or waits for what others free.
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
            // I/O of some volume keeps it back, perhaps of another than this.
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
            // Free, and being discarded: they come back when that has ended.
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

    /// The data of these mappings is on the device: what was unwritten is written now.
    ///
    /// # Errors
    ///
    /// `NoSpc` when a checkpoint has taken the maps since the write began, and metadata has no room to change them
    /// again.
    pub(super) fn finish_write(&self, pieces: &[Mapping]) -> Result<(), Status> {
        let unwritten = || pieces.iter().filter(|piece| piece.kind == MappingKind::Unwritten);
        let mut overdue = false;
        if unwritten().next().is_some() {
            self.pool.note_host(Status::Ok);
        }
        if self.core.grows {
            // Under one lock, so that nobody sees half of what makes the volume larger.
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

    /// What the end of a write to a mapping adds to the next checkpoint, at most.
    fn cost_of_end(&self, state: &State, piece: &Mapping) -> u64 {
        let shift = self.pool.map.geometry.unit_shift;
        let last = piece.offset + piece.len.max(1) - 1;
        state.cost_of_units(self.core.id, piece.offset >> shift, last >> shift)
    }

    /// Sets the bits of the whole blocks of a mapping, unit by unit, where the unit is still the volume's.
    fn mark_written(&self, state: &mut State, piece: &Mapping) -> Result<(), Status> {
        let geometry = self.pool.map.geometry;
        // The volume may have been cut meanwhile: what lies beyond its end is lost to that.
        let (mut pos, end) = (piece.offset, (piece.offset + piece.len).min(self.end_for_writes(state)));
        while pos < end {
            let unit = pos >> geometry.unit_shift;
            let stop = ((unit + 1) << geometry.unit_shift).min(end);
            let phys = (piece.addr + (pos - piece.offset)) >> geometry.unit_shift;
            let first = ((pos & (geometry.unit_bytes() - 1)).div_ceil(BLOCK)) as u32;
            let last = (((stop - 1) & (geometry.unit_bytes() - 1)) + 1) >> BLOCK_SHIFT;
            pos = stop;
            let entry = self.pool.map.find(&self.core.top, unit).entry;
            if !entry.is_alloc() || entry.phys() != phys || last as u32 <= first {
                continue;
            }
            let partner = state.table.get(self.core.id).and_then(|vol| vol.settling);
            let place = match partner {
                // The copy that is being made gets it too: it was begun before the copy.
                Some(_) => self.touch_both(state, unit)?,
                None => state.own(&self.core, unit)?,
            };
            let entry = self.pool.listed(state, &self.core, unit, state.tree.entry(place));
            state.tree.write_blocks(place, entry, first, last as u32 - first);
            self.raise(state, (unit << geometry.unit_shift) + (last << BLOCK_SHIFT));
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
