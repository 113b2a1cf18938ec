//! The volumes of a pool, by number and by name.
//!
//! Owns what is known of each volume under the pool's lock. What lookups need without it is in [`VolumeCore`].
//!
//! - I1: numbers grow and are never used again; names are unique.
//! - I2: a volume whose map has dirty nodes is dirty.
//! - I3: the index pages above the nodes of each dirty volume, and the pages of the table itself, are counted at any
//!   time ([`account`](crate::state::account)).
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

/// What lookups of a volume read without a lock.
#[derive(Debug)]
pub(crate) struct VolumeCore {
    pub(crate) id: u32,
    pub(crate) snapshot: bool,
    /// Writes beyond its end make it larger, up to `max_size`.
    pub(crate) grows: bool,
    size: AtomicU64,
    max_size: AtomicU64,
    /// The epoch in which it was last written to; 0: in none ([`loss`](crate::engine::loss)).
    pub(crate) written_in: AtomicU64,
    /// The root of its map, a word a slot.
    pub(crate) top: Top,
    /// What rings have done on it.
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
        // Acquire: pairs with the store in `set_size`: who sees a smaller size sees what was cut off as cut off, and
        // who sees a larger one sees what was written up to it.
        self.size.load(Ordering::Acquire)
    }

    pub(crate) fn set_size(&self, size: u64) {
        self.size.store(size, Ordering::Release); // Release: pairs with the load in `size`
    }

    /// Most bytes that it may have.
    pub(crate) fn max_size(&self) -> u64 {
        self.max_size.load(Ordering::Relaxed) // Relaxed, as the store: a bound that orders nothing.
    }

    pub(crate) fn set_max_size(&self, max_size: u64) {
        self.max_size.store(max_size, Ordering::Relaxed);
    }

    /// Where the last of its bytes may be, if not now, then when it has grown.
    pub(crate) fn reach(&self) -> u64 {
        if self.grows { self.max_size().max(self.size()) } else { self.size() }
    }
}

/// Somebody has the volume open while this lives.
#[derive(Debug)]
pub(crate) struct OpenToken;

/// A page of a map that gives nothing: its place, and the reference that leads there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LostPage {
    pub(crate) page: PageRef,
    pub(crate) level: u16,
    /// Which of its level.
    pub(crate) number: u64,
}

/// What of a map could not be read.
#[derive(Clone, Debug)]
pub(crate) struct LostMap {
    /// As it is told.
    pub(crate) told: MapDamage,
    /// The pages, in lists that volumes which share index pages have together.
    pub(crate) pages: Vec<Arc<[LostPage]>>,
    /// The units that these pages stand for, once somebody has asked.
    pub(crate) ranges: OnceCell<Arc<[(u64, u64)]>>,
    /// Records about these units, in order, which wait until the pages can be read ([`kept`](super::kept)).
    pub(crate) kept: Arc<Vec<Record>>,
}

impl LostMap {
    /// Without pages.
    pub(crate) fn new(told: MapDamage) -> LostMap {
        LostMap { told, pages: Vec::new(), ranges: OnceCell::new(), kept: Arc::default() }
    }

    /// The pages above those that volumes share, which the index pages of the next checkpoint refer to: level, which of
    /// it, reference.
    pub(crate) fn upper(&self) -> Vec<(u16, u64, PageRef)> {
        let pages = self.pages.iter().flat_map(|pages| pages.iter());
        pages.filter(|page| page.level > 1).map(|page| (page.level, page.number, page.page)).collect()
    }
}

/// What is kept of a pool.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// The pages of the last checkpoint that have it.
    pub(crate) pages: Vec<u64>,
    /// The next checkpoint writes so many pages with it, or none of them any more.
    pub(crate) rewrite: Option<u64>,
    /// Index pages that the first checkpoint writes beside what is counted: those above damaged index pages.
    pub(crate) upper_due: u64,
    /// Records that were kept, and copied to other volumes.
    pub(crate) records: u64,
    /// Something of the journal can neither be in a checkpoint nor be kept.
    pub(crate) is_too_much: bool,
}

