//! Copies shared units, so that a writer has a unit of its own.
//!
//! A unit that a snapshot shares is not written to: its written blocks are copied to a new unit, which then replaces it
//! in the volume's map. The pool's lock is released for the copy; the unit is not `READY` meanwhile.
//!
//! Owns the choice of the units to copy and of their new places. In pools with units of 64 or 128 KiB a write to one
//! shared unit copies its *group*: all shared units of the same aligned 256 KiB of the volume, to a place where all of
//! them are adjacent. If units were copied one by one, neighbours in the volume would be stored in the order in which
//! they were written, and random writes between snapshots would break the volume up into single units. So:
//!
//! - R1: if the group of a volume was written in order, it stays one run of the device, whatever is written after
//!   snapshots, as long as an eighth of the pool is free. If less is free, or if no place for the group is found soon,
//!   only the unit that is written to is copied, to save space.
//! - R2: copying a neighbour is optional. If it fails (a read error, a checksum that does not match), the neighbour
//!   stays where it is, still shared, and no error is reported. If the host has no room for the whole group, the wanted
//!   unit gets the room that there is.
//! - R3: the code that clears `READY` sets it again on every path, as its last step ([`write`](super::write), W1).
//!
//! Called by writes that found a shared unit.

use sheave_base::beside::Activity;
use sheave_base::buf::Buf;
use sheave_base::status::Status;
use sheave_base::sync::MutexGuard;
use sheave_iomap::completion_plan::MayBlock;

use super::Volume;
use super::write::Round;
use crate::format::BLOCK_SHIFT;
use crate::state::State;
use crate::state::account::Spender;
use crate::state::extent_map::tree::EntryPlace;
use crate::state::extent_map::{Entry, Geometry};
use crate::state::sums::marks::Mismatch;

const BLOCK: u64 = 1 << BLOCK_SHIFT;
/// Number of bytes of a group, unless a unit is larger.
const GROUP_BYTES: u64 = 256 << 10;
/// Largest number of units of a group. Units below 64 KiB were chosen for small copies, and for diffs that report
/// little more than what was written: each of them is copied alone.
const MOST_UNITS: u64 = 4;

/// Returns the units of a group: 4 of 64 KiB, 2 of 128 KiB, else 1.
fn group_units(geometry: &Geometry) -> u64 {
    Some(GROUP_BYTES >> geometry.unit_shift).filter(|units| (1..=MOST_UNITS).contains(units)).unwrap_or(1)
}

struct Copy {
    /// Number of the unit in the volume.
    unit: u64,
    place: EntryPlace,
    /// Numbers of the old and of the new unit in the pool.
    from: u64,
    to: u64,
    written: [u64; 4],
    /// Blocks that fail their checksums. They are copied too, and must stay bad.
    bad: Vec<Mismatch>,
}

/// Written bytes of a unit that lie together.
struct Run {
    copy: usize,
    /// Offset in the memory of all copies.
    at: usize,
    from: u64,
    len: usize,
}

