//! The volumes of a pool, by number and by name.
//!
//! Owns the properties of each volume that are used under the pool's lock. Those that lookups read without the lock are
//! in [`VolumeCore`].
//!
//! - I1: numbers grow and are never reused. Names are unique.
//! - I2: a volume whose map has dirty nodes is dirty.
//! - I3: the counts of index pages above the nodes of each dirty volume, and of pages of the table itself, are always
//!   up to date ([`account`](crate::state::account)).
//!
//! Called under the pool's lock.

mod numbers;

use std::cell::OnceCell;
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::sync::Weak;

use sheave_base::sync::Arc;
use sheave_base::sync::atomic::{AtomicU64, Ordering};
use sheave_iomap::io_stats::IoGroup;

use crate::error::PoolError;
use crate::format::damage::MapDamage;
use crate::format::page::PageRef;
use crate::format::page::index::upper_pages;
use crate::format::page::table::{self, Interim, VolumeEntry};
use crate::format::record::Record;
use crate::state::extent_map::Top;
use numbers::Numbers;

/// The part of a volume that is read without the pool's lock.
#[derive(Debug)]
pub(crate) struct VolumeCore {
    pub(crate) id: u32,
    pub(crate) snapshot: bool,
    /// True if writes beyond the end enlarge the volume, up to `max_size`.
    pub(crate) grows: bool,
    size: AtomicU64,
    max_size: AtomicU64,
    /// Epoch of the last write, 0 if there was none ([`loss`](crate::engine::loss)).
    pub(crate) written_in: AtomicU64,
    /// Root of the extent map, one word per slot.
    pub(crate) top: Top,
    /// I/O statistics of all rings.
    pub(crate) io: Arc<IoGroup>,
}

impl VolumeCore {
    fn new(entry: &VolumeEntry) -> Arc<VolumeCore> {
        let VolumeEntry { id, snapshot, grows, size, max_size, .. } = *entry;
        let (size, max_size) = (AtomicU64::new(size), AtomicU64::new(max_size));
        let written_in = AtomicU64::new(0);
        Arc::new(VolumeCore { id, snapshot, grows, size, max_size, written_in, top: Top::new(), io: Arc::default() })
    }

    #[inline(always)]
    pub(crate) fn size(&self) -> u64 {
        // Acquire: pairs with the store in `set_size`: a reader of a smaller size sees the units beyond it unmapped,
        // and a reader of a larger size sees the data up to it.
        self.size.load(Ordering::Acquire)
    }

    pub(crate) fn set_size(&self, size: u64) {
        self.size.store(size, Ordering::Release); // Release: pairs with the load in `size`
    }

    pub(crate) fn max_size(&self) -> u64 {
        self.max_size.load(Ordering::Relaxed) // Relaxed, as the store: a bound that orders nothing.
    }

    pub(crate) fn set_max_size(&self, max_size: u64) {
        self.max_size.store(max_size, Ordering::Relaxed);
    }

    /// Returns the largest size that writes can give the volume.
    pub(crate) fn reach(&self) -> u64 {
        if self.grows { self.max_size().max(self.size()) } else { self.size() }
    }
}

/// Held by each open handle of a volume. The volume counts as open while a token exists.
#[derive(Debug)]
pub(crate) struct OpenToken;

/// A map page that cannot be read: its place in the map, and the reference to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LostPage {
    pub(crate) page: PageRef,
    pub(crate) level: u16,
    /// Index of the page within its level.
    pub(crate) number: u64,
}

/// The damaged part of a map.
#[derive(Clone, Debug)]
pub(crate) struct LostMap {
    /// Description for the user.
    pub(crate) told: MapDamage,
    /// The damaged pages. Volumes that share index pages share these lists.
    pub(crate) pages: Vec<Arc<[LostPage]>>,
    /// Unit ranges below `pages`, computed on first use.
    pub(crate) ranges: OnceCell<Arc<[(u64, u64)]>>,
    /// Journal records about these units, in order, kept until the pages can be read ([`kept`](super::kept)).
    pub(crate) kept: Arc<Vec<Record>>,
}

impl LostMap {
    /// Damage without a list of pages.
    pub(crate) fn new(told: MapDamage) -> LostMap {
        LostMap { told, pages: Vec::new(), ranges: OnceCell::new(), kept: Arc::default() }
    }

