//! Changes of the pool or of its table of volumes. Each change is refused before it begins, made durable, or undone. If
//! its commit fails, for example because a write of the journal fails, the change is undone, or its caller gets an
//! error that says: made, but not durable.
//!
//! ```text
//!    made in memory -> commit -> durable
//!                        |
//!                      fails: new volumes, copies, names, larger sizes, marks    others: delete, shrink,
//!                        |                                                       rollback, growth of the pool
//!                    undone in memory                                              |
//!                        |                                                         |
//!                    checkpoint -> undone for good                             checkpoint -> durable
//!                        |                                                         |
//!                      fails: undone; a crash before the                         fails: made; a crash before the
//!                      next commit may show it made                              next commit may show it undone
//! ```
//!
//! Owns this state machine. A failed write of journal blocks or of a superblock may have reached the device all the
//! same. So the next commit, by any caller, is a checkpoint: it contains everything in memory, and makes all earlier
//! records void.
//!
//! - U1: a change that is undone was never visible, and no later commit makes it durable.
//! - U2: a change that can be undone has no users yet: a new volume cannot be opened before it is durable, and a volume
//!   that grows keeps its old end until the new one is durable.
//! - U3: after any crash, everything that was acknowledged is still there. So a delete is not undone: a volume that
//!   became visible again would take writes that are durable without a commit, and a crash could delete them with the
//!   volume.
//!
//! Called by changes of the table and of the pool.

use sheave_base::status::Status;

use crate::engine::inner::PoolInner;
use crate::error::PoolError;
use crate::format::record::Record;
use crate::state::State;
use crate::state::account::Spender;
use crate::state::phase::Phase;
use crate::state::recent::Recent;
use crate::state::table::{Vol, VolumeCore};
use sheave_base::sync::{Arc, MutexGuard};

impl PoolInner {
    /// Returns an error unless the pool takes changes.
    pub(crate) fn check_open(&self, what: &str) -> Result<(), PoolError> {
        if self.alarm.failed().is_some() && !self.read_only {
            // The alarm may have rung since the last commit. Only the leader of a commit can degrade the pool, so this
            // thread makes a commit.
            let _ = self.commit();
        }
        let phase = self.lock().phase;
        match phase {
            Phase::Open => Ok(()),
            Phase::DeletesOnly => {
                Err(self.deletes_only(format!("{what}: the pool can be read, and takes deletes only")))
            }
            Phase::Degraded(cause) => Err(PoolError::Degraded { what: what.into(), cause }),
            Phase::Taken => Err(self.taken(what.into())),
            Phase::Closing | Phase::Closed => Err(closed(what)),
        }
    }

    /// Returns an error unless the pool is open for writing and takes changes.
    pub(crate) fn check_writable(&self, what: &str) -> Result<(), PoolError> {
        if !self.read_only {
            return self.check_open(what);
        }
        Err(PoolError::Invalid {
            what: format!("{what}: the pool is open read-only"),
            fix: "Open it for writing".into(),
        })
    }

    /// Frees the map of a volume that was removed from the table, part by part.
    pub(crate) fn drop_map(&self, gone: Option<Vol>) {
        let Some(mut vol) = gone else { return };
        while self.lock().drop_some(&mut vol) {}
    }

    /// Commits, with an error that names `what` and `name`.
    pub(crate) fn durable(&self, what: &str, name: &str) -> Result<(), PoolError> {
        self.commit().map_err(|status| self.failed(what, name, status))
    }

    /// Makes a change durable. If that fails, `undo` undoes it.
    pub(crate) fn durable_or(&self, what: &str, name: &str, undo: impl FnOnce(&mut State)) -> Result<(), PoolError> {
        self.durable_or_gone(what, name, |state| {
            undo(state);
            Vec::new()
        })
    }

    /// Makes new, hidden volumes durable: all of them become visible at once, or none does.
    pub(crate) fn durable_new(&self, what: &str, name: &str, volumes: &[u32]) -> Result<(), PoolError> {
        self.durable_or_gone(what, name, |state| volumes.iter().filter_map(|id| state.detach(*id)).collect())?;
        let mut state = self.lock();
        for volume in volumes {
            if let Some(vol) = state.table.get_mut(*volume) {
                vol.hidden = false;
            }
        }
        Ok(())
    }

