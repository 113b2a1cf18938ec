//! Failed flushes, and the data that they may have lost.
//!
//! After a failed flush, the state of the data that it was to make durable is unknown, and a later flush that succeeds
//! proves nothing about that data. So the first failure degrades the pool: only the list of the volumes that may have
//! lost data is still written, until the pool is opened again from its durable state. Owns that list, and the record of
//! the volumes that were written to since the last commit.
//!
//! That record adds one comparison to an overwrite: a volume stores the *epoch* of its last write (the alarm's count,
//! [`FlushAlarm`]), and a writer stores the epoch only if it differs. Each commit begins a new epoch, and checks,
//! without sleeping, whether the writes of the old one have ended.
//!
//! - L1: writes that began in epochs before `safe` are durable, their metadata included.
//! - L2: a volume is listed if an acknowledged write, discard or growth of it may be lost. A volume may also be listed
//!   although its writes are durable: flushes of the device alone may have made them durable, and no commit counts
//!   those.
//! - L3: the epoch of a write that is not refused is noted before the alarm rings, or before the list is made.
//! - L4: the list goes into a superblock of the checkpoint that is known to be durable. It is written first into the
//!   slot that this checkpoint does not need, so a crash at any moment leaves the durable state intact.
//!
//! Called by commits, by writers, and when the pool is dropped.

use sheave_base::status::Status;
use sheave_base::sync::atomic::Ordering;
use sheave_blk::flush_alarm::FlushAlarm;

use crate::engine::inner::PoolInner;
use crate::format::BLOCK;
use crate::format::superblock::{Lost, Superblock};
use crate::state::State;
use crate::state::phase::{Event, Phase};
use crate::state::plan::Reached;
use crate::state::table::VolumeCore;

impl VolumeCore {
    /// Returns true if the present epoch is already noted. Compares two words (L3).
    #[inline(always)]
    pub(crate) fn is_noted(&self, alarm: &FlushAlarm) -> bool {
        // Relaxed: a thread that stored this epoch has checked afterwards that the alarm did not ring.
        self.written_in.load(Ordering::Relaxed) == alarm.epoch()
    }

    /// Notes that the volume is written to. Returns an error if the pool takes no writes any more.
    pub(crate) fn note_write(&self, alarm: &FlushAlarm) -> Result<(), Status> {
        let epoch = alarm.epoch_now();
        if epoch != FlushAlarm::RINGING {
            // SeqCst: before the load below; pairs with the load in `State::losses`, which comes after the alarm has
            // rung.
            self.written_in.store(epoch, Ordering::SeqCst);
        }
        if alarm.epoch_now() == FlushAlarm::RINGING { Err(Status::IoErr) } else { Ok(()) }
    }
}

impl PoolInner {
    /// Flushes the pool's device. If a flush could not be sent for lack of memory, nothing is lost, and the pool is not
    /// degraded.
    ///
    /// A flush that succeeded while another one failed counts as failed: the device may have dropped data at the failed
    /// flush that this one was to make durable. Metadata written afterwards would then refer to missing data.
    pub(crate) fn flush(&self) -> Result<(), Status> {
        match self.io.flush() {
            Ok(()) => self.alarm.failed().map_or(Ok(()), Err),
            Err(Status::NoMem) => Err(Status::NoMem),
            Err(status) => {
                self.alarm.ring(status);
                Err(status)
            }
        }
    }

    /// Begins a commit. Returns an epoch; if the commit succeeds, writes of all earlier epochs are durable.
    pub(crate) fn begin_epoch(&self, state: &mut State) -> u64 {
        let State { risk, table, .. } = state;
        let (everyone, ended) = risk.ended.get_or_insert_with(|| {
            let ended = self.alarm.next_epoch();
            (table.everyone(), ended)
        });
        // Writes of the ended epoch are still in flight: this commit proves no more than the last one. The next one
        // checks again.
        if !everyone.is_over() {
            return risk.safe;
        }
        let safe = ended.saturating_add(1);
        risk.ended = None;
        safe
    }

