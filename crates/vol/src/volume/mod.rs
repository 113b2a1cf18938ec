//! A thin volume: an [`iomap::File`](sheave_iomap::File) whose map gives the place of each byte.
//!
//! | module | holds |
//! |---|---|
//! | [`write`](mod@write) | the slow half of a write: space, an unshared path through the map, a written first block |
//! | [`relocate`] | copies of units that other volumes share |
//! | [`extend`] | writes beyond the end |
//! | [`punch`] | holes and zeroes |
//! | [`report`] | extents, and the space that a volume takes |
//! | [`changes`] | the differences of two volumes, by their maps |
//! | [`compare`] | the same, by their bytes where maps cannot tell |
//!
//! Owns the fast path: reads, and writes to written and unshared units, take no lock and allocate nothing.
//!
//! - V1: unwritten space reads as zeroes: only blocks whose bit is set are read from the device.
//! - V2: a bit is set after the data of its block is on the device.
//! - V3: a unit that another volume or snapshot shares is never written to.
//! - V4: no block beyond the end is written, except a block that a smaller size is just cutting off.

mod changes;
mod compare;
mod extend;
mod punch;
mod relocate;
mod report;
mod write;

use sheave_base::beside::Activities;
use sheave_base::grace::{Grace, Holder};
use sheave_base::status::Status;
use sheave_base::sync::Arc;
use sheave_base::sync::atomic::Ordering;
use sheave_blk::Device;
use sheave_blk::flush_alarm::FlushAlarm;
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::file::{FallocateMode, WriteDone};
use sheave_iomap::io_stats::{IoCounts, IoGroup};
use sheave_iomap::mapping::{Intent, MapFlags};
use sheave_iomap::slow::{Place, SlowIo};
use sheave_iomap::{File, Mapping, MappingKind, PlainRanges, SummedDone};

use crate::engine::background::Keeper;
use crate::engine::change::closed;
use crate::engine::inner::PoolInner;
use crate::error::PoolError;
use crate::info::{Differences, Extent};
use crate::rbd_diff::Identity;
use crate::state::phase::Phase;
use crate::state::table::{OpenToken, VolumeCore};

pub(crate) use report::usage;

/// Opens a volume or snapshot. All openings share one `VolumeCore`.
pub(crate) fn open_volume(pool: &Arc<PoolInner>, name: &str) -> Result<Volume, PoolError> {
    let mut state = pool.lock();
    if matches!(state.phase, Phase::Closing | Phase::Closed) {
        return Err(closed("opening a volume"));
    }
    let vol = state.table.whole(name, "opening a volume")?;
    if !pool.read_only {
        check_end(pool, name, vol.core.size())?;
    }
    let open = vol.opened.upgrade().unwrap_or_else(|| std::sync::Arc::new(OpenToken));
    let core = Arc::clone(&vol.core);
    state.table.set_opened(core.id, &open);
    let geometry = &pool.map.geometry;
    core.top.open(geometry.units_of(core.reach()).div_ceil(geometry.leaf_entries() as u64));
    let read_only = core.snapshot || pool.read_only || state.phase == Phase::DeletesOnly;
    Ok(Volume::new(Arc::clone(pool), core, open, read_only))
}

/// Returns an error for a size that is not a multiple of the device's block, because no I/O reaches such an end. A pool
/// that was copied to a device with larger blocks may have such volumes.
fn check_end(pool: &PoolInner, name: &str, size: u64) -> Result<(), PoolError> {
    let block = pool.block_bytes();
    if size.is_multiple_of(block) {
        return Ok(());
    }
    let whole = size.next_multiple_of(block);
    Err(PoolError::Invalid {
        what: format!(
            "'{name}' has {size} bytes and ends within a block of the pool's device, which have {block} bytes"
        ),
        fix: format!("Resize it to {whole} bytes, which adds zeroes (of a snapshot: a clone of it)"),
    })
}

/// An open volume or snapshot. Clones of the handle are the same volume. To use it in a ring:
/// `ring.attach_file(Arc::new(volume))`.
#[derive(Clone, Debug)]
pub struct Volume {
    /// Declared before `pool`, so that it is dropped first: its drop waits for the pool's thread. `None` after a failed
    /// opening has dropped it.
    _keeper: Option<std::sync::Arc<Keeper>>,
    core: Arc<VolumeCore>,
    pool: Arc<PoolInner>,
    alarm: Arc<FlushAlarm>,
    read_only: bool,
    /// True if the pool keeps checksums of data.
    summed: bool,
    /// Held to keep the volume open: the table has only a weak reference.
    _open: std::sync::Arc<OpenToken>,
}