    /// Returns (level, number, reference) of each damaged page above level 1. Volumes do not share these, and the index
    /// pages of the next checkpoint refer to them.
    pub(crate) fn upper(&self) -> Vec<(u16, u64, PageRef)> {
        let pages = self.pages.iter().flat_map(|pages| pages.iter());
        pages.filter(|page| page.level > 1).map(|page| (page.level, page.number, page.page)).collect()
    }
}

/// Pool-wide accounting of kept records.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// Pages of the last checkpoint that hold kept records.
    pub(crate) pages: Vec<u64>,
    /// Number of pages that the next checkpoint needs for the kept records. `Some(0)` removes all such pages, and
    /// `None` leaves those of the last checkpoint as they are.
    pub(crate) rewrite: Option<u64>,
    /// Index pages above damaged ones, which the first checkpoint writes in addition to the counted pages.
    pub(crate) upper_due: u64,
    /// Number of records kept so far, including copies for other volumes.
    pub(crate) records: u64,
    /// True if the journal has a record that can neither be applied to a checkpoint nor be kept.
    pub(crate) is_too_much: bool,
}

/// A volume or snapshot.
#[derive(Debug)]
pub(crate) struct Vol {
    pub(crate) id: u32,
    pub(crate) name: String,
    pub(crate) core: Arc<VolumeCore>,
    pub(crate) created: u64,
    /// Unique identity; changed by [`Table::set_identity`].
    identity: Option<[u8; 16]>,
    /// Set while the volume is temporary; changed by [`Table::set_interim`].
    interim: Option<Interim>,
    /// Number of the volume that this one was copied from, or 0 if that volume is gone; changed by
    /// [`Table::set_origin`].
    origin: u32,
    pub(crate) family: u32,
    /// Upper bound of the slots of the top that are in use.
    pub(crate) slots: u64,
    pub(crate) root: PageRef,
    pub(crate) root_level: u16,
    /// Pages of the last checkpoint above the level of index nodes.
    pub(crate) upper: Vec<u64>,
    /// Table entry of the last checkpoint without the name; `None` if that checkpoint does not have the volume.
    written: Option<VolumeEntry>,
    /// True if the name has changed since the last checkpoint.
    renamed: bool,
    /// True if the next checkpoint writes the map; set by [`Table::charge`].
    pub(crate) dirty: bool,
    /// Index pages that the next checkpoint writes for this volume, as included in [`Table::upper_due`].
    charged: u64,
    /// Number of a copy in progress whose point in time is not fixed yet. Shared nodes and units must not be copied or
    /// moved meanwhile.
    pub(crate) settling: Option<u32>,
    /// True for a copy whose point in time is not fixed yet. Checkpoints leave it out.
    pub(crate) unborn: bool,
    /// Present if pages of the map are damaged. The volume cannot be opened then; it can only be deleted, renamed or
    /// rolled back.
    pub(crate) damage: Option<Box<LostMap>>,
    /// True while the creation is not durable. The volume cannot be opened, so that its creation can still be undone.
    pub(crate) hidden: bool,
    /// True while a write that found no space releases units beyond the end. That write clears `HANDED`, and later
    /// keeps the units whose flag was set again. A second such write at the same time would clear those flags too.
    pub(crate) giving_back: bool,
    /// True if writes have enlarged the volume since the last commit; it is then in `State::grown`.
    pub(crate) grown: bool,
    /// Size to record while users see a smaller one: during a cut whose last block is still being zeroed, or during
    /// growth that is not durable yet.
    pub(crate) durable_size: Option<u64>,
    /// Number of units being copied or zeroed.
    pub(crate) busy: u32,
    /// Number of hole punches that wait for `busy` to reach 0. While there are any, no further unit becomes busy.
    pub(crate) holes: u32,
    pub(crate) opened: Weak<OpenToken>,
}

impl Vol {
    /// Returns the table entry without the name, which would have to be copied.
    pub(crate) fn fields(&self) -> VolumeEntry {
        VolumeEntry {
            id: self.id,
            snapshot: self.core.snapshot,
            grows: self.core.grows,
            size: self.size_to_write(),
            max_size: self.core.max_size(),
            created: self.created,
            origin: self.origin,
            family: self.family,
            root: self.root,
            root_level: self.root_level,
            identity: self.identity,
            interim: self.interim,
            name: String::new(),
        }
    }

    /// Returns true if the table page of this volume must be rewritten.
    pub(crate) fn is_changed(&self) -> bool {
        self.renamed || self.written.as_ref() != Some(&self.fields())
    }