    /// Stops all further commits after a failed flush, by this pool or by another user of the device. Writes the list
    /// of losses if it is not on the device yet. Called by the leader of a commit, or while nobody else uses the pool.
    #[cold]
    pub(crate) fn degrade(&self, status: Status) -> Result<(), Status> {
        let mut state = self.lock();
        state.phase = state.phase.after(Event::FlushFailed(status));
        match state.phase {
            Phase::Closed => return Ok(()),
            Phase::Taken => return Err(Status::IoErr),
            _ => {}
        }
        let lost = state.losses();
        state.risk.listed |= lost == state.sb.lost;
        if !state.risk.listed {
            let list = state.list_of(lost);
            drop(state);
            let written = self.look(None).ok().and_then(|()| self.write_list(list));
            state = self.lock();
            if let Some(sb) = written {
                state.risk.listed = true;
                if state.next.plan().is_none() {
                    state.sb = sb;
                }
            }
        }
        drop(state);
        self.wake();
        Err(Status::IoErr)
    }

    /// Writes a superblock and its twin. Returns the newest one that is certainly on the device (L4).
    fn write_list(&self, list: Superblock) -> Option<Superblock> {
        let mut block = [0; BLOCK];
        let address = list.encode(&mut block);
        self.io.write(address, &block).and_then(|()| self.io.flush()).ok()?;
        let twin = list.twin();
        let written = self.write_twin(&twin).and_then(|()| self.io.flush());
        Some(if written.is_ok() { twin } else { list })
    }
}

impl State {
    /// Called when a commit that began with `epoch` has succeeded.
    pub(crate) fn committed_epoch(&mut self, epoch: u64) {
        self.risk.safe = self.risk.safe.max(epoch);
        let safe = self.risk.safe;
        self.risk.deleted.retain(|(_, written_in)| *written_in >= safe);
    }

    /// Called when a volume is deleted: until the delete is durable, a crash may bring the volume back, without its
    /// last writes.
    pub(crate) fn note_deleted(&mut self, core: &VolumeCore) {
        let written_in = core.written_in.load(Ordering::SeqCst); // SeqCst: as in `losses`.
        if written_in >= self.risk.safe {
            self.risk.deleted.push((core.id, written_in));
        }
    }

    /// Returns the volumes that may have lost data, including those listed before (L2).
    fn losses(&self) -> Lost {
        // SeqCst: after the alarm has rung; pairs with the store in `note_write` (L3).
        let written = self.table.iter().map(|vol| (vol.id, vol.core.written_in.load(Ordering::SeqCst)));
        let risky = written.chain(self.risk.deleted.iter().copied()).filter(|(_, epoch)| *epoch >= self.risk.safe);
        self.sb.lost.with(risky.map(|(id, _)| id))
    }

    /// Returns a superblock with the list: the next generation of the newest checkpoint that is known to be durable
    /// (L4).
    fn list_of(&self, lost: Lost) -> Superblock {
        let landed = self.next.plan().map(|plan| (plan.reached, &plan.sb));
        let (sb, generation) = match landed {
            Some((Reached::Twin, sb)) => (sb, sb.generation + 1),
            // The superblock of the new checkpoint may have reached its slot in part, and the twin of the previous one
            // is durable: write to the slot of the new one.
            Some((Reached::Superblock, _)) => (&self.sb, self.sb.generation + 1),
            // The twin of the durable checkpoint may not be durable: write to the slot of the twin.
            Some((Reached::Pages, _)) | None => (&self.sb, self.sb.generation),
        };
        Superblock { generation, clean: false, lost, ..sb.clone() }
    }

    /// Returns the list of losses for the next checkpoint: empty once the loss is acknowledged.
    pub(crate) fn lost_to_write(&self) -> Lost {
        if self.risk.acknowledged { Lost::default() } else { self.sb.lost.clone() }
    }

