//! Changes of extent maps, under the pool's lock: making paths exclusive, copying shared nodes, storing entries.
//!
//! Owns the reference counts of nodes, units and pages, and the stores that lock-free lookups race with. Does not own
//! journal records, and does not decide when released space is reused: it collects what is released in [`Freed`].
//!
//! - I1: a node is changed in place only while it has one parent (a settling snapshot changes it for both parents at
//!   once). A parent that has released the node still counts as one until the release has passed the deferred-free
//!   queue ([`limbo`](crate::state::limbo)).
//! - I2: every node that a lookup can reach is complete: node numbers and entries are stored last.
//! - I3: a node or unit that an owner has released is in [`Tree::freed`], once for each such owner, under that owner's
//!   grace.
//!
//! Called by volumes, snapshots, checkpoints and recovery.

use sheave_base::grace::Grace;
use sheave_base::status::Status;
use sheave_base::sync::Arc;
use sheave_base::sync::atomic::{AtomicU64, Ordering};

use super::known::Known;
use super::nodes::{Node, Nodes};
use super::{Entry, ExtentMap, INDEX_SHIFT, TAG, Top, id_of};
use crate::state::alloc::pages::Pages;
use crate::state::alloc::{MAX_OWNERS, Units};
use crate::state::freed::{Freed, LetGo};

/// All extent maps of a pool, and the allocators of its units and metadata pages.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) map: Arc<ExtentMap>,
    pub(crate) index: Nodes,
    pub(crate) leaves: Nodes,
    pub(crate) units: Units,
    pub(crate) pages: Pages,
    /// Releases by owners since the last commit.
    pub(crate) freed: LetGo,
    /// Children of the node that `Tree::reclaim` is working on. Empty between calls.
    passing: Freed,
    /// Number of entries visited by releases and by sharing, since the lock was taken or the current part was begun.
    pub(super) work: u64,
    /// Replay cost of the map changes since the last checkpoint ([`work`](super::work)).
    pub(crate) cost: u64,
    /// Number of entries and node words visited or zeroed since the pool was opened.
    #[cfg(test)]
    pub(crate) looked: u64,
    /// Largest `work` under one hold of the lock.
    #[cfg(any(debug_assertions, test))]
    pub(crate) most_work: u64,
    /// Largest number of checkpoint pages made under one hold of the lock.
    #[cfg(any(debug_assertions, test))]
    pub(crate) most_pages: u64,
    /// Set during recovery, which counts the owners of units once all maps are complete. There are no lookups yet, so
    /// released nodes are free at once.
    pub(crate) counts_later: bool,
    /// Present during replay: cache of the leaves that the journal has changed.
    pub(super) known: Option<Box<Known>>,
    /// Number of replayed records whose leaf was not in `known` and needed a walk from the volume's top.
    #[cfg(test)]
    pub(crate) walked: u64,
}

/// Grace of the owner that releases something. `None` for an item that has passed the deferred-free queue.
type By<'a> = Option<&'a Arc<Grace>>;

/// Place of a unit's entry: leaf and index in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryPlace {
    pub(crate) leaf: u32,
    pub(crate) slot: usize,
}

impl Tree {
    pub(crate) fn new(map: Arc<ExtentMap>, units: Units) -> Tree {
        let pages = Pages::new(map.geometry.unit_shift);
        Tree {
            map,
            index: Nodes::new(),
            leaves: Nodes::new(),
            units,
            pages,
            freed: LetGo::default(),
            passing: Freed::default(),
            work: 0,
            cost: 0,
            #[cfg(test)]
            looked: 0,
            #[cfg(any(debug_assertions, test))]
            most_work: 0,
            #[cfg(any(debug_assertions, test))]
            most_pages: 0,
            counts_later: false,
            known: None,
            #[cfg(test)]
            walked: 0,
        }
    }

    fn split(&self, unit: u64) -> (u32, usize, usize) {
        let geometry = &self.map.geometry;
        let top = (unit >> geometry.slot_shift()) as u32;
        let child = (unit >> geometry.leaf_shift) as usize & ((1 << INDEX_SHIFT) - 1);
        (top, child, unit as usize & (geometry.leaf_entries() - 1))
    }

