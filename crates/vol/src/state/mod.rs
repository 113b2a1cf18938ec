//! What a pool is in memory, and how it changes: no I/O, and nobody waits here.
//!
//! | module | holds |
//! |---|---|
//! | [`alloc`] | units of the pool: free, with owners, taken by metadata |
//! | [`extent_map`] | the maps of volumes |
//! | [`kept`] | what the journal said of places whose pages are damaged |
//! | [`freed`], [`limbo`] | what was let go; what of it cannot be used again yet |
//! | [`sums`] | checksums of data |
//! | [`table`], [`everyone`] | the volumes, and who has I/O under way to them |
//! | [`names`] | what a name is, and which volume or snapshot may have it |
//! | [`phase`], [`next`] | whether the pool is open, degraded, closing or closed; what the next commit owes |
//! | [`risk`] | what a flush that fails may lose |
//! | [`quarantine`] | the space that a damaged map may have |
//! | [`plan`] | what a commit takes, and a checkpoint that is to be written |
//! | [`changes`] | what waits for a commit, and what each change is as a record |
//! | `met` | what commits that fail have met, in debug builds |
//! | [`apply`] | what a record does |
//! | [`account`] | the pages that metadata may need |
//! | [`water`] | how much space is left, in one word |
//!
//! Owns [`State`], which is used under the pool's lock. Does not own the lock, nor when any of it becomes durable: that
//! is the [engine](crate::engine).

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
use risk::Risk;
use sums::regions::Regions;
use table::{Kept, Table, Vol, VolumeCore};

/// Changes that may wait for a commit; the next one commits itself.
pub(crate) const MAX_DIRTY: usize = 65_536;

/// What changes under the pool's lock.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) tree: Tree,
    pub(crate) table: Table,
    /// Units whose entries the next commit records: volume, unit. Nothing else has `LISTED` ([`changes`], L1).
    pub(crate) dirty: Vec<(u32, u64)>,
    /// Records that the next commit writes first.
    pub(crate) pending: Vec<Record>,
    /// Volumes that writes have made larger: the next commit records their sizes, before the units in `dirty`.
    pub(crate) grown: Vec<u32>,
    /// Units whose records are among `pending`.
    pub(crate) recorded: Vec<(u32, u64)>,
    pub(crate) limbo: Limbo,
    /// While a map is damaged.
    pub(crate) quarantine: Option<Held>,
    /// What the journal said of places of maps whose pages are damaged.
    pub(crate) kept: Kept,
    /// How much space is left, and whether metadata runs short.
    pub(crate) space: (SpaceState, bool),
    /// How often space was used up, and how often metadata began to run short: so that nobody who looks now and then
    /// misses either.
    pub(crate) times_full: u64,
    pub(crate) times_metadata_low: u64,
    /// Generation of the label that was written last, whatever became of it.
    pub(crate) label_tried: u64,
    /// Checksums of data, if the pool keeps them.
    pub(crate) sums: Option<Regions>,
    /// The newest durable superblock.
    pub(crate) sb: Superblock,
    /// Of this opening: that of the next checkpoint. `sb` has the one of the opening before until the first is durable,
    /// and so do the journal blocks that a crash needs.
    pub(crate) incarnation: u64,
    /// The random number of this opening.
    pub(crate) owner: [u8; 16],
    /// The next checkpoint writes it, also to a pool that has none.
    pub(crate) numbered: bool,
    /// When somebody looked last whether the pool is still this opening's.
    pub(crate) looked: Instant,
    /// Who has opened it since, in words.
    pub(crate) taken_by: Option<String>,
    /// Number of the next journal block.
    pub(crate) next_seq: u64,
    /// Number of the first journal block that is not durable: from `sb.replay_seq` up to here a crash needs them.
    pub(crate) durable_seq: u64,
    /// What the next commit owes.
    pub(crate) next: Next<Plan>,
    /// Whether it is open, and how it ends.
    pub(crate) phase: Phase,
    /// Pages of which one copy was found damaged or unreadable and the other good, and that were not written anew
    /// since: the addresses of their first copies. And places of such copies of the superblock.
    pub(crate) bad_copies: BTreeSet<u64>,
    /// What a flush that fails may lose.
    pub(crate) risk: Risk,
    /// Pages of the reserve that no checksums and no table of volumes want ([`account`]).
    pub(crate) spare_pages: u64,
    /// Nodes that may be dirty before a checkpoint is due, and at most.
    pub(crate) dirty_soft: u64,
    pub(crate) dirty_hard: u64,
    /// What commits that fail have met.
    #[cfg(any(debug_assertions, test))]
    pub(crate) met: met::Met,
}

impl State {
    /// A pool of this superblock, nothing of which has been read: no volumes, and all units free that are not fixed.
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

    /// The place of a unit of a volume, on a way of its own.
    pub(crate) fn own(&mut self, core: &VolumeCore, unit: u64) -> Result<EntryPlace, Status> {
        // Where the way is there, and the volume counts as changed, nothing becomes more.
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
