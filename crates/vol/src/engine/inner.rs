//! An open pool: its state under a lock, and what is beside it.
//!
//! Owns [`PoolInner`], the locks and who waits for what. Does not own any operation: those are in
//! [`commit`](crate::engine::commit), [`checkpoint`](crate::engine::checkpoint), [`snapshot`](crate::ops::snapshot),
//! [`volume`](crate::volume).
//!
//! Locks, in the order in which they are taken: `structural` (one change of the table at a time, held over I/O and
//! graces) -> leadership of a commit (held over I/O) -> `state` (never held over I/O, nor over a grace) -> the signal
//! of the [background](super::background).
//!
//! - I1: what is changed under the lock is in `dirty` or `pending` by then, or was never durable.
//! - I2: `unsynced` is set while anything is to be made durable that a flush of the device does not.

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
use crate::error::PoolError;
use crate::format::record::Record;
use crate::format::superblock::Geometry;
use crate::options::WhenFull;
use crate::state::State;
use crate::state::extent_map::tree::EntryPlace;
use crate::state::extent_map::{Entry, ExtentMap};
use crate::state::sums::Sums;
use crate::state::table::VolumeCore;
use sheave_blk::claim::{Claim, Sharing};
use sheave_blk::flush_alarm::FlushAlarm;

/// Entries that are let go under one hold of the lock, beside those of the slot of a map that was begun.
pub(crate) const LET_GO: u64 = 16_384;
/// How long a waiter sleeps before it looks again whether it is cancelled.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(20);

/// An open pool.
pub(crate) struct PoolInner {
    pub(crate) map: Arc<ExtentMap>,
    pub(crate) device: Device,
    pub(crate) io: Box<dyn BlockIo>,
    /// Rings when a flush of any member has failed.
    pub(crate) alarm: Arc<FlushAlarm>,
    /// On all members; that of the device it was opened on first.
    owners: Mutex<Vec<Claim>>,
    /// How long I/O that is waited for may take.
    pub(crate) longest_wait: Duration,
    /// How long nobody looks who owns the pool ([`owner`](super::owner)).
    pub(crate) owner_every: Duration,
    pub(crate) geometry: Geometry,
    pub(crate) read_only: bool,
    pub(crate) when_full: WhenFull,
    /// The opening had to replay the journal.
    pub(crate) recovered: bool,
    /// What a rescue passed over.
    pub(crate) unsure: Vec<String>,
    pub(crate) unsynced: AtomicBool,
    /// The last write to new space found none ([`stock`](crate::engine::stock)).
    pub(crate) host_full: AtomicBool,
    /// How often a write to new space found none.
    pub(crate) host_refusals: AtomicU64,
    pub(crate) commits: Commits,
    /// The checksums themselves.
    pub(crate) sums: Option<Arc<Sums>>,
    pub(super) structural: Mutex<()>,
    /// Held by the pool's users, who are gone before it.
    pub(crate) keeper: std::sync::Weak<Keeper>,
    /// Wakes who gives back what became free.
    pub(crate) discards: Discards,
    /// Wakes who closes regions of checksums that nobody writes to.
    pub(crate) regions_opened: Arc<Signal>,
    /// Who hears of `space`.
    pub(crate) notices: Publisher,
    /// What it does that may make I/O slow.
    pub(crate) beside: Activities,
    state: Mutex<State>,
    /// Space came back, a unit is no longer busy, a copy has settled.
    changed: Condvar,
}

impl std::fmt::Debug for PoolInner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PoolInner").field("device", &self.device.name()).finish_non_exhaustive()
    }
}

/// What a pool is put together of.
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

    /// Holds a member too, for as long as the pool is open.
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

    /// Sleeps until something changes, a short while at most.
    pub(super) fn sleep<'a>(&'a self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        wait::wait_on(&self.changed, &self.state, state, Some(LOOK_EVERY))
    }

    /// Wakes all who wait for something to change.
    pub(crate) fn wake(&self) {
        self.changed.notify_all();
    }

    /// Something is to be made durable (I2).
    #[inline]
    pub(crate) fn mark_unsynced(&self) {
        // Relaxed, both: set under the lock that a commit takes; readers without it are ordered by their I/O.
        if !self.unsynced.load(Ordering::Relaxed) {
            self.unsynced.store(true, Ordering::Relaxed);
        }
    }

    /// Lets a part of what waits in limbo pass; true if anything did.
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

    /// Lets all pass, part by part, that commits have made durable and graces have passed for.
    pub(crate) fn let_go(&self) {
        while self.advance_limbo(&mut self.lock()) {}
    }

    /// Puts a unit into the list of what the next commit records, and marks its entry. Call after every change of an
    /// entry that is to be durable.
    #[inline]
    pub(crate) fn list(&self, state: &mut State, core: &VolumeCore, unit: u64, place: EntryPlace, entry: Entry) {
        let entry = self.listed(state, core, unit, entry);
        state.tree.store(place, entry);
    }

    /// As [`list`](Self::list), but the caller stores the entry, which is the result. `unsynced` is set before that, so
    /// that whoever finds the entry finds it set.
    #[inline]
    pub(crate) fn listed(&self, state: &mut State, core: &VolumeCore, unit: u64, entry: Entry) -> Entry {
        self.mark_unsynced();
        if !entry.any(Entry::LISTED) {
            state.dirty.push((core.id, unit));
        }
        entry.with(Entry::LISTED | Entry::DIRTY)
    }

    /// Adds a record for the next commit.
    pub(crate) fn record(&self, state: &mut State, record: Record) {
        state.pending.push(record);
        self.mark_unsynced();
    }

    /// After units were taken or freed.
    #[inline]
    pub(crate) fn watch_space(&self, state: &mut State) {
        if !state.tree.units.is_calm() {
            self.survey_space(state);
        }
    }

    /// After anything else that may change the state.
    #[cold]
    pub(crate) fn survey_space(&self, state: &mut State) {
        if let Some(notice) = state.survey() {
            self.notices.0.publish(notice);
        }
    }
}

/// Takes the device, or says who has it. Those that change nothing share it with each other.
pub(crate) fn claim(device: &Device, read_only: bool) -> Result<Claim, PoolError> {
    let sharing = if read_only { Sharing::WithReaders } else { Sharing::Alone };
    device.claim(sharing).map_err(|error| match error {
        sheave_blk::DeviceError::Claimed { what, who, fix } => PoolError::Busy { what, who, fix },
        other => PoolError::Device(other),
    })
}