    /// Makes the path to `unit` exclusive to `top` and returns the entry's place. Creates missing nodes, copies shared
    /// ones, and marks the path dirty.
    pub(crate) fn own(&mut self, top: &Top, unit: u64) -> Result<EntryPlace, Status> {
        if let Some(place) = self.own_way(top, unit) {
            return Ok(place);
        }
        let (at, child, slot) = self.split(unit);
        if !top.make(at) {
            return Err(Status::NoMem);
        }
        let map = Arc::clone(&self.map);
        let (index, new_way) = self.own_index(top, at, &map)?;
        let index_word = map.index.word(index, child).ok_or(Status::NoMem)?;
        let leaf = self.own_leaf(top, index, index_word, &map);
        if new_way || leaf.is_ok_and(|leaf| leaf.1) {
            top.forget();
        }
        Ok(EntryPlace { leaf: leaf?.0, slot })
    }

    /// Fast path of [`Tree::own`]: returns the place of the entry if both nodes above it exist and neither link is
    /// tagged as shared, and marks these nodes dirty. Otherwise returns `None`.
    pub(crate) fn own_way(&mut self, top: &Top, unit: u64) -> Option<EntryPlace> {
        let (at, child, slot) = self.split(unit);
        // Relaxed, both: we are under the lock that all stores are made under.
        let first = top.word(at)?.load(Ordering::Relaxed);
        let second = self.map.index.word(id_of(first), child)?.load(Ordering::Relaxed);
        if first == 0 || second == 0 || (first | second) & TAG != 0 {
            return None;
        }
        self.index.touch(id_of(first));
        self.leaves.touch(id_of(second));
        Some(EntryPlace { leaf: id_of(second), slot })
    }

    /// Returns the place of `unit` without copying shared nodes, and marks its path dirty. A change made there is
    /// visible to every volume that shares the leaf.
    pub(crate) fn touch(&mut self, top: &Top, unit: u64) -> Option<EntryPlace> {
        let (at, child, slot) = self.split(unit);
        // Relaxed, both: we are under the lock that all stores are made under.
        let index = id_of(top.word(at)?.load(Ordering::Relaxed));
        let leaf = id_of(self.map.index.word(index, child)?.load(Ordering::Relaxed));
        if index == 0 || leaf == 0 {
            return None;
        }
        self.index.touch(index);
        self.leaves.touch(leaf);
        Some(EntryPlace { leaf, slot })
    }

    /// Returns an index node that only slot `at` of `top` refers to, and true if existing links of the path have
    /// changed.
    fn own_index(&mut self, top: &Top, at: u32, map: &ExtentMap) -> Result<(u32, bool), Status> {
        let word = top.word(at).ok_or(Status::NoMem)?.load(Ordering::Relaxed); // Relaxed: under the lock.
        let old = id_of(word);
        if old == 0 {
            let new = self.new_index(map)?;
            top.set_word(at, u64::from(new));
            return Ok((new, false));
        }
        if word & TAG == 0 || !self.index.is_shared(old) {
            if word & TAG != 0 {
                top.set_word(at, u64::from(old));
            }
            self.index.touch(old);
            return Ok((old, word & TAG != 0));
        }
        let new = self.new_index(map)?;
        let (Some(from), Some(to)) = (map.index.node(old), map.index.node(new)) else { return Err(Status::NoMem) };
        self.cost += from.len() as u64;
        self.look(from.len());
        for (from, to) in from.iter().zip(to) {
            let child = from.load(Ordering::Relaxed); // Relaxed: under the lock.
            if child != 0 {
                self.leaves.get(id_of(child));
                from.store(child | TAG, Ordering::Release); // Release: pairs with the Acquire load in `find`
                to.store(child | TAG, Ordering::Relaxed); // Relaxed: published with the node's number
            }
        }
        self.index.add_used(new, self.index.node(old).used);
        top.set_word(at, u64::from(new));
        self.put_index(old, Some(top.grace()));
        Ok((new, true))
    }

