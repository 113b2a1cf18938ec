//! Coordinates changes of a file while blocks of it are rewritten in part (read-modify-write).
//!
//! Part of a block is written by reading the block, changing it and writing it whole. A write of another client to that
//! block in between would be lost. So a request that rewrites a block waits until no other request changes it, and
//! others wait for its end. Changes of whole blocks are far more frequent and must not pay for this: while no block of
//! the file is being rewritten, such a change reads one number ([`BlockLocks::is_quiet`]) and is recorded by its own
//! reactor only. A request that rewrites a block therefore enters the table first, and then asks each reactor that has
//! the file whether changes of that block are under way there. Changes that begin later find the entry in the table.
//!
//! Owns the table. Does not own the requests (`reactor/requests.rs`), nor the orders to reactors (`shared.rs`).
//!
//! Invariants:
//! - B1. Two entries conflict if both change a block that one of them rewrites. An entry begins when no earlier entry
//!   conflicts with it, and all reactors have answered that no change without an entry is under way on the blocks that
//!   it rewrites.
//! - B2. An entry waits for earlier entries only, and for changes without an entry, which wait for nothing. Thus each
//!   entry begins.
//! - B3. A block that is rewritten has a queue, in order of entry, of all entries that change this block.

use std::collections::{BTreeMap, VecDeque};

use sheave_base::sync::atomic::{AtomicUsize, Ordering};
use sheave_base::sync::{Arc, Mutex, MutexGuard};

/// Owner of an entry: a request, given by its reactor and its slot there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) reactor: usize,
    pub(crate) slot: u32,
}

/// The blocks that a request changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// First and last block, both included.
    pub(crate) blocks: (u64, u64),
    /// Blocks among them that are rewritten, because only a part of each changes.
    pub(crate) rewritten: Vec<u64>,
}

impl Change {
    fn has(&self, block: u64) -> bool {
        (self.blocks.0..=self.blocks.1).contains(&block)
    }
}

/// Result of `BlockLocks::enter`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entered {
    /// No entry rewrites a block of the change: it begins, without an entry.
    Free,
    /// Has an entry until [`BlockLocks::end`].
    Entry {
        ticket: u64,
        /// True: it may begin now. False: a later call returns its owner when it may.
        begins: bool,
        /// Reactors to ask. Each answers with [`BlockLocks::heard`].
        ask: Vec<usize>,
    },
}

/// State of a request with regard to requests that rewrite blocks.
#[derive(Debug)]
pub(crate) enum Standing {
    /// Changes nothing, or has not begun.
    Apart,
    /// Began without an entry, as no block of its range was being rewritten.
    Free,
    Entry {
        locks: Arc<BlockLocks>,
        ticket: u64,
    },
}

/// A question that a request with an entry asks a reactor: are changes that have no entry still under way on the blocks
/// that the request rewrites?
#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) locks: Arc<BlockLocks>,
    pub(crate) ticket: u64,
    pub(crate) rewritten: Vec<u64>,
    /// Number of such changes that are still under way.
    pub(crate) left: usize,
}

/// The questions that a reactor has to answer.
#[derive(Debug, Default)]
pub(crate) struct Asks {
    /// Questions that have arrived since the last look.
    pub(crate) new: Vec<Ask>,
    /// Questions that wait for the end of changes.
    pub(crate) open: Vec<Ask>,
}

/// Returns the first and the last block of a range that is not empty.
pub(crate) fn blocks_of((offset, len): (u64, u64), block_bytes: u64) -> (u64, u64) {
    (offset / block_bytes, (offset + len - 1) / block_bytes)
}

/// The table of one file's entries.
#[derive(Debug)]
pub(crate) struct BlockLocks {
    block_bytes: u64,
    /// Number of entries in the table, for `is_quiet`, which takes no lock.
    entries: AtomicUsize,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    /// Reactors that have the file open, and how many times each.
    reactors: BTreeMap<usize, usize>,
    entries: BTreeMap<u64, Entry>,
    /// Queues by block (B3).
    queues: BTreeMap<u64, VecDeque<Place>>,
}