    /// Does the same as [`PoolInner::durable_or`] for an `undo` that may take volumes out of the table. The maps of
    /// these volumes are freed part by part.
    fn durable_or_gone(
        &self,
        what: &str,
        name: &str,
        undo: impl FnOnce(&mut State) -> Vec<Vol>,
    ) -> Result<(), PoolError> {
        let Err(status) = self.commit() else { return Ok(()) };
        let mut state = self.lock();
        let gone = undo(&mut state);
        state.recent.iter_mut().for_each(Recent::miss);
        // Requires a checkpoint, which makes the undo durable. The lock has been held since `undo`, so no commit of
        // records comes in between.
        state.next.require();
        self.mark_unsynced();
        self.survey_space(&mut state);
        drop(state);
        gone.into_iter().for_each(|vol| self.drop_map(Some(vol)));
        let settled = self.commit();
        let error = self.failed(what, name, status);
        // Only a plain I/O error gets the text about the undo. A full host has its own error, with its own fix, and the
        // checkpoint that the undo needs takes no space from the host.
        let PoolError::Io { what, status, .. } = error else { return Err(error) };
        let fix = match settled {
            Ok(()) => "It was undone. Check the pool's device, and try again",
            Err(_) => {
                "It was undone, but a crash before the next flush or sync that ends well may show it done. Check the \
                 pool's device"
            }
        };
        Err(PoolError::Io { what, status, fix: fix.into() })
    }

    /// Makes a change durable if it cannot be undone.
    pub(crate) fn durable_at_last(&self, what: &str, name: &str) -> Result<(), PoolError> {
        let state = self.lock();
        // Until the change is durable, a flush of any volume must be a commit, even in a pool that had nothing else to
        // make durable.
        self.mark_unsynced();
        drop(state);
        // The second attempt is a checkpoint. It writes to other places, which may be writable although the journal is
        // not.
        let Err(status) = self.commit().or_else(|_| self.checkpoint()) else { return Ok(()) };
        match self.failed(what, name, status) {
            PoolError::Io { what, .. } | PoolError::HostFull { what, .. } => {
                Err(PoolError::NotDurable { what, status })
            }
            other => Err(other),
        }
    }

    /// Returns the error for a failed operation. A pool that is degraded, taken or full gets the error of that
    /// condition.
    pub(crate) fn failed(&self, what: &str, name: &str, status: Status) -> PoolError {
        let phase = self.lock().phase;
        match phase {
            Phase::Degraded(cause) => PoolError::Degraded { what: format!("{what} '{name}'"), cause },
            Phase::Taken => self.taken(format!("{what} '{name}'")),
            _ if self.is_host_full(status) => self.host_is_full(format!("{what} '{name}'")),
            _ if status == Status::NoSpc => self.full(format!("{what} '{name}'")),
            _ => failed(what, name, status),
        }
    }

    /// Returns the error for an operation on a pool that another opening has taken.
    fn taken(&self, what: String) -> PoolError {
        let who = self.lock().taken_by.clone().unwrap_or_default();
        PoolError::Taken { what, device: self.device.name().to_string(), who }
    }

    /// Returns the error for a pool without space. If a damaged map keeps space from use, the error says so.
    fn full(&self, what: String) -> PoolError {
        let kept = self.lock().why_kept();
        PoolError::Full { what: kept.map_or(what.clone(), |kept| format!("{what}: {kept}")) }
    }

