//! The pool in memory during a check: volumes and maps, with the journal replayed on top.
//!
//! Owns maps as shared trees, and the effect of each record on them. Shares no code with an open pool. Takes about 4
//! KiB of memory for each leaf (256 MiB for 1 TiB mapped in units of 64 KiB); shared leaves count once.
//!
//! Invariants:
//! - M1: nodes and leaves are shared (`Rc`) if their pages are shared, or if a record has copied a map. A change first
//!   copies what is shared.
//! - M2: every leaf has entries, and every entry has written bits.

mod changed;

use std::collections::BTreeMap;
use std::rc::Rc;

use changed::{Changed, Mark};

use super::sums::Sums;
use crate::format::INDEX_CHILDREN;
use crate::format::damage::Damage;
use crate::format::journal::Bounds;
use crate::format::page::table::VolumeEntry;
use crate::format::record::Record;
use crate::format::superblock::Geometry;

/// Entries of a leaf, with their written bits.
#[derive(Clone, Debug)]
pub(crate) struct Leaf {
    pub entries: Box<[u64]>,
    pub written: Box<[u64]>,
    /// Generation of the page, or [`Leaf::REPLAYED`] if a record has changed the leaf.
    pub generation: u64,
    /// Set if a record has changed the leaf.
    changed: Option<Mark>,
}

impl Leaf {
    /// Generation later than that of every page.
    pub const REPLAYED: u64 = u64::MAX;

    pub fn new(geometry: &Geometry) -> Leaf {
        let entries = geometry.leaf_entries;
        Leaf {
            entries: vec![0; entries].into(),
            written: vec![0; entries * geometry.entry_words].into(),
            generation: Leaf::REPLAYED,
            changed: None,
        }
    }

    fn is_empty(&self) -> bool {
        self.entries.iter().all(|&phys| phys == 0)
    }

    fn words(&mut self, at: usize) -> &mut [u64] {
        let words = self.written.len() / self.entries.len();
        &mut self.written[at * words..][..words]
    }

    pub fn set(&mut self, at: usize, phys: u64, written: &[u64]) {
        self.generation = Leaf::REPLAYED;
        self.entries[at] = phys;
        let words = self.words(at);
        for (to, &from) in words.iter_mut().zip(written) {
            *to = from;
        }
        if phys == 0 || words.iter().all(|&word| word == 0) {
            words.fill(0);
            self.entries[at] = 0;
        }
    }
}

/// The leaves under an index page of level 1.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub leaves: Vec<Option<Rc<Leaf>>>,
    /// Set if a record has changed the node or something below it.
    changed: Option<Mark>,
}

impl Node {
    pub fn new() -> Node {
        Node { leaves: vec![None; INDEX_CHILDREN], changed: None }
    }

    fn is_empty(&self) -> bool {
        self.leaves.iter().all(Option::is_none)
    }
}

/// The map of a volume: nodes by their index.
#[derive(Clone, Debug, Default)]
pub(crate) struct Map {
    pub nodes: BTreeMap<u64, Rc<Node>>,
    /// Nodes and leaves that records have changed, in the maps of all volumes.
    changed: Changed,
    /// Numbers of the findings about bad pages of the map. A volume that gets a copy of the map needs these pages too.
    pub lost: Rc<Vec<usize>>,
    /// Cost of the changes that is not yet added to the model's cost. [`Bounds`] defines the cost.
    cost: u64,
}

impl Map {
    /// Creates a map without entries, whose changes count in `changed`.
    fn new(changed: &Changed) -> Map {
        Map { changed: changed.clone(), ..Map::default() }
    }

