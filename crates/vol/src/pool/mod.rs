//! A pool: volumes and snapshots on one device, with the space they share.
//!
//! Owns the public operations, and the content of the pool's reports. [`ops`](crate::ops), [`volume`](crate::volume)
//! and [`engine`](crate::engine) carry the operations out.

use std::ops::ControlFlow;
use std::time::Duration;

use sheave_base::status::Status;
use sheave_base::sync::Arc;
use sheave_base::sync::atomic::Ordering;
use sheave_blk::Device;
use sheave_blk::claim::Claim;
use sheave_blk::flush_alarm::FlushAlarm;

use crate::engine::inner::{Parts, PoolInner, claim};
pub use crate::engine::notices::Watch;
pub use crate::format::settings::{Checksum, LowWater};
pub use crate::ops::grow::{AddOptions, Found, join};
pub use crate::options::{CopyOptions, CreateOptions, OpenOptions, WhenFull};
use crate::state::phase::{Event, Phase};

use crate::device::block_io::{BlockIo, DeviceIo};
use crate::device::recent::Kept;
use crate::engine::background::{Discards, Keeper, Signal, Worker};
use crate::engine::change::{core_of, in_use};

use crate::engine::recovery;
use crate::engine::sums::idle;
use crate::error::PoolError;
use crate::format::BLOCK_SHIFT;
use crate::format::page::table::Interim;
use crate::info::{MemberInfo, PoolInfo, Upgrade, VolumeInfo};
use crate::ops::discard;
use crate::ops::scrub::{ScrubOptions, ScrubProgress, ScrubReport};
use crate::ops::trim::TrimProgress;
use crate::ops::upgrade::missing;
use crate::state::table::OpenToken;
use crate::volume::{Volume, open_volume, usage};

/// An open pool. Clones refer to the same pool, which closes when the last of them and of its volumes is dropped.
#[derive(Clone, Debug)]
pub struct Pool {
    /// Declared first, so that it is dropped first: its drop waits for the pool's threads (B1 of `background`).
    keeper: std::sync::Arc<Keeper>,
    pub(crate) inner: Arc<PoolInner>,
}

impl Pool {
    /// Formats the device as an empty pool.
    pub fn create(device: &Device, options: &CreateOptions) -> Result<(), PoolError> {
        let _owner = claim(device, false)?;
        crate::ops::create::create(device, &DeviceIo::new(device)?, options)
    }

    /// Opens the pool on the device, and recovers it after a crash.
    ///
    /// A pool with damaged pages of maps opens too. The volumes that need such a page do not open; they can be deleted,
    /// renamed, and rolled back to an undamaged snapshot. All other volumes work, in the space that the damaged maps
    /// certainly do not use ([`PoolInfo::quarantined_bytes`]), and in all space once no damaged volume is left. If the
    /// pool has no room for a checkpoint, it accepts only deletes ([`PoolInfo::deletes_only`]).
    pub fn open(device: &Device, options: &OpenOptions) -> Result<Pool, PoolError> {
        Pool::open_through(device, Box::new(DeviceIo::of_owner(device)?), options)
    }