    /// Makes a volume from its table entry, with an empty map.
    pub(crate) fn from_entry(entry: &VolumeEntry) -> Vol {
        Vol {
            id: entry.id,
            name: entry.name.clone(),
            core: VolumeCore::new(entry),
            created: entry.created,
            identity: entry.identity,
            interim: entry.interim,
            origin: entry.origin,
            family: entry.family,
            slots: 0,
            root: entry.root,
            root_level: entry.root_level,
            upper: Vec::new(),
            written: None,
            renamed: false,
            dirty: false,
            charged: 0,
            settling: None,
            unborn: false,
            damage: None,
            hidden: false,
            giving_back: false,
            grown: false,
            durable_size: None,
            busy: 0,
            holes: 0,
            opened: Weak::new(),
        }
    }

    /// Makes a volume from a table entry of the last checkpoint.
    pub(crate) fn of_checkpoint(entry: &VolumeEntry) -> Vol {
        let mut vol = Vol::from_entry(entry);
        vol.written = Some(vol.fields());
        vol
    }

    /// Returns the number of the volume that this one was copied from, 0 if there is none or it is gone.
    pub(crate) fn origin(&self) -> u32 {
        self.origin
    }

    /// Returns the unique identity, or `None` in volumes made by older versions.
    pub(crate) fn identity(&self) -> Option<[u8; 16]> {
        self.identity
    }

    /// Returns the purpose of a temporary volume.
    pub(crate) fn interim(&self) -> Option<Interim> {
        self.interim
    }

    pub(crate) fn entry_bytes(&self) -> u64 {
        table::entry_bytes(&self.name, self.identity, self.interim)
    }

    /// Returns the size to record at the next commit.
    pub(crate) fn size_to_write(&self) -> u64 {
        self.durable_size.map_or(self.core.size(), |size| size.max(self.core.size()))
    }

    pub(crate) fn damage(&self) -> Option<&MapDamage> {
        self.damage.as_ref().map(|lost| &lost.told)
    }

    /// Returns true if users see the volume.
    pub(crate) fn is_shown(&self) -> bool {
        !self.unborn && !self.hidden
    }

    pub(crate) fn is_open(&self) -> bool {
        self.opened.strong_count() > 0
    }

    /// Marks the volume dirty and updates `upper_due`, the table's total of index pages due.
    fn charge(&mut self, upper_due: &mut u64) {
        let charged = upper_pages(self.slots, self.core.top.used());
        *upper_due = *upper_due - self.charged + charged;
        (self.charged, self.dirty) = (charged, true);
    }
}

/// A page of the table as the last checkpoint has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TablePage {
    /// First volume number that belongs on this page; the next page's `first` ends the range.
    pub(crate) first: u32,
    /// `PageRef::NONE` for a range without volumes.
    pub(crate) page: PageRef,
    pub(crate) count: u32,
}

/// The tree of the table as the last checkpoint has it.
#[derive(Debug)]
pub(crate) struct TablePages {
    pub(crate) leaves: Vec<TablePage>,
    /// Addresses of the index pages above the leaves.
    pub(crate) upper: Vec<u64>,
    pub(crate) root: (PageRef, u16),
}

impl Default for TablePages {
    fn default() -> TablePages {
        TablePages { leaves: Vec::new(), upper: Vec::new(), root: (PageRef::NONE, 0) }
    }
}

/// All volumes of a pool.
#[derive(Debug, Default)]
pub(crate) struct Table {
    by_id: Numbers<Vol>,
    by_name: HashMap<String, u32>,
    /// Copies of each volume, by the number of the origin.
    by_origin: HashMap<u32, BTreeSet<u32>>,
    /// Superset of the open volumes; `Table::in_use` removes closed ones.
    opened: BTreeSet<u32>,
    /// Volumes whose units beyond the end are being released, which commits finish first. Usually at most one; a
    /// separate set spares each commit a scan of all volumes.
    cutting: BTreeSet<u32>,
    pub(crate) next_id: u32,
    pub(crate) pages: TablePages,
    bytes: u64,
    /// Index pages above the nodes of all dirty volumes (I3).
    upper_due: u64,
}

