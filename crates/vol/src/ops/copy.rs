//! Snapshots and clones: of one volume, or of several at one moment.
//!
//! Owns the moment. A copy shares the map of its source. Its point in time is fixed in two steps. First the tops of
//! source and copy get tags in all slots, so that new writes wait. Then a grace period passes, after which no write
//! that began earlier is in flight. Until then the copy is unborn: checkpoints leave it out, and no shared unit is
//! copied or moved.
//!
//! - S1: the copy contains everything that was completed before the call, and nothing that is submitted after it
//!   returned.
//! - S2: the records of all changes of the source come before the record of the copy.
//! - S3: making a copy takes one step for each slot of its source's top, whatever the slots contain.
//! - S5: the tags of all copies that are made together are set under one hold of the lock, and no source takes new
//!   writes before all copies are born. So if a write is in one of the copies, it began before that hold, and every
//!   write that had ended before it began is in all copies.
//! - S6: the records of all these copies are added under one hold of the lock, so they are in one commit: a crash
//!   leaves all of the copies, or none.
//!
//! Called by [`Pool`](crate::Pool).

use sheave_base::status::Status;
use sheave_base::sync::{Arc, MutexGuard};
use sheave_iomap::completion_plan::MayBlock;

use crate::engine::change::failed;
use crate::engine::inner::PoolInner;
use crate::error::PoolError;
use crate::format::record::Record;
use crate::made_at::now;
use crate::options::CopyOptions;
use crate::state::State;
use crate::state::account::{ENTRY_COST, Spender};
use crate::state::table::{OpenToken, VolumeCore};

/// Largest number of volumes that are copied together.
pub(crate) const MAX_TOGETHER: usize = 1024;
/// Largest number of slots in the maps of volumes that are copied together: as many as the largest volume has. All of
/// them are tagged under one hold of the lock.
const MAX_SLOTS: u64 = 262_144;

/// A copy that is being made.
struct Birth<'a> {
    source: u32,
    source_name: &'a str,
    core: Arc<VolumeCore>,
    volume: u32,
    name: &'a str,
    snapshot: bool,
    created: u64,
    /// Records that are written together with the record of the copy.
    marks: Vec<Record>,
}

impl Birth<'_> {
    /// Returns the record of the copy. `size` is the size of the source.
    fn record(&self, size: u64) -> Record {
        Record::Copy {
            volume: self.volume,
            source: self.source,
            snapshot: self.snapshot,
            grows: self.core.grows,
            size,
            max_size: self.core.max_size(),
            created: self.created,
            name: self.name.into(),
        }
    }

    /// Returns the number of the copy, which becomes the source's `settling`. Returns `None` if the source is a
    /// snapshot, because nobody writes to a snapshot.
    fn settling(&self) -> Option<u32> {
        Some(self.volume).filter(|_| !self.core.snapshot)
    }
}

impl PoolInner {
    /// Makes snapshots or clones, all of one moment, and opens them before they are visible. `wanted` has a source and
    /// a name for each copy.
    pub(crate) fn copy(
        &self,
        wanted: &[(&str, &str)],
        snapshot: bool,
        options: &CopyOptions,
        token: &std::sync::Arc<OpenToken>,
    ) -> Result<(), PoolError> {
        let _one = self.structural();
        let volumes = self.copy_in_memory(wanted, snapshot, options, token)?;
        let sources = wanted.iter().map(|(source, _)| *source).collect::<Vec<_>>().join("', '");
        self.durable_new("copying", &sources, &volumes)
    }

