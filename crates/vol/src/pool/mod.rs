//! A pool: volumes and snapshots on one device, with the space they share.
//!
//! Owns the public operations, and what reports of the pool tell. What the operations do is in
//! [`ops`](crate::ops), [`volume`](crate::volume) and [`engine`](crate::engine).

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

/// An opened pool. Clones are the same pool; it closes with the last of them and of its volumes.
#[derive(Clone, Debug)]
pub struct Pool {
    /// Goes first: its drop waits for the pool's thread.
    keeper: std::sync::Arc<Keeper>,
    pub(crate) inner: Arc<PoolInner>,
}

impl Pool {
    /// Formats the device.
    pub fn create(device: &Device, options: &CreateOptions) -> Result<(), PoolError> {
        let _owner = claim(device, false)?;
        crate::ops::create::create(device, &DeviceIo::new(device)?, options)
    }

    /// Opens the pool on the device, recovering what a crash left.
    ///
    /// A pool in which pages of maps are damaged opens too. The volumes that need such a page do not open; they can be
    /// deleted, renamed, and rolled back to a snapshot that is whole. All others work, in the space that the damaged
    /// maps cannot have ([`PoolInfo::quarantined_bytes`]); when no damaged volume is left, in all of it. Where there is
    /// no page for a checkpoint, the pool takes deletes alone ([`PoolInfo::deletes_only`]).
    pub fn open(device: &Device, options: &OpenOptions) -> Result<Pool, PoolError> {
        Pool::open_through(device, Box::new(DeviceIo::of_owner(device)?), options)
    }

    /// Opens the pool on the device; I/O of the pool's own goes through `io`.
    pub(crate) fn open_through(
        device: &Device,
        io: Box<dyn BlockIo>,
        options: &OpenOptions,
    ) -> Result<Pool, PoolError> {
        let read_only = options.read_only || options.rescue;
        let owner = claim(device, read_only)?;
        let alarm = Arc::new(FlushAlarm::default());
        let watch = (!read_only).then(|| device.watch_flushes(&alarm));
        if device.capabilities().read_only && !read_only {
            return Err(PoolError::Invalid {
                what: format!("the device {} cannot be written", device.name()),
                fix: "Open the pool read-only".into(),
            });
        }
        let mut recovered = recovery::recover(&*io, options)?;
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
        let highest_seq = recovered.highest_seq;
        let pool = Pool { inner: Arc::new(PoolInner::new(parts)), keeper };
        if let Some(watch) = watch {
            pool.inner.hold(Claim::of(watch));
        }
        pool.inner.survey_space(&mut pool.inner.lock());
        if !read_only {
            pool.begin(options, highest_seq)?;
        }
        Ok(pool)
    }

    /// The first writes of an opening, and the pool's threads.
    fn begin(&self, options: &OpenOptions, highest_seq: u64) -> Result<(), PoolError> {
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
        discard::start(&self.inner, &self.keeper);
        // Nobody works on them any more. One that cannot be deleted now is one at the next opening too.
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

    /// Bytes of a unit, which never change.
    pub fn unit_bytes(&self) -> u64 {
        self.inner.map.geometry.unit_bytes()
    }

    /// What it is and how full. Walks nothing.
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
            // What is set aside for a moment, to be discarded, is free.
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

    /// Asks the device, and reads from it, whether the pool is still this opening's: [`PoolError::Busy`] when another
    /// has the device, or opened the pool for writing since; from then on this one takes nothing. That tells of it
    /// afterwards, and keeps nobody from anything; what keeps two owners apart are [claims](sheave_blk::claim), and a
    /// device that [fences](sheave_blk::driver::Capabilities::fences).
    pub fn check_owner(&self) -> Result<(), PoolError> {
        let busy = |who: String| PoolError::Busy {
            what: format!("the pool on {}", self.inner.device.name()),
            who,
            fix: "Let go of it here; what was written here and not flushed before that may be lost".into(),
        };
        // First: a cache of the device's may answer what is read, also long after another has taken the device.
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

    /// What it lies on.
    #[doc(hidden)]
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// Whether its device gives it to another host only when it takes nothing more from this one.
    pub fn fences(&self) -> bool {
        self.inner.device.capabilities().fences
    }

    /// What [`Pool::upgrade`] would change; nothing for a pool that this program made.
    pub fn upgrades(&self) -> Vec<&'static Upgrade> {
        missing(&self.inner.lock().sb)
    }

    /// Gives a pool of an older program what it lacks, and tells what that was. Durable when this returns. Programs
    /// that do not know it refuse the pool from then on, and nothing takes it back.
    pub fn upgrade(&self) -> Result<Vec<&'static Upgrade>, PoolError> {
        self.inner.upgrade()
    }

    /// Hears when space becomes low, full, or enough again.
    pub fn watch(&self) -> Watch {
        Watch::new(&self.inner.notices.0)
    }

    /// Sets the low-water mark. Durable when this returns.
    pub fn set_low_water(&self, low_water: LowWater) -> Result<(), PoolError> {
        self.inner.set_low_water(low_water)
    }