#[derive(Debug)]
struct Entry {
    owner: Owner,
    change: Change,
    /// Blocks in whose queues the entry is.
    queued: Vec<u64>,
    /// Number of queues in which it waits.
    waits: usize,
    unheard: Vec<usize>,
}

impl Entry {
    fn begins(&self) -> bool {
        self.waits == 0 && self.unheard.is_empty()
    }
}

/// An entry in the queue of a block.
#[derive(Clone, Copy, Debug)]
struct Place {
    ticket: u64,
    rewrites: bool,
    waits: bool,
}

impl BlockLocks {
    /// Makes the table of a file with blocks of `block_bytes`, a power of two.
    pub(crate) fn new(block_bytes: u32) -> BlockLocks {
        BlockLocks { block_bytes: u64::from(block_bytes.max(1)), entries: AtomicUsize::new(0), table: Mutex::default() }
    }

    pub(crate) fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("invariant: nothing panics under this lock")
    }

    /// Returns true if there is no entry: a change of whole blocks may begin without one.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        // Acquire: pairs with the stores in `BlockLocks::told`. A reactor that was asked about an entry is ordered
        // after that entry by the lock of its orders, and does not miss it here.
        self.entries.load(Ordering::Acquire) == 0
    }

    /// Publishes the number of entries.
    fn told(&self, table: &Table) {
        // Release: pairs with the load in `BlockLocks::is_quiet`; a reactor that finds no entry is ordered after the
        // writes of those that ended.
        self.entries.store(table.entries.len(), Ordering::Release);
    }

    /// Adds a reactor that opens the file, perhaps once more: it will be asked from now on.
    pub(crate) fn join(&self, reactor: usize) {
        *self.lock().reactors.entry(reactor).or_default() += 1;
    }

    /// Called when a reactor closes the file; if it was the last time, nothing of the reactor is under way on it.
    /// Returns the owners that may begin now.
    pub(crate) fn leave(&self, reactor: usize) -> Vec<Owner> {
        let mut table = self.lock();
        let Some(times) = table.reactors.get_mut(&reactor) else { return Vec::new() };
        *times -= 1;
        if *times > 0 {
            return Vec::new();
        }
        table.reactors.remove(&reactor);
        let mut begin = Vec::new();
        // A reactor whose ring has failed leaves entries behind.
        let left: Vec<u64> =
            table.entries.iter().filter(|(_, it)| it.owner.reactor == reactor).map(|it| *it.0).collect();
        left.into_iter().for_each(|ticket| begin.extend(table.end(ticket)));
        let asked: Vec<u64> = table.entries.keys().copied().collect();
        asked.into_iter().for_each(|ticket| begin.extend(table.heard(ticket, reactor)));
        self.told(&table);
        begin.retain(|owner| owner.reactor != reactor);
        begin
    }

    /// Called before a change begins. Makes an entry if one is needed.
    pub(crate) fn enter(&self, owner: Owner, change: Change) -> Entered {
        let mut table = self.lock();
        let entered = table.enter(owner, change);
        self.told(&table);
        entered
    }

    /// Called when no change without an entry is under way on this reactor on the blocks that the entry rewrites.
    /// Returns the owner if it may begin now.
    pub(crate) fn heard(&self, ticket: u64, reactor: usize) -> Option<Owner> {
        self.lock().heard(ticket, reactor)
    }

    /// Ends an entry. Returns the owners that may begin now.
    pub(crate) fn end(&self, ticket: u64) -> Vec<Owner> {
        let mut table = self.lock();
        let begin = table.end(ticket);
        self.told(&table);
        begin
    }
}