    /// Returns the leaf with this index for a change. Copies the leaf and its node first if they are shared.
    fn leaf(&mut self, geometry: &Geometry, index: u64) -> &mut Leaf {
        let (node, at) = split(index);
        self.cost += if self.nodes.contains_key(&node) { 0 } else { Bounds::NODE_COST };
        let node = self.nodes.entry(node).or_insert_with(|| Rc::new(Node::new()));
        self.cost += if Rc::strong_count(node) > 1 { INDEX_CHILDREN as u64 } else { 0 };
        let node = Rc::make_mut(node);
        node.changed.get_or_insert_with(|| Mark::new(&self.changed));
        self.cost += if node.leaves[at].is_none() { Bounds::NODE_COST } else { 0 };
        let leaf = node.leaves[at].get_or_insert_with(|| Rc::new(Leaf::new(geometry)));
        self.cost += if Rc::strong_count(leaf) > 1 { geometry.leaf_entries as u64 } else { 0 };
        let leaf = Rc::make_mut(leaf);
        leaf.changed.get_or_insert_with(|| Mark::new(&self.changed));
        leaf
    }

    /// Sets an entry; a `phys` of 0 removes it.
    pub fn set(&mut self, geometry: &Geometry, unit: u64, phys: u64, written: &[u64]) {
        let per_leaf = geometry.leaf_entries as u64;
        let index = unit / per_leaf;
        if phys == 0 {
            if !self.has_leaf(index) {
                return;
            }
            self.cost += Bounds::PART_COST;
        }
        self.leaf(geometry, index).set((unit % per_leaf) as usize, phys, written);
        self.drop_if_empty(index);
    }

    fn has_leaf(&self, index: u64) -> bool {
        let (node, at) = split(index);
        self.nodes.get(&node).is_some_and(|node| node.leaves[at].is_some())
    }

    /// Removes a leaf that is empty. Also removes its node if the node is empty then (M2).
    fn drop_if_empty(&mut self, index: u64) {
        let (number, at) = split(index);
        let Some(node) = self.nodes.get_mut(&number) else { return };
        if node.leaves[at].as_ref().is_some_and(|leaf| leaf.is_empty()) {
            let node = Rc::make_mut(node);
            node.leaves[at] = None;
            if node.is_empty() {
                self.nodes.remove(&number);
            }
        }
    }

    /// Removes the entries of the units from `start` to `end`; the range may be of any length. Returns true if it
    /// removed any.
    pub fn clear(&mut self, geometry: &Geometry, start: u64, end: u64) -> bool {
        let per_leaf = geometry.leaf_entries as u64;
        let per_node = per_leaf * INDEX_CHILDREN as u64;
        let nodes: Vec<u64> = self.nodes.range(start / per_node..end.div_ceil(per_node)).map(|(&at, _)| at).collect();
        let none = [0; crate::format::record::MAX_ENTRY_WORDS];
        let mut any = false;
        for index in nodes.iter().flat_map(|&node| node * INDEX_CHILDREN as u64..(node + 1) * INDEX_CHILDREN as u64) {
            let (first, next) = (index * per_leaf, (index + 1) * per_leaf);
            if next <= start || first >= end || !self.has_leaf(index) {
                continue;
            }
            let (from, to) = (start.max(first) - first, end.min(next) - first);
            let (node, at) = split(index);
            let used = self.nodes[&node].leaves[at]
                .as_ref()
                .is_some_and(|leaf| leaf.entries[from as usize..to as usize].iter().any(|&phys| phys != 0));
            self.cost += if to - from < per_leaf { Bounds::PART_COST } else { 0 };
            if used {
                any = true;
                let leaf = self.leaf(geometry, index);
                (from..to).for_each(|at| leaf.set(at as usize, 0, &none));
                self.drop_if_empty(index);
            }
        }
        any
    }

    /// Removes everything beyond `size` bytes: whole units, and written bits of the last one. Returns true if it
    /// removed anything.
    pub fn truncate(&mut self, geometry: &Geometry, size: u64) -> bool {
        let unit_bytes = u64::from(geometry.unit_bytes);
        let any = self.clear(geometry, size.div_ceil(unit_bytes), u64::MAX / unit_bytes);
        self.truncate_unit(geometry, size) || any
    }

