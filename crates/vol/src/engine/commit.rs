//! Commits: make all earlier changes durable, once for all concurrent callers.
//!
//! Owns the writes to the journal. [`leader`](super::leader) decides which thread leads a commit while the others wait.
//! A commit takes the changes under the lock, flushes the device so that the data which the records name is durable,
//! writes the records as one run of journal blocks, and flushes again. When the journal is half full, the records would
//! fill half of it, or many nodes are dirty, it writes a [`checkpoint`](crate::engine::checkpoint) instead.
//!
//! - I1: a caller gets the result of a commit that began after its call.
//! - I2: a commit flushes the device twice. It flushes once if there was nothing to record, and three times if it is a
//!   checkpoint.
//! - I3: after a failed write of journal blocks their numbers are not used again: the next commit is a checkpoint. In a
//!   phase without checkpoints the same block is written once more ([`cramped`](super::cramped), C5).
//! - I4: once a flush has failed, the pool's own or another's, every commit fails and none writes anything
//!   ([`loss`](crate::engine::loss)).
//! - I5: a change of the table that was made and undone ([`undo`](crate::engine::change)) may still be on the device
//!   until a checkpoint without it is durable. Until then the pool needs more than a flush of the device.
//!
//! Called by syncs, by structural changes, and by operations that reach a bound.

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
use crate::state::recent::Recent;

impl PoolInner {
    /// Makes all data and metadata durable that was written before this call.
    pub(crate) fn commit(&self) -> Result<(), Status> {
        let (result, led) = self.commits.commit(|| self.lead());
        if led {
            self.let_go();
            self.wake();
        }
        result
    }

    /// Runs `job` while no commit is under way, so that nobody else changes metadata on the device. `job` must be
    /// short, because every flush of the pool waits for it.
    pub(crate) fn between_commits<T>(&self, job: impl FnOnce() -> T) -> T {
        self.commits.hold_off(job)
    }

    /// Makes a commit that is a checkpoint.
    pub(crate) fn checkpoint(&self) -> Result<(), Status> {
        self.lock().next.require();
        self.commit()
    }

    /// Makes room for more changes: by a checkpoint if too many nodes are dirty, else by a commit.
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
        // Another thread's flush may have failed during this commit and rung the alarm: the flushes of this commit then
        // prove nothing (I4).
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

    /// Writes and flushes all pending changes. A checkpoint that failed before comes first (N1 of `state::next`).
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

    /// Flushes the device when there is nothing to record. Units may still be waiting to be freed: a failed copy had
    /// allocated them, and no record names them. They are freed after the flush.
    fn flush_all(&self, mut state: MutexGuard<'_, State>) -> Result<(), Status> {
        let taken = state.take();
        let seq = state.durable_seq;
        state.mark_recent(seq);
        drop(state);
        let flushed = self.flush();
        let mut state = self.lock();
        match flushed {
            Ok(()) => self.committed(&mut state, taken),
            Err(_) => state.untake(taken),
        }
        flushed
    }