impl Volume {
    /// Copies the unit, and its neighbours (R1), so that the volume has units of its own.
    pub(super) fn relocate<'a>(
        &'a self,
        mut guard: MutexGuard<'a, State>,
        unit: u64,
        place: EntryPlace,
        may_block: &MayBlock,
    ) -> Result<Round<'a>, Status> {
        let state = &mut *guard;
        if state.tree.units.available() == 0 {
            self.pool.advance_limbo(state);
        }
        let mut copies = self.choose(state, unit, place);
        if copies.is_empty() {
            return Ok(Round::Full(guard));
        }
        for copy in &copies {
            self.pool.unmark_unit(state, copy.to);
            self.set_busy(state, copy.place, true);
        }
        self.pool.watch_space(state);
        drop(guard);
        let running = self.pool.beside.begin(Activity::Copy);
        let copied = self.copy_group(unit, &mut copies, may_block);
        drop(running);
        let (mut guard, copied) = self.lock_with_open_regions(&copies, copied, may_block);
        let state = &mut *guard;
        let copied = copied.and_then(|kept| self.install(state, unit, &copies, kept));
        copies.iter().for_each(|copy| self.set_busy(state, copy.place, false));
        let kept = copied.as_ref().map_or(0, |kept| *kept);
        copies[kept..].iter().for_each(|copy| state.tree.give_back(&self.core.top, copy.to));
        self.pool.wake();
        copied.map(|_| Round::Look(guard))
    }

    /// Chooses the units to copy and their new places, the wanted unit first. Returns no units if the pool has no
    /// space.
    fn choose(&self, state: &mut State, unit: u64, place: EntryPlace) -> Vec<Copy> {
        let count = group_units(&self.pool.map.geometry);
        let window = if count > 1 { state.tree.units.find_window(count) } else { None };
        let Some(window) = window else {
            let Some(to) = state.tree.units.alloc() else { return Vec::new() };
            return vec![Copy::new(state, unit, place, to)];
        };
        let first = unit & !(count - 1);
        // A group lies in one leaf: its size is a power of two, and a leaf is larger.
        let at = |unit: u64| EntryPlace {
            leaf: place.leaf,
            slot: place.slot - (place.slot & (count as usize - 1)) + (unit - first) as usize,
        };
        let others = (first..first + count).filter(|other| *other != unit);
        let mut copies = Vec::with_capacity(count as usize);
        for unit in std::iter::once(unit).chain(others) {
            let (place, to) = (at(unit), window + (unit - first));
            let entry = state.tree.entry(place);
            let is_wanted = copies.is_empty();
            if is_wanted || entry.is_shared() && !entry.is_busy() && state.tree.units.owners(entry.phys()) > 1 {
                state.tree.units.alloc_at(to);
                copies.push(Copy::new(state, unit, place, to));
            }
        }
        copies
    }

    /// Copies the written blocks of the group. If that fails, copies only those of the wanted unit (R2). Returns the
    /// number of good copies, counted from the first one; the wanted unit is first.
    fn copy_group(&self, unit: u64, copies: &mut [Copy], may_block: &MayBlock) -> Result<usize, Status> {
        debug_assert!(copies.first().is_some_and(|copy| copy.unit == unit));
        match self.copy_units(copies, may_block) {
            Ok(()) => {
                // Good copies come first; the wanted one stays first even if it is bad.
                copies[1..].sort_by_key(|copy| !copy.bad.is_empty());
                Ok(1 + copies[1..].iter().filter(|copy| copy.bad.is_empty()).count())
            }
            Err(status) if copies.len() == 1 || status == Status::Canceled => Err(status),
            Err(status) => {
                copies.iter_mut().for_each(|copy| copy.bad.clear());
                if status == Status::NoSpc {
                    take_first_place(copies);
                }
                self.copy_units(&mut copies[..1], may_block).map(|()| 1)
            }
        }
    }

    /// Copies the written blocks of units. Blocks that lie together share one read, and one write.
    fn copy_units(&self, copies: &mut [Copy], may_block: &MayBlock) -> Result<(), Status> {
        if may_block.is_cancelled() {
            return Err(Status::Canceled);
        }
        let geometry = &self.pool.map.geometry;
        let shift = geometry.unit_shift;
        // The memory is laid out like the new place, from its first unit to its last.
        let first = copies.iter().map(|copy| copy.to).min().unwrap_or_default();
        let end = copies.iter().map(|copy| copy.to + 1).max().unwrap_or_default();
        let mut memory = Buf::zeroed(((end - first) << shift) as usize, BLOCK as usize).map_err(|_| Status::NoMem)?;
        let mut runs: Vec<Run> = Vec::new();
        for (number, copy) in copies.iter().enumerate() {
            let base = ((copy.to - first) << shift) as usize;
            for (from, to) in written_runs(&copy.written, geometry.blocks() as usize) {
                let (from, len) = (from << BLOCK_SHIFT, (to - from) << BLOCK_SHIFT);
                runs.push(Run { copy: number, at: base + from, from: (copy.from << shift) + from as u64, len });
            }
        }
        runs.sort_by_key(|run| run.at);
        let follow = |a: &Run, b: &Run| a.at + a.len == b.at && a.from + a.len as u64 == b.from;
        for together in runs.chunk_by(follow) {
            self.pool.io.read(together[0].from, &mut memory[bytes_of(together)])?;
        }
        if let Some(sums) = &self.pool.sums {
            for run in &runs {
                let piece = &mut memory[run.at..run.at + run.len];
                sums.verify_copy(&*self.pool.io, run.from >> BLOCK_SHIFT, piece, &mut copies[run.copy].bad)?;
            }
        }
        for together in runs.chunk_by(|a, b| a.at + a.len == b.at) {
            let bytes = bytes_of(together);
            self.pool.write_new((first << shift) + bytes.start as u64, &memory[bytes])?;
        }
        Ok(())
    }

    /// Takes the lock while the regions of all good copies are open. No page on the device has the checksums of a copy,
    /// so recovery must read the copy after a crash. A group may lie in two regions, because the size of a region is
    /// not a multiple of the size of a group. Tried in a loop, because a region may close whenever the lock is
    /// released.
    fn lock_with_open_regions(
        &self,
        copies: &[Copy],
        mut copied: Result<usize, Status>,
        may_block: &MayBlock,
    ) -> (MutexGuard<'_, State>, Result<usize, Status>) {
        loop {
            let guard = self.pool.lock();
            let good = &copies[..copied.unwrap_or(0)];
            let closed =
                guard.sums.as_ref().and_then(|regions| good.iter().position(|copy| !regions.is_intended(copy.to)));
            let Some(closed) = closed else { return (guard, copied) };
            drop(guard);
            if let Err(status) = self.pool.intend(good[closed].to << self.pool.map.geometry.unit_shift, may_block) {
                // The first copy is the wanted one. If opening a region fails for a neighbour, only the wanted copy is
                // kept (R2).
                copied = if closed == 0 { Err(status) } else { Ok(1) };
            }
        }
    }

    /// Puts the first `kept` copies into the map, without `READY`: their writers must still find out that the new place
    /// is not durable.
    fn install(&self, state: &mut State, unit: u64, copies: &[Copy], kept: usize) -> Result<usize, Status> {
        // A checkpoint may have been written meanwhile. The first change of the path after it takes pages again, so the
        // cost is computed anew.
        let cost = state.cost_of_units(self.core.id, unit, unit) + state.cost_of_marks(&copies[0].bad);
        if !state.can_pay(cost, Spender::EndOfWrite) {
            return Err(Status::NoSpc);
        }
        let is_open = |copy: &Copy| state.sums.as_ref().is_none_or(|regions| regions.is_intended(copy.to));
        debug_assert!(copies[..kept].iter().all(is_open), "checksums change in open regions only");
        // The path must be in the next checkpoint. One call suffices: all copies are in one leaf.
        state.own(&self.core, unit)?;
        for copy in &copies[..kept] {
            self.pool.copied(state, copy.from, copy.to, &copy.bad);
            let old = state.tree.entry(copy.place);
            let new = Entry::at(copy.to).without(Entry::READY).with(old.0 & (Entry::FULL | Entry::LISTED));
            state.tree.replace(&self.core.top, copy.place, new);
            self.pool.list(state, &self.core, copy.unit, copy.place, new);
        }
        Ok(kept)
    }
}