    /// Waits until no unit of the volume is being moved. If `with` is `Some`, no new move begins before `settled`;
    /// `with` is the volume itself, or the clone that is being made of it.
    pub(crate) fn settle<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        id: u32,
        with: Option<u32>,
    ) -> MutexGuard<'a, State> {
        if let Some(vol) = state.table.get_mut(id) {
            vol.settling = with;
        }
        while state.table.get(id).is_some_and(|vol| vol.busy > 0) {
            state = self.wait(state);
        }
        state
    }

    /// Ends `settle`: units of the volume may be moved again.
    pub(crate) fn settled(&self, state: &mut State, id: u32) {
        if let Some(vol) = state.table.get_mut(id) {
            vol.settling = None;
        }
        state.table.set_cutting(id, false);
        self.wake();
    }

    pub(crate) fn apply_and_record(&self, state: &mut State, record: Record, name: &str) -> Result<(), PoolError> {
        state.apply(&record).map_err(|status| failed("changing", name, status))?;
        self.record(state, record);
        self.survey_space(state);
        Ok(())
    }

    /// Returns the lock once the next checkpoint has room for `cost` more pages.
    pub(crate) fn afford<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        what: &str,
        who: Spender,
        cost: impl Fn(&State) -> u64,
    ) -> Result<MutexGuard<'a, State>, PoolError> {
        self.pay(state, who, cost).map_err(|status| match status {
            status if self.is_host_full(status) => self.host_is_full(format!("the metadata for {what}")),
            Status::NoSpc => self.full(format!("the metadata for {what}")),
            status => failed(what, self.device.name(), status),
        })
    }

    /// Repeats `afford` after `settle`: others may have used the pages during that wait. An error ends `settle`, so
    /// that units of the volume can be moved again.
    pub(crate) fn afford_settled<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        id: u32,
        what: &str,
        who: Spender,
        cost: impl Fn(&State) -> u64,
    ) -> Result<MutexGuard<'a, State>, PoolError> {
        self.afford(state, what, who, cost).inspect_err(|_| self.settled(&mut self.lock(), id))
    }
}

impl State {
    /// Hides a new volume until it is durable (U2).
    pub(crate) fn hide(&mut self, volume: u32) {
        if let Some(vol) = self.table.get_mut(volume) {
            vol.hidden = true;
        }
    }
}

pub(crate) fn core_of(state: &State, name: &str) -> Result<Arc<VolumeCore>, PoolError> {
    Ok(Arc::clone(&state.table.named(name)?.core))
}

/// Returns the error for an operation that needs exclusive use of a volume that is open.
pub(crate) fn in_use(name: &str) -> PoolError {
    PoolError::Busy {
        what: format!("volume '{name}'"),
        who: "it is open".into(),
        fix: "Close it, and detach it from its rings".into(),
    }
}

pub(crate) fn closed(what: &str) -> PoolError {
    PoolError::Invalid { what: format!("{what}: the pool was closed"), fix: "Open it again".into() }
}