impl Table {
    fn enter(&mut self, owner: Owner, change: Change) -> Entered {
        let (first, last) = change.blocks;
        if change.rewritten.is_empty() && self.queues.range(first..=last).next().is_none() {
            return Entered::Free;
        }
        for block in &change.rewritten {
            debug_assert!(change.has(*block));
            if !self.queues.contains_key(block) {
                // B3: earlier entries that change this block, which had no queue until now.
                let has = self.entries.iter_mut().filter(|(_, entry)| entry.change.has(*block));
                let queue = has.map(|(ticket, entry)| {
                    entry.queued.push(*block);
                    Place { ticket: *ticket, rewrites: false, waits: false }
                });
                let queue = queue.collect();
                self.queues.insert(*block, queue);
            }
        }
        let ticket = self.next;
        self.next += 1;
        let (mut queued, mut waits) = (Vec::new(), 0);
        for (block, queue) in self.queues.range_mut(first..=last) {
            let rewrites = change.rewritten.contains(block);
            let place = Place { ticket, rewrites, waits: queue.iter().any(|other| other.rewrites || rewrites) };
            queue.push_back(place);
            queued.push(*block);
            waits += usize::from(place.waits);
        }
        let ask = if change.rewritten.is_empty() { Vec::new() } else { self.reactors.keys().copied().collect() };
        let entry = Entry { owner, change, queued, waits, unheard: ask.clone() };
        let begins = entry.begins();
        self.entries.insert(ticket, entry);
        Entered::Entry { ticket, begins, ask }
    }

    fn heard(&mut self, ticket: u64, reactor: usize) -> Option<Owner> {
        let entry = self.entries.get_mut(&ticket)?;
        let at = entry.unheard.iter().position(|other| *other == reactor)?;
        entry.unheard.swap_remove(at);
        entry.begins().then_some(entry.owner)
    }

