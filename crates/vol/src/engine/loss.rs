//! Failed flushes, and the data that they may have lost.
//!
//! After a failed flush the state of the data that it was to make durable is unknown, and a later flush that succeeds
//! proves nothing about that data. So the first failure degrades the pool: until the pool is opened again, from its
//! durable state, only the list of the volumes that may have lost data is written. Owns that list, and the record of
//! the volumes that were written to since the last commit.
//!
//! That record costs an overwrite one comparison: a volume stores the *epoch* of its last write (the alarm's count,
//! [`FlushAlarm`]), and a writer stores the epoch only if it differs. Each commit begins a new epoch, and checks,
//! without sleeping, whether the writes of the old one have ended.
//!
//! - L1: writes that began in epochs before `safe` are durable, their metadata included.
//! - L2: a volume is listed if an acknowledged write, discard or growth of it may be lost. A volume may also be listed
//!   although flushes of the device alone have made its writes durable, because no commit counts those.
//! - L3: a write that is not refused has its epoch noted before the alarm rings, or before the list is made.
//! - L4: the list goes into a superblock of the checkpoint that is known to be durable, and first into the slot that
//!   this checkpoint does not need. So a crash at any moment leaves what was durable.
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
    /// True if the present epoch is already noted. Compares two words (L3).
    #[inline(always)]
    pub(crate) fn is_noted(&self, alarm: &FlushAlarm) -> bool {
        // Relaxed: a thread that stored this epoch has checked afterwards that the alarm did not ring.
        self.written_in.load(Ordering::Relaxed) == alarm.epoch()
    }

    /// Notes that the volume is written to. Returns an error when the pool takes no writes any more.
    pub(crate) fn note_write(&self, alarm: &FlushAlarm) -> Result<(), Status> {
        let epoch = alarm.epoch_now();
        if epoch != FlushAlarm::RINGING {
            // SeqCst: before the load below; pairs with the load in `State::losses`, which comes after the alarm rang.
            self.written_in.store(epoch, Ordering::SeqCst);
        }
        if alarm.epoch_now() == FlushAlarm::RINGING { Err(Status::IoErr) } else { Ok(()) }
    }
}

impl PoolInner {
    /// Flushes the pool's device. A flush that was not sent for lack of memory has lost nothing, and does not degrade
    /// the pool.
    ///
    /// A flush that succeeded while another one failed counts as failed: with the failed one the device may have
    /// dropped data that this one was to cover. The metadata written next would then refer to missing data.
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

    /// Stops all further commits after a flush of this pool or of another user of the device has failed, and writes the
    /// list of losses if it is not on the device yet. Called by the leader of a commit, or while nobody else has the
    /// pool.
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
        // SeqCst: after the alarm rang; pairs with the store in `note_write` (L3).
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
mod tests;
