//! One shard of an account's queue: a lock, the entries in order, and the hashed work whose buckets live here.
//!
//! Owns the order in which entries leave, and the rule of a batch. Does not own workers: any worker may take from any
//! shard.
//!
//! Invariants:
//! - I1: a batch is one item that may block, or up to [`BATCH`] that do not. So nothing waits in the hands of a worker
//!   that is blocked: what it did not run yet is still here.
//! - I2: an account's bit of this shard is set exactly while `ready` is not empty; both change under the lock.
//! - I3: room for every entry was reserved when its client registered; entries of cancelled items are swept when the
//!   room is used up. So pushing neither fails nor allocates.

use std::collections::VecDeque;

use super::hash::HashRuns;
use super::lock::{Held, Lock, LockStats};
use super::work::{Entry, HASH_BUCKETS};
use sheave_base::clock::Clock;

/// Items that do not block, taken at once: enough to make the lock's share small, few enough that a second worker
/// finds something too.
pub(super) const BATCH: usize = 64;

/// Entries that a client's slots may have here: one that counts, and one left behind by a cancel. So a sweep frees
/// half of the room at least.
const ENTRIES_PER_SLOT: usize = 2;

#[derive(Debug)]
pub(super) struct Shard {
    queue: Lock<Queue>,
}

#[derive(Debug)]
pub(super) struct Queue {
    ready: VecDeque<Entry>,
    hashed: HashRuns,
}

/// What a worker took: entries to run in order, and the bucket to release afterwards.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) entries: Vec<Entry>,
    /// The shard, and the bucket claimed in it.
    pub(super) claim: Option<(usize, u32)>,
}

impl Batch {
    pub(super) fn new() -> Batch {
        Batch { entries: Vec::with_capacity(BATCH), claim: None }
    }
}

impl Shard {
    pub(super) fn new(clock: Option<Clock>) -> Shard {
        let queue = Queue { ready: VecDeque::with_capacity(HASH_BUCKETS as usize), hashed: HashRuns::new() };
        Shard { queue: Lock::new(queue, clock) }
    }

    #[inline]
    pub(super) fn lock(&self) -> Held<'_, Queue> {
        self.queue.lock()
    }

    pub(super) fn stats(&self) -> LockStats {
        self.queue.stats()
    }
}

impl Queue {
    /// Makes room for clients with so many slots in all (I3).
    pub(super) fn reserve(&mut self, slots: usize) {
        let entries = slots * ENTRIES_PER_SLOT;
        let room = entries + HASH_BUCKETS as usize;
        self.ready.reserve_exact(room.saturating_sub(self.ready.len()));
        self.hashed.reserve(entries);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }

    /// Whether the next push must sweep first.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        // The room for buckets is theirs: each has one entry at most.
        self.ready.len() + HASH_BUCKETS as usize >= self.ready.capacity() || self.hashed.is_full()
    }

    #[inline]
    pub(super) fn push(&mut self, entry: Entry) {
        self.ready.push_back(entry);
    }

    pub(super) fn push_hashed(&mut self, bucket: u32, entry: Entry) {
        if self.hashed.push(bucket, entry) {
            self.ready.push_back(Entry::hash_run(bucket));
        }
    }

    /// Takes the next batch (I1) into an empty one; false when there is nothing.
    pub(super) fn take(&mut self, shard: usize, batch: &mut Batch) -> bool {
        debug_assert!(batch.entries.is_empty() && batch.claim.is_none());
        while let Some(&entry) = self.ready.front() {
            if let Some(bucket) = entry.as_hash_run() {
                if !batch.entries.is_empty() {
                    break;
                }
                self.ready.pop_front();
                if self.hashed.take(bucket, BATCH, &mut batch.entries) {
                    batch.claim = Some((shard, bucket));
                    break;
                }
                continue;
            }
            if entry.may_block() && !batch.entries.is_empty() {
                break;
            }
            self.ready.pop_front();
            batch.entries.push(entry);
            if entry.may_block() || batch.entries.len() == BATCH {
                break;
            }
        }
        if self.ready.is_empty() {
            // Back to the front: a short queue stays in few cache lines.
            self.ready.clear();
        }
        !batch.entries.is_empty()
    }

    /// A bucket's items were run; what came meanwhile queues at the end, behind other work.
    pub(super) fn release(&mut self, bucket: u32) {
        if self.hashed.release(bucket) {
            self.ready.push_back(Entry::hash_run(bucket));
        }
    }

    /// Drops entries of items that do not wait any more.
    pub(super) fn sweep(&mut self, waits: &dyn Fn(Entry) -> bool) {
        self.ready.retain(|&entry| entry.as_hash_run().is_some() || waits(entry));
        self.hashed.sweep(waits);
    }

    /// Entries, hashed ones included.
    pub(super) fn len(&self) -> usize {
        self.ready.iter().filter(|entry| entry.as_hash_run().is_none()).count() + self.hashed.len()
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