    fn end(&mut self, ticket: u64) -> Vec<Owner> {
        let Some(entry) = self.entries.remove(&ticket) else { return Vec::new() };
        let mut begin = Vec::new();
        for block in entry.queued {
            let Some(queue) = self.queues.get_mut(&block) else { continue };
            queue.retain(|place| place.ticket != ticket);
            for (at, place) in queue.iter_mut().enumerate() {
                // A rewriting entry goes alone: it begins only at the head of the queue, and nothing begins behind it.
                if place.rewrites && at > 0 {
                    break;
                }
                if std::mem::take(&mut place.waits)
                    && let Some(entry) = self.entries.get_mut(&place.ticket)
                {
                    entry.waits -= 1;
                    begin.extend(entry.begins().then_some(entry.owner));
                }
                if place.rewrites {
                    break;
                }
            }
            if queue.is_empty() {
                self.queues.remove(&block);
            }
        }
        begin
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn owner(slot: u32) -> Owner {
        Owner { reactor: slot as usize % 3, slot }
    }

    fn change(blocks: (u64, u64), rewritten: &[u64]) -> Change {
        Change { blocks, rewritten: rewritten.to_vec() }
    }

    /// Makes an entry. Returns its ticket, and true if it begins when no reactor has a change under way.
    fn enter(locks: &BlockLocks, slot: u32, change: Change) -> (u64, bool) {
        match locks.enter(owner(slot), change) {
            Entered::Entry { ticket, begins, ask } => {
                let heard: Vec<_> = ask.iter().map(|reactor| locks.heard(ticket, *reactor)).collect();
                (ticket, begins || heard.contains(&Some(owner(slot))))
            }
            Entered::Free => panic!("it has no entry"),
        }
    }

    #[test]
    fn whole_blocks_have_no_entry_unless_one_of_them_is_rewritten() {
        let locks = BlockLocks::new(512);
        assert!(locks.is_quiet());
        assert_eq!(locks.enter(owner(0), change((0, 9), &[])), Entered::Free);
        assert!(locks.is_quiet());
        let (ticket, begins) = enter(&locks, 1, change((3, 5), &[3, 5]));
        assert!(begins && !locks.is_quiet());
        // The block between the two is changed, but not rewritten.
        for (blocks, waits) in [((0, 2), false), ((4, 4), false), ((6, 9), false), ((0, 3), true), ((5, 5), true)] {
            let entered = locks.enter(owner(2), change(blocks, &[]));
            assert_eq!(entered != Entered::Free, waits, "{blocks:?}");
        }
        assert_eq!(locks.end(ticket), [owner(2), owner(2)]);
        assert!(!locks.is_quiet(), "the two that have waited are there until they end");
    }

    #[test]
    fn who_rewrites_a_block_waits_for_what_every_reactor_has_under_way_there() {
        let locks = BlockLocks::new(512);
        [0, 1, 1].into_iter().for_each(|reactor| locks.join(reactor));
        let Entered::Entry { ticket, begins, ask } = locks.enter(owner(0), change((7, 7), &[7])) else { panic!() };
        assert_eq!((begins, ask), (false, vec![0, 1]));
        assert_eq!(locks.heard(ticket, 1), None);
        assert_eq!(locks.heard(ticket, 1), None, "who says it twice does not stand for others");
        assert_eq!(locks.heard(ticket, 0), Some(owner(0)));
        locks.end(ticket);
        // A reactor that leaves has nothing under way.
        let Entered::Entry { ticket, .. } = locks.enter(owner(0), change((7, 7), &[7])) else { panic!() };
        assert_eq!(locks.heard(ticket, 0), None);
        assert_eq!((locks.leave(1), locks.leave(1)), (vec![], vec![owner(0)]));
        // An entry that it leaves behind holds up no other.
        let (_, begins) = enter(&locks, 3, change((7, 7), &[7]));
        assert!(!begins);
        assert_eq!(locks.leave(0), [], "the entry of this reactor has ended with it, the other was of it, too");
        assert!(locks.is_quiet());
    }

    #[test]
    fn a_change_that_waits_keeps_its_place_in_blocks_that_nobody_rewrote_when_it_came() {
        let locks = BlockLocks::new(512);
        let (first, _) = enter(&locks, 0, change((5, 5), &[5]));
        let (wide, begins) = enter(&locks, 1, change((4, 6), &[]));
        assert!(!begins);
        let (second, begins) = enter(&locks, 2, change((6, 6), &[6]));
        assert!(!begins, "the change of blocks 4 to 6 came before, and may begin at any time");
        assert_eq!(locks.end(first), [owner(1)]);
        assert_eq!(locks.end(wide), [owner(2)]);
        assert_eq!(locks.end(second), []);
        assert!(locks.is_quiet());
    }

    /// Next step of a test: a change arrives, a reactor answers, or a change that has begun ends. Numbers choose one of
    /// several.
    #[derive(Clone, Debug)]
    enum Act {
        Enter { first: u64, blocks: u64, head: bool, tail: bool },
        Hear(usize),
        End(usize),
    }

    fn acts() -> impl Strategy<Value = Vec<Act>> {
        let enter = (0u64..8, 1u64..5, any::<bool>(), any::<bool>());
        let act = prop_oneof![
            enter.prop_map(|(first, blocks, head, tail)| Act::Enter { first, blocks, head, tail }),
            (0usize..100).prop_map(Act::Hear),
            (0usize..100).prop_map(Act::End),
        ];
        proptest::collection::vec(act, 1..80)
    }

    /// The test's record of a change.
    struct Known {
        change: Change,
        ticket: Option<u64>,
        begun: bool,
        unheard: Vec<usize>,
    }

    /// Returns true if one rewrites a block that the other changes.
    fn collide(one: &Change, other: &Change) -> bool {
        one.rewritten.iter().any(|block| other.has(*block)) || other.rewritten.iter().any(|block| one.has(*block))
    }

    struct World {
        locks: BlockLocks,
        known: BTreeMap<u32, Known>,
    }

    impl World {
        fn began(&mut self, owners: impl IntoIterator<Item = Owner>) {
            for owner in owners {
                let it = self.known.get_mut(&owner.slot).expect("it has come");
                assert!(!it.begun, "told twice");
                it.begun = true;
            }
            // B1, for all that have begun. Changes without an entry are the subject of the questions in `hear`.
            let begun: Vec<_> = self.known.values().filter(|it| it.begun).collect();
            for (at, one) in begun.iter().enumerate() {
                assert!(one.unheard.is_empty(), "it has begun before all have answered");
                for other in &begun[..at] {
                    assert!(!collide(&one.change, &other.change), "{:?} beside {:?}", one.change, other.change);
                }
            }
        }

        /// A reactor answers if no change without an entry conflicts; otherwise that change ends first.
        fn hear(&mut self, slot: u32) {
            let Some(reactor) = self.known[&slot].unheard.first().copied() else { return };
            let change = self.known[&slot].change.clone();
            self.known.retain(|_, it| it.ticket.is_some() || !collide(&it.change, &change));
            let it = self.known.get_mut(&slot).expect("it has an entry");
            it.unheard.remove(0);
            let ticket = it.ticket.expect("who asks has one");
            let begins = self.locks.heard(ticket, reactor);
            self.began(begins);
        }

        fn end(&mut self, slot: u32) {
            let it = self.known.remove(&slot).expect("it is there");
            let begins = it.ticket.map(|ticket| self.locks.end(ticket));
            self.began(begins.into_iter().flatten());
        }
    }

    proptest! {
        #[test]
        fn random_entries_never_conflict_and_all_begin(acts in acts()) {
            let mut world = World { locks: BlockLocks::new(512), known: BTreeMap::new() };
            (0..3).for_each(|reactor| world.locks.join(reactor));
            for (slot, act) in (0..).zip(acts) {
                match act {
                    Act::Enter { first, blocks, head, tail } => {
                        let last = first + blocks - 1;
                        let mut rewritten = Vec::new();
                        rewritten.extend(head.then_some(first));
                        rewritten.extend((tail && (!head || last > first)).then_some(last));
                        let change = Change { blocks: (first, last), rewritten };
                        let (ticket, begins, ask) = match world.locks.enter(owner(slot), change.clone()) {
                            Entered::Free => (None, true, vec![]),
                            Entered::Entry { ticket, begins, ask } => (Some(ticket), begins, ask),
                        };
                        // Changes without an entry may run beside entries whose questions were not answered yet.
                        let begun = begins && ticket.is_some();
                        world.known.insert(slot, Known { change, ticket, begun: false, unheard: ask });
                        world.began(begun.then_some(owner(slot)));
                    }
                    Act::Hear(number) => {
                        let open = world.known.iter().filter(|it| !it.1.unheard.is_empty());
                        let asks: Vec<u32> = open.map(|it| *it.0).collect();
                        if !asks.is_empty() {
                            world.hear(asks[number % asks.len()]);
                        }
                    }
                    Act::End(number) => {
                        let ends = |it: &Known| it.begun || it.ticket.is_none();
                        let begun: Vec<u32> = world.known.iter().filter(|it| ends(it.1)).map(|it| *it.0).collect();
                        if !begun.is_empty() {
                            world.end(begun[number % begun.len()]);
                        }
                    }
                }
            }
            // B2: all remaining changes begin and end, one after the other.
            while let Some(slot) = world.known.keys().next().copied() {
                while world.known.get(&slot).is_some_and(|it| !it.unheard.is_empty()) {
                    world.hear(slot);
                }
                let it = &world.known[&slot];
                prop_assert!(it.begun || it.ticket.is_none(), "the earliest waits for nobody");
                world.end(slot);
            }
            prop_assert!(world.locks.is_quiet());
            prop_assert!(world.locks.lock().queues.is_empty());
        }
    }
}
