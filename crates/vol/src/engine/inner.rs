//! What a pool is, in memory: the part under the lock, and the part beside it.
//!
//! Owns [`PoolInner`] and [`State`], the locks and who waits for what. Does not own any operation: those are in
//! [`commit`](crate::engine::commit), [`checkpoint`](crate::engine::checkpoint), [`snapshot`](crate::ops::snapshot),
//! [`volume`](crate::volume).
//!
//! Locks, in the order in which they are taken: `structural` (one change of the table at a time, held over I/O and
//! graces) -> leadership of a commit (held over I/O) -> `state` (never held over I/O, nor over a grace).
//!
//! - I1: what is changed under the lock is in `dirty` or `pending` by then, or was never durable.
//! - I2: `unsynced` is set while anything is to be made durable that a flush of the device does not.

use std::time::Duration;

use sheave_base::status::Status;
use sheave_base::sync::atomic::{AtomicBool, Ordering};
use sheave_base::sync::{Arc, Condvar, Mutex, MutexGuard};
use sheave_base::wait;
use sheave_blk::Device;

use super::phase::Phase;
use super::water::Publisher;
use crate::device::block_io::BlockIo;
use crate::engine::checkpoint::Plan;
use crate::engine::commit::Commits;
use crate::engine::loss::Risk;
use crate::format::record::Record;
use crate::format::superblock::{Geometry, Superblock};
use crate::info::SpaceState;
use crate::options::WhenFull;
use crate::state::extent_map::tree::{Place, Tree};
use crate::state::extent_map::{Entry, ExtentMap};
use crate::state::limbo::Limbo;
use crate::state::sums::Sums;
use crate::state::sums::regions::Regions;
use crate::state::table::{Table, Vol, VolumeCore};
use sheave_blk::claim::Claim;
use sheave_blk::flush_alarm::FlushAlarm;

/// Changes that may wait for a commit; the next one commits itself.
pub(crate) const MAX_DIRTY: usize = 65_536;
/// Entries that are let go under one hold of the lock, beside those of the slot of a map that was begun.
pub(crate) const LET_GO: u64 = 16_384;
/// How long a waiter sleeps before it looks again whether it is cancelled.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What changes under the pool's lock.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) tree: Tree,
    pub(crate) table: Table,
    /// Units whose entries the next commit records: volume, unit. Each has `LISTED` set, as long as it has an entry.
    pub(crate) dirty: Vec<(u32, u64)>,
    /// Records that the next commit writes first.
    pub(crate) pending: Vec<Record>,
    /// Volumes that writes have made larger: the next commit records their sizes, before the units in `dirty`.
    pub(crate) grown: Vec<u32>,
    /// Units whose records are among `pending`.
    pub(crate) recorded: Vec<(u32, u64)>,
    pub(crate) limbo: Limbo,
    /// How much space is left, and whether metadata runs short.
    pub(crate) space: (SpaceState, bool),
    /// Generation of the label that was written last, whatever became of it.
    pub(crate) label_tried: u64,
    /// Checksums of data, if the pool keeps them.
    pub(crate) sums: Option<Regions>,
    /// The newest durable superblock.
    pub(crate) sb: Superblock,
    /// Number of the next journal block.
    pub(crate) next_seq: u64,
    /// Number of the first journal block that is not durable: from `sb.replay_seq` up to here a crash needs them.
    pub(crate) durable_seq: u64,
    /// The next commit must be a checkpoint.
    pub(crate) wants_checkpoint: bool,
    /// Whether it is open, and how it ends.
    pub(crate) phase: Phase,
    /// What a flush that fails may lose.
    pub(crate) risk: Risk,
    /// A checkpoint that could not be written: the next commit writes it before anything else.
    pub(crate) unwritten: Option<Plan>,
    /// Pages of the reserve that no checksums and no table of volumes want ([`account`](crate::state::account)).
    pub(crate) spare_pages: u64,
    /// Nodes that may be dirty before a checkpoint is due, and at most.
    pub(crate) dirty_soft: u64,
    pub(crate) dirty_hard: u64,
}

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
    pub(crate) geometry: Geometry,
    pub(crate) read_only: bool,
    pub(crate) when_full: WhenFull,
    /// The opening had to replay the journal.
    pub(crate) recovered: bool,
    pub(crate) unsynced: AtomicBool,
    /// The last write to new space found none ([`stock`](crate::engine::stock)).
    pub(crate) host_full: AtomicBool,
    pub(crate) commits: Commits,
    /// The checksums themselves.
    pub(crate) sums: Option<Arc<Sums>>,
    pub(super) structural: Mutex<()>,
    /// Who hears of `space`.
    pub(crate) notices: Publisher,
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
    pub(crate) recovered: bool,
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
            read_only: parts.read_only,
            when_full: parts.when_full,
            recovered: parts.recovered,
            unsynced: AtomicBool::new(!parts.state.pending.is_empty()),
            host_full: AtomicBool::new(false),
            commits: Commits::default(),
            sums: parts.state.sums.as_ref().map(|regions| Arc::clone(&regions.sums)),
            structural: Mutex::new(()),
            notices: Publisher::new(),
            state: Mutex::new(parts.state),
            changed: Condvar::new(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        #[allow(unused_mut)] // Tests count what is done under each hold.
        let mut state = self.state.lock().expect("invariant: no panic under this lock");
        #[cfg(test)]
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
        #[cfg(test)]
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
        if !limbo.advance(tree, LET_GO) {
            return false;
        }
        self.watch_space(state);
        self.wake();
        true
    }

    /// Lets all pass, part by part, that commits have made durable and graces have passed for.
    pub(crate) fn let_go(&self) {
        while self.advance_limbo(&mut self.lock()) {}
    }

    /// Puts a unit into the list of what the next commit records, and marks its entry. Call after every change of an
    /// entry that is to be durable.
    #[inline]
    pub(crate) fn list(&self, state: &mut State, core: &VolumeCore, unit: u64, place: Place, entry: Entry) {
        if !entry.any(Entry::LISTED) {
            state.dirty.push((core.id, unit));
        }
        state.tree.store(place, entry.with(Entry::LISTED | Entry::DIRTY));
        self.mark_unsynced();
    }

    /// Adds a record for the next commit.
    pub(crate) fn record(&self, state: &mut State, record: Record) {
        state.pending.push(record);
        self.mark_unsynced();
    }
}

impl State {
    /// The place of a unit of a volume, on a way of its own.
    pub(crate) fn own(&mut self, core: &VolumeCore, unit: u64) -> Result<Place, Status> {
        let place = self.tree.own(&core.top, unit)?;
        let slot = unit >> self.tree.map.geometry.slot_shift();
        let vol = self.table.get_mut(core.id).ok_or(Status::Offline)?;
        vol.slots = vol.slots.max(slot + 1);
        self.table.charge(core.id);
        Ok(place)
    }

    pub(crate) fn vol(&self, id: u32) -> Result<&Vol, Status> {
        self.table.get(id).ok_or(Status::Offline)
    }

    /// Whether too many changes wait for a commit.
    #[inline]
    pub(crate) fn is_overdue(&self) -> bool {
        self.dirty.len() >= MAX_DIRTY || self.pending.len() >= MAX_DIRTY
    }

    /// Whether as many nodes are dirty as a checkpoint can write: no more may become so before one.
    #[inline]
    pub(crate) fn is_dirty_full(&self) -> bool {
        self.tree.dirty_nodes() >= self.dirty_hard
    }
}