    /// Makes the copies in memory, hidden, and records them for the next commit. The caller holds `structural`.
    pub(crate) fn copy_in_memory(
        &self,
        wanted: &[(&str, &str)],
        snapshot: bool,
        options: &CopyOptions,
        token: &std::sync::Arc<OpenToken>,
    ) -> Result<Vec<u32>, PoolError> {
        const WHAT: &str = "copying a volume";
        self.check_writable(WHAT)?;
        let state = self.lock();
        let births = state.births(wanted, snapshot, options)?;
        let cost = |state: &State| births.iter().map(|one| ENTRY_COST + state.cost_of_map(one.source)).sum();
        let state = self.afford(state, WHAT, Spender::Table, cost)?;
        let state = self.settle_all(state, &births);
        // Repeated, because settling releases the lock, and others may have used the pages meanwhile.
        let afforded = self.afford(state, WHAT, Spender::Table, cost);
        let mut state = afforded.inspect_err(|_| self.go_on(&mut self.lock(), &births))?;
        // All sources are handled under one hold of the lock (S5): no write begins between the tags of two sources.
        for (at, birth) in births.iter().enumerate() {
            if let Err(status) = state.bear(birth) {
                births[..at].iter().for_each(|other| state.unbear(other));
                self.go_on(&mut state, &births);
                return Err(failed("copying", birth.source_name, status));
            }
        }
        self.survey_space(&mut state);
        drop(state);
        let quiet = self.quiet_all(&births);
        let mut state = self.lock();
        if let Err(busy) = quiet {
            // All copies are undone before any source takes new writes: writes to the sources that are in flight keep
            // their units.
            births.iter().for_each(|birth| state.unbear(birth));
            self.go_on(&mut state, &births);
            return Err(busy);
        }
        let volumes = births.iter().map(|birth| birth.volume).collect();
        self.record_all(&mut state, births, token);
        Ok(volumes)
    }

    /// Waits until no unit of a source is being moved. From then on no move and no write to new space begins.
    fn settle_all<'a>(&'a self, mut state: MutexGuard<'a, State>, births: &[Birth<'_>]) -> MutexGuard<'a, State> {
        for birth in births {
            if let Some(vol) = state.table.get_mut(birth.source) {
                vol.settling = birth.settling();
            }
        }
        for birth in births {
            state = self.settle(state, birth.source, birth.settling());
        }
        state
    }

    /// Ends the settling of the sources: they take new writes again.
    fn go_on(&self, state: &mut State, births: &[Birth<'_>]) {
        births.iter().for_each(|birth| self.settled(state, birth.source));
    }

    /// Waits for the end of all writes to the sources that began before this call.
    fn quiet_all(&self, births: &[Birth<'_>]) -> Result<(), PoolError> {
        let written = births.iter().filter(|birth| !birth.core.snapshot).map(|birth| &*birth.core);
        self.wait_for_io_of(written, &MayBlock::on_worker()).map_err(|(core, _)| {
            let name = births.iter().find(|birth| birth.core.id == core.id).map_or("", |birth| birth.source_name);
            self.io_goes_on(name, core)
        })
    }

    /// Adds the records of the copies, which are born by now, to the next commit (S6).
    fn record_all(&self, state: &mut State, births: Vec<Birth<'_>>, token: &std::sync::Arc<OpenToken>) {
        // S2: these records come before the records of the copies.
        for birth in &births {
            state.record_changes_of(birth.source);
        }
        let sources: Vec<u32> = births.iter().map(|birth| birth.source).collect();
        for birth in births {
            let Some(vol) = state.table.get_mut(birth.volume) else { continue };
            (vol.unborn, vol.hidden) = (false, true);
            // Writes in flight that made the source larger have made the copy larger too.
            let copy = birth.record(vol.core.size());
            state.table.set_opened(birth.volume, token);
            self.record(state, copy);
            birth.marks.into_iter().for_each(|mark| self.record(state, mark));
        }
        sources.into_iter().for_each(|source| self.settled(state, source));
    }
}

impl State {
    /// Checks the request. Returns the copies to make, if all of them can be made.
    fn births<'a>(
        &self,
        wanted: &[(&'a str, &'a str)],
        snapshot: bool,
        options: &CopyOptions,
    ) -> Result<Vec<Birth<'a>>, PoolError> {
        check_number(wanted)?;
        let created = options.created.unwrap_or_else(now);
        let (mut births, mut slots) = (Vec::with_capacity(wanted.len()), 0);
        for (at, &(source, name)) in wanted.iter().enumerate() {
            self.table.check_new(name, at)?;
            let from = self.table.whole(source, "copying a volume")?;
            let (id, core, volume) = (from.id, Arc::clone(&from.core), self.table.next_id + at as u32);
            slots += core.top.used();
            let mut marks = self.marks_of(volume, options.identity, options.interim)?;
            let origin = self.origin_of_copy(id, options.origin.as_deref());
            self.table.check_copy(name, snapshot, origin.unwrap_or(self.table.owner_of_copies(id)))?;
            marks.extend(origin.map(|origin| Record::Origin { volume, origin }));
            births.push(Birth { source: id, source_name: source, core, volume, name, snapshot, created, marks });
        }
        if wanted.len() > 1 && slots > MAX_SLOTS {
            return Err(PoolError::Limit {
                what: "copying volumes at one moment: parts of their maps".into(),
                limit: MAX_SLOTS,
                fix: "Copy fewer of them at a time, or smaller ones".into(),
            });
        }
        Ok(births)
    }

    /// Returns the volume that becomes the origin of a copy of `source` if that is not `source` itself: `origin`, if it
    /// is of the same family.
    fn origin_of_copy(&self, source: u32, origin: Option<&str>) -> Option<u32> {
        let family = self.table.get(source)?.family;
        let origin = self.table.named(origin?).ok().filter(|vol| vol.family == family && vol.id != source)?;
        Some(origin.id)
    }

    /// Shares the map of the source with the copy, which is unborn. An error leaves nothing of the copy behind.
    fn bear(&mut self, birth: &Birth<'_>) -> Result<(), Status> {
        let copy = birth.record(birth.core.size());
        [&copy].into_iter().chain(&birth.marks).try_for_each(|record| self.apply(record))?;
        self.table.get_mut(birth.volume).ok_or(Status::Offline)?.unborn = true;
        Ok(())
    }

    /// Undoes `bear`: the map belongs to the source alone again.
    fn unbear(&mut self, birth: &Birth<'_>) {
        if let Some(unborn) = self.detach(birth.volume) {
            self.tree.unshare(&unborn.core.top, unborn.slots);
        }
    }
}