    /// Sets whether what becomes free goes back to the device below, in the background. Durable when this returns.
    pub fn set_discard(&self, on: bool) -> Result<(), PoolError> {
        self.inner.set_discard(on)?;
        match on {
            true => discard::start(&self.inner, &self.keeper),
            false => self.keeper.discards.stop(),
        }
        Ok(())
    }

    /// Gives a part of what became free back to the device, [as the pool's thread does](OpenOptions::discard_thread);
    /// how many bytes. 0: nothing became free, or the pool is not set to discard.
    pub fn discard_freed(&self) -> Result<u64, PoolError> {
        self.inner.check_writable("discarding what became free")?;
        self.inner.let_go();
        let name = self.inner.device.name();
        discard::batch(&self.inner, &mut || true)
            .map_err(|status| self.inner.failed("discarding what became free on", name, status))
    }

    /// With checksums: looks once for regions that nobody has written to since the last look, and closes those that
    /// were found so before, [as the pool's thread does](OpenOptions::longest_idle) three times in that time. Whether
    /// any region is open still.
    pub fn close_idle(&self) -> Result<bool, PoolError> {
        self.inner.check_writable("closing regions of checksums")?;
        let name = self.inner.device.name();
        idle::close(&self.inner).map_err(|status| self.inner.failed("closing regions of checksums of", name, status))
    }

    /// Panics if a flag of an entry of a map is not what it may be, in debug builds. How often commits of records have
    /// failed there since it was opened; beside a copy or a rollback; and so that a map changed its shape before the
    /// next commit. For the crash simulator.
    #[doc(hidden)]
    #[cfg(debug_assertions)]
    pub fn inspect(&self) -> [u64; 3] {
        let state = self.inner.lock();
        state.check_flags();
        [state.met.failed, state.met.beside_copy, state.met.window]
    }

    /// Takes in what the device has grown by. The new size in bytes.
    pub fn grow(&self) -> Result<u64, PoolError> {
        self.inner.grow()
    }

    /// Makes a device the pool's last member, also while the pool is used; its space can be used when this returns,
    /// which is when it is durable. The new size in bytes.
    ///
    /// From then on the pool opens only with all of its members ([`join`]).
    ///
    /// # Errors
    ///
    /// [`PoolError::Members`] for a device that is a member of this pool already, or, unless it is to be overwritten,
    /// of another. Where the device does less than the pool's, [`PoolError::Device`] says what it lacks.
    pub fn add_member(&self, device: &Device, options: &AddOptions) -> Result<u64, PoolError> {
        self.inner.add_member(device, options)
    }

    /// What of Sheave is on a device that may be added.
    pub fn find_on(&self, device: &Device) -> Result<Found, PoolError> {
        self.inner.find_on(device)
    }

    /// Says that somebody has seen which volumes may have lost data ([`PoolInfo::lost`]): they are listed no more.
    /// Durable when this returns.
    pub fn acknowledge_loss(&self) -> Result<(), PoolError> {
        self.inner.acknowledge_loss()
    }

    /// All volumes and snapshots, by name.
    pub fn volumes(&self) -> Vec<VolumeInfo> {
        let mut names: Vec<String> = {
            let state = self.inner.lock();
            state.table.iter().filter(|vol| vol.is_shown()).map(|vol| vol.name.clone()).collect()
        };
        names.sort_unstable();
        // One that was deleted meanwhile is not among them.
        names.iter().filter_map(|name| self.volume_info(name).ok()).collect()
    }

    /// One of them.
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

    /// A new, empty volume. Durable when this returns, as every change below.
    pub fn create_volume(&self, name: &str, size_bytes: u64) -> Result<Volume, PoolError> {
        self.inner.create(name, size_bytes, None, None)?;
        self.open_volume(name)
    }

    /// A new volume that writes beyond its end make larger, as they do a file, up to `max_size_bytes`. It may begin
    /// with 0 bytes. Its blocks have 4 KiB, and sizes are multiples of that. Copies of it grow too.
    pub fn create_growing_volume(&self, name: &str, size_bytes: u64, max_size_bytes: u64) -> Result<Volume, PoolError> {
        self.inner.create(name, size_bytes, Some(max_size_bytes), None)?;
        self.open_volume(name)
    }

    /// A new, empty volume that goes again: when the one who made it deletes it, or else when the pool is opened for
    /// writing the next time. Another name makes it a volume as any other. It is open from the beginning on, so that no
    /// [sweep](Pool::sweep) takes it. A pool that [lacks identities](PoolInfo::upgrades) does not keep that it is
    /// interim.
    pub fn create_interim(&self, name: &str, size_bytes: u64, interim: Interim) -> Result<Volume, PoolError> {
        let token = std::sync::Arc::new(OpenToken);
        self.inner.create(name, size_bytes, None, Some((interim, &token)))?;
        self.open_volume(name)
    }

    /// Deletes the interim volumes that are not open: who made them has ended, or failed to delete them. Their names.
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

    /// Changes how large writes may make a volume that grows; not below its size.
    pub fn set_max_size(&self, name: &str, max_size_bytes: u64) -> Result<(), PoolError> {
        self.inner.limit(name, max_size_bytes)
    }