    /// Returns a leaf that only `index_word` refers to, and true if existing links of the path have changed.
    fn own_leaf(
        &mut self,
        top: &Top,
        index: u32,
        index_word: &AtomicU64,
        map: &ExtentMap,
    ) -> Result<(u32, bool), Status> {
        let word = index_word.load(Ordering::Relaxed); // Relaxed: under the lock.
        let old = id_of(word);
        if old == 0 {
            let new = self.new_leaf(map)?;
            self.index.add_used(index, 1);
            index_word.store(u64::from(new), Ordering::Release); // Release: pairs as in `own_index`
            return Ok((new, false));
        }
        if word & TAG == 0 || !self.leaves.is_shared(old) {
            if word & TAG != 0 {
                index_word.store(u64::from(old), Ordering::Release); // Release: pairs as in `own_index`
            }
            self.leaves.touch(old);
            return Ok((old, word & TAG != 0));
        }
        if !self.can_share(old, map) {
            return Err(Status::NoSpc);
        }
        let new = self.new_leaf(map)?;
        self.copy_leaf(old, new, map);
        index_word.store(u64::from(new), Ordering::Release); // Release: pairs as in `own_index`
        self.put_leaf(old, Some(top.grace()));
        Ok((new, true))
    }

    /// Returns true if the leaf of `unit` is reachable from more than one top.
    #[cfg(any(debug_assertions, test))]
    pub(crate) fn is_way_shared(&self, top: &Top, unit: u64) -> bool {
        let (at, child, _) = self.split(unit);
        // Relaxed, both: under the lock.
        let index = top.word(at).map_or(0, |word| id_of(word.load(Ordering::Relaxed)));
        let leaf = self.map.index.word(index, child).map_or(0, |word| id_of(word.load(Ordering::Relaxed)));
        self.index.is_shared(index) || self.leaves.is_shared(leaf)
    }

    /// Returns true if each unit of `leaf` may get one more owner. Owners in the deferred-free queue count too, so a
    /// unit may have more owners than there are volumes.
    fn can_share(&self, leaf: u32, map: &ExtentMap) -> bool {
        let words = map.leaves.node(leaf).unwrap_or_default();
        // Relaxed: under the lock.
        let mut entries = words.iter().map(|word| Entry(word.load(Ordering::Relaxed)));
        entries.all(|entry| !entry.is_alloc() || self.units.owners(entry.phys()) < MAX_OWNERS)
    }