    /// Writes the records of all pending changes, or a checkpoint if they would fill half of the journal.
    fn write_records<'a>(&'a self, mut state: MutexGuard<'a, State>) -> Result<(), Status> {
        // The size record of a volume that shrank precedes the records of units, none of which may lie beyond the new
        // end. So the units beyond the end are unmapped first.
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
        let seq = state.next_seq;
        state.mark_recent(seq);
        drop(state);
        // Sealing computes checksums, so the lock is not held. The block numbers are already taken: no other commit
        // uses them.
        commit.seal(&ring, first);
        let written = self.write_commit(&commit, &ring, first);
        let mut state = self.lock();
        match written {
            Ok(()) => {
                state.durable_seq = first + commit.blocks();
                self.committed(&mut state, taken);
            }
            Err(_) => {
                // I3. In a phase without checkpoints, `number_again` lets the next commit reuse the number (C5 of
                // `cramped`).
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

    /// Encodes all waiting records, in the order in which replay must apply them.
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

    /// Called when `taken` is durable: cleans the entries, and starts the graces of the freed units.
    pub(crate) fn committed(&self, state: &mut State, taken: Taken) {
        for &(volume, unit) in taken.units.iter().chain(&taken.recorded) {
            let Some((place, entry)) = state.find(volume, unit) else { continue };
            // `LISTED` says that the entry has changed again since `taken`: it stays dirty for the next commit.
            if !entry.any(Entry::LISTED) && entry.any(Entry::DIRTY) {
                state.tree.store(place, entry.without(Entry::DIRTY));
            }
        }
        state.recent.iter_mut().for_each(Recent::landed);
        state.limbo.committed(taken.freed);
        if taken.ends_quarantine {
            state.end_quarantine();
        }
        // A required checkpoint keeps `unsynced` set: until it is durable, an undone change may be on the device (I5).
        if state.is_clean() && !state.next.is_required() {
            // Relaxed: under the lock, like the store that sets it.
            self.unsynced.store(false, Ordering::Relaxed);
        }
    }
}

/// The work of a commit, without a failed checkpoint that it writes again first.
enum Work {
    /// The pool is closed, or another opening has taken it.
    Nothing,
    /// There is nothing to record: a flush of the device makes all data durable.
    Flush,
    Records,
    Checkpoint {
        /// True to mark the pool as closed.
        clean: bool,
    },
}

impl State {
    /// Chooses the work of the commit that begins.
    fn work(&self) -> Work {
        let used = self.next_seq - self.sb.replay_seq;
        let due = used * 2 > u64::from(self.sb.journal_blocks)
            || self.tree.dirty_nodes() > self.dirty_soft
            || self.tree.cost > MOST_COST;
        match self.phase {
            // `Taken` comes here only after the alarm has rung: nothing is written, and `lead` turns the result into an
            // error.
            Phase::Closed | Phase::Taken => Work::Nothing,
            // No checkpoint can be written in this phase, even if one is due.
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
mod tests {
    use sheave_base::lasting::Lasting;
    use sheave_base::sync::Arc;

    use crate::engine::stock::tests::Rig;
    use crate::format::SUPERBLOCKS;
    use crate::format::journal::Ring;
    use crate::format::recent::NUMBERS;
    use crate::options::with_recent_memory;
    use crate::{Checksum, OpenOptions, Pool, Volume};

    /// V3, V18: a write of a journal block fails, with the block on the device or not. Later commits must survive a
    /// crash: the journal must not end at that block.
    #[test]
    fn what_is_flushed_after_a_commit_that_failed_is_there() {
        for is_done in [false, true] {
            for later in 1..4 {
                let what = format!("written: {is_done}, {later} commits later");
                let rig = Rig::new(32 << 20, Checksum::None);
                let pool = rig.open().unwrap();
                let volume = pool.create_volume("v", 1 << 30).unwrap();
                rig.write(&volume, 0, 1).unwrap();
                pool.sync().unwrap();
                let state = pool.inner.lock();
                let next = Ring::of(&state.sb).address(state.next_seq) >> 12;
                drop(state);
                rig.host.lock().unwrap().fails = Some((next, 0, is_done));
                rig.write(&volume, 1, 2).unwrap();
                assert!(pool.sync().is_err() && rig.host.lock().unwrap().fails.is_none(), "{what}: it has failed once");
                for unit in 2..2 + later {
                    rig.write(&volume, unit, 3).unwrap();
                    pool.sync().unwrap();
                }
                drop((volume, pool));
                let pool = rig.open().unwrap_or_else(|error| panic!("{what}: {error}"));
                let volume = pool.open_volume("v").unwrap();
                let tags: Vec<u8> = (0..5).map(|unit| rig.read(&volume, unit)).collect();
                let wanted: Vec<u8> =
                    (0..5).map(|unit| [1, 2, 3, 3, 3][unit] * u8::from(unit < 2 + later as usize)).collect();
                assert_eq!(tags, wanted, "{what}");
                drop((volume, pool));
                rig.is_clean();
            }
        }
    }

    /// Returns a pool whose recent changes are kept, with one write, and whose next commit fails. The blocks of that
    /// commit are on the device if `is_durable` is true.
    fn about_to_fail(is_durable: bool) -> (Rig, Arc<Lasting>, Pool, Volume) {
        let rig = Rig::new(32 << 20, Checksum::None);
        let memory = Arc::new(Lasting::in_memory(NUMBERS).unwrap());
        let pool = rig.open_with(&with_recent_memory(OpenOptions::default(), Some(memory.clone()))).unwrap();
        let volume = pool.create_volume("v", 1 << 30).unwrap();
        rig.write(&volume, 0, 1).unwrap();
        let state = pool.inner.lock();
        let next = Ring::of(&state.sb).address(state.next_seq) >> 12;
        drop(state);
        rig.host.lock().unwrap().fails = Some((next, 0, is_durable));
        (rig, memory, pool, volume)
    }

    /// Opens the pool after the death of its process. Returns what the first units of the volume hold.
    fn after_death<const N: usize>(rig: &Rig, memory: Arc<Lasting>) -> [u8; N] {
        let pool = rig.open_with(&with_recent_memory(OpenOptions::default(), Some(memory))).unwrap();
        let volume = pool.open_volume("v").unwrap();
        let found = std::array::from_fn(|unit| rig.read(&volume, unit as u64));
        drop((volume, pool));
        rig.is_clean();
        found
    }

    /// C5 of `state::recent`: the blocks of a commit that has failed are on the device or not. A death before the next
    /// good commit, or after it, loses nothing.
    #[test]
    fn a_death_after_a_failed_commit_loses_nothing() {
        for (is_durable, dies_at_once) in [(false, true), (true, true), (false, false), (true, false)] {
            let (rig, memory, pool, volume) = about_to_fail(is_durable);
            assert!(pool.sync().is_err());
            rig.write(&volume, 1, 2).unwrap();
            assert_eq!(pool.info().no_recent, None);
            if !dies_at_once {
                pool.sync().unwrap();
            }
            rig.write(&volume, 2, 3).unwrap();
            drop((volume, pool));
            assert_eq!(after_death(&rig, memory), [1, 2, 3], "{is_durable} {dies_at_once}");
        }
    }

    /// C5 of `state::recent`: a commit that has failed is on the device, and the checkpoint after it fails too. The
    /// pool that the next opening finds is that of the first one.
    #[test]
    fn a_death_after_two_failed_commits_loses_nothing() {
        for is_durable in [false, true] {
            let (rig, memory, pool, volume) = about_to_fail(is_durable);
            let superblock = pool.inner.lock().sb.stand_by().slot();
            assert!(pool.sync().is_err());
            rig.write(&volume, 1, 2).unwrap();
            rig.host.lock().unwrap().fails = Some((SUPERBLOCKS[superblock as usize] >> 12, 0, false));
            assert!(pool.sync().is_err() && rig.host.lock().unwrap().fails.is_none());
            rig.write(&volume, 2, 3).unwrap();
            drop((volume, pool));
            assert_eq!(after_death(&rig, memory), [1, 2, 3], "{is_durable}");
        }
    }

    /// F2: a death in the middle of a commit, before or after its blocks are durable, finds the mark of one of the two.
    #[test]
    fn a_death_within_a_commit_loses_nothing_on_either_side_of_it() {
        for is_durable in [false, true] {
            // The failure stands for the death: what the commit does after it is not in the copy of the memory.
            let (rig, memory, pool, volume) = about_to_fail(is_durable);
            let died = Arc::new(Lasting::in_memory(NUMBERS).unwrap());
            let copied = pool.inner.commits.commit(|| {
                let led = pool.inner.write_all();
                (0..NUMBERS).for_each(|at| died.put(at, memory.get(at)));
                led
            });
            assert!(copied.0.is_err());
            drop((volume, pool));
            assert_eq!(after_death(&rig, died), [1], "{is_durable}");
        }
    }
}
