//! Commits: making everything that was done before durable, for all who ask at once.
//!
//! Owns the journal's writes; who leads and who waits is in [`leader`](super::leader). A commit is: take what changed,
//! under the lock; flush the device, so that the data which the records speak of is durable; write the records as one
//! run of journal blocks; flush. When the journal is half full, or much is dirty, a
//! [`checkpoint`](crate::engine::checkpoint) is the commit.
//!
//! - I1: who asks gets the result of a commit that began after it asked.
//! - I2: a commit takes two flushes of the device; one, if there was nothing to record; three, if it is a checkpoint.
//! - I3: after a failed write of journal blocks their numbers are not used again: a checkpoint comes next. Where there
//!   can be none, the block is written once more ([`cramped`](super::cramped), C5).
//! - I4: no commit ends well, and none writes anything, once a flush has failed, the pool's own or another's
//!   ([`loss`](crate::engine::loss)).
//! - I5: what a change of the table has done and undone is not known to be undone before a checkpoint is durable
//!   ([`undo`](crate::engine::change)): until then a flush of the device alone is none of the pool.
//!
//! Called by syncs, by structural changes, and by who meets a bound.

use sheave_base::beside::Activity;
use sheave_base::status::Status;
use sheave_base::sync::MutexGuard;
use sheave_base::sync::atomic::Ordering;

use crate::engine::inner::PoolInner;
use crate::format::journal::{Commit, Ring};
use crate::state::State;
use crate::state::extent_map::Entry;
use crate::state::extent_map::work::MOST_COST;
use crate::state::phase::Phase;
use crate::state::plan::Taken;

impl PoolInner {
    /// Makes everything done before this call durable, data and metadata.
    pub(crate) fn commit(&self) -> Result<(), Status> {
        let (result, led) = self.commits.commit(|| self.lead());
        if led {
            self.let_go();
            self.wake();
        }
        result
    }

    /// Does something while no commit is under way: what the device has of metadata is what memory says of it, and
    /// stays so. All who flush wait meanwhile, so it must be short.
    pub(crate) fn between_commits<T>(&self, job: impl FnOnce() -> T) -> T {
        self.commits.hold_off(job)
    }

    /// A commit that is a checkpoint.
    pub(crate) fn checkpoint(&self) -> Result<(), Status> {
        self.lock().next.require();
        self.commit()
    }

    /// Makes room for more changes: a checkpoint if nodes are the matter, else a commit.
    pub(crate) fn relieve(&self) -> Result<(), Status> {
        if self.lock().is_dirty_full() { self.checkpoint() } else { self.commit() }
    }

    fn lead(&self) -> Result<(), Status> {
        if self.read_only {
            return Ok(());
        }
        let running = self.beside.begin(Activity::Commit);
        let result = if self.alarm.failed().is_some() { Err(Status::IoErr) } else { self.lead_epoch() };
        drop(running);
        // It may have rung meanwhile, by a flush that somebody else sent: then this one proves nothing (I4).
        match self.alarm.failed() {
            None => result.inspect_err(|status| self.note_host(*status)),
            Some(status) => self.degrade(status),
        }
    }

    fn lead_epoch(&self) -> Result<(), Status> {
        self.look_if_due()?;
        let epoch = self.begin_epoch(&mut self.lock());
        self.write_all()?;
        self.lock().committed_epoch(epoch);
        Ok(())
    }

    /// Makes all durable that waits.
    fn write_all(&self) -> Result<(), Status> {
        let mut state = self.lock();
        if let Some(plan) = state.next.begin_again() {
            drop(state);
            self.carry_out(plan)?;
            state = self.lock();
        }
        match state.work() {
            Work::Nothing => Ok(()),
            Work::Flush => self.flush_all(state),
            Work::Records => self.write_records(state),
            Work::Checkpoint { clean } => self.write_checkpoint(state, clean),
        }
    }

    /// There is nothing to record; but there may be units that nobody ever recorded: a copy that failed.
    fn flush_all(&self, mut state: MutexGuard<'_, State>) -> Result<(), Status> {
        let taken = state.take();
        drop(state);
        let flushed = self.flush();
        let mut state = self.lock();
        match flushed {
            Ok(()) => self.committed(&mut state, taken),
            Err(_) => state.untake(taken),
        }
        flushed
    }