    /// Opens the pool on the device; the pool's own I/O uses `io`.
    pub(crate) fn open_through(
        device: &Device,
        io: Box<dyn BlockIo>,
        options: &OpenOptions,
    ) -> Result<Pool, PoolError> {
        let read_only = options.read_only || options.rescue;
        let owner = claim(device, read_only)?;
        let alarm = Arc::new(FlushAlarm::default());
        // Comes before recovery, so that the alarm sees every flush of this opening.
        let watch = (!read_only).then(|| device.watch_flushes(&alarm));
        if device.capabilities().read_only && !read_only {
            return Err(PoolError::Invalid {
                what: format!("the device {} cannot be written", device.name()),
                fix: "Open the pool read-only".into(),
            });
        }
        let kept = |pool| match &options.recent_memory {
            Some(memory) => Ok(Kept::in_memory(Arc::clone(memory))),
            None => Kept::open(device, options.runtime_dir.as_deref(), pool, read_only),
        };
        let mut recovered = recovery::recover(&*io, options, kept)?;
        let sb = &recovered.state.sb;
        if !read_only && sb.unknown_ro_features() != 0 {
            return Err(PoolError::Format {
                what: format!(
                    "the pool has features ({:#x}) that this program can only read",
                    sb.unknown_ro_features()
                ),
                fix: "Open it read-only, or use a newer sheave".into(),
            });
        }
        let region_bytes = sb.geometry().region_units() * u64::from(sb.unit_bytes);
        if let Some(regions) = &mut recovered.state.sums {
            regions.bound(options.open_bytes, region_bytes);
        }
        if !read_only && recovered.alone {
            // Comes before any other write: the slot that could not be read may be intact and newer at the next
            // opening, which would then need what those writes had overwritten.
            recovery::mend_superblock(&*io, &mut recovered.state.sb)?;
        }
        let discards = Discards::default();
        let regions_opened = Arc::new(Signal::default());
        let keeper = std::sync::Arc::new(Keeper {
            discards: Worker::new("sheave-discard", Arc::clone(&discards.signal), options.discard_thread),
            regions: Worker::new("sheave-regions", Arc::clone(&regions_opened), options.longest_idle != Duration::MAX),
        });
        let parts = Parts {
            device: device.clone(),
            io,
            alarm,
            owner,
            state: recovered.state,
            read_only,
            when_full: options.when_full,
            longest_wait: options.longest_wait,
            owner_every: options.owner_every,
            recovered: recovered.replayed,
            unsure: recovered.unsure,
            keeper: std::sync::Arc::downgrade(&keeper),
            discards,
            regions_opened,
        };
        let (highest_seq, kept) = (recovered.highest_seq, recovered.kept);
        let pool = Pool { inner: Arc::new(PoolInner::new(parts)), keeper };
        if let Some(watch) = watch {
            pool.inner.hold(Claim::of(watch));
        }
        pool.inner.survey_space(&mut pool.inner.lock());
        if !read_only {
            pool.begin(options, highest_seq, kept)?;
        }
        Ok(pool)
    }

    /// Makes the first writes of an opening and starts the pool's threads.
    fn begin(&self, options: &OpenOptions, highest_seq: u64, kept: Result<Kept, String>) -> Result<(), PoolError> {
        let started = idle::start(&self.inner, &self.keeper, options.longest_idle);
        started.map_err(|status| PoolError::Io {
            what: "starting the thread that closes regions of checksums".into(),
            status,
            fix: "Raise the limit on threads (ulimit -u), or open the pool without it (longest_idle)".into(),
        })?;
        let room = self.inner.begin_stock().and_then(|()| self.inner.find_room());
        let begun = room.and_then(|room| match room {
            true => self.inner.begin_incarnation(),
            false => self.inner.begin_deletes_only(highest_seq),
        });
        begun.map_err(|status| self.first_checkpoint_failed(status))?;
        self.inner.begin_recent(kept);
        discard::start(&self.inner, &self.keeper);
        // Interim volumes of earlier openings have lost their makers. If one cannot be deleted now, the next opening
        // tries again.
        let _ = self.sweep();
        Ok(())
    }

    fn first_checkpoint_failed(&self, status: Status) -> PoolError {
        let what = "writing the first checkpoint of this opening".to_string();
        match self.inner.is_host_full(status) {
            true => self.inner.host_is_full(what),
            false => PoolError::not_written(what, status),
        }
    }

    /// Returns the size of an allocation unit in bytes, which never changes.
    pub fn unit_bytes(&self) -> u64 {
        self.inner.map.geometry.unit_bytes()
    }

