//! One shard of an account's queue: a lock, the entries of each of its clients in order, and the hashed work whose
//! buckets are in this shard.
//!
//! Owns the order in which entries leave, and the size of a batch. Does not own workers: any worker may take from any
//! shard.
//!
//! Invariants:
//! - I1: a batch has one client's items: either one that may block, or up to [`BATCH`] that do not. So no item waits in
//!   the hands of a worker that is blocked: the items behind it are still here.
//! - I2: an account's bit of this shard is set exactly while `turns` is not empty; both change under the lock.
//! - I3: room for every entry is reserved when its client registers; entries of cancelled items are swept when the room
//!   is used up. So a push neither fails nor allocates.
//! - I4: a client with entries has one turn, and so has a bucket that is due; after its turn it goes behind all others.
//!   So an item waits for at most one batch of each other client and each bucket of this shard.

use std::collections::VecDeque;

use super::hash::HashRuns;
use super::lock::{Held, Lock};
#[cfg(sheave_lab)]
use super::measure::{LockStats, Starts};
use super::work::{HASH_BUCKETS, WorkEntry};

/// Items that do not block, taken in one batch: enough to make the lock's cost small, few enough that a second worker
/// finds some too.
pub(super) const BATCH: usize = 64;

/// Entries per slot of a client: one of a queued item and one left behind by a cancel. So a sweep of a full row frees
/// at least half of it.
const ENTRIES_PER_SLOT: usize = 2;

#[derive(Debug)]
pub(super) struct Shard {
    queue: Lock<Queue>,
}

#[derive(Debug)]
pub(super) struct Queue {
    turns: VecDeque<Turn>,
    rows: Vec<Row>,
    hashed: HashRuns,
}

/// A place in the round-robin order of a shard (I4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// A client, named by its row.
    Row(u32),
    /// A due bucket.
    Bucket(u32),
}

/// The entries of one client, in order, and the number that the row has room for.
#[derive(Debug, Default)]
struct Row {
    entries: VecDeque<WorkEntry>,
    room: usize,
}

/// The entries that a worker took, to be run in order, and the bucket to release afterwards.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) entries: Vec<WorkEntry>,
    /// The claimed bucket, as (shard, bucket).
    pub(super) claim: Option<(usize, u32)>,
}

impl Batch {
    pub(super) fn new() -> Batch {
        Batch { entries: Vec::with_capacity(BATCH), claim: None }
    }

    /// Returns a batch without an allocation, as a placeholder.
    pub(super) const fn empty() -> Batch {
        Batch { entries: Vec::new(), claim: None }
    }
}

impl Shard {
    pub(super) fn new() -> Shard {
        let queue =
            Queue { turns: VecDeque::with_capacity(HASH_BUCKETS as usize), rows: Vec::new(), hashed: HashRuns::new() };
        Shard { queue: Lock::new(queue) }
    }

    #[inline]
    pub(super) fn lock(&self) -> Held<'_, Queue> {
        self.queue.lock()
    }

    #[cfg(sheave_lab)]
    pub(super) fn measure(&mut self, starts: &Starts) {
        self.queue.measure(starts);
    }

    #[cfg(sheave_lab)]
    pub(super) fn stats(&self) -> LockStats {
        self.queue.stats()
    }
}

impl Queue {
    /// Makes room for the entries of a client with `slots` slots (I3).
    pub(super) fn reserve(&mut self, row: usize, slots: usize) {
        if row >= self.rows.len() {
            self.rows.resize_with(row + 1, Row::default);
            let turns = self.rows.len() + HASH_BUCKETS as usize;
            self.turns.reserve_exact(turns.saturating_sub(self.turns.len()));
        }
        let Row { entries, room } = &mut self.rows[row];
        *room = (*room).max(slots * ENTRIES_PER_SLOT);
        entries.reserve_exact(room.saturating_sub(entries.len()));
    }