impl Copy {
    fn new(state: &State, unit: u64, place: EntryPlace, to: u64) -> Copy {
        let (from, written) = (state.tree.entry(place).phys(), state.tree.bits(place));
        Copy { unit, place, from, to, written, bad: Vec::new() }
    }
}

/// Gives the wanted unit the lowest of the places: if a full host had any room left, it used it for the lowest
/// addresses.
fn take_first_place(copies: &mut [Copy]) {
    let Some(first) = copies.iter().enumerate().min_by_key(|(_, copy)| copy.to).map(|(at, _)| at) else { return };
    let to = copies[first].to;
    copies[first].to = std::mem::replace(&mut copies[0].to, to);
}

/// Returns the runs of written blocks, each as its first block and the one behind its last.
fn written_runs(bits: &[u64; 4], blocks: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
    let is_written = |block: usize| bits[block >> 6] >> (block & 63) & 1 != 0;
    let mut at = 0;
    std::iter::from_fn(move || {
        let first = (at..blocks).find(|block| is_written(*block))?;
        at = (first..blocks).find(|block| !is_written(*block)).unwrap_or(blocks);
        Some((first, at))
    })
}

/// Returns the bytes of consecutive runs in memory.
fn bytes_of(runs: &[Run]) -> std::ops::Range<usize> {
    let last = &runs[runs.len() - 1];
    runs[0].at..last.at + last.len
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::ops::Range;
    use std::sync::{Arc, Mutex};

    use sheave_base::status::Status;
    use sheave_drivers::open_device;
    use sheave_iomap::File;
    use sheave_iomap::completion_plan::MayBlock;
    use sheave_iomap::file::WriteDone;
    use sheave_iomap::mapping::Intent;

    use crate::block_io::DeviceIo;
    use crate::format::settings::Checksum;
    use crate::state::sums::crc;
    use crate::{BlockIo, CreateOptions, OpenOptions, Pool, Volume};

    const UNIT: u64 = 65536;

    /// A device that cannot read some bytes.
    struct Unreadable {
        io: DeviceIo,
        bad: Arc<Mutex<Range<u64>>>,
    }

    impl BlockIo for Unreadable {
        fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), Status> {
            let bad = self.bad.lock().unwrap().clone();
            if at < bad.end && bad.start < at + buf.len() as u64 { Err(Status::Medium) } else { self.io.read(at, buf) }
        }

        fn write(&self, at: u64, buf: &[u8]) -> Result<(), Status> {
            self.io.write(at, buf)
        }

        fn flush(&self) -> Result<(), Status> {
            self.io.flush()
        }

        fn discard(&self, at: u64, len: u64) -> Result<(), Status> {
            self.io.discard(at, len)
        }

        fn size_bytes(&self) -> u64 {
            self.io.size_bytes()
        }
    }

    /// Returns a volume of eight written units, with the snapshot `s`. Unit `bad` cannot be read or, in a pool with
    /// checksums, has rotted.
    fn frozen(bad: u64, checksum: Checksum) -> (Pool, Volume) {
        let device = open_device("ram:size=64M").unwrap();
        Pool::create(&device, &CreateOptions { checksum, ..CreateOptions::default() }).unwrap();
        let nowhere = Arc::new(Mutex::new(0..0));
        let io = Box::new(Unreadable { io: DeviceIo::new(&device).unwrap(), bad: Arc::clone(&nowhere) });
        let pool = Pool::open_through(&device, io, &OpenOptions::default()).unwrap();
        let volume = pool.create_volume("v", 1 << 20).unwrap();
        (0..8).for_each(|unit| write(&pool, &volume, unit * UNIT, &[unit as u8 + 1; UNIT as usize]).unwrap());
        pool.snapshot("v", "s").unwrap();
        let at = place(&volume, bad);
        match checksum {
            Checksum::None => *nowhere.lock().unwrap() = at + 8192..at + 12288,
            Checksum::Crc32c => pool.inner.io.write(at + 8192, &[0xee; 4096]).unwrap(),
        }
        (pool, volume)
    }

    /// Writes in the way that a ring does.
    fn write(pool: &Pool, volume: &Volume, pos: u64, bytes: &[u8]) -> Result<(), Status> {
        let may_block = MayBlock::on_worker();
        let mapping = volume.map_blocking(pos, bytes.len() as u64, Intent::Write, &may_block)?;
        assert_eq!(mapping.len, bytes.len() as u64);
        pool.inner.io.write(mapping.addr, bytes)?;
        if let Some(sums) = &pool.inner.sums {
            let numbers = mapping.addr / 4096..;
            numbers.zip(bytes.chunks(4096)).for_each(|(number, block)| sums.set(number, crc(block)));
        }
        let pieces = [mapping];
        volume.end_write(WriteDone::new(pos, bytes.len() as u64, Status::Ok, &pieces), &may_block)
    }

    fn place(volume: &Volume, unit: u64) -> u64 {
        volume.extents(unit * UNIT, 1).unwrap()[0].addr
    }

    #[test]
    fn a_neighbour_that_cannot_be_copied_stays_where_it_is() {
        for checksum in [Checksum::None, Checksum::Crc32c] {
            let (pool, volume) = frozen(6, checksum);
            let before: Vec<u64> = (0..8).map(|unit| place(&volume, unit)).collect();
            let data = pool.info().data_bytes;
            write(&pool, &volume, 5 * UNIT, &[55; 4096]).expect("nothing is wrong with this unit");
            assert_ne!(place(&volume, 5), before[5], "{checksum:?}");
            assert_eq!(place(&volume, 6), before[6], "{checksum:?}: it is shared as before");
            pool.sync().unwrap();
            let kept = match checksum {
                // One read of the whole group failed, so the wanted unit was copied alone.
                Checksum::None => 1,
                Checksum::Crc32c => 3,
            };
            assert_eq!(pool.info().data_bytes - data, kept * UNIT, "{checksum:?}: what was not used is free again");
            assert_eq!((4..8).filter(|unit| place(&volume, *unit) != before[*unit as usize]).count() as u64, kept);
            // The bad unit itself: a write to it fails with the read error, or copies the bad block along.
            let wanted = write(&pool, &volume, 6 * UNIT, &[66; 4096]);
            match checksum {
                Checksum::None => assert_eq!(wanted, Err(Status::Medium)),
                Checksum::Crc32c => {
                    wanted.expect("a copy takes what is bad along");
                    assert_eq!(pool.info().bad_blocks, 2, "in the snapshot, and in the copy");
                }
            }
        }
    }
}