    /// Describes the pool and its use of space. Walks no maps, so the cost does not depend on the size of the pool.
    pub fn info(&self) -> PoolInfo {
        self.inner.let_go();
        let mut state = self.inner.lock();
        self.inner.survey_space(&mut state);
        let counts = state.tree.units.counts();
        let bytes = |units: u64| units << self.inner.map.geometry.unit_shift;
        PoolInfo {
            uuid: state.sb.pool.iter().map(|byte| format!("{byte:02x}")).collect(),
            size_bytes: bytes(counts.total),
            unit_bytes: self.inner.map.geometry.unit_bytes(),
            data_bytes: bytes(counts.data),
            metadata_bytes: bytes(counts.meta + counts.fixed),
            // Units set aside for a discard in progress count as free.
            free_bytes: bytes(state.tree.units.available() + state.tree.units.aside()),
            pending_bytes: bytes(counts.limbo - state.tree.units.aside() - state.tree.units.quarantined()),
            quarantined_bytes: bytes(state.tree.units.quarantined()),
            reserve_bytes: bytes(state.tree.units.reserve.min(counts.free)),
            state: state.space.0,
            metadata_low: state.space.1,
            low_water: state.sb.low_water,
            low_water_bytes: bytes(state.marks().low()),
            discard: self.inner.discard_state(&state),
            discard_pending_bytes: bytes(state.tree.units.stale_units()),
            journal_bytes: u64::from(state.sb.journal_blocks) << BLOCK_SHIFT,
            members: state
                .sb
                .members
                .iter()
                .map(|&(start, len)| MemberInfo { start_bytes: start, size_bytes: len })
                .collect(),
            volumes: state.table.len() as u32,
            entries: state.tree.leaves.total_used(),
            memory_bytes: state.tree.memory_bytes() + state.sums.as_ref().map_or(0, |regions| regions.memory_bytes()),
            generation: state.sb.generation,
            checksum: state.sb.checksum,
            checksum_errors: self.inner.sums.as_ref().map_or(0, |sums| sums.mismatches()),
            bad_blocks: self.inner.sums.as_ref().map_or(0, |sums| sums.marked_blocks()),
            rebuilt_checksums: self.inner.sums.as_ref().map_or(0, |sums| sums.rebuilt()),
            recovered: self.inner.recovered,
            degraded: self.inner.alarm.failed().filter(|_| state.taken_by.is_none()),
            taken_by: state.taken_by.clone(),
            upgrades: missing(&state.sb),
            damaged: state.table.damaged(),
            unsure: self.inner.unsure.clone(),
            no_recent: state.why_no_recent(),
            host_full: self.inner.is_host_full(Status::NoSpc),
            host_refusals: self.inner.host_refusals.load(Ordering::Relaxed), // Relaxed: a statistic.
            times_full: state.times_full,
            times_metadata_low: state.times_metadata_low,
            device_faults: self.inner.device.faults(),
            deletes_only: state.phase == Phase::DeletesOnly,
            metadata_copies: state.tree.pages.copies() as u8,
            bad_copies: state.bad_copies.len() as u64,
            lost: state.lost_names(),
        }
    }

    /// Checks with the device, and in the superblocks, that the pool still belongs to this opening. Returns
    /// [`PoolError::Busy`] if another owner has the device, or has opened the pool for writing since; this opening
    /// accepts nothing from then on. The check only detects a second owner. [Claims](sheave_blk::claim), and a device
    /// that [fences](sheave_blk::driver::Capabilities::fences), prevent one.
    pub fn check_owner(&self) -> Result<(), PoolError> {
        let busy = |who: String| PoolError::Busy {
            what: format!("the pool on {}", self.inner.device.name()),
            who,
            fix: "Let go of it here; what was written here and not flushed before that may be lost".into(),
        };
        // Before the read: a cache of the device may serve the read even long after another host has taken the device.
        self.inner.device.still_owns().map_err(|status| match status {
            Status::Conflict => busy("another host has its device, or took it away".into()),
            status => PoolError::Io {
                what: format!("asking whether {} is still its own", self.inner.device.name()),
                status,
                fix: "See who has the device now".into(),
            },
        })?;
        let found = self.inner.look_beside().map_err(|status| PoolError::Io {
            what: "reading the superblocks".into(),
            status,
            fix: "Check the device and its cables, and try again".into(),
        })?;
        found.map_or(Ok(()), |who| Err(busy(who)))
    }

    /// Returns the device of the pool.
    #[doc(hidden)]
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// Returns true if the device fences: another host gets it only after it has stopped accepting I/O from this one.
    pub fn fences(&self) -> bool {
        self.inner.device.capabilities().fences
    }

