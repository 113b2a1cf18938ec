//! An open pool: its state under a lock, and its other parts.
//!
//! Owns [`PoolInner`], the locks and the waits. Does not own any operation. Operations are in
//! [`commit`](crate::engine::commit), [`checkpoint`](crate::engine::checkpoint), [`snapshot`](crate::ops::snapshot),
//! and [`volume`](crate::volume).
//!
//! Locks, in the order in which they are taken: `structural` (one change of the table at a time, held over I/O and
//! graces) -> leadership of a commit (held over I/O) -> `state` (never held over I/O, nor over a grace) -> the signal
//! of the [background](super::background).
//!
//! - I1: before the lock is released, a change made under it is in `dirty` or `pending`, unless it undoes a change that
//!   was never durable.
//! - I2: `unsynced` is set while a flush of the device alone would not make everything durable.

use std::time::Duration;

use sheave_base::beside::Activities;
use sheave_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sheave_base::sync::{Arc, Condvar, Mutex, MutexGuard};
use sheave_base::wait;
use sheave_blk::Device;

use super::background::{Discards, Keeper, Signal};
use super::leader::Commits;
use super::notices::Publisher;
use crate::device::block_io::BlockIo;
use crate::device::recent::Kept;
use crate::error::PoolError;
use crate::format::record::Record;
use crate::format::superblock::Geometry;
use crate::options::WhenFull;
use crate::state::State;
use crate::state::extent_map::tree::EntryPlace;
use crate::state::extent_map::{Entry, ExtentMap};
use crate::state::phase::Phase;
use crate::state::recent::Recent;
use crate::state::sums::Sums;
use crate::state::table::VolumeCore;
use sheave_blk::claim::{Claim, Sharing};
use sheave_blk::flush_alarm::FlushAlarm;

/// Largest number of entries freed under one hold of the lock. A map slot that was begun is finished even beyond this.
pub(crate) const LET_GO: u64 = 16_384;
/// Longest sleep of a waiter before it checks for cancellation.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(20);

/// An open pool.
pub(crate) struct PoolInner {
    pub(crate) map: Arc<ExtentMap>,
    pub(crate) device: Device,
    pub(crate) io: Box<dyn BlockIo>,
    /// The alarm that rings when a flush of any member has failed, or when another opening has taken the pool.
    pub(crate) alarm: Arc<FlushAlarm>,
    /// Claims on the member devices. The first one is on the device that the pool was opened by.
    owners: Mutex<Vec<Claim>>,
    /// Longest wait for I/O of others (`OpenOptions::longest_wait`).
    pub(crate) longest_wait: Duration,
    /// Longest time between two looks at the owner number ([`owner`](super::owner)).
    pub(crate) owner_every: Duration,
    pub(crate) geometry: Geometry,
    pub(crate) read_only: bool,
    pub(crate) when_full: WhenFull,
    /// True if the opening replayed records of the journal.
    pub(crate) recovered: bool,
    /// Messages about the damage that a rescue passed over.
    pub(crate) unsure: Vec<String>,
    pub(crate) unsynced: AtomicBool,
    /// True if the host had no space for the last write to a place that had no space yet
    /// ([`stock`](crate::engine::stock)).
    pub(crate) host_full: AtomicBool,
    /// Number of writes that the host refused for lack of space.
    pub(crate) host_refusals: AtomicU64,
    pub(crate) commits: Commits,
    /// The same `Sums` as in `State::sums`, for use without the lock.
    pub(crate) sums: Option<Arc<Sums>>,
    pub(super) structural: Mutex<()>,
    /// Threads of the pool. The users of the pool own them, and drop them before the pool.
    pub(crate) keeper: std::sync::Weak<Keeper>,
    pub(crate) discards: Discards,
    /// Wakes the thread that closes idle regions of checksums, when a region was opened.
    pub(crate) regions_opened: Arc<Signal>,
    pub(crate) notices: Publisher,
    /// Activities of the pool that may slow down I/O.
    pub(crate) beside: Activities,
    state: Mutex<State>,
    /// Notified when space is freed, a unit is no longer busy, or a copy has settled.
    changed: Condvar,
}

impl std::fmt::Debug for PoolInner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PoolInner").field("device", &self.device.name()).finish_non_exhaustive()
    }
}

/// Arguments of `PoolInner::new`.
pub(crate) struct Parts {
    pub(crate) device: Device,
    pub(crate) io: Box<dyn BlockIo>,
    pub(crate) alarm: Arc<FlushAlarm>,
    pub(crate) owner: Claim,
    pub(crate) state: State,
    pub(crate) read_only: bool,
    pub(crate) when_full: WhenFull,
    pub(crate) longest_wait: Duration,
    pub(crate) owner_every: Duration,
    pub(crate) recovered: bool,
    pub(crate) unsure: Vec<String>,
    pub(crate) discards: Discards,
    pub(crate) regions_opened: Arc<Signal>,
    pub(crate) keeper: std::sync::Weak<Keeper>,
}