impl Table {
    pub(crate) fn new(next_id: u32) -> Table {
        Table { next_id, ..Table::default() }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    #[inline]
    pub(crate) fn get(&self, id: u32) -> Option<&Vol> {
        self.by_id.get(id)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: u32) -> Option<&mut Vol> {
        self.by_id.get_mut(id)
    }

    pub(crate) fn id_of(&self, name: &str) -> Option<u32> {
        self.by_name.get(name).copied()
    }

    /// Returns the visible volume called `name`.
    pub(crate) fn named(&self, name: &str) -> Result<&Vol, PoolError> {
        let vol = self.id_of(name).and_then(|id| self.get(id)).filter(|vol| vol.is_shown());
        vol.ok_or_else(|| PoolError::NoVolume { name: name.to_string() })
    }

    /// Returns the visible volume called `name`. Fails if its map is damaged; `what` names the operation in that error.
    pub(crate) fn whole(&self, name: &str, what: &str) -> Result<&Vol, PoolError> {
        let vol = self.named(name)?;
        match vol.damage().cloned() {
            None => Ok(vol),
            Some(damage) => Err(PoolError::DamagedMap { what: what.into(), volume: name.into(), damage }),
        }
    }

    /// Returns the first volume whose map is damaged.
    pub(crate) fn first_damaged(&self) -> Option<(&Vol, &MapDamage)> {
        self.iter().find_map(|vol| Some((vol, vol.damage()?)))
    }

    /// Returns the names and damage of all volumes with a damaged map, ordered by name.
    pub(crate) fn damaged(&self) -> Vec<(String, MapDamage)> {
        let damage = |vol: &Vol| Some((vol.name.clone(), vol.damage()?.clone()));
        let mut found: Vec<_> = self.iter().filter_map(damage).collect();
        found.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        found
    }

    /// Returns all volumes, ordered by number.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &Vol> {
        self.by_id.iter()
    }

    /// Adds a volume. Returns false if its number or name is taken.
    pub(crate) fn insert(&mut self, vol: Vol) -> bool {
        if self.by_id.get(vol.id).is_some() || self.by_name.contains_key(&vol.name) {
            return false;
        }
        self.next_id = self.next_id.max(vol.id.saturating_add(1));
        self.by_name.insert(vol.name.clone(), vol.id);
        self.bytes += vol.entry_bytes();
        self.upper_due += vol.charged;
        let (id, origin) = (vol.id, vol.origin);
        self.by_id.insert(id, vol);
        self.set_origin(id, origin);
        true
    }

    /// Removes a volume. Its copies have no origin afterwards.
    pub(crate) fn remove(&mut self, id: u32) -> Option<Vol> {
        let vol = self.by_id.remove(id)?;
        self.by_name.remove(&vol.name);
        self.bytes -= vol.entry_bytes();
        self.upper_due -= vol.charged;
        self.leave_origin(id, vol.origin);
        for other in self.by_origin.remove(&id).unwrap_or_default() {
            self.set_origin(other, 0);
        }
        Some(vol)
    }

    /// Sets the origin of a volume; 0 clears it.
    pub(crate) fn set_origin(&mut self, id: u32, origin: u32) {
        let Some(vol) = self.by_id.get_mut(id) else { return };
        let before = std::mem::replace(&mut vol.origin, origin);
        self.leave_origin(id, before);
        if origin != 0 {
            self.by_origin.entry(origin).or_default().insert(id);
        }
    }

    pub(crate) fn set_identity(&mut self, id: u32, identity: [u8; 16]) {
        self.change_entry(id, |vol| vol.identity = Some(identity));
    }

    /// Makes a volume temporary, or permanent.
    pub(crate) fn set_interim(&mut self, id: u32, interim: Option<Interim>) {
        self.change_entry(id, |vol| vol.interim = interim);
    }

    /// Applies a change that may alter the length of a volume's entry.
    fn change_entry(&mut self, id: u32, change: impl FnOnce(&mut Vol)) {
        let Some(vol) = self.by_id.get_mut(id) else { return };
        self.bytes -= vol.entry_bytes();
        change(vol);
        self.bytes += vol.entry_bytes();
    }

    pub(crate) fn set_opened(&mut self, id: u32, token: &std::sync::Arc<OpenToken>) {
        if let Some(vol) = self.by_id.get_mut(id) {
            vol.opened = std::sync::Arc::downgrade(token);
            self.opened.insert(id);
        }
    }

    /// Returns the open volumes: only these can have I/O in flight. Avoids a scan of all volumes.
    pub(crate) fn in_use(&mut self) -> impl Iterator<Item = &Vol> {
        let by_id = &self.by_id;
        self.opened.retain(|id| by_id.get(*id).is_some_and(Vol::is_open));
        self.opened.iter().filter_map(|id| by_id.get(*id))
    }

    fn leave_origin(&mut self, id: u32, origin: u32) {
        if let Entry::Occupied(mut others) = self.by_origin.entry(origin) {
            others.get_mut().remove(&id);
            if others.get().is_empty() {
                others.remove();
            }
        }
    }