    /// Returns the changes that [`Pool::upgrade`] would make; none for a pool that this program made.
    pub fn upgrades(&self) -> Vec<&'static Upgrade> {
        missing(&self.inner.lock().sb)
    }

    /// Adds the features that a pool of an older program lacks, and returns them. Durable when this returns. Programs
    /// without these features refuse the pool from then on, and an upgrade cannot be undone.
    pub fn upgrade(&self) -> Result<Vec<&'static Upgrade>, PoolError> {
        self.inner.upgrade()
    }

    /// Returns a watch, which is notified when space becomes low, full, or sufficient again.
    pub fn watch(&self) -> Watch {
        Watch::new(&self.inner.notices.0)
    }

    /// Sets the low-water mark. Durable when this returns.
    pub fn set_low_water(&self, low_water: LowWater) -> Result<(), PoolError> {
        self.inner.set_low_water(low_water)
    }

    /// Sets whether freed space is discarded on the device, in the background. Durable when this returns.
    pub fn set_discard(&self, on: bool) -> Result<(), PoolError> {
        self.inner.set_discard(on)?;
        match on {
            true => discard::start(&self.inner, &self.keeper),
            false => self.keeper.discards.stop(),
        }
        Ok(())
    }

    /// Discards a part of the freed space on the device, [as the pool's thread does](OpenOptions::discard_thread).
    /// Returns the number of bytes; 0 if there is nothing to discard or the pool is not set to discard.
    pub fn discard_freed(&self) -> Result<u64, PoolError> {
        self.inner.check_writable("discarding what became free")?;
        self.inner.let_go();
        let name = self.inner.device.name();
        discard::batch(&self.inner, &mut || true)
            .map_err(|status| self.inner.failed("discarding what became free on", name, status))
    }

    /// Closes idle regions of a pool with checksums. A call finds the regions without a write since the last call, and
    /// closes those that had none before that call either. The pool's thread does this three times within
    /// [`OpenOptions::longest_idle`]. Returns true if any region is still open.
    pub fn close_idle(&self) -> Result<bool, PoolError> {
        self.inner.check_writable("closing regions of checksums")?;
        let name = self.inner.device.name();
        idle::close(&self.inner).map_err(|status| self.inner.failed("closing regions of checksums of", name, status))
    }

    /// For the crash simulator, in debug builds: panics if an entry of a map has a flag that it must not have. Returns
    /// three counts of failed commits of records since the opening. The first counts all of them, the second those
    /// during a copy or a rollback. The third counts those of the second after which the shape of a map changed before
    /// the next commit.
    #[doc(hidden)]
    #[cfg(debug_assertions)]
    pub fn inspect(&self) -> [u64; 3] {
        let state = self.inner.lock();
        state.check_flags();
        [state.met.failed, state.met.beside_copy, state.met.window]
    }

    /// Extends the pool to the current size of the device. Returns the new size in bytes.
    pub fn grow(&self) -> Result<u64, PoolError> {
        self.inner.grow()
    }

    /// Adds a device as the pool's last member, also while the pool is in use. When this returns, the member is durable
    /// and its space can be used. Returns the new size in bytes.
    ///
    /// From then on the pool opens only with all of its members ([`join`]).
    ///
    /// # Errors
    ///
    /// [`PoolError::Members`] for a device that is a member of this pool already, or of another one unless `options`
    /// allow overwriting that. [`PoolError::Device`] for a device with fewer capabilities than the pool's; it names the
    /// missing one.
    pub fn add_member(&self, device: &Device, options: &AddOptions) -> Result<u64, PoolError> {
        self.inner.add_member(device, options)
    }

    /// Returns which data of Sheave is on a device that is to be added.
    pub fn find_on(&self, device: &Device) -> Result<Found, PoolError> {
        self.inner.find_on(device)
    }

    /// Acknowledges the list of volumes that may have lost data ([`PoolInfo::lost`]), and empties it. Durable when this
    /// returns.
    pub fn acknowledge_loss(&self) -> Result<(), PoolError> {
        self.inner.acknowledge_loss()
    }

    /// Returns all volumes and snapshots, sorted by name.
    pub fn volumes(&self) -> Vec<VolumeInfo> {
        let mut names: Vec<String> = {
            let state = self.inner.lock();
            state.table.iter().filter(|vol| vol.is_shown()).map(|vol| vol.name.clone()).collect()
        };
        names.sort_unstable();
        // A volume that was deleted since the names were collected is skipped.
        names.iter().filter_map(|name| self.volume_info(name).ok()).collect()
    }

    /// Describes the volume or snapshot `name`.
    pub fn volume_info(&self, name: &str) -> Result<VolumeInfo, PoolError> {
        let core = core_of(&self.inner.lock(), name)?;
        let usage = usage(&self.inner, &core);
        let state = self.inner.lock();
        let vol = state.table.named(name)?;
        let bytes = |units: u64| units << self.inner.map.geometry.unit_shift;
        Ok(VolumeInfo {
            id: vol.id,
            name: vol.name.clone(),
            size_bytes: core.size(),
            max_size_bytes: core.grows.then(|| core.max_size()),
            snapshot: core.snapshot,
            origin: state.table.get(vol.origin()).map(|origin| origin.name.clone()),
            allocated_bytes: bytes(usage.units),
            shared_bytes: bytes(usage.shared),
            unique_bytes: bytes(usage.units - usage.shared),
            written_bytes: usage.written_blocks << BLOCK_SHIFT,
            created: vol.created,
            identity: vol.identity(),
            interim: vol.interim(),
            damage: vol.damage().cloned(),
        })
    }

    /// Creates an empty volume. Like each change below, it is durable when the call returns.
    pub fn create_volume(&self, name: &str, size_bytes: u64) -> Result<Volume, PoolError> {
        self.inner.create(name, size_bytes, None, None)?;
        self.open_volume(name)
    }

    /// Creates a volume that grows like a file: writes beyond its end enlarge it, up to `max_size_bytes`. It may begin
    /// with 0 bytes. Its blocks have 4 KiB, and its sizes are multiples of that. Copies of it grow too.
    pub fn create_growing_volume(&self, name: &str, size_bytes: u64, max_size_bytes: u64) -> Result<Volume, PoolError> {
        self.inner.create(name, size_bytes, Some(max_size_bytes), None)?;
        self.open_volume(name)
    }

    /// Creates an empty temporary volume. Its maker deletes it; otherwise the next opening of the pool for writing
    /// deletes it. Renaming makes it an ordinary volume. The volume is open from the beginning, so that no
    /// [sweep](Pool::sweep) deletes it. A pool that [lacks identities](PoolInfo::upgrades) does not record that a
    /// volume is interim.
    pub fn create_interim(&self, name: &str, size_bytes: u64, interim: Interim) -> Result<Volume, PoolError> {
        let token = std::sync::Arc::new(OpenToken);
        self.inner.create(name, size_bytes, None, Some((interim, &token)))?;
        self.open_volume(name)
    }

    /// Deletes the interim volumes that are not open: their makers have ended, or failed to delete them. Returns their
    /// names.
    pub fn sweep(&self) -> Result<Vec<String>, PoolError> {
        let mut gone = Vec::new();
        while let Some(name) = self.inner.delete_interim()? {
            gone.push(name);
        }
        if !gone.is_empty() && self.inner.leave_deletes_only() {
            discard::start(&self.inner, &self.keeper);
        }
        Ok(gone)
    }

    /// Changes the size up to which writes may enlarge a growing volume. It must not be below the volume's size.
    pub fn set_max_size(&self, name: &str, max_size_bytes: u64) -> Result<(), PoolError> {
        self.inner.limit(name, max_size_bytes)
    }

    /// Opens a volume or snapshot. All openings refer to the same object.
    pub fn open_volume(&self, name: &str) -> Result<Volume, PoolError> {
        open_volume(&self.inner, name)
    }

    /// Makes a read-only snapshot of a volume or snapshot. It contains everything that completed before the call, and
    /// nothing that was submitted after it. A name `VOLUME@SNAPSHOT` is only for snapshots of that volume; each volume
    /// has such names of its own.
    pub fn snapshot(&self, source: &str, name: &str) -> Result<(), PoolError> {
        self.copy(source, name, true, &CopyOptions::default()).map(drop)
    }

    /// Makes snapshots of several volumes at one moment. `snapshots` has each volume and the name of its snapshot, such
    /// as `("vm1", "vm1@monday")`. Either all of them are made or none, even if the machine crashes meanwhile. If one
    /// of the snapshots contains a write, all of them contain everything that had ended on any of the volumes before
    /// that write began. This holds whichever threads write meanwhile.
    ///
    /// ```
    /// use sheave_vol::{CreateOptions, OpenOptions, Pool};
    ///
    /// let device = sheave_drivers::open_device("ram:size=16M").unwrap();
    /// Pool::create(&device, &CreateOptions::default()).unwrap();
    /// let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
    /// ["data", "log"].iter().for_each(|name| drop(pool.create_volume(name, 1 << 20).unwrap()));
    /// pool.snapshot_together(&[("data", "data@monday"), ("log", "log@monday")]).unwrap();
    /// assert!(pool.volume_info("log@monday").unwrap().snapshot);
    /// ```
    ///
    /// # Errors
    ///
    /// [`PoolError::Exists`] with the first name that is in use, [`PoolError::Limit`] for more than 1,024 volumes or
    /// for maps that are too large together. No snapshot is made then.
    pub fn snapshot_together(&self, snapshots: &[(&str, &str)]) -> Result<(), PoolError> {
        let token = std::sync::Arc::new(OpenToken);
        self.inner.copy(snapshots, true, &CopyOptions::default(), &token)
    }

    /// Does what [`Pool::snapshot`] does, with options, and returns the snapshot open.
    pub fn snapshot_with(&self, source: &str, name: &str, options: &CopyOptions) -> Result<Volume, PoolError> {
        let _open = self.copy(source, name, true, options)?;
        self.open_volume(name)
    }

    /// Makes a writable volume with the content of a snapshot, or with the current content of a volume.
    pub fn clone_volume(&self, source: &str, name: &str) -> Result<(), PoolError> {
        self.copy(source, name, false, &CopyOptions::default()).map(drop)
    }

    /// Does what [`Pool::clone_volume`] does, with options, and returns the clone open.
    pub fn clone_with(&self, source: &str, name: &str, options: &CopyOptions) -> Result<Volume, PoolError> {
        let _open = self.copy(source, name, false, options)?;
        self.open_volume(name)
    }

    /// Makes a copy that counts as open from the moment it is visible until the returned token is dropped.
    fn copy(
        &self,
        source: &str,
        name: &str,
        snapshot: bool,
        options: &CopyOptions,
    ) -> Result<std::sync::Arc<OpenToken>, PoolError> {
        let token = std::sync::Arc::new(OpenToken);
        self.inner.copy(&[(source, name)], snapshot, options, &token)?;
        Ok(token)
    }

    /// Replaces the content of a volume by that of a snapshot. No other opening of the volume may do I/O meanwhile.
    pub fn rollback(&self, volume: &str, snapshot: &str) -> Result<(), PoolError> {
        self.inner.rollback(volume, snapshot)
    }

    /// Renames a volume or snapshot. Snapshots of it that are called `NAME@SNAPSHOT` get the new name too, in the same
    /// step.
    pub fn rename(&self, name: &str, new_name: &str) -> Result<(), PoolError> {
        self.inner.rename(name, new_name)
    }

    /// Changes the size of a volume, also while it is in use. Shrinking frees the space that is cut off.
    pub fn resize(&self, name: &str, size_bytes: u64) -> Result<(), PoolError> {
        self.inner.resize(name, size_bytes)
    }

    /// Returns an error unless all of `names` exist and none is open. A program that deletes several calls this before
    /// it deletes the first. Changes nothing.
    pub fn can_delete(&self, names: &[&str]) -> Result<(), PoolError> {
        self.inner.can_delete(names)
    }

    /// Deletes a volume or snapshot; refused while it is open. Works in a full pool. Clones of it remain.
    pub fn delete(&self, name: &str) -> Result<(), PoolError> {
        self.inner.delete(name)?;
        if self.inner.leave_deletes_only() {
            discard::start(&self.inner, &self.keeper);
        }
        Ok(())
    }

    /// Makes everything that has completed durable, data and metadata.
    pub fn sync(&self) -> Result<(), PoolError> {
        self.inner.durable("syncing", self.inner.device.name())
    }

    /// Reads all metadata and all data while the pool is in use, and reports damage: bad blocks of metadata, and data
    /// that cannot be read or, in a pool with checksums, differs from what was written. `progress` is called during the
    /// scrub and ends it by returning `Break`. Changes made meanwhile are not reported as damage, and no other I/O
    /// waits for the scrub.
    ///
    /// ```
    /// use std::ops::ControlFlow;
    ///
    /// use sheave_vol::{CreateOptions, OpenOptions, Pool, ScrubOptions};
    ///
    /// let device = sheave_drivers::open_device("ram:size=16M").unwrap();
    /// Pool::create(&device, &CreateOptions::default()).unwrap();
    /// let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
    /// let slowly = ScrubOptions::default().bytes_per_sec(Some(100 << 20));
    /// let report = pool.scrub(&slowly, &mut |_| ControlFlow::Continue(())).unwrap();
    /// assert!(report.completed && report.is_clean());
    /// ```
    pub fn scrub(
        &self,
        options: &ScrubOptions,
        progress: &mut dyn FnMut(&ScrubProgress<'_>) -> ControlFlow<()>,
    ) -> Result<ScrubReport, PoolError> {
        crate::ops::scrub::scrub(&self.inner, options, progress)
    }

    /// Discards all free space on the device: punches holes in files, sends discards to block devices. Runs beside all
    /// other operations. `progress` is called meanwhile and ends the trim by returning `Break`. The space of a volume
    /// that was just deleted is free only after all I/O to it has ended.
    ///
    /// # Errors
    ///
    /// [`PoolError::Invalid`] for a device without discard.
    pub fn trim(&self, progress: &mut dyn FnMut(&TrimProgress) -> ControlFlow<()>) -> Result<TrimProgress, PoolError> {
        crate::ops::trim::trim(&self.inner, progress)
    }

    /// Writes a checkpoint while volumes are in use, so that a close soon after has little to write.
    ///
    /// # Errors
    ///
    /// As [`Pool::sync`].
    pub fn checkpoint(&self) -> Result<(), PoolError> {
        self.inner.check_writable("writing a checkpoint")?;
        let name = self.inner.device.name();
        self.inner.checkpoint().map_err(|status| self.inner.failed("writing a checkpoint of", name, status))
    }

    /// Writes a checkpoint and closes the pool, so that the next opening needs no recovery. Returns an error while
    /// volumes are in use. Dropping a pool without this has the effect of a crash, in which nothing that was flushed is
    /// lost. After an error the pool remains usable through its other clones, unless it is
    /// [degraded](PoolError::Degraded).
    pub fn close(self) -> Result<(), PoolError> {
        let _one = self.inner.structural();
        let mut state = self.inner.lock();
        // A pool in this phase accepts only deletes, and each is durable when it returns.
        let nothing_to_write = self.inner.read_only || state.phase == Phase::DeletesOnly;
        if state.phase != Phase::DeletesOnly {
            drop(state);
            self.inner.check_open("closing the pool")?;
            state = self.inner.lock();
        }
        if let Some(vol) = state.table.iter().find(|vol| vol.is_open()) {
            return Err(in_use(&vol.name));
        }
        if nothing_to_write {
            return Ok(());
        }
        state.phase = state.phase.after(Event::Close);
        drop(state);
        let Err(error) = self.inner.durable("closing", self.inner.device.name()) else {
            discard::end(&self.inner, &self.keeper);
            return Ok(());
        };
        match self.inner.close_failed() {
            Phase::Closed => Ok(()),
            _ => Err(error),
        }
    }
}
