//! Flushes that fail, and what they may have lost.
//!
//! A flush that failed says nothing of what it was to make durable, and the flush after it knows nothing of that. So
//! the first one that fails degrades the pool: from then on nothing is written but the list of the volumes that may
//! have lost something, until the pool is opened again, from what was durable. Owns that list, and knows which volumes
//! were written to since the last commit.
//!
//! How it is known without work on the way of an overwrite: a volume notes the *epoch* in which it was last written to
//! (the alarm's count, [`FlushAlarm`]). A writer compares the two words, and notes the epoch if they differ. Each
//! commit begins another epoch, and waits for a grace, without sleeping, for those who write in the old one.
//!
//! - L1: writes that began in epochs before `safe` are durable, their metadata included.
//! - L2: a volume is listed if an acknowledged write, discard or growth of it may be lost. It may also be listed when
//!   only flushes of the device alone, which no commit knows of, have made its writes durable.
//! - L3: a writer that is not refused has noted its epoch before the alarm rings, or the list has not been made.
//! - L4: the list goes into a superblock with the checkpoint that is known to be durable, first into the slot that this
//!   checkpoint does not need: cut off anywhere, what was durable stays.
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
    /// Whether a write needs nothing noted: one look at two words (L3).
    #[inline(always)]
    pub(crate) fn is_noted(&self, alarm: &FlushAlarm) -> bool {
        // Relaxed: whoever noted the epoch has seen that the alarm did not ring.
        self.written_in.load(Ordering::Relaxed) == alarm.epoch()
    }

    /// Notes that the volume is written to; an error when the pool takes no writes any more.
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
    /// A flush of the pool's own. One that could not be sent for want of memory has failed nobody.
    ///
    /// One that ended well beside another that failed is not believed: the device may have forgotten, with the other
    /// one, what this one was to cover, and the metadata that is written next would refer to data that is not there.
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

    /// A commit begins: if it succeeds, writes of epochs before the one returned are durable.
    pub(crate) fn begin_epoch(&self, state: &mut State) -> u64 {
        let State { risk, table, .. } = state;
        let (everyone, ended) = risk.ended.get_or_insert_with(|| {
            let ended = self.alarm.next_epoch();
            (table.everyone(), ended)
        });
        if !everyone.is_over() {
            return risk.safe;
        }
        let safe = ended.saturating_add(1);
        risk.ended = None;
        safe
    }

    /// A flush has failed, here or elsewhere: nothing more is made durable. Writes the list, if it is not there yet.
    /// Under the leadership of a commit, or when nobody else has the pool.
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

    /// Writes a superblock and its twin; the newest that is there for certain (L4).
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
    /// A commit that began with this epoch has made everything durable that was there.
    pub(crate) fn committed_epoch(&mut self, epoch: u64) {
        self.risk.safe = self.risk.safe.max(epoch);
        let safe = self.risk.safe;
        self.risk.deleted.retain(|(_, written_in)| *written_in >= safe);
    }

    /// A volume is deleted; until that is durable it may come back without what was written to it.
    pub(crate) fn note_deleted(&mut self, core: &VolumeCore) {
        let written_in = core.written_in.load(Ordering::SeqCst); // SeqCst: as in `losses`.
        if written_in >= self.risk.safe {
            self.risk.deleted.push((core.id, written_in));
        }
    }

    /// The volumes that may have lost something, those included that were listed before (L2).
    fn losses(&self) -> Lost {
        // SeqCst: after the alarm rang; pairs with the store in `note_write` (L3).
        let written = self.table.iter().map(|vol| (vol.id, vol.core.written_in.load(Ordering::SeqCst)));
        let risky = written.chain(self.risk.deleted.iter().copied()).filter(|(_, epoch)| *epoch >= self.risk.safe);
        self.sb.lost.with(risky.map(|(id, _)| id))
    }

    /// A superblock with the list: the next of the newest checkpoint that is known to be durable (L4).
    fn list_of(&self, lost: Lost) -> Superblock {
        let landed = self.next.plan().map(|plan| (plan.reached, &plan.sb));
        let (sb, generation) = match landed {
            Some((Reached::Twin, sb)) => (sb, sb.generation + 1),
            // The twin of the checkpoint before is durable, and this one's slot may have anything in it.
            Some((Reached::Superblock, _)) => (&self.sb, self.sb.generation + 1),
            // The twin may be durable or not: its slot is the one to write.
            Some((Reached::Pages, _)) | None => (&self.sb, self.sb.generation),
        };
        Superblock { generation, clean: false, lost, ..sb.clone() }
    }

    /// The list as the next checkpoint has it.
    pub(crate) fn lost_to_write(&self) -> Lost {
        if self.risk.acknowledged { Lost::default() } else { self.sb.lost.clone() }
    }

    /// Names of the volumes that may have lost data, sorted.
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
