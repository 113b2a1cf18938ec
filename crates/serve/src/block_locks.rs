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

/// A request of a reactor that owns an entry.
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

/// A question to a reactor: are changes without an entry under way on the blocks that this entry rewrites?
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
mod tests;
