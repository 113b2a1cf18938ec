//! The in-memory state of a pool and its transitions. Does no I/O and never waits.
//!
//! | module | holds |
//! |---|---|
//! | [`alloc`] | allocation units: free ones, owner counts, metadata pages |
//! | [`extent_map`] | extent maps of the volumes |
//! | [`kept`] | journal records about damaged map pages, kept until those can be read |
//! | [`freed`], [`limbo`] | releases, and the deferred-free queue that they wait in |
//! | [`sums`] | checksums of data blocks |
//! | [`table`], [`everyone`] | volumes, and the I/O in flight to all of them |
//! | [`names`] | rules for names of volumes and snapshots |
//! | [`phase`], [`next`] | state machines of the pool's life and of the next commit |
//! | [`recent`] | changes that no commit has made durable yet, for a recovery after the death of the process |
//! | [`risk`] | data that a failed flush may lose |
//! | [`quarantine`] | space that a damaged map may refer to |
//! | [`plan`] | the input of a commit, and a checkpoint ready to be written |
//! | [`changes`] | changes that wait for a commit, and their journal records |
//! | `met` | counters of failed commits, in debug builds |
//! | [`apply`] | effect of each journal record |
//! | [`account`] | metadata pages that the next checkpoint may need |
//! | [`water`] | watermarks of free space |
//!
//! Owns [`State`], which is used under the pool's lock. The lock itself, and the time at which changes become durable,
//! belong to the [engine](crate::engine).

pub(crate) mod account;
pub(crate) mod alloc;
pub(crate) mod apply;
pub(crate) mod changes;
pub(crate) mod everyone;
pub(crate) mod extent_map;
pub(crate) mod freed;
pub(crate) mod kept;
pub(crate) mod limbo;
#[cfg(any(debug_assertions, test))]
pub(crate) mod met;
pub(crate) mod names;
pub(crate) mod next;
pub(crate) mod phase;
pub(crate) mod plan;
pub(crate) mod quarantine;
pub(crate) mod recent;
pub(crate) mod risk;
pub(crate) mod sums;
pub(crate) mod table;
pub(crate) mod water;

use std::collections::BTreeSet;
use std::time::Instant;

use sheave_base::status::Status;
use sheave_base::sync::Arc;

use crate::format::record::Record;
use crate::format::superblock::Superblock;
use crate::info::SpaceState;
use alloc::Units;
use extent_map::tree::{EntryPlace, Tree};
use extent_map::{ExtentMap, Geometry as MapGeometry};
use freed::Held;
use limbo::Limbo;
use next::Next;
use phase::Phase;
use plan::Plan;
use recent::Recent;
use risk::Risk;
use sums::regions::Regions;
use table::{Kept, Table, Vol, VolumeCore};

/// Number of waiting changes at which an operation commits them itself.
pub(crate) const MAX_DIRTY: usize = 65_536;

/// The part of a pool that changes under its lock.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) tree: Tree,
    pub(crate) table: Table,
    /// Units whose entries the next commit records, as (volume, unit). No other entry has `LISTED` ([`changes`], L1).
    pub(crate) dirty: Vec<(u32, u64)>,
    /// Records that the next commit writes, before those of `dirty`.
    pub(crate) pending: Vec<Record>,
    /// Volumes that writes have enlarged. The next commit records their sizes before the units in `dirty`.
    pub(crate) grown: Vec<u32>,
    /// Units whose records are already in `pending`.
    pub(crate) recorded: Vec<(u32, u64)>,
    pub(crate) limbo: Limbo,
    /// Present while a map is damaged.
    pub(crate) quarantine: Option<Held>,
    pub(crate) kept: Kept,
    /// The last reported space state, and true if free metadata space was low then.
    pub(crate) space: (SpaceState, bool),
    /// Number of transitions to full, and to low metadata space. A poller compares these counts, so it misses no
    /// transition between two polls.
    pub(crate) times_full: u64,
    pub(crate) times_metadata_low: u64,
    /// Generation of the last label write, successful or not.
    pub(crate) label_tried: u64,
    /// Present if the pool keeps checksums of data.
    pub(crate) sums: Option<Regions>,
    /// Present if changes survive the death of the process.
    pub(crate) recent: Option<Recent>,
    /// Reason why they do not.
    pub(crate) no_recent: Option<String>,
    /// The newest durable superblock.
    pub(crate) sb: Superblock,
    /// Incarnation of this opening, which the next checkpoint gets. Until the first checkpoint is durable, `sb` and the
    /// journal blocks that a replay would need have the incarnation of the previous opening.
    pub(crate) incarnation: u64,
    /// Random number of this opening.
    pub(crate) owner: [u8; 16],
    /// True if the next checkpoint writes `owner`, even to a pool that has no owner number yet.
    pub(crate) numbered: bool,
    /// Time of the last check that no other opening has taken the pool.
    pub(crate) looked: Instant,
    /// Description of the opening that has taken the pool.
    pub(crate) taken_by: Option<String>,
    pub(crate) next_seq: u64,
    /// Number of the first journal block that is not durable. Replay after a crash needs the blocks from
    /// `sb.replay_seq` up to this one.
    pub(crate) durable_seq: u64,
    pub(crate) next: Next<Plan>,
    pub(crate) phase: Phase,
    /// Addresses of the first copies of pages that have one bad and one good copy and were not rewritten since. Also
    /// addresses of bad superblock copies.
    pub(crate) bad_copies: BTreeSet<u64>,
    pub(crate) risk: Risk,
    /// Number of pages of the reserve beyond those for checksums and the volume table ([`account`]).
    pub(crate) spare_pages: u64,
    /// Number of dirty nodes at which a checkpoint is due, and the hard limit of that number.
    pub(crate) dirty_soft: u64,
    pub(crate) dirty_hard: u64,
    #[cfg(any(debug_assertions, test))]
    pub(crate) met: met::Met,
}