    /// Writes the records of all that waits, or a checkpoint if they would fill half of the journal.
    fn write_records<'a>(&'a self, mut state: MutexGuard<'a, State>) -> Result<(), Status> {
        // The record of a smaller size comes before those of units: none of these may be beyond it.
        while state.cut_a_part()? {
            drop(state);
            state = self.lock();
        }
        let ring = Ring::of(&state.sb);
        let mut commit = Commit::with_capacity(1 + state.dirty.len() / 64);
        self.encode(&state, &mut commit);
        if commit.blocks() * 2 > u64::from(ring.blocks) {
            return self.write_checkpoint(state, false);
        }
        let taken = state.take();
        let first = state.next_seq;
        state.next_seq += commit.blocks();
        drop(state);
        commit.seal(&ring, first);
        let written = self.write_commit(&commit, &ring, first);
        let mut state = self.lock();
        match written {
            Ok(()) => {
                state.durable_seq = first + commit.blocks();
                self.committed(&mut state, taken);
            }
            Err(_) => {
                state.next.require();
                state.untake(taken);
                state.number_again(first, &commit);
            }
        }
        written
    }

    fn write_commit(&self, commit: &Commit, ring: &Ring, first: u64) -> Result<(), Status> {
        self.flush()?;
        let pieces: Vec<(u64, &[u8])> = commit.pieces(ring, first).collect();
        self.io.write_many(&pieces)?;
        self.flush()
    }

    /// The records of all that waits, in order.
    fn encode(&self, state: &State, commit: &mut Commit) {
        for record in &state.pending {
            commit.push(&self.geometry, record);
        }
        for record in state.grown.iter().filter_map(|id| state.size_of(*id)) {
            commit.push(&self.geometry, &record);
        }
        for &(volume, unit) in &state.dirty {
            if let Some(record) = state.record_of(volume, unit) {
                commit.push(&self.geometry, &record);
            }
        }
    }

    /// What was taken is durable.
    pub(crate) fn committed(&self, state: &mut State, taken: Taken) {
        for &(volume, unit) in taken.units.iter().chain(&taken.recorded) {
            let Some((place, entry)) = state.find(volume, unit) else { continue };
            if !entry.any(Entry::LISTED) && entry.any(Entry::DIRTY) {
                state.tree.store(place, entry.without(Entry::DIRTY));
            }
        }
        state.limbo.committed(taken.freed);
        if taken.ends_quarantine {
            state.end_quarantine();
        }
        // What was undone is on the device until a checkpoint without it is.
        if state.is_clean() && !state.next.is_required() {
            // Relaxed: under the lock, as where it is set.
            self.unsynced.store(false, Ordering::Relaxed);
        }
    }
}

/// What a commit does, when no checkpoint waits to be written again.
enum Work {
    /// The pool is closed: everything is durable.
    Nothing,
    /// Nothing waits: a flush of the device makes all durable.
    Flush,
    Records,
    Checkpoint {
        /// It closes the pool.
        clean: bool,
    },
}

impl State {
    /// What the commit that begins does.
    fn work(&self) -> Work {
        let used = self.next_seq - self.sb.replay_seq;
        let due = used * 2 > u64::from(self.sb.journal_blocks)
            || self.tree.dirty_nodes() > self.dirty_soft
            || self.tree.cost > MOST_COST;
        match self.phase {
            // Taken: nothing is written, and the alarm says that nothing ends well.
            Phase::Closed | Phase::Taken => Work::Nothing,
            // A checkpoint finds no space, whatever is due.
            Phase::DeletesOnly if self.is_clean() => Work::Flush,
            Phase::DeletesOnly => Work::Records,
            Phase::Closing => Work::Checkpoint { clean: true },
            Phase::Open | Phase::Degraded(_) if self.next.is_required() => Work::Checkpoint { clean: false },
            Phase::Open | Phase::Degraded(_) if self.is_clean() => Work::Flush,
            Phase::Open | Phase::Degraded(_) if due => Work::Checkpoint { clean: false },
            Phase::Open | Phase::Degraded(_) => Work::Records,
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
