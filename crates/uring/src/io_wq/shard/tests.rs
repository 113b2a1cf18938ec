//! Composition of a batch, and the sweep of a full shard.

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
    let shard = Shard::new(None);
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
    let shard = Shard::new(None);
    let mut queue = shard.lock();
    queue.reserve(0, 256);
    queue.reserve(1, 256);
    let mut batch = Batch::new();
    let mut take_own = |queue: &mut Queue, row| {
        queue.take_own(row, &mut batch);
        batch.entries.drain(..).map(WorkEntry::slot).collect::<Vec<_>>()
    };
    queue.push(1, entry(9, WorkFlags::SHORT));
    for (slot, flags) in [(0, WorkFlags::SHORT), (1, WorkFlags::SHORT), (2, WorkFlags::BOUND), (3, WorkFlags::SHORT)] {
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
    let shard = Shard::new(None);
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
    let shard = Shard::new(None);
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
    let shard = Shard::new(None);
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
    let shard = Shard::new(None);
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
