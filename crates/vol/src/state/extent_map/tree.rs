//! Changes of maps, under the pool's lock: ways that belong to one volume alone, copies of shared nodes, entries.
//!
//! Owns which nodes, units and pages are in use, and the stores that lookups race with. Does not own what is recorded
//! of a change, nor when what was given up may be used again: it collects that in [`Freed`].
//!
//! - I1: a node is changed only when it has one parent (or, while a snapshot settles, for both at once). A parent that
//!   has let it go counts until that has passed the gate ([`limbo`](crate::state::limbo)).
//! - I2: what a lookup can reach is complete: numbers and entries are stored last.
//! - I3: a node or unit that an owner has let go is in [`Tree::freed`], once for each such owner, under the owner's
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

/// All maps of a pool, and the space they lie in.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) map: Arc<ExtentMap>,
    pub(crate) index: Nodes,
    pub(crate) leaves: Nodes,
    pub(crate) units: Units,
    pub(crate) pages: Pages,
    /// What owners have let go since the last commit.
    pub(crate) freed: LetGo,
    /// What is below a node that passes the gate, while it passes.
    passing: Freed,
    /// Entries that giving up and sharing have looked at, since the lock was taken or a part was begun.
    pub(super) work: u64,
    /// What changes of maps have cost since the last checkpoint ([`work`](super::work)).
    pub(crate) cost: u64,
    /// Entries and words of nodes that were looked at or zeroed, ever.
    #[cfg(test)]
    pub(crate) looked: u64,
    /// The most work under one hold of the lock.
    #[cfg(any(debug_assertions, test))]
    pub(crate) most_work: u64,
    /// The most pages that were made under one hold of the lock.
    #[cfg(any(debug_assertions, test))]
    pub(crate) most_pages: u64,
    /// Recovery: owners of units are counted when the maps are complete, and nobody looks anything up, so that nodes
    /// are free at once.
    pub(crate) counts_later: bool,
    /// Recovery: leaves that the journal has changed.
    pub(super) known: Option<Box<Known>>,
    /// Records whose leaf was looked for from the number of its volume on, ever.
    #[cfg(test)]
    pub(crate) walked: u64,
}

/// Who lets go: those in this grace may still use it.
type By<'a> = Option<&'a Arc<Grace>>;