/// Returns the error for a failed operation on an open pool.
pub(crate) fn failed(what: &str, name: &str, status: Status) -> PoolError {
    match status {
        Status::NoSpc => PoolError::Full { what: format!("{what} '{name}'") },
        status => PoolError::Io {
            what: format!("{what} '{name}'"),
            status,
            fix: "Check the pool's device; what was durable before is still there".into(),
        },
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
    use std::sync::{Arc, Mutex};

    use sheave_blk::Device;
    use sheave_drivers::open_device;
    use sheave_iomap::File;
    use sheave_iomap::completion_plan::MayBlock;
    use sheave_iomap::file::{FallocateMode, WriteDone};
    use sheave_iomap::mapping::Intent;

    use super::*;
    use crate::device::block_io::{BlockIo, DeviceIo};
    use crate::format::block::identify;
    use crate::state::table::OpenToken;
    use crate::{
        CheckOptions, CopyOptions, CreateOptions, Interim, LowWater, OpenOptions, Pool, Purpose, Volume, check_device,
    };

    /// Faults of writes of metadata.
    #[derive(Default)]
    struct Faults {
        /// Called once, before the next write.
        before_write: Mutex<Option<Box<dyn FnOnce() + Send>>>,
        /// Bit `n` is 1 if the write after `n` more writes fails. The highest bit is for all later writes too.
        fail: AtomicI64,
        /// True if failed writes reach the disk in spite of the error.
        lands: AtomicBool,
    }

    struct Faulty {
        io: DeviceIo,
        faults: Arc<Faults>,
    }

    impl BlockIo for Faulty {
        fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), Status> {
            self.io.read(at, buf)
        }

        fn write(&self, at: u64, buf: &[u8]) -> Result<(), Status> {
            // Copies of data succeed: only metadata fails.
            let is_metadata = buf.first_chunk().is_some_and(|block| identify(block).is_ok());
            let before = if is_metadata { self.faults.before_write.lock().unwrap().take() } else { None };
            if let Some(before) = before {
                before();
            }
            let next = |fail: i64| Some(fail >> i64::from(is_metadata));
            let fail = self.faults.fail.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next).unwrap_or(0);
            let fails = is_metadata && fail & 1 != 0;
            if !fails || self.faults.lands.load(Ordering::SeqCst) {
                self.io.write(at, buf)?;
            }
            if fails { Err(Status::IoErr) } else { Ok(()) }
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

    fn write(volume: &Volume, unit: u64, tag: u8) {
        let (pos, may_block) = (unit << 16, MayBlock::on_worker());
        let mapping = volume.map_blocking(pos, 1 << 16, Intent::Write, &may_block).unwrap();
        DeviceIo::new(volume.device()).unwrap().write(mapping.addr, &[tag; 1 << 16]).unwrap();
        volume.end_write(WriteDone::new(pos, 1 << 16, Status::Ok, &[mapping]), &may_block).unwrap();
    }

    /// Everything that users can see of a pool.
    fn seen(pool: &Pool) -> Vec<String> {
        let mut seen = vec![format!("{:?}", pool.info().low_water)];
        for info in pool.volumes() {
            let volume = pool.open_volume(&info.name).unwrap();
            let io = DeviceIo::new(volume.device()).unwrap();
            let units = 0..(info.size_bytes >> 16);
            let tags = units.map(|unit| {
                let mapping = volume.map(unit << 16, 4096, Intent::Read).unwrap();
                let mut data = [0; 4096];
                if mapping.kind == sheave_iomap::MappingKind::Mapped {
                    io.read(mapping.addr, &mut data).unwrap();
                }
                data[7]
            });
            let (tags, origin): (Vec<u8>, _) = (tags.collect(), &info.origin);
            seen.push(format!(
                "{} {:?} {:?} {} {origin:?} {tags:?}",
                info.name, info.max_size_bytes, info.size_bytes, info.snapshot
            ));
        }
        seen
    }

    /// Returns a pool with a volume, snapshots of it from before its last writes, and a volume that grows.
    fn pool() -> (Device, Pool, Arc<Faults>) {
        let device = open_device("ram:size=7M").unwrap();
        Pool::create(&device, &CreateOptions::default()).unwrap();
        let faults = Arc::new(Faults::default());
        let io = Box::new(Faulty { io: DeviceIo::new(&device).unwrap(), faults: faults.clone() });
        let pool = Pool::open_through(&device, io, &OpenOptions::default()).unwrap();
        let volume = pool.create_volume("v", 1 << 20).unwrap();
        (0..12).for_each(|unit| write(&volume, unit, 1));
        pool.snapshot("v", "s").unwrap();
        pool.snapshot("v", "v@s").unwrap();
        pool.create_growing_volume("g", 0, 1 << 20).unwrap();
        (0..6).for_each(|unit| write(&volume, 2 * unit, 2));
        pool.sync().unwrap();
        (device, pool, faults)
    }

    fn opened(device: &Device) -> Vec<String> {
        let report = check_device(device, &CheckOptions::default()).unwrap();
        assert!(report.is_clean(), "{:?}", report.findings);
        let seen = seen(&Pool::open(device, &OpenOptions::default()).unwrap());
        let report = check_device(device, &CheckOptions::default()).unwrap();
        assert!(report.is_clean(), "{:?}", report.findings);
        seen
    }

    type Change = (&'static str, fn(&Pool) -> Result<(), PoolError>);

    const UNDONE: [Change; 9] = [
        ("create", |pool| pool.create_volume("new", 1 << 20).map(drop)),
        ("create one that grows", |pool| pool.create_growing_volume("new", 4096, 1 << 20).map(drop)),
        ("snapshot", |pool| pool.snapshot("v", "new")),
        ("snapshots at one moment", |pool| pool.snapshot_together(&[("v", "v@new"), ("g", "g@new")])),
        ("clone", |pool| pool.clone_volume("s", "new")),
        ("rename", |pool| pool.rename("v", "other")),
        ("enlarge", |pool| pool.resize("v", 2 << 20)),
        ("limit", |pool| pool.set_max_size("g", 4 << 20)),
        ("mark", |pool| pool.set_low_water(LowWater::Bytes(3 << 20))),
    ];

    const MADE: [Change; 3] = [
        ("delete", |pool| pool.delete("s")),
        ("shrink", |pool| pool.resize("v", 5 << 16)),
        ("rollback", |pool| pool.rollback("v", "s")),
    ];

    /// Returns the visible state after the change without any fault.
    fn made(change: &Change) -> Vec<String> {
        let (_device, pool, _) = pool();
        change.1(&pool).unwrap();
        seen(&pool)
    }

    /// All writes fail.
    const ALL: i64 = -1;

    /// Calls `run` for each kind of fault with three arguments: the writes that fail; true if they reach the disk in
    /// spite of the error; and true if the commit of the change is a checkpoint.
    fn each_way(mut run: impl FnMut(i64, bool, bool)) {
        for fail in [1, ALL] {
            for lands in [false, true] {
                for checkpoint in [false, true] {
                    run(fail, lands, checkpoint);
                }
            }
        }
    }

    /// Makes a change with writes that fail. Returns the pool, the visible state before, and the error.
    fn fails(
        change: &Change,
        fail: i64,
        lands: bool,
        checkpoint: bool,
    ) -> (Device, Pool, Arc<Faults>, Vec<String>, Option<PoolError>) {
        let (device, pool, faults) = pool();
        let before = seen(&pool);
        if checkpoint {
            pool.open_volume("v").unwrap().pool().lock().next.require();
        }
        faults.lands.store(lands, Ordering::SeqCst);
        faults.fail.store(fail, Ordering::SeqCst);
        let error = change.1(&pool).err();
        (device, pool, faults, before, error)
    }

    /// V27: a change whose commit fails is undone, and later commits do not bring it back.
    #[test]
    fn a_change_that_fails_leaves_nothing_behind() {
        for change in &UNDONE {
            each_way(|fail, lands, checkpoint| {
                let what = format!("{}, {fail} fail, lands {lands}, checkpoint {checkpoint}", change.0);
                let (device, pool, faults, before, error) = fails(change, fail, lands, checkpoint);
                let error = error.unwrap_or_else(|| panic!("{what}: it fails"));
                assert!(
                    matches!(error, PoolError::Io { .. }) && error.to_string().contains("undone"),
                    "{what}: {error}"
                );
                assert_eq!(seen(&pool), before, "{what}: it is not seen");
                // Use of the volumes makes other changes durable.
                faults.fail.store(0, Ordering::SeqCst);
                write(&pool.open_volume("v").unwrap(), 11, 9);
                pool.sync().unwrap();
                let now = seen(&pool);
                assert!(now.len() == before.len() && now != before);
                let free = pool.info().free_bytes;
                drop(pool);
                assert_eq!(opened(&device), now, "{what}: no later commit makes it durable");
                let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
                assert_eq!(pool.info().free_bytes, free, "{what}: all that it took is free");
                change.1(&pool).unwrap_or_else(|error| panic!("{what}: it can be made now: {error}"));
            });
        }
    }

    /// V27: a crash after a failed change shows the state before or, if all writes failed, possibly the one after.
    #[test]
    fn a_crash_after_a_failed_change_shows_it_wholly_or_not_at_all() {
        for change in &UNDONE {
            let made = made(change);
            each_way(|fail, lands, checkpoint| {
                let what = format!("{}, {fail} fail, lands {lands}, checkpoint {checkpoint}", change.0);
                let (device, pool, faults, before, _) = fails(change, fail, lands, checkpoint);
                // The copy was undone in memory but may exist on the device. So a write to a unit that the copy shares
                // must go to a new unit.
                if fail == ALL && ["snapshot", "clone"].contains(&change.0) {
                    let volume = pool.open_volume("v").unwrap();
                    (0..12).for_each(|unit| write(&volume, unit, 7));
                }
                drop((pool, faults));
                // Later writes to the volume may be there or not.
                let others =
                    |seen: &[String]| seen.iter().filter(|line| !line.starts_with("v ")).cloned().collect::<Vec<_>>();
                let is = |found: &[String], other: &[String]| match change.0 {
                    "snapshot" | "clone" => others(found) == others(other),
                    _ => found == other,
                };
                let found = opened(&device);
                assert!(is(&found, &before) || fail == ALL && is(&found, &made), "{what}: {found:?}");
            });
        }
    }

    /// A checkpoint with the change was written, and the next checkpoint, without it, failed: the pool must still need
    /// more than a flush of the device to undo the change.
    #[test]
    fn a_successful_flush_makes_an_undo_durable() {
        let mut settled = 0;
        for change in &UNDONE {
            for good in 0..10 {
                // The first write fails, then `good` writes succeed, then all fail.
                let (device, pool, faults, before, error) = fails(change, !(((1 << good) - 1) << 1), false, true);
                assert!(error.is_some());
                let volume = pool.open_volume("v").unwrap();
                settled += u32::from(!volume.needs_sync());
                if volume.needs_sync() {
                    faults.fail.store(0, Ordering::SeqCst);
                    volume.sync(&MayBlock::on_worker()).unwrap().unwrap();
                }
                drop((volume, pool));
                assert_eq!(opened(&device), before, "{}, {good} go well", change.0);
            }
        }
        assert!(settled > 0 && settled < 10 * UNDONE.len() as u32);
    }

    /// V27: a delete, a rollback and a smaller size free space, and are not undone. The error says so, the next flush
    /// makes the change durable, and a crash before that shows the state with the change or without it.
    #[test]
    fn a_change_that_cannot_be_undone_is_decided_by_the_next_commit() {
        for change in &MADE {
            let made = made(change);
            each_way(|fail, lands, checkpoint| {
                for crash in [false, true] {
                    let what = format!("{}, {fail} fail, lands {lands}, checkpoint {checkpoint}", change.0);
                    let (device, pool, faults, before, error) = fails(change, fail, lands, checkpoint);
                    assert_eq!(seen(&pool), made, "{what}: it is seen at once");
                    match error {
                        None => assert_eq!(fail, 1, "{what}: the second attempt made it durable"),
                        Some(error) => {
                            assert!(matches!(error, PoolError::NotDurable { .. }), "{what}: {error}");
                            assert!(fail == ALL && pool.sync().is_err(), "{what}");
                        }
                    }
                    if !crash && fail == ALL {
                        faults.fail.store(0, Ordering::SeqCst);
                        pool.sync().unwrap();
                    }
                    drop(pool);
                    let found = opened(&device);
                    assert!(
                        found == made || crash && fail == ALL && found == before,
                        "{what}, crash {crash}: {found:?}"
                    );
                }
            });
        }
    }

    /// V27, with a growth of a pool that had nothing else to make durable: an fsync in a ring finds that the volume
    /// needs more than a flush of the device.
    #[test]
    fn after_a_change_that_is_not_durable_the_flush_of_a_volume_makes_it_so() {
        let (_device, pool, faults) = pool();
        pool.sync().unwrap();
        let volume = pool.open_volume("v").unwrap();
        assert!(!volume.needs_sync());
        faults.fail.store(ALL, Ordering::SeqCst);
        volume.pool().lock().next.require();
        let error = volume.pool().durable_at_last("growing", "the device").unwrap_err();
        assert!(matches!(error, PoolError::NotDurable { .. }), "{error}");
        assert!(volume.needs_sync());
        faults.fail.store(0, Ordering::SeqCst);
        volume.sync(&MayBlock::on_worker()).unwrap().unwrap();
        assert!(!volume.needs_sync());
    }

    /// U2: changes that are not durable yet cannot be used by others.
    #[test]
    fn a_change_is_invisible_until_it_is_durable() {
        for change in &UNDONE[..6] {
            let (_device, pool, faults) = pool();
            let (looked, other) = (Arc::new(AtomicBool::new(false)), pool.clone());
            let has_looked = looked.clone();
            *faults.before_write.lock().unwrap() = Some(Box::new(move || {
                assert!(matches!(other.open_volume("new"), Err(PoolError::NoVolume { .. })));
                assert!(other.volume_info("new").is_err() && other.volumes().iter().all(|info| info.name != "new"));
                assert!(
                    other.open_volume("v").is_ok_and(|volume| volume.size_bytes() == 1 << 20) || change_renames(&other)
                );
                has_looked.store(true, Ordering::SeqCst);
            }));
            change.1(&pool).unwrap();
            assert!(looked.load(Ordering::SeqCst), "{}: before it is durable", change.0);
            assert_eq!(seen(&pool), made(change), "{}: and after", change.0);
        }
    }

    /// Renames a volume. The new name is visible at once, and opens the same volume.
    fn change_renames(pool: &Pool) -> bool {
        pool.volume_info("other").is_ok()
    }

    /// V8: a crash before the commit of a rollback is durable brings the old content of the volume back. Until then the
    /// space of that content is not free.
    #[test]
    fn units_freed_by_a_rollback_are_reused_only_after_its_commit() {
        let (_device, pool, faults) = pool();
        let inner = Arc::clone(pool.open_volume("v").unwrap().pool());
        let free = move || inner.lock().tree.units.available();
        let (before, within) = (free(), Arc::new(AtomicI64::new(-1)));
        let (look, found) = (free.clone(), Arc::clone(&within));
        *faults.before_write.lock().unwrap() = Some(Box::new(move || found.store(look() as i64, Ordering::SeqCst)));
        pool.rollback("v", "s").unwrap();
        assert_eq!(
            within.load(Ordering::SeqCst),
            before as i64,
            "the units that only the old map had are nobody's yet"
        );
        pool.info(); // Frees deferred units whose grace is over.
        assert!(free() > before, "then they are free");
    }

    /// Calls `meanwhile` during the journal write of a commit, which fails once. Returns the pool and the volume `v`,
    /// whose `unit` is in that commit.
    fn meanwhile(unit: u64, meanwhile: impl FnOnce(&Volume) + Send + 'static) -> (Device, Pool, Volume) {
        let (device, pool, faults) = pool();
        let volume = pool.open_volume("v").unwrap();
        punch(&volume, unit, 1);
        write(&volume, unit, 9);
        let of_hook = volume.clone();
        *faults.before_write.lock().unwrap() = Some(Box::new(move || {
            meanwhile(&of_hook);
            of_hook.pool().lock().check_flags();
        }));
        faults.fail.store(1, Ordering::SeqCst);
        assert!(pool.sync().is_err());
        assert!(faults.before_write.lock().unwrap().is_none());
        volume.pool().lock().check_flags();
        (device, pool, volume)
    }

    fn punch(volume: &Volume, unit: u64, count: u64) {
        volume.fallocate(FallocateMode::PunchHole, unit << 16, count << 16, &MayBlock::on_worker()).unwrap();
    }

    /// Returns the tag of a unit of a volume after a crash.
    fn after_crash(device: &Device, name: &str, unit: usize) -> u8 {
        let line = opened(device).into_iter().find(|line| line.starts_with(&format!("{name} "))).unwrap();
        let tags = line.rsplit_once('[').unwrap().1.trim_end_matches(']');
        tags.split(", ").nth(unit).unwrap().parse().unwrap()
    }

    /// V3. A commit that fails had taken a unit of the source. When it fails, the copy shares that unit's leaf, and the
    /// source gets a leaf of its own before the next commit.
    #[test]
    fn a_copy_that_is_made_while_a_commit_fails_records_what_is_written_to_it() {
        let copy = |volume: &Volume| {
            let (options, token) = (CopyOptions::default(), Arc::new(OpenToken));
            volume.pool().copy_in_memory(&[("v", "t")], false, &options, &token).unwrap();
        };
        let (device, pool, source) = meanwhile(13, copy);
        write(&source, 3, 7);
        let inner = Arc::clone(source.pool());
        let id = inner.lock().table.id_of("t").unwrap();
        inner.durable_new("copying", "v", &[id]).unwrap();
        let copy = pool.open_volume("t").unwrap();
        write(&copy, 13, 77);
        inner.lock().check_flags();
        assert!(copy.needs_sync());
        pool.sync().unwrap();
        drop((source, copy, pool, inner));
        assert_eq!((after_crash(&device, "t", 13), after_crash(&device, "v", 13)), (77, 9));
    }

    /// V3. A rollback instead of a copy: the unit of the failed commit is then in the leaf of the snapshot.
    #[test]
    fn a_clone_of_a_snapshot_that_was_rolled_back_to_while_a_commit_failed_records_what_is_written_to_it() {
        let (device, pool, volume) = meanwhile(5, |volume| volume.pool().roll_back_in_memory("v", "s").unwrap());
        write(&volume, 3, 7);
        volume.pool().lock().check_flags();
        pool.clone_volume("s", "t").unwrap();
        let copy = pool.open_volume("t").unwrap();
        write(&copy, 5, 77);
        assert!(copy.needs_sync());
        pool.sync().unwrap();
        drop((volume, copy, pool));
        assert_eq!((after_crash(&device, "t", 5), after_crash(&device, "v", 5)), (77, 1));
    }

    /// When a commit fails, its unit may have become a hole, or another unit of the pool, or lie beyond the end.
    #[test]
    fn a_unit_may_change_after_its_commit_failed() {
        type Meanwhile = (&'static str, fn(&Volume));
        let changes: [Meanwhile; 4] = [
            ("a hole in a leaf", |volume| punch(volume, 5, 1)),
            ("a whole leaf of holes", |volume| punch(volume, 0, 16)),
            ("a hole that was written to", |volume| {
                punch(volume, 5, 1);
                write(volume, 5, 3);
            }),
            ("a unit beyond the end", |volume| {
                let mut state = volume.pool().lock();
                let core = Arc::clone(&state.table.named("v").unwrap().core);
                core.set_size(4 << 16);
                state.pending.push(Record::Resize { volume: core.id, size: 4 << 16 });
                while state.cut_some(&core, 4 << 16).unwrap() {}
            }),
        ];
        for (what, change) in changes {
            let (device, pool, volume) = meanwhile(5, change);
            pool.sync().unwrap();
            volume.pool().lock().check_flags();
            let now = seen(&pool);
            drop((volume, pool));
            assert_eq!(opened(&device), now, "{what}");
        }
    }

    /// V5. The units that a failed commit freed come back in a crash before the next commit is durable. Until then
    /// their space is not free.
    #[test]
    fn units_freed_by_a_failed_commit_wait_for_the_next() {
        let (_device, pool, faults) = pool();
        let volume = pool.open_volume("v").unwrap();
        let free = || {
            pool.info(); // Frees deferred units whose grace is over.
            volume.pool().lock().tree.units.available()
        };
        let before = free();
        punch(&volume, 0, 12);
        faults.fail.store(1, Ordering::SeqCst);
        assert!(pool.sync().is_err());
        assert!(free() <= before, "the commit has failed");
        pool.sync().unwrap();
        assert!(free() > before, "the next one has not");
    }

    /// The name and its effect are undone together, so the next opening finds an interim volume and deletes it.
    #[test]
    fn a_name_that_is_undone_leaves_a_volume_interim() {
        let (device, pool, faults) = pool();
        let mark = Interim { purpose: Purpose::Import, owner: 0 };
        pool.create_interim("i", 1 << 20, mark).map(drop).unwrap();
        faults.fail.store(1, Ordering::SeqCst);
        pool.rename("i", "kept").expect_err("the journal cannot be written");
        assert_eq!(pool.volume_info("i").unwrap().interim, Some(mark));
        drop(pool);
        let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
        let names: Vec<String> = pool.volumes().into_iter().map(|info| info.name).collect();
        assert_eq!(names, ["g", "s", "v", "v@s"]);
        drop(pool);
        opened(&device);
    }
}