impl Volume {
    fn new(pool: Arc<PoolInner>, core: Arc<VolumeCore>, open: std::sync::Arc<OpenToken>, read_only: bool) -> Volume {
        let summed = pool.sums.is_some();
        let alarm = Arc::clone(&pool.alarm);
        Volume { _keeper: pool.keeper.upgrade(), core, pool, alarm, read_only, summed, _open: open }
    }

    /// Returns the volume's current name.
    pub fn name(&self) -> String {
        self.pool.lock().table.get(self.core.id).map(|vol| vol.name.clone()).unwrap_or_default()
    }

    /// Returns the counters of the volume's I/O, and where the time of these I/Os went. They cover all rings since the
    /// pool was opened. May be called by any thread at any time.
    pub fn io_counts(&self) -> IoCounts {
        self.core.io.counts()
    }

    /// Returns the last slow I/Os that were recorded by the rings that have the volume open, the oldest first. May be
    /// called by any thread. Walks the volume's map if it must find the positions of some of them.
    pub fn slow_ios(&self) -> Vec<SlowIo> {
        let mut ios = self.core.io.slow_ios();
        self.locate(&mut ios);
        ios
    }

    /// Returns the extents of a range, holes included, merged where they continue each other on the device.
    pub fn extents(&self, pos: u64, len: u64) -> Result<Vec<Extent>, PoolError> {
        Ok(report::extents(&self.pool, &self.core, pos, len))
    }

    /// Returns the extents of a range that differ from those of `base`, a volume or snapshot of the same pool: those
    /// that read differently, and those that were written anew. Compares the maps and reads no data. Data that became a
    /// hole is reported as a hole. Nothing beyond this volume's end is reported. Beyond the end of `base` only data is
    /// reported.
    pub fn changes_since(&self, base: &Volume, pos: u64, len: u64) -> Result<Vec<Extent>, PoolError> {
        self.check_pool_of(base)?;
        Ok(changes::changes(&self.pool, &self.core, &base.core, pos, len))
    }

    /// Returns the same as [`Volume::changes_since`], without the blocks that read the same. Both volumes may have
    /// equal data in different places, for example after a write to a part of a shared unit, which copies the unit.
    /// Blocks in different places are compared. Data is not read where checksums prove that it differs, where both
    /// volumes have it in one place, or where only one of them has it. A block that cannot be read or does not match
    /// its checksum counts as different.
    ///
    /// Blocks the calling thread, and reads one MiB of either volume at a time. Before each MiB it calls `go_on` with
    /// the position at which that MiB begins; `false` ends the comparison. If a volume is written meanwhile, each of
    /// its blocks is compared as it was at some moment.
    pub fn differences_since(
        &self,
        base: &Volume,
        pos: u64,
        len: u64,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Differences, PoolError> {
        self.check_pool_of(base)?;
        let go_on = &mut |told: &Differences| go_on(told.upto);
        compare::differences(&self.pool, &self.core, &compare::Base::Open(&base.core), (pos, len), go_on)
    }

    fn check_pool_of(&self, base: &Volume) -> Result<(), PoolError> {
        if Arc::ptr_eq(&self.pool, &base.pool) {
            return Ok(());
        }
        Err(PoolError::Invalid {
            what: "the volumes lie in different pools, whose places say nothing of each other".into(),
            fix: "Compare volumes of one pool".into(),
        })
    }

    /// Returns the names of at most `most` snapshots to which [`Volume::changes_since`] can compare this volume, the
    /// newest first. They are of the same family. For a snapshot, only older ones are returned.
    #[doc(hidden)]
    pub fn bases(&self, most: usize) -> Vec<String> {
        changes::bases(&self.pool, &self.core, most)
    }

    /// Returns the [number](crate::VolumeInfo::id) of a snapshot of the pool, for [`Volume::differences_since_number`].
    ///
    /// # Errors
    ///
    /// If `name` is not a snapshot, or its map is damaged.
    #[doc(hidden)]
    pub fn snapshot_number(&self, name: &str) -> Result<u32, PoolError> {
        changes::snapshot_number(&self.pool, name)
    }

    /// Compares with the snapshot of this number, like [`Volume::differences_since`]. The snapshot is not kept open: it
    /// may be renamed or deleted at any time. `go_on` is given the result so far before each MiB.
    ///
    /// # Errors
    ///
    /// [`PoolError::NoVolume`] if the snapshot is gone.
    #[doc(hidden)]
    pub fn differences_since_number(
        &self,
        snapshot: u32,
        pos: u64,
        len: u64,
        go_on: &mut dyn FnMut(&Differences) -> bool,
    ) -> Result<Differences, PoolError> {
        compare::differences(&self.pool, &self.core, &compare::Base::Snapshot(snapshot), (pos, len), go_on)
    }

    /// Returns the identity that [diffs](crate::rbd_diff) contain in addition to the name. Walks the map.
    pub fn identity(&self) -> Identity {
        changes::identity(&self.pool, &self.core)
    }

    /// Returns the holders of the I/O that waiters on this volume wait for, the longest first. Useful after a hole was
    /// refused with `ETIMEDOUT`. Empty if nothing waits.
    pub fn holders(&self) -> Vec<Holder> {
        self.core.top.grace().holders()
    }

    #[inline(always)]
    fn fits(&self, pos: u64, len: u64) -> bool {
        let size = self.core.size();
        pos < size && len <= size - pos
    }
}

impl File for Volume {
    fn device(&self) -> &Device {
        &self.pool.device
    }