/// Where a unit's entry is, on a way that may be changed.
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

    /// The place of a unit on a way that belongs to this top alone: missing nodes are made, shared ones copied. All of
    /// the way is dirty then.
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

    /// What [`Tree::own`] gives where the way is there and this top's own, which is nearly always: nothing is made.
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

    /// The place of a unit as it is, to change what all who have it see; its way becomes dirty.
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

    /// An index node of this way alone, and whether the way has changed.
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

    /// A leaf of this way alone, and whether the way has changed.
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

    /// Whether the leaf of a unit is reached from more than one top.
    #[cfg(any(debug_assertions, test))]
    pub(crate) fn is_way_shared(&self, top: &Top, unit: u64) -> bool {
        let (at, child, _) = self.split(unit);
        // Relaxed, both: under the lock.
        let index = top.word(at).map_or(0, |word| id_of(word.load(Ordering::Relaxed)));
        let leaf = self.map.index.word(index, child).map_or(0, |word| id_of(word.load(Ordering::Relaxed)));
        self.index.is_shared(index) || self.leaves.is_shared(leaf)
    }

    /// Whether each unit of a leaf may have one more owner. Owners that wait at the gate count, so there may be more of
    /// them than volumes.
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

    /// An index node without children.
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

    /// A leaf of holes.
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

    /// Stores an entry with the same space (or none in both), other flags. The written bits stay what they are.
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

    /// Gives a hole space.
    pub(crate) fn install(&mut self, place: EntryPlace, entry: Entry) {
        debug_assert!(!self.entry(place).is_alloc() && entry.is_alloc());
        self.leaves.add_used(place.leaf, 1);
        self.store(place, entry);
    }

    /// Another unit in the place of the one that the entry has; the written bits are the same.
    pub(crate) fn replace(&mut self, top: &Top, place: EntryPlace, entry: Entry) {
        let old = self.entry(place);
        debug_assert!(old.is_alloc() && entry.is_alloc());
        self.store(place, entry);
        self.put_unit(old.phys(), Some(top.grace()));
    }

    /// Makes a hole of an entry with space; its unit loses an owner.
    pub(crate) fn unmap(&mut self, top: &Top, place: EntryPlace) {
        let unit = self.make_hole(place);
        self.put_unit(unit, Some(top.grace()));
    }

    /// Makes a hole of an entry with space; its unit, which has all its owners still.
    pub(super) fn make_hole(&mut self, place: EntryPlace) -> u64 {
        let old = self.entry(place);
        debug_assert!(old.is_alloc());
        self.store(place, Entry::NONE);
        self.set_bits(place, 0, self.map.geometry.blocks(), false);
        self.leaves.sub_used(place.leaf);
        self.note_space(place, false);
        old.phys()
    }

    /// What a replay knows of a leaf stays true.
    pub(super) fn note_space(&mut self, place: EntryPlace, has: bool) {
        if let Some(known) = &mut self.known {
            known.set_space(place.leaf, place.slot, has);
        }
    }

    /// Gives a unit up that a volume was given and that nobody has seen.
    pub(crate) fn give_back(&mut self, top: &Top, unit: u64) {
        if self.units.put(unit) {
            self.freed.by(top.grace()).unit(unit);
        }
    }

    /// Where it waits what is let go by those in a grace; or, without one, what passes the gate just now.
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
            self.freed_by(by).shared_units.push(unit);
        } else if self.units.put(unit) {
            self.freed_by(by).unit(unit);
        }
    }

    /// A part of what has passed the gate: about `most` entries of what has other owners lose the one that let go, then
    /// as many units and nodes without owners are free. `freed` is what is left to do.
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
            // What was below a node that had no other parent passes with it: each of its parents has waited for those
            // who went through that parent, and nobody reached it another way.
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

    /// How many units have space of so many from a place on, all of one leaf.
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
        // The leaf knows how many there are, so the smaller part tells.
        if (end - slot) * 2 > words.len() {
            used.saturating_sub(with_space(&words[..slot]) + with_space(&words[end..]))
        } else {
            with_space(&words[slot..end])
        }
    }

    /// Makes holes of the first `most` entries with space from this place on, in its leaf.
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

    /// Empties one slot of a top. What nobody else has is given up.
    pub(crate) fn drop_slot(&mut self, top: &Top, at: u32) {
        let Some(word) = top.word(at) else { return };
        let id = id_of(word.load(Ordering::Relaxed)); // Relaxed: under the lock.
        if id != 0 {
            top.set_word(at, 0);
            top.forget();
            self.put_index(id, Some(top.grace()));
        }
    }

    /// An index node that a top had before [`Tree::exchange`] is let go.
    pub(crate) fn put_exchanged(&mut self, top: &Top, id: u32) {
        self.put_index(id, Some(top.grace()));
    }

    /// An index node is let go by a parent. While it has others, lookups that went through this one may be in it: it
    /// has one parent less when they have passed the gate, and until then nobody changes it in place (I1).
    fn put_index(&mut self, id: u32, by: By<'_>) {
        self.work += 1;
        if self.is_put_later(self.index.is_shared(id)) {
            self.freed_by(by).shared_index.push(id);
        } else {
            self.put_index_now(id, by);
        }
    }

    /// Whether what is let go keeps its owner until it has passed the gate. In recovery nobody looks anything up.
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
        // In recovery nobody counts the owners of units yet.
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

    /// Takes an empty leaf out of its way, and the index node if that is empty then. The way is this top's own.
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

    /// Drops a whole leaf of a way that is this top's own as far as its index node.
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

    /// Nodes that the next checkpoint writes.
    pub(crate) fn dirty_nodes(&self) -> u64 {
        self.index.dirty() + self.leaves.dirty()
    }

    /// A checkpoint has all of them ([`Nodes::begin_epoch`]).
    pub(crate) fn begin_epoch(&mut self) {
        self.index.begin_epoch();
        self.leaves.begin_epoch();
        self.cost = 0;
    }

    /// Bytes of memory that maps and tables take.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let bits = if self.map.geometry.has_bits_in_entries() { 0 } else { self.map.bits.node_bytes() };
        self.index.live() * self.map.index.node_bytes()
            + self.leaves.live() * (self.map.leaves.node_bytes() + bits)
            + self.index.memory_bytes()
            + self.leaves.memory_bytes()
            + self.units.memory_bytes()
    }
}

/// Whether all words are 0.
fn is_blank(words: Option<&[AtomicU64]>) -> bool {
    // Relaxed: under the lock.
    words.unwrap_or_default().iter().all(|word| word.load(Ordering::Relaxed) == 0)
}

fn zero(words: Option<&[AtomicU64]>) {
    // Relaxed: nobody has the node's number; that is published later.
    words.unwrap_or_default().iter().for_each(|word| word.store(0, Ordering::Relaxed));
}