    /// Makes room for hashed items of all clients, which have `slots` slots together (I3).
    pub(super) fn reserve_hashed(&mut self, slots: usize) {
        self.hashed.reserve(slots * ENTRIES_PER_SLOT);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// Returns true if the caller must sweep before the next push to `row`.
    #[inline]
    pub(super) fn is_full(&self, row: usize) -> bool {
        self.rows[row].entries.len() >= self.rows[row].room
    }

    /// Returns true if the caller must sweep before the next hashed push.
    pub(super) fn is_full_of_hashed(&self) -> bool {
        self.hashed.is_full()
    }

    #[inline]
    pub(super) fn push(&mut self, row: usize, entry: WorkEntry) {
        let entries = &mut self.rows[row].entries;
        if entries.is_empty() {
            self.turns.push_back(Turn::Row(row as u32));
        }
        entries.push_back(entry);
    }

    pub(super) fn push_hashed(&mut self, bucket: u32, entry: WorkEntry) {
        if self.hashed.push(bucket, entry) {
            self.turns.push_back(Turn::Bucket(bucket));
        }
    }

    /// Takes the next batch (I1) into `batch`, which must be empty. Returns false if the queue is empty.
    pub(super) fn take(&mut self, shard: usize, batch: &mut Batch) -> bool {
        debug_assert!(batch.entries.is_empty() && batch.claim.is_none());
        while let Some(turn) = self.turns.pop_front() {
            match turn {
                Turn::Bucket(bucket) => {
                    if let Some(entry) = self.hashed.take(bucket) {
                        batch.entries.push(entry);
                        batch.claim = Some((shard, bucket));
                    }
                }
                Turn::Row(row) => {
                    let entries = &mut self.rows[row as usize].entries;
                    take_row(entries, &mut batch.entries);
                    if entries.is_empty() {
                        // Resets the ring buffer to its start: a short queue stays within few cache lines.
                        entries.clear();
                    } else {
                        self.turns.push_back(turn);
                    }
                }
            }
            if !batch.entries.is_empty() {
                return true;
            }
        }
        false
    }

    /// Takes up to [`BATCH`] short items from the head of a row into an empty batch.
    pub(super) fn take_own(&mut self, row: usize, batch: &mut Batch) {
        let Some(Row { entries, .. }) = self.rows.get_mut(row) else { return };
        while batch.entries.len() < BATCH
            && let Some(entry) = entries.pop_front_if(|entry| !entry.may_block())
        {
            batch.entries.push(entry);
        }
        if entries.is_empty() && !batch.entries.is_empty() {
            // I4: a row without entries has no turn.
            entries.clear();
            self.turns.retain(|&turn| turn != Turn::Row(row as u32));
        }
    }

    /// Takes the next item of a bucket that the caller has claimed. Returns false if the bucket is empty.
    pub(super) fn take_more(&mut self, bucket: u32, batch: &mut Batch) -> bool {
        let entry = self.hashed.take_more(bucket);
        batch.entries.extend(entry);
        entry.is_some()
    }

    /// Releases a bucket whose items were run. If more were queued meanwhile, its turn goes behind all other work.
    pub(super) fn release(&mut self, bucket: u32) {
        if self.hashed.release(bucket) {
            self.turns.push_back(Turn::Bucket(bucket));
        }
    }

    /// Drops the entries whose item is no longer queued (`waits` returns false).
    pub(super) fn sweep(&mut self, waits: &dyn Fn(WorkEntry) -> bool) {
        for row in &mut self.rows {
            row.entries.retain(|&entry| waits(entry));
        }
        let rows = &self.rows;
        self.turns.retain(|turn| !matches!(turn, Turn::Row(row) if rows[*row as usize].entries.is_empty()));
        self.hashed.sweep(waits);
    }

    /// Number of entries, including hashed ones.
    pub(super) fn len(&self) -> usize {
        self.rows.iter().map(|row| row.entries.len()).sum::<usize>() + self.hashed.len()
    }
}

/// Moves the next batch of one client (I1) from `entries` to `batch`.
fn take_row(entries: &mut VecDeque<WorkEntry>, batch: &mut Vec<WorkEntry>) {
    while let Some(&entry) = entries.front() {
        if entry.may_block() && !batch.is_empty() {
            return;
        }
        entries.pop_front();
        batch.push(entry);
        if entry.may_block() || batch.len() == BATCH {
            return;
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::super::work::WorkFlags;
    use super::*;

    fn entry(slot: u32, flags: WorkFlags) -> WorkEntry {
        WorkEntry::new(0, slot, 1, flags)
    }

    /// Takes all entries. Returns the slots of each batch.
    fn drain(queue: &mut Queue) -> Vec<Vec<u32>> {
        let mut batches = Vec::new();
        let mut batch = Batch::new();
        while queue.take(0, &mut batch) {
            batches.push(batch.entries.drain(..).map(WorkEntry::slot).collect());
            if let Some((_, bucket)) = batch.claim.take() {
                queue.release(bucket);
            }
        }
        batches
    }

    #[test]
    fn a_batch_is_one_item_that_may_block_or_many_that_do_not() {
        let shard = Shard::new();
        let mut queue = shard.lock();
        queue.reserve(0, 256);
        queue.reserve_hashed(256);
        for slot in 0..3 {
            queue.push(0, entry(slot, WorkFlags::SHORT));
        }
        queue.push(0, entry(3, WorkFlags::BOUND));
        queue.push(0, entry(4, WorkFlags::BOUND));
        queue.push(0, entry(5, WorkFlags::SHORT));
        queue.push_hashed(9, entry(6, WorkFlags::hashed(1)));
        queue.push_hashed(9, entry(7, WorkFlags::hashed(1)));
        queue.push(0, entry(8, WorkFlags::SHORT));
        assert_eq!(queue.len(), 9);
        assert_eq!(drain(&mut queue), [vec![0, 1, 2], vec![6], vec![3], vec![7], vec![4], vec![5, 8]]);
        for slot in 0..100 {
            queue.push(0, entry(slot, WorkFlags::SHORT));
        }
        let sizes: Vec<usize> = drain(&mut queue).iter().map(Vec::len).collect();
        assert_eq!(sizes, [BATCH, 100 - BATCH]);
        assert!(queue.is_empty());
    }

    #[test]
    fn a_client_takes_back_what_is_short_at_the_head_of_its_own_row() {
        let shard = Shard::new();
        let mut queue = shard.lock();
        queue.reserve(0, 256);
        queue.reserve(1, 256);
        let mut batch = Batch::new();
        let mut take_own = |queue: &mut Queue, row| {
            queue.take_own(row, &mut batch);
            batch.entries.drain(..).map(WorkEntry::slot).collect::<Vec<_>>()
        };
        queue.push(1, entry(9, WorkFlags::SHORT));
        for (slot, flags) in
            [(0, WorkFlags::SHORT), (1, WorkFlags::SHORT), (2, WorkFlags::BOUND), (3, WorkFlags::SHORT)]
        {
            queue.push(0, entry(slot, flags));
        }
        assert_eq!(take_own(&mut queue, 0), [0, 1]);
        assert_eq!(take_own(&mut queue, 0), [0; 0], "what is not short is first");
        assert_eq!(take_own(&mut queue, 7), [0; 0], "a row that nobody has");
        assert_eq!(drain(&mut queue), [vec![9], vec![2], vec![3]], "each row has its turn still");
        for slot in 0..100 {
            queue.push(0, entry(slot, WorkFlags::SHORT));
        }
        assert_eq!(take_own(&mut queue, 0).len(), BATCH);
        assert_eq!(take_own(&mut queue, 0).len(), 100 - BATCH);
        assert!(queue.is_empty(), "an empty row has no turn");
        queue.push(0, entry(1, WorkFlags::SHORT));
        assert_eq!(drain(&mut queue), [vec![1]], "and gets one again");
    }

    #[test]
    fn a_released_bucket_goes_behind_other_work() {
        let shard = Shard::new();
        let mut queue = shard.lock();
        queue.reserve(0, 8);
        queue.reserve_hashed(8);
        let mut batch = Batch::new();
        queue.push_hashed(1, entry(0, WorkFlags::hashed(1)));
        queue.push_hashed(1, entry(1, WorkFlags::hashed(1)));
        queue.push(0, entry(2, WorkFlags::BOUND));
        assert!(queue.take(0, &mut batch));
        assert_eq!((batch.entries[0].slot(), batch.claim.take()), (0, Some((0, 1))));
        queue.release(1);
        assert_eq!(drain(&mut queue), [vec![2], vec![1]].map(|slots| slots));
    }

    #[test]
    fn pushing_never_allocates_and_a_sweep_makes_room() {
        let shard = Shard::new();
        let mut queue = shard.lock();
        queue.reserve(0, 4);
        let room = queue.rows[0].entries.capacity();
        let mut pushed = 0;
        while !queue.is_full(0) {
            queue.push(0, entry(pushed, WorkFlags::SHORT));
            pushed += 1;
        }
        assert!(pushed as usize >= 4 * ENTRIES_PER_SLOT);
        queue.sweep(&|entry| entry.slot() < 4);
        assert!(!queue.is_full(0));
        assert_eq!(drain(&mut queue), [vec![0, 1, 2, 3]]);
        assert_eq!(queue.rows[0].entries.capacity(), room);
    }

    #[test]
    fn work_without_a_hash_never_touches_a_bucket() {
        let shard = Shard::new();
        let mut queue = shard.lock();
        queue.reserve(0, 64);
        let mut batch = Batch::new();
        for slot in 0..64 {
            let flags = [WorkFlags::SHORT, WorkFlags::BOUND, WorkFlags::UNBOUND][slot as usize % 3];
            assert_eq!(flags.bucket(), None);
            queue.push(0, entry(slot, flags));
        }
        while queue.take(0, &mut batch) {
            assert_eq!(batch.claim, None);
            batch.entries.clear();
            queue.hashed.check();
        }
        assert!(queue.hashed.is_unused());
    }

    #[test]
    fn clients_take_turns_batch_by_batch() {
        let shard = Shard::new();
        let mut queue = shard.lock();
        for row in 0..3 {
            queue.reserve(row, 256);
        }
        for slot in 0..130 {
            queue.push(0, entry(slot, WorkFlags::SHORT));
        }
        queue.push(2, entry(200, WorkFlags::BOUND));
        queue.push(2, entry(201, WorkFlags::SHORT));
        queue.push(1, entry(202, WorkFlags::SHORT));
        let firsts: Vec<_> = drain(&mut queue).iter().map(|batch| (batch[0], batch.len())).collect();
        assert_eq!(firsts, [(0, 64), (200, 1), (202, 1), (64, 64), (201, 1), (128, 2)]);
    }
}