    /// Opens a volume or snapshot; all openings are the same object.
    pub fn open_volume(&self, name: &str) -> Result<Volume, PoolError> {
        open_volume(&self.inner, name)
    }

    /// Freezes the state of a volume (or snapshot) under a new name, read-only. What was completed before the call is
    /// in it, and nothing submitted after it. A name `VOLUME@SNAPSHOT` is for snapshots of that volume alone; each
    /// volume has such names of its own.
    pub fn snapshot(&self, source: &str, name: &str) -> Result<(), PoolError> {
        self.copy(source, name, true, &CopyOptions::default()).map(drop)
    }

    /// Freezes several volumes at one moment: of each the volume, and the name of its snapshot, such as
    /// `("vm1", "vm1@monday")`. All of them are made, or none is, also if the machine dies meanwhile. What had ended on
    /// any of the volumes before a write that is in one of the snapshots began is in all of them, whoever writes
    /// meanwhile.
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
    /// [`PoolError::Exists`] with the first name that is taken, [`PoolError::Limit`] for more than 1,024 volumes or for
    /// maps that are too large together. Nothing is made then.
    pub fn snapshot_together(&self, snapshots: &[(&str, &str)]) -> Result<(), PoolError> {
        let token = std::sync::Arc::new(OpenToken);
        self.inner.copy(snapshots, true, &CopyOptions::default(), &token)
    }

    /// As [`Pool::snapshot`], with options; it is open.
    pub fn snapshot_with(&self, source: &str, name: &str, options: &CopyOptions) -> Result<Volume, PoolError> {
        let _open = self.copy(source, name, true, options)?;
        self.open_volume(name)
    }

    /// A writable volume with the content of a snapshot (or of a volume, as of now).
    pub fn clone_volume(&self, source: &str, name: &str) -> Result<(), PoolError> {
        self.copy(source, name, false, &CopyOptions::default()).map(drop)
    }

    /// As [`Pool::clone_volume`], with options; it is open.
    pub fn clone_with(&self, source: &str, name: &str, options: &CopyOptions) -> Result<Volume, PoolError> {
        let _open = self.copy(source, name, false, options)?;
        self.open_volume(name)
    }

    /// A copy that counts as open before anybody sees it, for as long as what is returned lives.
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

    /// Makes the volume what the snapshot is. The volume must not be open elsewhere in I/O.
    pub fn rollback(&self, volume: &str, snapshot: &str) -> Result<(), PoolError> {
        self.inner.rollback(volume, snapshot)
    }

    /// Gives it another name. Its snapshots that are called `NAME@SNAPSHOT` get the new name too, in the same step.
    pub fn rename(&self, name: &str, new_name: &str) -> Result<(), PoolError> {
        self.inner.rename(name, new_name)
    }

    /// Changes the size of a volume, also while it is used. Shrinking frees what is cut off.
    pub fn resize(&self, name: &str, size_bytes: u64) -> Result<(), PoolError> {
        self.inner.resize(name, size_bytes)
    }

    /// Whether each of these is there, and open nowhere: what a program that deletes several asks before the first is
    /// gone. Changes nothing.
    pub fn can_delete(&self, names: &[&str]) -> Result<(), PoolError> {
        self.inner.can_delete(names)
    }

    /// Deletes a volume or snapshot; refused while it is open. Works in a full pool. Clones of it stay.
    pub fn delete(&self, name: &str) -> Result<(), PoolError> {
        self.inner.delete(name)?;
        if self.inner.leave_deletes_only() {
            discard::start(&self.inner, &self.keeper);
        }
        Ok(())
    }

    /// Makes everything completed so far durable, data and metadata.
    pub fn sync(&self) -> Result<(), PoolError> {
        self.inner.durable("syncing", self.inner.device.name())
    }

    /// Reads all metadata and all data through, while the pool is in use, and tells what has rotted: damaged blocks of
    /// metadata, and data that cannot be read or, in a pool with checksums, is not what was written. `progress` hears
    /// how far it is, and ends the scrub by breaking. Nothing is told that only changed while it was looked at, and
    /// nobody waits for it.
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

    /// Gives all free space back to the device: holes in files, discards on block devices. Goes beside all else;
    /// `progress` hears how far it is, and ends it by breaking. What was deleted just now is free when I/O to it has
    /// ended.
    ///
    /// # Errors
    ///
    /// [`PoolError::Invalid`] for a device that has no discard.
    pub fn trim(&self, progress: &mut dyn FnMut(&TrimProgress) -> ControlFlow<()>) -> Result<TrimProgress, PoolError> {
        crate::ops::trim::trim(&self.inner, progress)
    }

    /// Writes a checkpoint and closes, so that opening needs no recovery; an error if volumes are still in use.
    /// Dropping a pool without it is a crash that loses nothing that was flushed. After an error the pool goes on, for
    /// those who have it too, unless it is [degraded](PoolError::Degraded).
    pub fn close(self) -> Result<(), PoolError> {
        let _one = self.inner.structural();
        let mut state = self.inner.lock();
        // What it takes are deletes, and each is durable when it returns.
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
