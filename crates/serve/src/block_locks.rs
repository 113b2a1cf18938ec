//! Who changes which blocks of a file, while somebody rewrites a part of a block.
//!
//! A part of a block is written by reading the block, changing it and writing it whole. What others write to that block
//! in between would be lost. So whoever rewrites a block waits until nobody else changes it, and others wait for the
//! end of that. Whole blocks are written far more often, by clients that keep to them, and these shall not pay: while
//! nobody rewrites a block of the file, a change looks at one number ([`BlockLocks::is_quiet`]) and is known to nobody
//! but its own reactor. So whoever rewrites a block enters the table first, and then asks each reactor that has the
//! file whether changes of that block are under way there; those that begin later find it in the table.
//!
//! Owns the table. Does not own the requests (`reactor/requests.rs`), nor how reactors are told (`shared.rs`).
//!
//! Invariants:
//! - B1. An entry begins when no earlier one that has a block in common with it is left, unless neither of the two
//!   rewrites that block, and all reactors have said that nothing without an entry changes the blocks that it rewrites.
//! - B2. An entry waits for earlier ones only, and for changes without an entry, which wait for nothing: so each one
//!   begins.
//! - B3. A block that somebody rewrites has a queue, in the order of entry, of all entries that have this block.

use std::collections::{BTreeMap, VecDeque};

use sheave_base::sync::atomic::{AtomicUsize, Ordering};
use sheave_base::sync::{Arc, Mutex, MutexGuard};

/// Whose turn it is: a request of a reactor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) reactor: usize,
    pub(crate) slot: u32,
}

/// What a request changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// The first and the last block.
    pub(crate) blocks: (u64, u64),
    /// Blocks among them that are rewritten, for a part of them is changed.
    pub(crate) rewritten: Vec<u64>,
}

impl Change {
    fn has(&self, block: u64) -> bool {
        (self.blocks.0..=self.blocks.1).contains(&block)
    }
}

/// What became of a change that has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entered {
    /// It has no block in common with an entry, and begins without one.
    Free,
    /// It has an entry until [`BlockLocks::end`].
    Entry {
        ticket: u64,
        /// It may begin now; otherwise its owner is named when it may.
        begins: bool,
        /// Reactors to be asked; each of them says [`BlockLocks::heard`].
        ask: Vec<usize>,
    },
}

/// How a request that changes something stands to those that rewrite blocks.
#[derive(Debug)]
pub(crate) enum Standing {
    /// It changes nothing, or has not begun.
    Apart,
    /// It was begun while nobody rewrote a block of its range.
    Free,
    /// It has an entry.
    Entry { locks: Arc<BlockLocks>, ticket: u64 },
}

/// The question whether changes without an entry are under way of blocks that an entry rewrites.
#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) locks: Arc<BlockLocks>,
    pub(crate) ticket: u64,
    pub(crate) rewritten: Vec<u64>,
    /// How many there are.
    pub(crate) left: usize,
}

/// The questions of a reactor.
#[derive(Debug, Default)]
pub(crate) struct Asks {
    /// Those that have come in this turn.
    pub(crate) new: Vec<Ask>,
    /// Those that wait for the end of changes.
    pub(crate) open: Vec<Ask>,
}

/// The first and the last block of a range that is not empty.
pub(crate) fn blocks_of((offset, len): (u64, u64), block_bytes: u64) -> (u64, u64) {
    (offset / block_bytes, (offset + len - 1) / block_bytes)
}

/// The table of one file.
#[derive(Debug)]
pub(crate) struct BlockLocks {
    block_bytes: u64,
    /// How many entries there are.
    entries: AtomicUsize,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    /// Reactors that have the file, and how many times.
    reactors: BTreeMap<usize, usize>,
    entries: BTreeMap<u64, Entry>,
    /// By block (B3).
    queues: BTreeMap<u64, VecDeque<Place>>,
}

#[derive(Debug)]
struct Entry {
    owner: Owner,
    change: Change,
    /// Blocks in whose queues it is.
    queued: Vec<u64>,
    /// Queues in which it waits.
    waits: usize,
    /// Reactors that have not answered.
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
    /// The table of a file with blocks of so many bytes, a power of two.
    pub(crate) fn new(block_bytes: u32) -> BlockLocks {
        BlockLocks { block_bytes: u64::from(block_bytes.max(1)), entries: AtomicUsize::new(0), table: Mutex::default() }
    }

    pub(crate) fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("invariant: nothing panics under this lock")
    }

    /// Whether there is no entry: a change of whole blocks may begin without one.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        // Acquire: pairs with the stores in `BlockLocks::told`. Who was asked about an entry comes after that entry by
        // the lock of its orders, and does not miss it here.
        self.entries.load(Ordering::Acquire) == 0
    }

    /// Tells of the number of entries.
    fn told(&self, table: &Table) {
        // Release: pairs with the load in `BlockLocks::is_quiet`; who sees no entry comes after what they have written.
        self.entries.store(table.entries.len(), Ordering::Release);
    }

    /// A reactor has the file from now on, perhaps once more: it is asked.
    pub(crate) fn join(&self, reactor: usize) {
        *self.lock().reactors.entry(reactor).or_default() += 1;
    }

    /// A reactor has the file once less, and has nothing under way on it if that was the last time. Returns those that
    /// may begin now.
    pub(crate) fn leave(&self, reactor: usize) -> Vec<Owner> {
        let mut table = self.lock();
        let Some(times) = table.reactors.get_mut(&reactor) else { return Vec::new() };
        *times -= 1;
        if *times > 0 {
            return Vec::new();
        }
        table.reactors.remove(&reactor);
        let mut begin = Vec::new();
        // A reactor that could not go on leaves entries behind.
        let left: Vec<u64> =
            table.entries.iter().filter(|(_, it)| it.owner.reactor == reactor).map(|it| *it.0).collect();
        left.into_iter().for_each(|ticket| begin.extend(table.end(ticket)));
        let asked: Vec<u64> = table.entries.keys().copied().collect();
        asked.into_iter().for_each(|ticket| begin.extend(table.heard(ticket, reactor)));
        self.told(&table);
        begin.retain(|owner| owner.reactor != reactor);
        begin
    }

    /// A change comes, of whole blocks or with some that are rewritten.
    pub(crate) fn enter(&self, owner: Owner, change: Change) -> Entered {
        let mut table = self.lock();
        let entered = table.enter(owner, change);
        self.told(&table);
        entered
    }

    /// Nothing without an entry changes the rewritten blocks of an entry on this reactor. Returns the owner when it may
    /// begin now.
    pub(crate) fn heard(&self, ticket: u64, reactor: usize) -> Option<Owner> {
        self.lock().heard(ticket, reactor)
    }

    /// A change that has an entry has ended. Returns those that may begin now.
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
                // B3: those that are there already, and for which this block had no queue.
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