    #[inline]
    fn size_bytes(&self) -> u64 {
        self.core.size()
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn grace(&self) -> Option<&Arc<Grace>> {
        Some(self.core.top.grace())
    }

    fn io_group(&self) -> Option<&Arc<IoGroup>> {
        Some(&self.core.io)
    }

    fn beside(&self) -> Option<&Activities> {
        Some(&self.pool.beside)
    }

    fn locate(&self, ios: &mut [SlowIo]) {
        let mine = |io: &&mut SlowIo| io.file == self.core.io.id() && matches!(io.place, Place::Device(_));
        let mine: Vec<_> = ios.iter_mut().filter(mine).collect();
        let at = |io: &&mut SlowIo| if let Place::Device(at) = io.place { at } else { 0 };
        let mut found: Vec<_> = mine.iter().map(|io| (at(io), None)).collect();
        report::locate(&self.pool, &self.core, &mut found);
        for (io, (_, place)) in mine.into_iter().zip(found) {
            io.place = place.map_or(io.place, Place::File);
        }
    }

    #[inline]
    fn map(&self, pos: u64, len: u64, intent: Intent) -> Result<Mapping, Status> {
        if !self.fits(pos, len) || len == 0 {
            return self.map_beyond(pos, len, intent);
        }
        let write = intent == Intent::Write;
        if write && !self.core.is_noted(&self.alarm) {
            self.note_write()?;
        }
        match self.pool.map.lookup_plain(&self.core.top, pos, len, write) {
            // Built in place for the caller: passing it through `map_summed` would copy it and stall on the stores just
            // made.
            Some(mapping) if !self.summed => Ok(mapping),
            plain => self.map_other(plain, pos, len, intent),
        }
    }

    fn max_bytes(&self) -> Option<u64> {
        self.core.grows.then(|| self.core.max_size())
    }

    fn map_plain(&self, at: &mut [u64], ranges: &PlainRanges) -> usize {
        let write = ranges.intent == Intent::Write;
        if self.summed || write && !self.core.is_noted(&self.alarm) {
            return 0;
        }
        self.pool.map.lookup_many(&self.core.top, at, ranges)
    }

    fn block_bytes(&self) -> u32 {
        self.block() as u32
    }

    fn begin_write(&self, piece: &Mapping) {
        if let Some(sums) = &self.pool.sums {
            sums.begin(piece);
        }
    }

    fn abort_write(&self, piece: &Mapping) {
        if let Some(sums) = &self.pool.sums {
            sums.abort(piece);
        }
    }

    fn end_summed(&self, done: &SummedDone<'_>) -> Result<(), Status> {
        self.pool.sums.as_ref().map_or(Ok(()), |sums| sums.end(done))
    }

    fn end_summed_blocking(&self, done: &SummedDone<'_>, token: &MayBlock) -> Result<(), Status> {
        self.pool.sums.as_ref().map_or(Ok(()), |sums| sums.end_blocking(&self.pool, done, token))
    }

    fn map_blocking(&self, pos: u64, len: u64, intent: Intent, may_block: &MayBlock) -> Result<Mapping, Status> {
        // A smaller size may have cut the range in two. Only the part inside the volume is made ready, because that is
        // what the next `map` asks for.
        let inside = if self.core.grows { len } else { len.min(self.core.size().saturating_sub(pos)) };
        if intent == Intent::Read || inside == 0 || self.read_only {
            return self.map(pos, len, intent);
        }
        self.note_write()?;
        let len = inside;
        let mapping = match self.core.grows {
            true => self.extend_blocking(pos, len, may_block)?,
            false => self.make_writable(pos, len, may_block)?,
        };
        let Some(sums) = &self.pool.sums else { return Ok(mapping) };
        self.pool.intend(mapping.addr, may_block)?;
        Ok(sums.within_region(mapping))
    }

    fn end_write(&self, done: WriteDone<'_>, _: &MayBlock) -> Result<(), Status> {
        if !done.status.is_ok() {
            self.pool.note_host(done.status);
            return Err(done.status);
        }
        self.finish_write(done.pieces)
    }

    #[inline]
    fn needs_sync(&self) -> bool {
        // Relaxed: the caller has seen its own writes end, and they set this flag before their end. While the alarm
        // rings, a flush of the device proves nothing, so the pool must be synced.
        self.pool.unsynced.load(Ordering::Relaxed) || self.alarm.epoch() == FlushAlarm::RINGING
    }

    fn sync(&self, _: &MayBlock) -> Option<Result<(), Status>> {
        Some(self.pool.commit())
    }

    fn fallocate(&self, mode: FallocateMode, pos: u64, len: u64, may_block: &MayBlock) -> Result<(), Status> {
        if self.read_only {
            return Err(Status::ReadOnly);
        }
        let in_blocks = (pos | len) & (self.block() - 1) == 0;
        if pos.checked_add(len).is_none_or(|end| end > self.core.size()) || len == 0 || !in_blocks {
            return Err(Status::Invalid);
        }
        // Both modes leave holes: unmapped space reads as zeroes and takes no room.
        if !matches!(mode, FallocateMode::PunchHole | FallocateMode::ZeroRange) {
            return Err(Status::NotSupp);
        }
        self.note_write()?;
        self.punch(pos, len, may_block)?;
        // Noted again: a commit may have run meanwhile without any part of the punch.
        self.note_write()
    }
}

impl Volume {
    /// Called before each change of the volume: notes that a failed flush may lose data of it from now on.
    #[cold]
    #[inline(never)]
    fn note_write(&self) -> Result<(), Status> {
        if self.read_only {
            return Err(Status::ReadOnly);
        }
        self.core.note_write(&self.alarm)
    }

