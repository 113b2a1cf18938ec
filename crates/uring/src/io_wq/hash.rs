//! Hashed work of one shard: a queue per bucket, and the guarantee that one worker at a time runs a bucket.
//!
//! Owns the buckets and their nodes; protected by the shard's lock. Does not own the order among buckets: a bucket with
//! items that are due has one turn (`Turn::Bucket`) in the shard's queue.
//!
//! | state of a bucket | meaning | left by |
//! |---|---|---|
//! | `Free` | nothing queued, no worker runs it | `push` |
//! | `Due` | items queued; its one turn is in the shard's queue | `take` |
//! | `Claimed` | a worker runs an item of it; more may be queued meanwhile | `release` |
//!
//! Invariants:
//! - I1: `tail` is the last node of the bucket after every operation, and `NONE` when it has none.
//! - I2: items leave a bucket only at its head, and only to the worker that claimed it. So they run in queueing order
//!   and never two at once, whichever worker takes the bucket.
//! - I3: items without a hash are never stored here.
//! - I4: a cancelled item's entry stays until it is taken or swept; it no longer names an item (I2 of `work`).

use super::work::{HASH_BUCKETS, WorkEntry};

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BucketState {
    Free,
    Due,
    Claimed,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    head: u32,
    tail: u32,
    state: BucketState,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    entry: WorkEntry,
    next: u32,
}

/// The hashed items of a shard. Every shard allocates all buckets and uses only its own, which is simpler than dividing
/// them.
#[derive(Debug)]
pub(super) struct HashRuns {
    buckets: Box<[Bucket]>,
    nodes: Vec<Node>,
    free: u32,
    /// Nodes that hold an item.
    used: usize,
}

impl HashRuns {
    pub(super) fn new() -> HashRuns {
        let bucket = Bucket { head: NONE, tail: NONE, state: BucketState::Free };
        HashRuns { buckets: vec![bucket; HASH_BUCKETS as usize].into(), nodes: Vec::new(), free: NONE, used: 0 }
    }

    /// Allocates room for `entries` entries in all buckets together.
    pub(super) fn reserve(&mut self, entries: usize) {
        self.nodes.reserve_exact(entries.saturating_sub(self.nodes.len()));
    }

    /// Returns true if there is no room for another entry.
    pub(super) fn is_full(&self) -> bool {
        self.free == NONE && self.nodes.len() == self.nodes.capacity()
    }

    /// Appends an item. Returns true if the bucket has become due: the caller must queue its turn.
    pub(super) fn push(&mut self, bucket: u32, entry: WorkEntry) -> bool {
        let node = self.get_node(entry);
        let at = &mut self.buckets[bucket as usize];
        match at.tail {
            NONE => at.head = node,
            tail => self.nodes[tail as usize].next = node,
        }
        at.tail = node;
        let due = at.state == BucketState::Free;
        if due {
            at.state = BucketState::Due;
        }
        due
    }

    /// Claims a due bucket and takes its next item. Returns `None` if the bucket is empty, and frees it.
    pub(super) fn take(&mut self, bucket: u32) -> Option<WorkEntry> {
        debug_assert_eq!(self.buckets[bucket as usize].state, BucketState::Due, "claimed once (I2)");
        let entry = self.pop(bucket);
        self.buckets[bucket as usize].state = if entry.is_some() { BucketState::Claimed } else { BucketState::Free };
        entry
    }

    /// Takes the next item of a bucket for the worker that claimed it and has run what it took before.
    pub(super) fn take_more(&mut self, bucket: u32) -> Option<WorkEntry> {
        debug_assert_eq!(
            self.buckets[bucket as usize].state,
            BucketState::Claimed,
            "taken by the worker that claimed it"
        );
        self.pop(bucket)
    }

    /// Releases a claimed bucket. Returns true if it has more items: the caller must queue its turn.
    pub(super) fn release(&mut self, bucket: u32) -> bool {
        let at = &mut self.buckets[bucket as usize];
        debug_assert_eq!(at.state, BucketState::Claimed, "released by the worker that claimed it");
        let more = at.head != NONE;
        at.state = if more { BucketState::Due } else { BucketState::Free };
        more
    }

    /// Drops the entries whose item is no longer queued (`waits` returns false).
    pub(super) fn sweep(&mut self, waits: &dyn Fn(WorkEntry) -> bool) {
        for bucket in 0..self.buckets.len() {
            let (mut before, mut at) = (NONE, self.buckets[bucket].head);
            while at != NONE {
                let Node { entry, next } = self.nodes[at as usize];
                if waits(entry) {
                    before = at;
                } else {
                    match before {
                        NONE => self.buckets[bucket].head = next,
                        before => self.nodes[before as usize].next = next,
                    }
                    self.put_node(at);
                }
                at = next;
            }
            // A bucket that became empty keeps its state, because its turn or its claim still exists: `take` or
            // `release` frees it.
            self.buckets[bucket].tail = before;
        }
    }