/// A volume or snapshot.
#[derive(Debug)]
pub(crate) struct Vol {
    pub(crate) id: u32,
    pub(crate) name: String,
    pub(crate) core: Arc<VolumeCore>,
    pub(crate) created: u64,
    /// What tells it from all others; changed by [`Table::set_identity`].
    identity: Option<[u8; 16]>,
    /// It goes again; changed by [`Table::set_interim`].
    interim: Option<Interim>,
    /// What it was made of, while that exists; changed by [`Table::set_origin`].
    origin: u32,
    pub(crate) family: u32,
    /// Slots of the top that may be in use.
    pub(crate) slots: u64,
    pub(crate) root: PageRef,
    pub(crate) root_level: u16,
    /// Pages of the levels above the index nodes, as the last checkpoint has them.
    pub(crate) upper: Vec<u64>,
    /// As the last checkpoint has it, without its name; none if that does not have it.
    written: Option<VolumeEntry>,
    /// It has another name since then.
    renamed: bool,
    /// Its map is to be written; set by [`Table::charge`].
    pub(crate) dirty: bool,
    /// Index pages that the next checkpoint writes for it, as counted in [`Table::upper_due`].
    charged: u64,
    /// A copy of it is being made, whose point in time is not fixed: nothing shared may be copied or moved.
    pub(crate) settling: Option<u32>,
    /// A copy whose point in time is not fixed: checkpoints do not have it.
    pub(crate) unborn: bool,
    /// Pages of its map are damaged: it cannot be opened, and nothing but deleting it, renaming it and rolling it back
    /// changes it.
    pub(crate) damage: Option<Box<LostMap>>,
    /// It was made, and that is not durable yet: nobody can open it, so that it can be undone.
    pub(crate) hidden: bool,
    /// A write that found no room gives back what lies beyond the end: one at a time, or one takes the marks off that
    /// another goes by.
    pub(crate) giving_back: bool,
    /// Writes have made it larger since the last commit: it is in `State::grown`.
    pub(crate) grown: bool,
    /// Its size for commits, while users see a smaller one: one that is cut, whose last block is being zeroed, or one
    /// that grows, which nobody sees before it is durable.
    pub(crate) durable_size: Option<u64>,
    /// Units that are being copied or zeroed.
    pub(crate) busy: u32,
    /// Holes that wait until none is; no other unit begins to be while there are any.
    pub(crate) holes: u32,
    pub(crate) opened: Weak<OpenToken>,
}

impl Vol {
    /// As the volume table has it, but for its name: it would have to be copied.
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

    /// Whether the page that has it must be written anew.
    pub(crate) fn is_changed(&self) -> bool {
        self.renamed || self.written.as_ref() != Some(&self.fields())
    }

    /// A volume of the table, without its map.
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

    /// A volume that the checkpoint has, without its map.
    pub(crate) fn of_checkpoint(entry: &VolumeEntry) -> Vol {
        let mut vol = Vol::from_entry(entry);
        vol.written = Some(vol.fields());
        vol
    }

    /// Number of the volume that it was made of; 0: none, or that is gone.
    pub(crate) fn origin(&self) -> u32 {
        self.origin
    }

    /// What tells it from all others; none in volumes of older programs.
    pub(crate) fn identity(&self) -> Option<[u8; 16]> {
        self.identity
    }

    /// What it is made for, if it goes again.
    pub(crate) fn interim(&self) -> Option<Interim> {
        self.interim
    }

    /// Bytes of its entry in the table.
    pub(crate) fn entry_bytes(&self) -> u64 {
        table::entry_bytes(&self.name, self.identity, self.interim)
    }

    /// Its size for commits.
    pub(crate) fn size_to_write(&self) -> u64 {
        self.durable_size.map_or(self.core.size(), |size| size.max(self.core.size()))
    }

    /// What is damaged of its map.
    pub(crate) fn damage(&self) -> Option<&MapDamage> {
        self.damage.as_ref().map(|lost| &lost.told)
    }

    /// Whether users see it.
    pub(crate) fn is_shown(&self) -> bool {
        !self.unborn && !self.hidden
    }

    pub(crate) fn is_open(&self) -> bool {
        self.opened.strong_count() > 0
    }