impl State {
    /// Returns the state of a pool before anything but its superblock has been read: no volumes, all units free except
    /// the fixed ones.
    pub(crate) fn new(sb: Superblock) -> State {
        let geometry = sb.geometry();
        let map = Arc::new(ExtentMap::new(MapGeometry::new(sb.unit_bytes.trailing_zeros())));
        let mut units = Units::new(sb.total_units);
        let labels = sb.members.iter().skip(1).map(|(start, _)| start / u64::from(sb.unit_bytes));
        (0..geometry.first_unit).chain(labels).chain(sb.copy_units()).for_each(|unit| _ = units.fix(unit));
        let mut tree = Tree::new(map, units);
        tree.pages.set_copies(&sb);
        State {
            tree,
            table: Table::new(sb.next_volume),
            dirty: Vec::new(),
            pending: Vec::new(),
            grown: Vec::new(),
            recorded: Vec::new(),
            limbo: Limbo::default(),
            quarantine: None,
            kept: Default::default(),
            space: Default::default(),
            times_full: 0,
            times_metadata_low: 0,
            label_tried: 0,
            sums: None,
            recent: None,
            no_recent: None,
            incarnation: sb.incarnation,
            owner: sb.owner,
            numbered: sb.owner != [0; 16],
            looked: Instant::now(),
            taken_by: None,
            next_seq: sb.replay_seq,
            durable_seq: sb.replay_seq,
            next: Next::default(),
            phase: Phase::default(),
            bad_copies: BTreeSet::new(),
            risk: Risk::default(),
            spare_pages: 0,
            dirty_soft: 0,
            dirty_hard: 0,
            #[cfg(any(debug_assertions, test))]
            met: met::Met::default(),
            sb,
        }
    }

    /// Makes the path to `unit` exclusive to the volume and returns the entry's place. Accounts for the pages that this
    /// adds to the next checkpoint.
    pub(crate) fn own(&mut self, core: &VolumeCore, unit: u64) -> Result<EntryPlace, Status> {
        // The volume is dirty and has this path for itself. The next checkpoint writes the path already, so no pages
        // are added.
        if self.table.get(core.id).is_some_and(|vol| vol.dirty)
            && let Some(place) = self.tree.own_way(&core.top, unit)
        {
            return Ok(place);
        }
        let place = self.tree.own(&core.top, unit)?;
        #[cfg(any(debug_assertions, test))]
        self.met.owned();
        let slot = unit >> self.tree.map.geometry.slot_shift();
        self.table.charge_slot(core.id, slot).ok_or(Status::Offline)?;
        Ok(place)
    }

    pub(crate) fn vol(&self, id: u32) -> Result<&Vol, Status> {
        self.table.get(id).ok_or(Status::Offline)
    }

    /// Returns true if so many changes wait that a commit is due now.
    #[inline]
    pub(crate) fn is_overdue(&self) -> bool {
        let is_full = self.recent.as_ref().is_some_and(Recent::is_half_full);
        self.dirty.len() >= MAX_DIRTY || self.pending.len() >= MAX_DIRTY || is_full
    }

    /// Returns true if the limit of dirty nodes is reached: a checkpoint must come before another node is dirtied.
    #[inline]
    pub(crate) fn is_dirty_full(&self) -> bool {
        self.tree.dirty_nodes() >= self.dirty_hard
    }
}