    /// Number of entries in all buckets.
    pub(super) fn len(&self) -> usize {
        self.used
    }

    fn pop(&mut self, bucket: u32) -> Option<WorkEntry> {
        let at = &mut self.buckets[bucket as usize];
        let node = at.head;
        let Node { entry, next } = *self.nodes.get(node as usize)?;
        at.head = next;
        if next == NONE {
            at.tail = NONE;
        }
        self.put_node(node);
        Some(entry)
    }

    fn get_node(&mut self, entry: WorkEntry) -> u32 {
        self.used += 1;
        let node = Node { entry, next: NONE };
        match self.free {
            NONE => {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
            at => {
                self.free = self.nodes[at as usize].next;
                self.nodes[at as usize] = node;
                at
            }
        }
    }

    fn put_node(&mut self, at: u32) {
        self.used -= 1;
        self.nodes[at as usize].next = self.free;
        self.free = at;
    }

    /// Asserts I1.
    #[cfg(all(test, not(shuttle)))]
    pub(super) fn check(&self) {
        let mut used = 0;
        for bucket in &self.buckets {
            let (mut last, mut at) = (NONE, bucket.head);
            while at != NONE {
                used += 1;
                (last, at) = (at, self.nodes[at as usize].next);
            }
            assert_eq!(bucket.tail, last, "the tail is the last node");
            assert!(bucket.head == NONE || bucket.state != BucketState::Free, "items that nobody will run");
        }
        assert_eq!(used, self.used);
    }

    /// Returns true if no item was ever queued.
    #[cfg(all(test, not(shuttle)))]
    pub(super) fn is_unused(&self) -> bool {
        self.nodes.is_empty() && self.buckets.iter().all(|bucket| bucket.state == BucketState::Free)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use sheave_base::rng::Rng;

    use super::super::work::WorkFlags;
    use super::*;

    fn entry(slot: u32, flags: WorkFlags) -> WorkEntry {
        WorkEntry::new(0, slot, 1, flags)
    }

    #[test]
    fn a_bucket_is_due_once_and_claimed_once() {
        let mut runs = HashRuns::new();
        runs.reserve(8);
        let item = WorkFlags::hashed(0);
        assert!(runs.push(3, entry(0, item)), "due");
        assert!(!runs.push(3, entry(1, item)), "is due already");
        assert_eq!(runs.take(3).map(WorkEntry::slot), Some(0), "one at a time");
        assert!(!runs.push(3, entry(2, item)), "claimed: whoever runs it puts it back");
        for slot in [1, 2] {
            assert!(runs.release(3), "there is more");
            assert_eq!(runs.take(3).map(WorkEntry::slot), Some(slot));
        }
        assert!(!runs.release(3));
        assert!(runs.push(3, entry(4, item)), "due again");
        runs.sweep(&|_| false);
        assert_eq!(runs.take(3), None, "swept: free");
        assert!(runs.push(3, entry(5, item)), "due again");
        runs.check();
    }

    #[test]
    fn random_pushes_takes_and_sweeps_keep_each_buckets_order() {
        let mut rng = Rng::new(7);
        let mut next = |bound: u64| rng.below(bound);
        let mut runs = HashRuns::new();
        runs.reserve(64);
        let mut model: Vec<std::collections::VecDeque<u32>> = vec![Default::default(); 4];
        let mut claimed = [false; 4];
        let mut slot = 0;
        for _ in 0..20_000 {
            let bucket = next(4) as usize;
            match next(8) {
                0..4 if !runs.is_full() => {
                    slot = (slot + 1) % 4096;
                    let was_free = !claimed[bucket] && runs.buckets[bucket].state == BucketState::Free;
                    assert_eq!(runs.push(bucket as u32, entry(slot, WorkFlags::hashed(0))), was_free);
                    model[bucket].push_back(slot);
                }
                4 if claimed[bucket] => {
                    assert_eq!(runs.release(bucket as u32), !model[bucket].is_empty());
                    claimed[bucket] = false;
                }
                5 | 6 if !claimed[bucket] && runs.buckets[bucket].state == BucketState::Due => {
                    let taken = runs.take(bucket as u32).map(WorkEntry::slot);
                    claimed[bucket] = taken.is_some();
                    assert_eq!(model[bucket].pop_front(), taken);
                }
                7 => {
                    let dropped = next(5) as u32;
                    runs.sweep(&|entry| entry.slot() % 5 != dropped);
                    for bucket in &mut model {
                        bucket.retain(|slot| slot % 5 != dropped);
                    }
                }
                _ => {}
            }
            runs.check();
            assert_eq!(runs.len(), model.iter().map(|bucket| bucket.len()).sum::<usize>());
        }
    }
}
