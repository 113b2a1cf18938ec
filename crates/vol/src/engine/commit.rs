//! Commits: making everything that was done before durable, for all who ask at once.
//!
//! Owns who leads, who waits, and the journal's writes. A commit is: take what changed, under the lock; flush the
//! device, so that the data which the records speak of is durable; write the records as one run of journal blocks;
//! flush. When the journal is half full, or much is dirty, a [`checkpoint`](crate::engine::checkpoint) is the commit.
//!
//! - I1: who asks gets the result of a commit that began after it asked.
//! - I2: a commit takes two flushes of the device at most; one, if there was nothing to record.
//! - I3: after a failed write of journal blocks their numbers are not used again: a checkpoint comes next.
//! - I4: no commit ends well, and none writes anything, once a flush has failed, the pool's own or another's
//!   ([`loss`](crate::engine::loss)).
//! - I5: what a change of the table has done and undone is not known to be undone before a checkpoint is durable
//!   ([`undo`](crate::engine::undo)): until then a flush of the device alone is none of the pool.
//!
//! Called by syncs, by structural changes, and by who meets a bound.

use sheave_base::status::Status;
use sheave_base::sync::atomic::Ordering;
use sheave_base::sync::{Condvar, Mutex};
use sheave_base::wait;

use crate::engine::inner::{PoolInner, State};
use crate::engine::phase::Phase;
use crate::format::journal::{Commit, Ring};
use crate::format::record::Record;
use crate::state::extent_map::Entry;
use crate::state::extent_map::tree::Place;
use crate::state::limbo::LetGo;

#[derive(Debug, Default)]
struct Progress {
    running: bool,
    started: u64,
    done: u64,
    /// The last commit that failed, and how.
    failed: Option<(u64, Status)>,
}

/// Who leads, who waits.
#[derive(Debug, Default)]
pub(crate) struct Commits {
    progress: Mutex<Progress>,
    ended: Condvar,
}

/// Leads without committing; gives that up when dropped, also by a panic.
struct Leading<'a>(&'a Commits);

impl Drop for Leading<'_> {
    fn drop(&mut self) {
        if let Ok(mut progress) = self.0.progress.lock() {
            progress.running = false;
        }
        self.0.ended.notify_all();
    }
}

/// What a commit took.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) units: Vec<(u32, u64)>,
    pub(crate) recorded: Vec<(u32, u64)>,
    pub(crate) pending: Vec<Record>,
    pub(crate) grown: Vec<u32>,
    pub(crate) freed: LetGo,
}

impl PoolInner {
    /// Makes everything done before this call durable, data and metadata.
    pub(crate) fn commit(&self) -> Result<(), Status> {
        let commits = &self.commits;
        let mut progress = commits.progress.lock().expect("invariant: no panic under this lock");
        let wanted = progress.started + 1;
        while progress.running && progress.done < wanted {
            progress = wait::wait_on(&commits.ended, &commits.progress, progress, None);
        }
        if progress.done >= wanted {
            return progress.result(wanted);
        }
        progress.running = true;
        progress.started += 1;
        let number = progress.started;
        drop(progress);
        let result = self.lead();
        let mut progress = commits.progress.lock().expect("invariant: no panic under this lock");
        progress.running = false;
        progress.done = number;
        if let Err(status) = result {
            progress.failed = Some((number, status));
        }
        drop(progress);
        commits.ended.notify_all();
        self.let_go();
        self.wake();
        result
    }

    /// Does something while no commit is under way: what the device has of metadata is what memory says of it, and
    /// stays so. All who flush wait meanwhile, so it must be short.
    pub(crate) fn between_commits<T>(&self, job: impl FnOnce() -> T) -> T {
        let mut progress = self.commits.progress.lock().expect("invariant: no panic under this lock");
        while progress.running {
            progress = wait::wait_on(&self.commits.ended, &self.commits.progress, progress, None);
        }
        progress.running = true;
        drop(progress);
        let _leading = Leading(&self.commits);
        job()
    }

    /// A commit that is a checkpoint.
    pub(crate) fn checkpoint(&self) -> Result<(), Status> {
        self.lock().wants_checkpoint = true;
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
        let result = if self.alarm.failed().is_some() { Err(Status::IoErr) } else { self.lead_epoch() };
        // It may have rung meanwhile, by a flush that somebody else sent: then this one proves nothing (I4).
        match self.alarm.failed() {
            None => result.inspect_err(|status| self.note_host(*status)),
            Some(status) => self.degrade(status),
        }
    }

    fn lead_epoch(&self) -> Result<(), Status> {
        let epoch = self.begin_epoch(&mut self.lock());
        self.write_all()?;
        self.lock().committed_epoch(epoch);
        Ok(())
    }