    /// What [`Table::charge`] does. `upper_due`: index pages above the nodes of all dirty volumes.
    fn charge(&mut self, upper_due: &mut u64) {
        let charged = upper_pages(self.slots, self.core.top.used());
        *upper_due = *upper_due - self.charged + charged;
        (self.charged, self.dirty) = (charged, true);
    }
}

/// A page of the table as the last checkpoint has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TablePage {
    /// Its volumes have numbers from here up to before the next page's.
    pub(crate) first: u32,
    /// None for a page without volumes.
    pub(crate) page: PageRef,
    pub(crate) count: u32,
}

/// The tree of the table as the last checkpoint has it.
#[derive(Debug)]
pub(crate) struct TablePages {
    /// Level 0, in order.
    pub(crate) leaves: Vec<TablePage>,
    /// Addresses of the index pages above.
    pub(crate) upper: Vec<u64>,
    pub(crate) root: (PageRef, u16),
}

impl Default for TablePages {
    fn default() -> TablePages {
        TablePages { leaves: Vec::new(), upper: Vec::new(), root: (PageRef::NONE, 0) }
    }
}

/// All volumes.
#[derive(Debug, Default)]
pub(crate) struct Table {
    by_id: Numbers<Vol>,
    by_name: HashMap<String, u32>,
    /// The volumes that were made of a volume, by the number of that.
    by_origin: HashMap<u32, BTreeSet<u32>>,
    /// The volumes that are open, and some that were.
    opened: BTreeSet<u32>,
    /// The volumes beyond whose end everything is being given back: commits finish that first. One at a time, as a
    /// rule; each commit looks here, and not at all volumes.
    cutting: BTreeSet<u32>,
    /// The number that the next volume gets.
    pub(crate) next_id: u32,
    /// What the last checkpoint has of it.
    pub(crate) pages: TablePages,
    /// Bytes of all entries.
    bytes: u64,
    /// Index pages above the nodes of all dirty volumes.
    upper_due: u64,
}

impl Table {
    /// Without volumes.
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

    /// The volume of that name that users see.
    pub(crate) fn named(&self, name: &str) -> Result<&Vol, PoolError> {
        let vol = self.id_of(name).and_then(|id| self.get(id)).filter(|vol| vol.is_shown());
        vol.ok_or_else(|| PoolError::NoVolume { name: name.to_string() })
    }

    /// The volume of that name that users see; an error if its map is damaged, for it cannot be used for `what`.
    pub(crate) fn whole(&self, name: &str, what: &str) -> Result<&Vol, PoolError> {
        let vol = self.named(name)?;
        match vol.damage().cloned() {
            None => Ok(vol),
            Some(damage) => Err(PoolError::DamagedMap { what: what.into(), volume: name.into(), damage }),
        }
    }

    /// The first volume whose map is damaged.
    pub(crate) fn first_damaged(&self) -> Option<(&Vol, &MapDamage)> {
        self.iter().find_map(|vol| Some((vol, vol.damage()?)))
    }

    /// All of them, by name.
    pub(crate) fn damaged(&self) -> Vec<(String, MapDamage)> {
        let damage = |vol: &Vol| Some((vol.name.clone(), vol.damage()?.clone()));
        let mut found: Vec<_> = self.iter().filter_map(damage).collect();
        found.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        found
    }