impl PoolInner {
    pub(crate) fn new(parts: Parts) -> PoolInner {
        PoolInner {
            map: Arc::clone(&parts.state.tree.map),
            geometry: parts.state.sb.geometry(),
            device: parts.device,
            io: parts.io,
            alarm: parts.alarm,
            owners: Mutex::new(vec![parts.owner]),
            longest_wait: parts.longest_wait,
            owner_every: parts.owner_every,
            read_only: parts.read_only,
            when_full: parts.when_full,
            recovered: parts.recovered,
            unsure: parts.unsure,
            unsynced: AtomicBool::new(!parts.state.pending.is_empty()),
            host_full: AtomicBool::new(false),
            host_refusals: AtomicU64::new(0),
            commits: Commits::default(),
            sums: parts.state.sums.as_ref().map(|regions| Arc::clone(&regions.sums)),
            structural: Mutex::new(()),
            discards: parts.discards,
            regions_opened: parts.regions_opened,
            keeper: parts.keeper,
            notices: Publisher::new(),
            beside: Activities::default(),
            state: Mutex::new(parts.state),
            changed: Condvar::new(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        #[cfg(debug_assertions)]
        sheave_base::wait::gap();
        #[allow(unused_mut)] // Debug builds count what is done under each hold.
        let mut state = self.state.lock().expect("invariant: no panic under this lock");
        #[cfg(any(debug_assertions, test))]
        state.tree.begin_hold();
        state
    }

    /// Keeps the claim on a further member while the pool is open.
    pub(crate) fn hold(&self, claim: Claim) {
        self.owners.lock().expect("invariant: no panic under this lock").push(claim);
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, State>> {
        #[allow(unused_mut)] // As above.
        let mut state = self.state.try_lock().ok()?;
        #[cfg(any(debug_assertions, test))]
        state.tree.begin_hold();
        Some(state)
    }

    /// Sleeps until `changed` is notified, at most `LOOK_EVERY`.
    pub(super) fn sleep<'a>(&'a self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        wait::wait_on(&self.changed, &self.state, state, Some(LOOK_EVERY))
    }

    /// Wakes all threads in `sleep`.
    pub(crate) fn wake(&self) {
        self.changed.notify_all();
    }

    /// Records that a commit is needed (I2).
    #[inline]
    pub(crate) fn mark_unsynced(&self) {
        // Relaxed, both: stored under the lock that a commit takes. A reader without the lock is ordered by its I/O.
        if !self.unsynced.load(Ordering::Relaxed) {
            self.unsynced.store(true, Ordering::Relaxed);
        }
    }

    /// Frees a part of the deferred units and nodes whose commit and grace are over. Returns true if it freed any.
    pub(crate) fn advance_limbo(&self, state: &mut State) -> bool {
        let State { limbo, tree, .. } = state;
        let passed = limbo.advance(tree, LET_GO);
        if tree.units.keeps_stale() && (passed || !limbo.is_empty()) {
            self.discards.signal.notify();
        }
        if passed {
            self.watch_space(state);
            self.wake();
        }
        passed
    }

    /// Frees, part by part, all deferred units and nodes whose commit and grace are over.
    pub(crate) fn let_go(&self) {
        // Locks for each part, so that I/O waits for one part at most.
        while self.advance_limbo(&mut self.lock()) {}
    }

    /// Lists a unit for the next commit, and stores its entry with `LISTED` and `DIRTY`. Called after every change of
    /// an entry that must become durable.
    #[inline]
    pub(crate) fn list(&self, state: &mut State, core: &VolumeCore, unit: u64, place: EntryPlace, entry: Entry) {
        let entry = self.listed(state, core, unit, entry);
        state.tree.store(place, entry);
        state.keep_recent(core.id, unit, place);
    }

    /// Does the same as [`list`](Self::list), but returns the entry for the caller to store, and then to keep among the
    /// recent changes ([`State::keep_recent`]). Sets `unsynced` first, so that a thread that finds the new entry finds
    /// `unsynced` set.
    #[inline]
    pub(crate) fn listed(&self, state: &mut State, core: &VolumeCore, unit: u64, entry: Entry) -> Entry {
        self.mark_unsynced();
        if !entry.any(Entry::LISTED) {
            state.dirty.push((core.id, unit));
        }
        entry.with(Entry::LISTED | Entry::DIRTY)
    }

    /// Begins to keep recent changes, after the first checkpoint of an opening. `Err` has the reason why there is no
    /// file of them.
    pub(crate) fn begin_recent(&self, kept: Result<Kept, String>) {
        let mut state = self.lock();
        match kept {
            // Without checkpoints, changes of the maps may never become durable.
            Ok(_) if state.phase == Phase::DeletesOnly => {
                state.no_recent = Some("the pool is open for deletes alone".into());
            }
            Ok(kept) => state.recent = Some(Recent::begin(kept, &state)),
            Err(why) => state.no_recent = Some(why),
        }
    }

    /// Adds a record to the next commit.
    pub(crate) fn record(&self, state: &mut State, record: Record) {
        if let Some(recent) = &mut state.recent {
            recent.push(&record);
        }
        state.pending.push(record);
        self.mark_unsynced();
    }

    /// Called after units were taken or freed: publishes a change of the space state.
    #[inline]
    pub(crate) fn watch_space(&self, state: &mut State) {
        if !state.tree.units.is_calm() {
            self.survey_space(state);
        }
    }

    /// Called after any other change that may affect the space state.
    #[cold]
    pub(crate) fn survey_space(&self, state: &mut State) {
        if let Some(notice) = state.survey() {
            self.notices.0.publish(notice);
        }
    }
}

/// Claims the device. An error names the present holder. Read-only openings share a device with each other.
pub(crate) fn claim(device: &Device, read_only: bool) -> Result<Claim, PoolError> {
    let sharing = if read_only { Sharing::WithReaders } else { Sharing::Alone };
    device.claim(sharing).map_err(|error| match error {
        sheave_blk::DeviceError::Claimed { what, who, fix } => PoolError::Busy { what, who, fix },
        other => PoolError::Device(other),
    })
}