    /// Clears the written bits beyond `size` in the unit that contains `size`. Returns true if any was set.
    fn truncate_unit(&mut self, geometry: &Geometry, size: u64) -> bool {
        let (unit_bytes, mut any) = (u64::from(geometry.unit_bytes), false);
        let (last, per_leaf) = (size / unit_bytes, geometry.leaf_entries as u64);
        let blocks = (size % unit_bytes).div_ceil(crate::format::BLOCK_BYTES) as usize;
        let (node, at) = split(last / per_leaf);
        let slot = (last % per_leaf) as usize;
        let leaf = self.nodes.get(&node).and_then(|node| node.leaves[at].as_ref());
        if let Some(leaf) = leaf.filter(|leaf| !size.is_multiple_of(unit_bytes) && leaf.entries[slot] != 0) {
            let phys = leaf.entries[slot];
            let old = leaf.written[slot * geometry.entry_words..][..geometry.entry_words].to_vec();
            let new: Vec<u64> = old.iter().enumerate().map(|(at, word)| word & low_bits(blocks, at)).collect();
            if new != old {
                any = true;
                self.set(geometry, last, phys, &new);
            }
        }
        any
    }
}

/// Returns those bits of word `word` that are below `blocks`.
fn low_bits(blocks: usize, word: usize) -> u64 {
    match blocks.saturating_sub(word * 64) {
        0 => 0,
        bits @ 1..64 => (1 << bits) - 1,
        _ => u64::MAX,
    }
}

/// Returns the number of a leaf's node, and the leaf's place in that node.
fn split(index: u64) -> (u64, usize) {
    (index / INDEX_CHILDREN as u64, (index % INDEX_CHILDREN as u64) as usize)
}

/// A volume: its table entry, whose root has no meaning here, and its map.
#[derive(Clone, Debug)]
pub(crate) struct Vol {
    pub entry: VolumeEntry,
    pub map: Map,
}

/// All volumes of a pool, and the checksums of their data.
#[derive(Debug)]
pub(crate) struct Model {
    pub geometry: Geometry,
    pub volumes: BTreeMap<u32, Vol>,
    pub next_volume: u32,
    pub sums: Sums,
    pub records: u64,
    /// Cost of the changes of all maps, up to [`Bounds::MOST_COST`].
    cost: u64,
    /// Nodes and leaves that records have changed.
    changed: Changed,
    bounds: Bounds,
}

impl Model {
    pub fn new(geometry: Geometry, next_volume: u32, journal_blocks: u32) -> Model {
        let bounds = Bounds::new(journal_blocks);
        let (volumes, sums, changed) = (BTreeMap::new(), Sums::default(), Changed::default());
        Model { geometry, volumes, next_volume, sums, records: 0, cost: 0, changed, bounds }
    }

    /// Creates a map without entries, for a volume of the pool.
    pub fn new_map(&self) -> Map {
        Map::new(&self.changed)
    }

    /// Applies a record of the journal. Fails if no pool can have written this record after the ones before it.
    pub fn replay(&mut self, record: Record) -> Result<(), Damage> {
        self.bounds.check(&record, self.volumes.len())?;
        let (volume, opens) = (record.volume(), matches!(record, Record::Intent { .. }));
        if let Record::Copy { source, .. } | Record::Rollback { source, .. } = record {
            let slots = [volume, source].map(|id| self.volumes.get(&id).map_or(0, |vol| vol.map.nodes.len() as u64));
            self.cost += Bounds::SLOT_COST * slots[0].max(slots[1]);
        }
        self.cost += if matches!(record, Record::Resize { .. }) { Bounds::SIZE_COST } else { 0 };
        self.apply(record);
        if let Some(vol) = self.volumes.get_mut(&volume) {
            self.cost += std::mem::take(&mut vol.map.cost);
        }
        if opens {
            Bounds::check_open(self.sums.open())?;
        }
        Bounds::check_cost(self.cost)?;
        Bounds::check_nodes(self.changed.count())
    }

    /// Applies a kept record; [`kept`](crate::format::page::kept) defines their meaning.
    pub fn replay_kept(&mut self, record: Record) -> Result<(), Damage> {
        let (geometry, volume) = (self.geometry, record.volume());
        match record {
            Record::Resize { size, .. } => {
                let vol = self.volumes.get_mut(&volume);
                vol.map(|vol| vol.map.truncate_unit(&geometry, size));
            }
            record => {
                self.apply(record);
                self.records -= 1;
            }
        }
        if let Some(vol) = self.volumes.get_mut(&volume) {
            self.cost += std::mem::take(&mut vol.map.cost);
        }
        Bounds::check_cost(self.cost)?;
        Bounds::check_nodes(self.changed.count())
    }