    fn copy_leaf(&mut self, old: u32, new: u32, map: &ExtentMap) {
        let (Some(from), Some(to)) = (map.leaves.node(old), map.leaves.node(new)) else { return };
        self.cost += from.len() as u64;
        self.look(from.len());
        for (from, to) in from.iter().zip(to) {
            let entry = Entry(from.load(Ordering::Relaxed)); // Relaxed: under the lock.
            if !entry.is_alloc() {
                continue;
            }
            if !self.counts_later {
                let got = self.units.get(entry.phys());
                debug_assert!(got, "a mapped unit has owners, and fewer than there may be");
            }
            debug_assert!(!entry.any(Entry::LISTED), "what waits for a commit is of one volume (I3 of `entry`)");
            let shared = entry.without(Entry::OF_ONE);
            from.store(shared.0, Ordering::Release); // Release: pairs with the Acquire load in `find`
            to.store(shared.0, Ordering::Relaxed); // Relaxed: published with the node's number
        }
        for (from, to) in map.bits.node(old).unwrap_or_default().iter().zip(map.bits.node(new).unwrap_or_default()) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed); // Relaxed, both: as above
        }
        self.leaves.add_used(new, self.leaves.node(old).used);
        self.leaves.add_written(new, self.leaves.node(old).written, 0);
    }

    /// Allocates an index node without children.
    pub(crate) fn new_index(&mut self, map: &ExtentMap) -> Result<u32, Status> {
        let (id, blank) = self.index.take().ok_or(Status::NoMem)?;
        self.count_node();
        if !map.index.make(id) {
            let _ = self.index.put(id);
            return Err(Status::NoMem);
        }
        if !blank {
            zero(map.index.node(id));
            self.look(1 << INDEX_SHIFT);
        }
        debug_assert!(cfg!(shuttle) || is_blank(map.index.node(id)), "index node {id} is blank");
        Ok(id)
    }

    /// Allocates a leaf that consists of holes.
    pub(crate) fn new_leaf(&mut self, map: &ExtentMap) -> Result<u32, Status> {
        let (id, blank) = self.leaves.take().ok_or(Status::NoMem)?;
        self.count_node();
        if !map.leaves.make(id) || !(map.geometry.has_bits_in_entries() || map.bits.make(id)) {
            let _ = self.leaves.put(id);
            return Err(Status::NoMem);
        }
        if !blank {
            zero(map.leaves.node(id));
            self.look(map.geometry.leaf_entries());
            zero(map.bits.node(id));
        }
        debug_assert!(cfg!(shuttle) || [map.leaves.node(id), map.bits.node(id)].into_iter().all(is_blank));
        Ok(id)
    }

    pub(crate) fn entry(&self, place: EntryPlace) -> Entry {
        // Relaxed: under the lock.
        Entry(self.map.leaves.word(place.leaf, place.slot).map_or(0, |word| word.load(Ordering::Relaxed)))
    }

    /// Stores the flags of `entry`. The unit of `entry` is that of the present entry, or both are holes. Keeps the
    /// written bits.
    #[inline]
    pub(crate) fn store(&self, place: EntryPlace, entry: Entry) {
        if let Some(word) = self.map.leaves.word(place.leaf, place.slot) {
            let bits = Entry(word.load(Ordering::Relaxed)).bits(); // Relaxed: under the lock.
            // Release: pairs with the Acquire load in `find`.
            word.store(entry.with_bits(bits).0, Ordering::Release);
            #[cfg(all(test, not(shuttle)))]
            super::watch::stored();
        }
    }

    /// Stores `entry`, which has a unit, in place of a hole.
    pub(crate) fn install(&mut self, place: EntryPlace, entry: Entry) {
        debug_assert!(!self.entry(place).is_alloc() && entry.is_alloc());
        self.leaves.add_used(place.leaf, 1);
        self.store(place, entry);
    }

    /// Replaces the unit of an entry and releases the old one. Keeps the written bits.
    pub(crate) fn replace(&mut self, top: &Top, place: EntryPlace, entry: Entry) {
        let old = self.entry(place);
        debug_assert!(old.is_alloc() && entry.is_alloc());
        self.store(place, entry);
        self.put_unit(old.phys(), Some(top.grace()));
    }

    /// Turns an allocated entry into a hole and releases its unit.
    pub(crate) fn unmap(&mut self, top: &Top, place: EntryPlace) {
        let unit = self.make_hole(place);
        self.put_unit(unit, Some(top.grace()));
    }

    /// Turns an allocated entry into a hole. Returns its unit without releasing it.
    pub(super) fn make_hole(&mut self, place: EntryPlace) -> u64 {
        let old = self.entry(place);
        debug_assert!(old.is_alloc());
        self.store(place, Entry::NONE);
        self.set_bits(place, 0, self.map.geometry.blocks(), false);
        self.leaves.sub_used(place.leaf);
        self.note_space(place, false);
        old.phys()
    }

    /// Keeps the replay cache up to date (K2 of `known`).
    pub(super) fn note_space(&mut self, place: EntryPlace, has: bool) {
        if let Some(known) = &mut self.known {
            known.set_space(place.leaf, place.slot, has);
        }
    }

    /// Releases a unit that was allocated for a volume but never stored in its map.
    pub(crate) fn give_back(&mut self, top: &Top, unit: u64) {
        if self.units.put(unit) {
            self.freed.by(top.grace()).unit(unit);
        }
    }

    /// Returns the list for releases under `grace`. Without a grace, returns the list that `Tree::reclaim` collects.
    fn freed_by(&mut self, grace: By<'_>) -> &mut Freed {
        match grace {
            Some(grace) => self.freed.by(grace),
            None => &mut self.passing,
        }
    }

    fn put_unit(&mut self, unit: u64, by: By<'_>) {
        self.work += 1;
        if self.counts_later {
            return;
        }
        if self.units.owners(unit) > 1 {
            // The owner stays counted until the release is durable and its readers are gone: with one owner, the unit
            // would be written in place.
            self.freed_by(by).shared_units.push(unit);
        } else if self.units.put(unit) {
            self.freed_by(by).unit(unit);
        }
    }

    /// Frees part of the items in `freed`, which have passed the deferred-free queue, with about `most` entries of
    /// work: first drops one owner of each shared node and unit, then frees nodes and units without owners. The rest
    /// stays in `freed`.
    pub(crate) fn reclaim(&mut self, freed: &mut Freed, most: u64) {
        let end = self.work.saturating_add(most);
        while self.work < end && freed.has_shared() {
            if let Some(id) = freed.shared_index.pop() {
                self.put_index_now(id, None);
            } else if let Some(id) = freed.shared_leaves.pop() {
                self.put_leaf_now(id, None);
            } else if let Some(unit) = freed.shared_units.pop()
                && self.units.put(unit)
            {
                self.passing.unit(unit);
            }
            self.work += 1;
            // The children of a node without another parent are freed without a second wait: each parent of that node
            // waited for its own readers, and no other path led to the children.
            freed.append(std::mem::take(&mut self.passing));
        }
        let part = freed.take_some(end.saturating_sub(self.work));
        for unit in part.units() {
            self.work += 1;
            self.units.release(unit);
        }
        part.index.iter().for_each(|id| self.index.release(*id));
        part.leaves.iter().for_each(|id| self.leaves.release(*id));
    }

    /// Returns the number of entries that have a unit, among `count` entries of one leaf from a place on.
    pub(crate) fn with_space(&mut self, EntryPlace { leaf, slot }: EntryPlace, count: u64) -> usize {
        let map = Arc::clone(&self.map);
        let words = map.leaves.node(leaf).unwrap_or_default();
        let end = words.len().min(slot + count as usize);
        let used = self.leaves.node(leaf).used as usize;
        let with_space = |words: &[AtomicU64]| {
            // Relaxed: under the lock.
            words.iter().filter(|word| Entry(word.load(Ordering::Relaxed)).is_alloc()).count()
        };
        self.look((end - slot).min(words.len() - (end - slot)));
        // The leaf has a count of all its entries with a unit, so it is enough to count the smaller part of the leaf.
        if (end - slot) * 2 > words.len() {
            used.saturating_sub(with_space(&words[..slot]) + with_space(&words[end..]))
        } else {
            with_space(&words[slot..end])
        }
    }

    /// Unmaps the first `most` allocated entries of a leaf, starting at `from`.
    pub(crate) fn unmap_some(&mut self, top: &Top, from: EntryPlace, most: usize) {
        let map = Arc::clone(&self.map);
        let words = map.leaves.node(from.leaf).unwrap_or_default().iter().enumerate().skip(from.slot);
        // Relaxed: under the lock.
        let used = words.filter(|(_, word)| Entry(word.load(Ordering::Relaxed)).is_alloc()).take(most);
        let mut end = from.slot;
        for (slot, _) in used {
            self.unmap(top, EntryPlace { slot, ..from });
            end = slot + 1;
        }
        self.look(end - from.slot);
    }

    /// Empties one slot of `top` and releases the index node in it.
    pub(crate) fn drop_slot(&mut self, top: &Top, at: u32) {
        let Some(word) = top.word(at) else { return };
        let id = id_of(word.load(Ordering::Relaxed)); // Relaxed: under the lock.
        if id != 0 {
            top.set_word(at, 0);
            top.forget();
            self.put_index(id, Some(top.grace()));
        }
    }

    /// Releases an index node that `top` had before [`Tree::exchange`].
    pub(crate) fn put_exchanged(&mut self, top: &Top, id: u32) {
        self.put_index(id, Some(top.grace()));
    }

    /// Releases one parent's reference to an index node. If the node has other parents, lookups that came through this
    /// one may still be inside: the reference is dropped only after they have left, and until then the node is not
    /// changed in place (I1).
    fn put_index(&mut self, id: u32, by: By<'_>) {
        self.work += 1;
        if self.is_put_later(self.index.is_shared(id)) {
            self.freed_by(by).shared_index.push(id);
        } else {
            self.put_index_now(id, by);
        }
    }

    /// Returns true if a release keeps its reference until it has passed the deferred-free queue. Recovery has no
    /// lookups to wait for.
    fn is_put_later(&self, shared: bool) -> bool {
        shared && !self.counts_later
    }

    fn put_index_now(&mut self, id: u32, by: By<'_>) {
        let Some(node) = self.index.put(id) else { return };
        self.give_up_page(&node);
        self.look(1 << INDEX_SHIFT);
        let map = Arc::clone(&self.map);
        let leaves = map.index.node(id).unwrap_or_default().iter();
        let leaves = leaves.map(|word| id_of(word.load(Ordering::Relaxed))); // Relaxed: under the lock.
        for leaf in leaves.filter(|leaf| *leaf != 0).take(node.used as usize) {
            self.put_leaf(leaf, by);
        }
        match self.counts_later {
            true => self.index.release_put(id, &node),
            false => self.freed_by(by).index.push(id),
        }
    }

    fn put_leaf(&mut self, id: u32, by: By<'_>) {
        if self.is_put_later(self.leaves.is_shared(id)) {
            self.freed_by(by).shared_leaves.push(id);
        } else {
            self.put_leaf_now(id, by);
        }
    }

    fn put_leaf_now(&mut self, id: u32, by: By<'_>) {
        let Some(node) = self.leaves.put(id) else { return };
        if let Some(known) = &mut self.known {
            known.forget_leaf(id);
        }
        self.give_up_page(&node);
        let map = Arc::clone(&self.map);
        let entries = map.leaves.node(id).unwrap_or_default().iter();
        let entries = entries.map(|word| Entry(word.load(Ordering::Relaxed))); // Relaxed: under the lock.
        // In recovery the owners of units are not counted yet.
        let used = if self.counts_later { 0 } else { node.used as usize };
        for entry in entries.filter(|entry| entry.is_alloc()).take(used) {
            self.put_unit(entry.phys(), by);
        }
        match self.counts_later {
            true => self.leaves.release_put(id, &node),
            false => self.freed_by(by).leaves.push(id),
        }
    }

    fn give_up_page(&mut self, node: &Node) {
        if !node.page.is_none() {
            self.pages.give_up(node.page.address);
        }
    }

    /// Removes the leaf of `unit` from the map if it is empty, and then its index node if that is empty. The path must
    /// be exclusive to `top`.
    pub(crate) fn prune(&mut self, top: &Top, unit: u64) {
        let (at, child, _) = self.split(unit);
        let Some(top_word) = top.word(at) else { return };
        let index = id_of(top_word.load(Ordering::Relaxed)); // Relaxed: under the lock.
        let Some(index_word) = self.map.index.word(index, child) else { return };
        let leaf = id_of(index_word.load(Ordering::Relaxed)); // Relaxed: under the lock.
        if index == 0 || leaf == 0 || self.leaves.node(leaf).used > 0 {
            return;
        }
        index_word.store(0, Ordering::Release); // Release: pairs with the Acquire load in `find`
        top.forget();
        self.put_leaf(leaf, Some(top.grace()));
        self.index.touch(index);
        if self.index.sub_used(index) {
            self.drop_slot(top, at);
        }
    }

    /// Removes the leaf of `unit` with all its entries. Makes the path exclusive down to the index node.
    pub(crate) fn drop_leaf(&mut self, top: &Top, unit: u64) -> Result<(), Status> {
        let (at, child, _) = self.split(unit);
        let map = Arc::clone(&self.map);
        // Relaxed: under the lock.
        if top.word(at).is_none_or(|word| word.load(Ordering::Relaxed) == 0) {
            return Ok(());
        }
        let (index, _) = self.own_index(top, at, &map)?;
        let Some(index_word) = map.index.word(index, child) else { return Ok(()) };
        let leaf = id_of(index_word.load(Ordering::Relaxed)); // Relaxed: under the lock.
        if leaf == 0 {
            return Ok(());
        }
        index_word.store(0, Ordering::Release); // Release: pairs with the Acquire load in `find`
        top.forget();
        self.put_leaf(leaf, Some(top.grace()));
        if self.index.sub_used(index) {
            self.drop_slot(top, at);
        }
        Ok(())
    }

    /// Returns the number of nodes that the next checkpoint writes.
    pub(crate) fn dirty_nodes(&self) -> u64 {
        self.index.dirty() + self.leaves.dirty()
    }

    /// Called when a checkpoint has taken all dirty nodes ([`Nodes::begin_epoch`]).
    pub(crate) fn begin_epoch(&mut self) {
        self.index.begin_epoch();
        self.leaves.begin_epoch();
        self.cost = 0;
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        let bits = if self.map.geometry.has_bits_in_entries() { 0 } else { self.map.bits.node_bytes() };
        self.index.live() * self.map.index.node_bytes()
            + self.leaves.live() * (self.map.leaves.node_bytes() + bits)
            + self.index.memory_bytes()
            + self.leaves.memory_bytes()
            + self.units.memory_bytes()
    }
}

fn is_blank(words: Option<&[AtomicU64]>) -> bool {
    // Relaxed: under the lock.
    words.unwrap_or_default().iter().all(|word| word.load(Ordering::Relaxed) == 0)
}

fn zero(words: Option<&[AtomicU64]>) {
    // Relaxed: the node's number is published later.
    words.unwrap_or_default().iter().for_each(|word| word.store(0, Ordering::Relaxed));
}