    /// In the order of their numbers.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &Vol> {
        self.by_id.iter()
    }

    /// Adds a volume; false if there is one of that number or name.
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

    /// Takes a volume out; what it was the origin of has none.
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

    /// A volume has this origin from now on; 0: none.
    pub(crate) fn set_origin(&mut self, id: u32, origin: u32) {
        let Some(vol) = self.by_id.get_mut(id) else { return };
        let before = std::mem::replace(&mut vol.origin, origin);
        self.leave_origin(id, before);
        if origin != 0 {
            self.by_origin.entry(origin).or_default().insert(id);
        }
    }

    /// Gives a volume its identity.
    pub(crate) fn set_identity(&mut self, id: u32, identity: [u8; 16]) {
        self.change_entry(id, |vol| vol.identity = Some(identity));
    }

    /// The volume goes again, or does not any more.
    pub(crate) fn set_interim(&mut self, id: u32, interim: Option<Interim>) {
        self.change_entry(id, |vol| vol.interim = interim);
    }

    /// Changes something that decides how long the entry of a volume is.
    fn change_entry(&mut self, id: u32, change: impl FnOnce(&mut Vol)) {
        let Some(vol) = self.by_id.get_mut(id) else { return };
        self.bytes -= vol.entry_bytes();
        change(vol);
        self.bytes += vol.entry_bytes();
    }

    /// A volume is open from now on.
    pub(crate) fn set_opened(&mut self, id: u32, token: &std::sync::Arc<OpenToken>) {
        if let Some(vol) = self.by_id.get_mut(id) {
            vol.opened = std::sync::Arc::downgrade(token);
            self.opened.insert(id);
        }
    }

    /// The volumes that are open: only they have I/O. It takes no look at all others, of which there may be many.
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

    /// What was made of a volume, as far as that counts.
    pub(crate) fn made_of(&self, id: u32) -> impl Iterator<Item = &Vol> {
        self.by_origin.get(&id).into_iter().flatten().filter_map(|id| self.get(*id))
    }

    /// Gives another name; false if it is taken.
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

    /// Pages of the table alone, with the index pages above, at most: what a checkpoint without any other change
    /// writes.
    pub(crate) fn bare_pages(&self) -> u64 {
        let pages = self.most_pages();
        pages + upper_pages(pages, pages)
    }

    /// Pages of the table without those above, at most.
    pub(crate) fn most_pages(&self) -> u64 {
        self.bytes.div_ceil(table::LEAST_BYTES)
    }

    /// Bytes of all entries.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The volumes of these numbers, the last not included.
    pub(crate) fn range(&self, first: u32, end: u32) -> impl Iterator<Item = &Vol> {
        self.by_id.range(first, end)
    }

    /// A page has the first `count` of the volumes of these numbers, as they are. The number of the last of them.
    pub(crate) fn mark_written(&mut self, first: u32, end: u32, count: usize) -> Option<u32> {
        let mut last = None;
        for vol in self.by_id.range_mut(first, end).filter(|vol| !vol.unborn).take(count) {
            (vol.written, vol.renamed) = (Some(vol.fields()), false);
            last = Some(vol.id);
        }
        last
    }

    /// What lies beyond the end of a volume is being given back from here on, or no more.
    pub(crate) fn set_cutting(&mut self, id: u32, cutting: bool) {
        if cutting {
            self.cutting.insert(id)
        } else {
            self.cutting.remove(&id)
        };
    }

    /// Whether what lies beyond its end is being given back.
    pub(crate) fn is_cutting(&self, id: u32) -> bool {
        self.cutting.contains(&id)
    }

    /// The volumes of which a part is being given back.
    pub(crate) fn cutting(&self) -> impl Iterator<Item = &Vol> {
        self.cutting.iter().filter_map(|id| self.get(*id))
    }

    /// Index pages above the nodes of all volumes that are dirty.
    pub(crate) fn upper_due(&self) -> u64 {
        self.upper_due
    }

    /// What [`Table::upper_due`] may be more when a volume becomes dirty, or gets one more slot, the last of `slots`.
    pub(crate) fn upper_more(&self, id: u32, slots: u64) -> u64 {
        let Some(vol) = self.get(id) else { return 0 };
        upper_pages(vol.slots.max(slots), vol.core.top.used() + 1).saturating_sub(vol.charged)
    }

    /// The map of a volume has changed, and so may its slots: the next checkpoint writes it (I2, I3).
    #[inline]
    pub(crate) fn charge(&mut self, id: u32) {
        if let Some(vol) = self.by_id.get_mut(id) {
            vol.charge(&mut self.upper_due);
        }
    }

    /// The same of a change in this slot, which may be a new one; none if there is no such volume.
    #[inline]
    pub(crate) fn charge_slot(&mut self, id: u32, slot: u64) -> Option<()> {
        let vol = self.by_id.get_mut(id)?;
        vol.slots = vol.slots.max(slot + 1);
        vol.charge(&mut self.upper_due);
        Some(())
    }

    /// A checkpoint has the map of a volume: its root, and the pages above its nodes. Those that it replaces.
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