    /// Applies a record. Skips changes of volumes that do not exist, and creations of volumes that do.
    pub fn apply(&mut self, record: Record) {
        self.records += 1;
        let geometry = self.geometry;
        self.sums.replay(&geometry, &record);
        let vol = |volumes: &mut BTreeMap<u32, Vol>, id, change: &mut dyn FnMut(&mut Vol)| {
            volumes.get_mut(&id).map(change);
        };
        match record {
            Record::Set { volume, unit, phys, written } => {
                vol(&mut self.volumes, volume, &mut |vol| vol.map.set(&geometry, unit, phys, &written));
            }
            Record::Run { volume, unit, count, phys: 0 } => {
                vol(&mut self.volumes, volume, &mut |vol| _ = vol.map.clear(&geometry, unit, unit + count));
            }
            Record::Run { volume, unit, count, phys } => {
                let full = [geometry.full_word(); crate::format::record::MAX_ENTRY_WORDS];
                vol(&mut self.volumes, volume, &mut |vol| {
                    (0..count).for_each(|at| vol.map.set(&geometry, unit + at, phys + at, &full));
                });
            }
            Record::Create { .. } | Record::Copy { .. } => self.make(record),
            Record::Rename { volume, name } => {
                vol(&mut self.volumes, volume, &mut |vol| vol.entry.name.clone_from(&name));
            }
            Record::Resize { volume, size } => vol(&mut self.volumes, volume, &mut |vol| {
                vol.entry.size = size;
                vol.entry.max_size = vol.entry.max_size.max(size);
                vol.map.truncate(&geometry, size);
            }),
            Record::Limit { volume, max_size } => {
                vol(&mut self.volumes, volume, &mut |vol| vol.entry.max_size = max_size);
            }
            Record::Delete { volume } => {
                self.volumes.remove(&volume);
                let others = self.volumes.values_mut().filter(|vol| vol.entry.origin == volume);
                others.for_each(|vol| vol.entry.origin = 0);
            }
            Record::Rollback { volume, source } => {
                let Some(from) = self.volumes.get(&source).cloned() else { return };
                vol(&mut self.volumes, volume, &mut |vol| {
                    vol.map = from.map.clone();
                    (vol.entry.size, vol.entry.max_size) = (from.entry.size, from.entry.max_size);
                });
            }
            // No effect on maps; the checksums have replayed them.
            Record::Intent { .. } | Record::Mark { .. } => {}
            Record::Identity { volume, identity } => {
                vol(&mut self.volumes, volume, &mut |vol| vol.entry.identity = Some(identity));
            }
            Record::Interim { volume, interim } => {
                vol(&mut self.volumes, volume, &mut |vol| vol.entry.interim = interim);
            }
            Record::Origin { volume, origin } => vol(&mut self.volumes, volume, &mut |vol| vol.entry.origin = origin),
        }
    }

    /// Applies `Create` and `Copy`.
    fn make(&mut self, record: Record) {
        let (entry, map) = match record {
            Record::Create { volume, grows, size, max_size, created, name } => {
                let entry = VolumeEntry {
                    id: volume,
                    snapshot: false,
                    grows,
                    size,
                    max_size,
                    created,
                    origin: 0,
                    family: volume,
                    root: Default::default(),
                    root_level: 0,
                    identity: None,
                    interim: None,
                    name,
                };
                (entry, self.new_map())
            }
            Record::Copy { volume, source, snapshot, grows, size, max_size, created, name } => {
                let Some(from) = self.volumes.get(&source) else { return };
                let entry = VolumeEntry {
                    id: volume,
                    snapshot,
                    grows,
                    size,
                    max_size,
                    created,
                    origin: source,
                    family: from.entry.family,
                    root: Default::default(),
                    root_level: 0,
                    identity: None,
                    interim: None,
                    name,
                };
                (entry, from.map.clone())
            }
            _ => return,
        };
        self.next_volume = self.next_volume.max(entry.id.saturating_add(1));
        self.volumes.entry(entry.id).or_insert(Vol { entry, map });
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