    /// Slow half of `map`: handles ranges that `lookup_plain` does not answer, and pools with checksums.
    #[inline(never)]
    fn map_other(&self, plain: Option<Mapping>, pos: u64, len: u64, intent: Intent) -> Result<Mapping, Status> {
        let mapping = match plain {
            Some(mapping) => Ok(mapping),
            None => self.map_far(pos, len, intent == Intent::Write),
        };
        if self.summed { self.map_summed(mapping, intent) } else { mapping }
    }

    /// Looks up holes, parts of units, shared units and long ranges.
    fn map_far(&self, pos: u64, len: u64, write: bool) -> Result<Mapping, Status> {
        if !write {
            return self.pool.map.lookup_read_far(&self.core.top, pos, len);
        }
        match self.pool.map.lookup_write_far(&self.core.top, pos, len) {
            Some(mapping) => Ok(mapping),
            None => self.map_missing(pos, len),
        }
    }

    /// Maps a range that is not entirely inside the volume: the part before the end, or all of it if the volume grows.
    #[cold]
    fn map_beyond(&self, pos: u64, len: u64, intent: Intent) -> Result<Mapping, Status> {
        if self.core.grows && len != 0 {
            return self.extend(pos, len, intent);
        }
        let left = self.core.size().saturating_sub(pos);
        if left == 0 || len == 0 {
            return Err(if len == 0 { Status::Invalid } else { Status::NoSpc });
        }
        self.map(pos, len.min(left), intent)
    }
}

impl Volume {
    /// Completes a mapping of a pool with checksums. A write ends with its region, because the next region may be
    /// closed. Fails with `Again` for a writer whose region is not open.
    #[cold]
    fn map_summed(&self, mapping: Result<Mapping, Status>, intent: Intent) -> Result<Mapping, Status> {
        let mapping = mapping?;
        if intent == Intent::Read {
            let flags = if mapping.kind == MappingKind::Mapped { MapFlags::SUMMED } else { MapFlags::NONE };
            return Ok(mapping.flags(mapping.flags | flags));
        }
        let sums = self.pool.sums.as_ref().filter(|sums| sums.is_open(mapping.addr)).ok_or(Status::Again)?;
        let mapping = sums.within_region(mapping);
        Ok(mapping.flags(mapping.flags | MapFlags::SUMMED))
    }
}

#[cfg(test)]
impl Volume {
    /// Returns the pool, for tests of the layers below.
    pub(crate) fn pool(&self) -> &Arc<PoolInner> {
        &self.pool
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