    /// Returns the copies of a volume that have it as their origin.
    pub(crate) fn made_of(&self, id: u32) -> impl Iterator<Item = &Vol> {
        self.by_origin.get(&id).into_iter().flatten().filter_map(|id| self.get(*id))
    }

    /// Renames a volume. Returns false if the name is taken.
    pub(crate) fn rename(&mut self, id: u32, name: &str) -> bool {
        if self.by_name.contains_key(name) {
            return false;
        }
        let Some(vol) = self.by_id.get_mut(id) else { return false };
        self.by_name.remove(&vol.name);
        self.bytes -= vol.entry_bytes();
        vol.name = name.to_string();
        vol.renamed = true;
        self.bytes += vol.entry_bytes();
        self.by_name.insert(name.to_string(), id);
        true
    }

    /// Returns an upper bound of the pages, index pages included, that a checkpoint without any other change writes for
    /// the table.
    pub(crate) fn bare_pages(&self) -> u64 {
        let pages = self.most_pages();
        pages + upper_pages(pages, pages)
    }

    /// Returns an upper bound of the leaf pages of the table.
    pub(crate) fn most_pages(&self) -> u64 {
        self.bytes.div_ceil(table::LEAST_BYTES)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the volumes with numbers in `first..end`.
    pub(crate) fn range(&self, first: u32, end: u32) -> impl Iterator<Item = &Vol> {
        self.by_id.range(first, end)
    }

    /// Records that a checkpoint page has the first `count` volumes of `first..end` as they are now. Returns the last
    /// of their numbers.
    pub(crate) fn mark_written(&mut self, first: u32, end: u32, count: usize) -> Option<u32> {
        let mut last = None;
        for vol in self.by_id.range_mut(first, end).filter(|vol| !vol.unborn).take(count) {
            (vol.written, vol.renamed) = (Some(vol.fields()), false);
            last = Some(vol.id);
        }
        last
    }

    /// Records if units beyond the end of a volume are being released.
    pub(crate) fn set_cutting(&mut self, id: u32, cutting: bool) {
        if cutting {
            self.cutting.insert(id)
        } else {
            self.cutting.remove(&id)
        };
    }

    pub(crate) fn is_cutting(&self, id: u32) -> bool {
        self.cutting.contains(&id)
    }

    /// Returns the volumes whose units beyond the end are being released.
    pub(crate) fn cutting(&self) -> impl Iterator<Item = &Vol> {
        self.cutting.iter().filter_map(|id| self.get(*id))
    }

    /// Returns the number of index pages that the next checkpoint writes above the nodes of all dirty volumes.
    pub(crate) fn upper_due(&self) -> u64 {
        self.upper_due
    }

    /// Returns an upper bound of the growth of [`Table::upper_due`] when a volume becomes dirty or gets another used
    /// slot below `slots`.
    pub(crate) fn upper_more(&self, id: u32, slots: u64) -> u64 {
        let Some(vol) = self.get(id) else { return 0 };
        upper_pages(vol.slots.max(slots), vol.core.top.used() + 1).saturating_sub(vol.charged)
    }

    /// Marks the map of a volume as changed, possibly with other slots: the next checkpoint writes it (I2, I3).
    #[inline]
    pub(crate) fn charge(&mut self, id: u32) {
        if let Some(vol) = self.by_id.get_mut(id) {
            vol.charge(&mut self.upper_due);
        }
    }

    /// Does the same as [`Table::charge`], for a change in `slot`, which may be new. Returns `None` if there is no such
    /// volume.
    #[inline]
    pub(crate) fn charge_slot(&mut self, id: u32, slot: u64) -> Option<()> {
        let vol = self.by_id.get_mut(id)?;
        vol.slots = vol.slots.max(slot + 1);
        vol.charge(&mut self.upper_due);
        Some(())
    }

    /// Called when a checkpoint contains the map of a volume, with its root and the pages above its index nodes.
    /// Returns the upper pages that these replace.
    pub(crate) fn written(&mut self, id: u32, root: (PageRef, u16), upper: Vec<u64>) -> Vec<u64> {
        let Some(vol) = self.by_id.get_mut(id) else { return Vec::new() };
        self.upper_due -= vol.charged;
        (vol.charged, vol.dirty) = (0, false);
        (vol.root, vol.root_level) = root;
        std::mem::replace(&mut vol.upper, upper)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