/// Returns an error for an empty list, for too many copies, and for a source or a name that occurs twice. A source can
/// settle for only one copy at a time.
fn check_number(wanted: &[(&str, &str)]) -> Result<(), PoolError> {
    if wanted.is_empty() || wanted.len() > MAX_TOGETHER {
        return Err(PoolError::Limit {
            what: format!("copying {} volumes at one moment", wanted.len()),
            limit: MAX_TOGETHER as u64,
            fix: "Name one at least, and not more than that in a call".into(),
        });
    }
    let twice = |pick: fn(&(&str, &str)) -> String| {
        let mut names: Vec<String> = wanted.iter().map(pick).collect();
        names.sort_unstable();
        names.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0].clone())
    };
    match twice(|one| one.0.into()).or_else(|| twice(|one| one.1.into())) {
        None => Ok(()),
        Some(name) => Err(PoolError::Invalid {
            what: format!("'{name}' stands there twice, and one copy of it is made at a moment"),
            fix: "Name each volume and each snapshot once".into(),
        }),
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI64, Ordering};
    use std::time::Duration;

    use sheave_base::grace::Grace;
    use sheave_base::status::Status;
    use sheave_blk::Device;
    use sheave_drivers::open_device;
    use sheave_iomap::File;
    use sheave_iomap::completion_plan::MayBlock;
    use sheave_iomap::file::WriteDone;
    use sheave_iomap::mapping::Intent;

    use super::MAX_TOGETHER;
    use crate::device::block_io::{BlockIo, DeviceIo};
    use crate::{CheckOptions, CopyOptions, CreateOptions, OpenOptions, Pool, PoolError, Volume, check_device};

    fn device() -> Device {
        let device = open_device("ram:size=32M").unwrap();
        Pool::create(&device, &CreateOptions::default()).unwrap();
        device
    }

    fn open(device: &Device) -> Pool {
        Pool::open(device, &OpenOptions::default()).unwrap()
    }

    /// Creates a pool with these volumes.
    fn pool(volumes: &[&str]) -> (Device, Pool) {
        let device = device();
        let pool = open(&device);
        volumes.iter().for_each(|name| drop(pool.create_volume(name, 1 << 20).unwrap()));
        (device, pool)
    }

    fn names(pool: &Pool) -> Vec<String> {
        pool.volumes().into_iter().map(|info| info.name).collect()
    }

    fn origin(pool: &Pool, name: &str) -> Option<String> {
        pool.volume_info(name).unwrap().origin
    }

    /// Closes the pool, and verifies that it is clean on the device.
    fn clean(device: &Device, pool: Pool) {
        pool.close().unwrap();
        let report = check_device(device, &CheckOptions::default()).unwrap();
        assert!(report.is_clean(), "{:?}", report.findings);
    }

    /// Writes a unit in the map only, without data.
    fn write(volume: &Volume, unit: u64) -> Result<(), Status> {
        let may_block = MayBlock::on_worker();
        let mapping = volume.map_blocking(unit << 16, 4096, Intent::Write, &may_block)?;
        volume.end_write(WriteDone::new(unit << 16, 4096, Status::Ok, &[mapping]), &may_block)
    }

    #[test]
    fn each_volume_has_names_of_its_own() {
        let (device, pool) = pool(&["vm1", "vm2"]);
        for volume in ["vm1", "vm2"] {
            pool.snapshot(volume, &format!("{volume}@monday")).unwrap();
            assert_eq!(origin(&pool, &format!("{volume}@monday")).as_deref(), Some(volume));
        }
        pool.snapshot("vm1", "monday").unwrap();
        pool.snapshot("vm1@monday", "vm1@again").unwrap();
        let all = ["monday", "vm1", "vm1@again", "vm1@monday", "vm2", "vm2@monday"];
        assert_eq!(names(&pool), all);
        let taken = pool.snapshot("vm1", "vm1@monday").unwrap_err();
        assert!(matches!(&taken, PoolError::Exists { name } if name == "vm1@monday"), "{taken}");
        clean(&device, pool);
        assert_eq!(names(&open(&device)), all, "on the device too");
    }

    /// Only snapshots get names of the form `VOLUME@SNAPSHOT`, and only of their own volume (A1 and A2 of `names`).
    #[test]
    fn snapshot_names_must_carry_their_volume() {
        let (_device, pool) = pool(&["vm1", "vm2"]);
        pool.snapshot("vm1", "vm1@monday").unwrap();
        let refused = |done: Result<(), PoolError>, words: &str| {
            let error = done.unwrap_err();
            assert!(matches!(error, PoolError::Invalid { .. }) && error.to_string().contains(words), "{error}");
        };
        refused(pool.snapshot("vm1", "vm2@monday"), "'vm1@monday'");
        refused(pool.snapshot("vm1@monday", "vm2@tuesday"), "'vm1@tuesday'");
        refused(pool.clone_volume("vm1", "vm1@clone"), "without '@'");
        refused(pool.create_volume("vm3@new", 1 << 20).map(drop), "without '@'");
        refused(pool.rename("vm2", "vm2@x"), "without '@'");
        refused(pool.rename("vm1@monday", "vm2@monday"), "'vm1@monday'");
        for bad in ["vm1@", "@monday", "vm1@a@b", "vm1@-a", "vm1@.a", "vm1@a b", &format!("vm1@{}", "x".repeat(252))] {
            refused(pool.snapshot("vm1", bad), "Use 1 to 255");
        }
        pool.snapshot("vm1", &format!("vm1@{}", "x".repeat(251))).unwrap();
        pool.rename("vm1@monday", "vm1@tuesday").unwrap();
        pool.rename("vm1@tuesday", "friday").unwrap();
        pool.rename("friday", "vm1@friday").unwrap();
        // Snapshots of a clone are the clone's own.
        pool.clone_volume("vm1@friday", "try-it").unwrap();
        pool.snapshot("try-it", "try-it@friday").unwrap();
        assert_eq!(origin(&pool, "try-it").as_deref(), Some("vm1@friday"));
    }

    /// A renamed volume renames its snapshots (A3 of `names`). Snapshots of a deleted volume remain.
    #[test]
    fn snapshots_follow_their_volume_and_no_other_of_its_name() {
        let (device, pool) = pool(&["vm1", "vm2"]);
        pool.snapshot("vm1", "vm1@a").unwrap();
        pool.snapshot("vm1", "vm1@b").unwrap();
        pool.snapshot("vm1", "plain").unwrap();
        let identity = pool.volume_info("vm1@a").unwrap().identity;
        pool.rename("vm1", "web").unwrap();
        assert_eq!(names(&pool), ["plain", "vm2", "web", "web@a", "web@b"]);
        assert_eq!(
            (origin(&pool, "web@a").as_deref(), pool.volume_info("web@a").unwrap().identity),
            (Some("web"), identity)
        );
        // The volume goes, but its snapshots stay: another volume of its name does not get them.
        pool.delete("web").unwrap();
        drop(pool.create_volume("web", 1 << 20).unwrap());
        assert_eq!(origin(&pool, "web@a"), None);
        assert!(matches!(pool.snapshot("web", "web@a"), Err(PoolError::Exists { .. })));
        assert!(pool.rollback("web", "web@a").is_err(), "they are no relatives");
        pool.snapshot("web", "web@c").unwrap();
        pool.rename("web", "db").unwrap();
        let all = ["db", "db@c", "plain", "vm2", "web@a", "web@b"];
        assert_eq!(names(&pool), all);
        // One of the new names is taken, so nothing is renamed.
        pool.rename("db@c", "db@a").unwrap();
        let taken = pool.rename("db", "web").unwrap_err();
        assert!(matches!(&taken, PoolError::Exists { name } if name == "web@a"), "{taken}");
        pool.rename("db@a", &format!("db@{}", "x".repeat(252))).unwrap();
        assert!(matches!(pool.rename("db", "longer"), Err(PoolError::Invalid { .. })), "a name would be too long");
        assert!(names(&pool).iter().any(|name| name == "db"));
        pool.rename(&format!("db@{}", "x".repeat(252)), "db@c").unwrap();
        drop(pool);
        let pool = open(&device);
        assert_eq!(names(&pool), all, "as the journal has it");
        clean(&device, pool);
    }

    #[test]
    fn several_volumes_are_frozen_or_none_is() {
        let (device, pool) = pool(&["a", "b", "c"]);
        let all = [("a", "a@monday"), ("b", "b@monday"), ("c", "c@monday")];
        pool.snapshot("b", "b@monday").unwrap();
        let before = names(&pool);
        let taken = pool.snapshot_together(&all).unwrap_err();
        assert!(matches!(&taken, PoolError::Exists { name } if name == "b@monday"), "{taken}");
        let missing = pool.snapshot_together(&[("a", "a@x"), ("nobody", "nobody@x")]).unwrap_err();
        assert!(matches!(&missing, PoolError::NoVolume { name } if name == "nobody"), "{missing}");
        for twice in [[("a", "a@x"), ("a", "a@y")], [("a", "x"), ("b", "x")]] {
            assert!(matches!(pool.snapshot_together(&twice), Err(PoolError::Invalid { .. })));
        }
        let many = vec![("a", "a@x"); MAX_TOGETHER + 1];
        for wrong in [&many[..], &[]] {
            assert!(matches!(pool.snapshot_together(wrong), Err(PoolError::Limit { .. })));
        }
        assert_eq!(names(&pool), before);
        assert_eq!(pool.inner.lock().table.iter().find(|vol| vol.settling.is_some()).map(|vol| vol.id), None);
        pool.delete("b@monday").unwrap();
        pool.snapshot_together(&all).unwrap();
        let made: Vec<_> = all.iter().map(|(_, name)| pool.volume_info(name).unwrap()).collect();
        assert!(made.iter().all(|info| info.snapshot && info.created == made[0].created));
        assert!(made[0].identity != made[1].identity, "each is itself");
        let after = names(&pool);
        drop(pool);
        let pool = open(&device);
        assert_eq!(names(&pool), after, "it was durable");
        clean(&device, pool);
    }

    /// I/O to one of the volumes does not end: no snapshot is made, and no source stays held up.
    #[test]
    fn a_volume_whose_io_goes_on_keeps_all_from_being_frozen() {
        let (device, pool) = pool(&["a", "b", "c"]);
        pool.close().unwrap();
        let options = OpenOptions::default().longest_wait(Duration::from_millis(50));
        let pool = Pool::open(&device, &options).unwrap();
        let [a, b, c] = ["a", "b", "c"].map(|name| pool.open_volume(name).unwrap());
        [&a, &b, &c].into_iter().for_each(|volume| write(volume, 3).unwrap());
        let seat = Grace::seat(b.grace().unwrap());
        seat.enter();
        let phase = seat.count();
        seat.leave();
        let together = [("a", "a@x"), ("b", "b@x"), ("c", "c@x")];
        let busy = pool.snapshot_together(&together).unwrap_err();
        assert!(matches!(&busy, PoolError::Busy { what, .. } if what.contains("'b'")), "{busy}");
        assert_eq!(names(&pool), ["a", "b", "c"]);
        [&a, &c].into_iter().for_each(|volume| write(volume, 3).unwrap());
        seat.uncount(phase);
        pool.snapshot_together(&together).unwrap();
        drop((a, b, c, seat));
        clean(&device, pool);
    }

    #[test]
    fn a_diff_that_is_imported_makes_a_snapshot_of_its_volume() {
        let (_device, pool) = pool(&["copy", "other"]);
        pool.snapshot("copy", "copy@a").unwrap();
        drop(pool.clone_with("copy@a", "copy.import-diff", &CopyOptions::default()).unwrap());
        let options = CopyOptions::default().origin(Some("copy".into()));
        drop(pool.snapshot_with("copy.import-diff", "copy@b", &options).unwrap());
        assert_eq!(origin(&pool, "copy@b").as_deref(), Some("copy"));
        assert!(pool.snapshot_with("copy.import-diff", "other@b", &options).is_err());
        assert!(pool.snapshot("copy.import-diff", "copy@c").is_err(), "it counts as none of that");
    }

    /// A device whose power fails after a number of blocks that the pool itself has written.
    struct Cut {
        io: DeviceIo,
        left: Arc<AtomicI64>,
    }

    impl BlockIo for Cut {
        fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), Status> {
            self.io.read(at, buf)
        }

        fn write(&self, at: u64, buf: &[u8]) -> Result<(), Status> {
            (at..).step_by(4096).zip(buf.chunks(4096)).try_for_each(|(at, block)| {
                if self.left.fetch_sub(1, Ordering::SeqCst) > 0 { self.io.write(at, block) } else { Err(Status::IoErr) }
            })
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

    /// V34, S6: for a commit of several blocks, and for one that is a checkpoint.
    #[test]
    fn a_crash_leaves_all_snapshots_of_one_moment_or_none() {
        const VOLUMES: usize = 40;
        let long = "n".repeat(200);
        for checkpoint in [false, true] {
            let mut seen = [0; 2];
            for blocks in 0.. {
                let device = device();
                let left = Arc::new(AtomicI64::new(i64::MAX));
                let io = Box::new(Cut { io: DeviceIo::new(&device).unwrap(), left: Arc::clone(&left) });
                let pool = Pool::open_through(&device, io, &OpenOptions::default()).unwrap();
                let volumes: Vec<_> = (0..VOLUMES).map(|number| format!("v{number}")).collect();
                volumes.iter().for_each(|name| drop(pool.create_volume(name, 1 << 20).unwrap()));
                (0..3).for_each(|unit| write(&pool.open_volume("v7").unwrap(), unit).unwrap());
                if checkpoint {
                    pool.inner.lock().next.require();
                }
                left.store(blocks, Ordering::SeqCst);
                let names: Vec<_> = volumes.iter().map(|name| format!("{name}@{long}")).collect();
                let pairs: Vec<_> = volumes.iter().map(String::as_str).zip(names.iter().map(String::as_str)).collect();
                let done = pool.snapshot_together(&pairs);
                let needed = left.swap(0, Ordering::SeqCst) >= 0;
                drop(pool);
                let pool = open(&device);
                let found = self::names(&pool).iter().filter(|name| name.contains('@')).count();
                assert!(found == 0 || found == VOLUMES, "{blocks} blocks: {found} of {VOLUMES}");
                assert!(done.is_err() || found == VOLUMES, "{blocks} blocks: it was told to be durable");
                seen[usize::from(found > 0)] += 1;
                clean(&device, pool);
                if done.is_ok() && needed {
                    break;
                }
            }
            assert!(seen[0] > 2 && seen[1] > 0, "of several blocks: {seen:?}");
        }
    }
}