    /// Returns the names of the volumes that may have lost data, sorted.
    pub(crate) fn lost_names(&self) -> Vec<String> {
        let lost = &self.sb.lost;
        let mut names: Vec<String> =
            self.table.iter().filter(|vol| lost.has(vol.id)).map(|vol| vol.name.clone()).collect();
        names.sort_unstable();
        names
    }
}

impl Drop for PoolInner {
    fn drop(&mut self) {
        if let Some(status) = self.alarm.failed()
            && !self.read_only
            && !std::thread::panicking()
        {
            let _ = self.degrade(status);
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};
    use std::sync::{Arc, Mutex, OnceLock};

    use sheave_base::grace::Grace;
    use sheave_blk::Device;
    use sheave_drivers::open_device;
    use sheave_iomap::completion_plan::MayBlock;
    use sheave_iomap::file::{FallocateMode, WriteDone};
    use sheave_iomap::mapping::Intent;
    use sheave_iomap::{File, MappingKind};

    use super::*;
    use crate::device::block_io::{BlockIo, DeviceIo};
    use crate::{CreateOptions, OpenOptions, Pool, Volume};

    const SUPERBLOCK_BYTES: u64 = 8192;

    /// Hooks into the pool's own I/O, and a record of it.
    #[derive(Default)]
    struct Seen {
        alarm: OnceLock<Arc<FlushAlarm>>,
        /// Called once, before the next write.
        before_write: Mutex<Option<Box<dyn FnOnce() + Send>>>,
        /// Flushes before the one during which another's flush fails; below 0 none fails.
        left: AtomicI64,
        /// Addresses of the pool's writes after that flush.
        written_after: Mutex<Vec<u64>>,
    }

    /// A device whose own flushes succeed while those of others may fail.
    struct Beside {
        io: DeviceIo,
        seen: Arc<Seen>,
    }

    impl BlockIo for Beside {
        fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), Status> {
            self.io.read(at, buf)
        }

        fn write(&self, at: u64, buf: &[u8]) -> Result<(), Status> {
            let before = self.seen.before_write.lock().unwrap().take();
            before.into_iter().for_each(|before| before());
            if self.seen.alarm.get().is_some_and(|alarm| alarm.failed().is_some()) {
                self.seen.written_after.lock().unwrap().push(at);
            }
            self.io.write(at, buf)
        }

        fn flush(&self) -> Result<(), Status> {
            self.io.flush()?;
            if self.seen.left.fetch_sub(1, Ordering::SeqCst) == 0 {
                self.seen.alarm.get().unwrap().ring(Status::IoErr);
            }
            Ok(())
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
        let mapping = volume.map_blocking(pos, 4096, Intent::Write, &may_block).unwrap();
        DeviceIo::new(volume.device()).unwrap().write(mapping.addr, &[tag; 4096]).unwrap();
        volume.end_write(WriteDone::new(pos, 4096, Status::Ok, &[mapping]), &may_block).unwrap();
    }

    /// Returns a pool with a volume whose first unit is durable, and whose second is not.
    fn pool() -> (Device, Pool, Volume, Arc<Seen>) {
        let device = open_device("ram:size=7M").unwrap();
        Pool::create(&device, &CreateOptions::default()).unwrap();
        let seen = Arc::new(Seen { left: AtomicI64::new(-1), ..Seen::default() });
        let io = Box::new(Beside { io: DeviceIo::new(&device).unwrap(), seen: seen.clone() });
        let pool = Pool::open_through(&device, io, &OpenOptions::default()).unwrap();
        seen.alarm.set(pool.inner.alarm.clone()).unwrap();
        let volume = pool.create_volume("v", 1 << 20).unwrap();
        write(&volume, 0, 1);
        pool.sync().unwrap();
        write(&volume, 1, 2);
        (device, pool, volume, seen)
    }

    /// Opens the pool again. Returns true if it has the unit as written.
    fn is_written(device: &Device, unit: u64) -> bool {
        let pool = Pool::open(device, &OpenOptions::default()).unwrap();
        let volume = pool.open_volume("v").unwrap();
        volume.map(unit << 16, 4096, Intent::Read).unwrap().kind == MappingKind::Mapped
    }

    /// Checks that no metadata follows a flush during which another flush failed: the device may have reported success
    /// after it had lost the data.
    fn nothing_follows(commit: impl Fn(&Pool) -> bool, flushes: i64) {
        for flush in 0..flushes {
            let (device, pool, volume, seen) = pool();
            seen.left.store(flush, Ordering::SeqCst);
            assert!(!commit(&pool), "flush {flush}: what follows a flush that failed is not durable (I4 of commits)");
            drop((pool, volume));
            let written = seen.written_after.lock().unwrap();
            assert!(
                written.iter().all(|at| *at < SUPERBLOCK_BYTES),
                "flush {flush}: {written:x?} beside the list of losses"
            );
            assert!(!written.is_empty(), "flush {flush}: the list is written");
            drop(written);
            assert!(is_written(&device, 0), "flush {flush}: what was durable stays");
            if flush == 0 {
                assert!(!is_written(&device, 1), "no metadata may refer to data that may be lost");
            }
        }
    }

    #[test]
    fn no_record_follows_a_flush_during_which_another_failed() {
        nothing_follows(|pool| pool.sync().is_ok(), 2);
    }

    #[test]
    fn no_superblock_follows_a_flush_during_which_another_failed() {
        nothing_follows(|pool| pool.inner.checkpoint().is_ok(), 3);
    }

    /// Lets a flush of another thread fail. Returns the volumes that the next opening lists as possibly damaged.
    fn lost(device: &Device, pool: Pool, volume: Volume, seen: &Seen) -> Vec<String> {
        seen.alarm.get().unwrap().ring(Status::IoErr);
        drop((volume, pool));
        Pool::open(device, &OpenOptions::default()).unwrap().info().lost
    }

    /// V25, L1: a commit does not cover a write that was in flight when the commit began. The write is an overwrite, so
    /// there is no record of it.
    #[test]
    fn an_epoch_is_not_safe_while_a_write_of_it_is_under_way() {
        for under_way in [false, true] {
            let (device, pool, volume, seen) = pool();
            // A ring has looked up the place, and its write has not ended.
            let seat = Grace::seat(volume.grace().unwrap());
            seat.enter();
            volume.map(0, 4096, Intent::Write).unwrap();
            let phase = seat.count();
            seat.leave();
            if !under_way {
                seat.uncount(phase);
            }
            (0..3).for_each(|_| pool.sync().unwrap());
            if under_way {
                seat.uncount(phase);
            }
            drop(seat);
            let names: &[&str] = if under_way { &["v"] } else { &[] };
            assert_eq!(lost(&device, pool, volume, &seen), names, "under way: {under_way}");
        }
    }

    /// V25, L2: a hole belongs to the epoch in which its punch ends. A commit during the zeroing of the hole's edge
    /// contains nothing of the hole.
    #[test]
    fn a_hole_that_ends_after_a_commit_may_be_lost_by_the_next() {
        let (device, pool, volume, seen) = pool();
        pool.sync().unwrap();
        let other = pool.clone();
        *seen.before_write.lock().unwrap() = Some(Box::new(move || other.sync().unwrap()));
        let whole = 2 << 16;
        volume.fallocate(FallocateMode::PunchHole, 512, whole - 512, &MayBlock::on_worker()).unwrap();
        assert!(seen.before_write.lock().unwrap().is_none(), "the edge was zeroed");
        assert_eq!(lost(&device, pool, volume, &seen), ["v"]);
        assert!(is_written(&device, 1), "the hole is in no commit");
    }
}