    /// Makes all durable that waits.
    fn write_all(&self) -> Result<(), Status> {
        let mut state = self.lock();
        if let Some(plan) = state.unwritten.take() {
            drop(state);
            self.carry_out(plan)?;
            state = self.lock();
        }
        if state.phase == Phase::Closed {
            return Ok(());
        }
        let used = state.next_seq - state.sb.replay_seq;
        let due = used * 2 > u64::from(state.sb.journal_blocks) || state.tree.dirty_nodes() > state.dirty_soft;
        if state.phase == Phase::Closing {
            return self.write_checkpoint(state, true);
        }
        if state.wants_checkpoint || (due && !state.is_clean()) {
            return self.write_checkpoint(state, false);
        }
        if state.is_clean() {
            // There may be units that nobody ever recorded: a copy that failed.
            let taken = state.take();
            drop(state);
            let flushed = self.flush();
            let mut state = self.lock();
            match flushed {
                Ok(()) => self.committed(&mut state, taken),
                Err(_) => state.untake(taken),
            }
            return flushed;
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
                state.wants_checkpoint = true;
                state.untake(taken);
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
        // What was undone is on the device until a checkpoint without it is.
        if state.is_clean() && !state.wants_checkpoint {
            // Relaxed: under the lock, as where it is set.
            self.unsynced.store(false, Ordering::Relaxed);
        }
    }
}

impl Progress {
    /// How the commits from number `wanted` on went.
    fn result(&self, wanted: u64) -> Result<(), Status> {
        match self.failed {
            Some((number, status)) if number >= wanted => Err(status),
            _ => Ok(()),
        }
    }
}

impl State {
    /// Whether there is nothing to record.
    pub(crate) fn is_clean(&self) -> bool {
        self.dirty.is_empty() && self.pending.is_empty() && self.grown.is_empty()
    }

    /// The size of a volume, for the journal; none if it has gone.
    fn size_of(&self, volume: u32) -> Option<Record> {
        let size = self.table.get(volume)?.size_to_write();
        Some(Record::Resize { volume, size })
    }

    /// The size of a volume has grown, and units of it with it: both are for the same commit.
    pub(crate) fn list_grown(&mut self, volume: u32) {
        if let Some(vol) = self.table.get_mut(volume)
            && !vol.grown
        {
            vol.grown = true;
            self.grown.push(volume);
        }
    }

    /// Takes a volume off the list of those that have grown; its record, if it was there.
    pub(crate) fn unlist_grown(&mut self, volume: u32) -> Option<Record> {
        let vol = self.table.get_mut(volume).filter(|vol| vol.grown)?;
        vol.grown = false;
        self.grown.retain(|id| *id != volume);
        self.size_of(volume)
    }

    /// Where a volume's unit is, as it is now, if there is a leaf for it.
    pub(crate) fn find(&self, volume: u32, unit: u64) -> Option<(Place, Entry)> {
        let spot = self.tree.map.find(&self.table.get(volume)?.core.top, unit);
        (spot.leaf != 0).then_some((Place { leaf: spot.leaf, slot: spot.slot }, spot.entry))
    }

    /// What a unit is now, for the journal; none if the volume has gone.
    pub(crate) fn record_of(&self, volume: u32, unit: u64) -> Option<Record> {
        self.table.get(volume)?;
        let nothing = Record::Set { volume, unit, phys: 0, written: [0; 4] };
        let Some((place, entry)) = self.find(volume, unit) else { return Some(nothing) };
        let written = self.tree.bits(place);
        if !entry.is_alloc() || written == [0; 4] {
            return Some(nothing);
        }
        Some(Record::Set { volume, unit, phys: entry.phys(), written })
    }

    /// Takes all that waits; from here on changes are for the next commit.
    pub(crate) fn take(&mut self) -> Taken {
        let units = std::mem::take(&mut self.dirty);
        for &(volume, unit) in &units {
            if let Some((place, entry)) = self.find(volume, unit) {
                self.tree.store(place, entry.without(Entry::LISTED));
            }
        }
        let grown = std::mem::take(&mut self.grown);
        for id in &grown {
            if let Some(vol) = self.table.get_mut(*id) {
                vol.grown = false;
            }
        }
        Taken {
            units,
            grown,
            recorded: std::mem::take(&mut self.recorded),
            pending: std::mem::take(&mut self.pending),
            freed: std::mem::take(&mut self.tree.freed),
        }
    }

    /// The commit failed: all of it waits again, before what came since.
    fn untake(&mut self, mut taken: Taken) {
        for (volume, unit) in taken.units {
            let found = self.find(volume, unit);
            match found {
                Some((_, entry)) if entry.any(Entry::LISTED) => continue,
                Some((place, entry)) => self.tree.store(place, entry.with(Entry::LISTED)),
                None => {}
            }
            self.dirty.push((volume, unit));
        }
        taken.pending.append(&mut self.pending);
        self.pending = taken.pending;
        taken.grown.into_iter().for_each(|id| self.list_grown(id));
        self.recorded.append(&mut taken.recorded);
        let since = std::mem::replace(&mut self.tree.freed, taken.freed);
        self.tree.freed.append(since);
    }
}
