//! Placement of clients' items in shards, and a shard's bit.

use super::super::work::WorkFlags;
use super::*;

fn entry(client: u32, slot: u32) -> WorkEntry {
    WorkEntry::new(client, slot, 1, WorkFlags::SHORT)
}

#[test]
fn clients_have_different_shards_as_long_as_there_are_some() {
    let acct = Acct::new(4, 1, None);
    for client in 0..8 {
        acct.reserve(client, 4, 4 * (client + 1));
        acct.push(client, &[entry(client as u32, 0)], &|_| true);
    }
    let lengths: Vec<_> = acct.shards.iter().map(|shard| shard.lock().len()).collect();
    assert_eq!(lengths, [2; 4]);
    // Round-robin, whichever worker takes.
    let mut batch = Batch::new();
    let takes = std::iter::from_fn(|| acct.take(&mut batch).then(|| batch.entries[0].client()));
    assert_eq!(takes.collect::<Vec<_>>(), (0..8).collect::<Vec<_>>());
    assert!(!acct.has_work());
}

#[test]
fn a_shard_that_a_hashed_push_sweeps_empty_is_not_marked() {
    let acct = Acct::new(1, 1, None);
    acct.reserve(0, 4, 4);
    let mut batch = Batch::new();
    // A worker has claimed the bucket; items queued behind it have no turn yet.
    acct.push_hashed(&[(0, entry(0, 0))], &|_| true);
    assert!(acct.take(&mut batch) && batch.claim.is_some());
    acct.push(0, &[entry(0, 1)], &|_| true);
    let mut pushed = 0;
    while !acct.shards[0].lock().is_full_of_hashed() {
        acct.push_hashed(&[(0, entry(0, 2))], &|_| true);
        pushed += 1;
    }
    assert!(acct.has_work() && pushed > 0);
    // All were cancelled meanwhile, including the one without a hash.
    acct.push_hashed(&[(0, entry(0, 3))], &|_| false);
    assert!(!acct.has_work(), "nothing can be taken");
    acct.release((0, 0));
    assert!(acct.has_work(), "the last one is due");
}

#[test]
fn an_item_that_has_ended_is_progress_and_its_worker_is_in_no_section() {
    let acct = Acct::new(1, 1, None);
    let seat = Seat::default();
    acct.move_counts(WORKER + RUNNING, 0);
    for ended in 0..3 {
        assert_eq!(seat.left(), ended, "what a standby looks at");
        acct.enter(&seat, 7);
        assert_eq!((acct.counts().in_section(), acct.counts().running()), (1, 0));
        assert_eq!(seat.since(), Some(7));
        acct.leave(&seat);
        assert_eq!((acct.counts().in_section(), acct.counts().running()), (0, 1));
        assert_eq!(seat.since(), None);
    }
}

#[test]
fn a_worker_is_called_where_items_block_nobody_takes_work_and_there_may_be_one() {
    let acct = Acct::new(1, 4, None);
    acct.set_cpus(2);
    acct.reserve(0, 4, 4);
    acct.push(0, &[entry(0, 0)], &|_| true);
    // Three workers of at most four, all in sections.
    acct.move_counts(3 * WORKER, 0);
    assert_eq!(acct.wanted(), 0, "a standby watches as long as nothing has blocked");
    acct.blocking.found_blocked();
    assert_eq!(acct.wanted(), 2, "one a CPU, for most block");
    acct.move_counts(RUNNING, 0);
    assert_eq!(acct.wanted(), 1);
    acct.blocking.forget_some();
    assert_eq!(acct.wanted(), 0, "where some block, one that takes work is enough");
    acct.move_counts(0, RUNNING);
    assert_eq!(acct.wanted(), 1);
    acct.move_counts(WORKER, 0);
    assert_eq!(acct.wanted(), 0, "all that may be are in sections");
    acct.move_counts(STANDBY, 0);
    assert_eq!(acct.wanted(), 1, "but for the one that watches");
    acct.move_counts(0, STANDBY);
    acct.set_limit(5);
    assert_eq!(acct.wanted(), 1);
    assert!(acct.take(&mut Batch::new()));
    assert_eq!(acct.wanted(), 0, "nothing waits");
}

#[test]
fn at_the_limit_nobody_is_woken_until_it_is_raised() {
    let acct = Acct::new(1, 2, None);
    acct.reserve(0, 4, 4);
    acct.push(0, &[entry(0, 0)], &|_| true);
    acct.move_counts(WORKER, 0);
    assert!(acct.wants_worker());
    acct.move_counts(WORKER, 0);
    assert!(!acct.wants_worker(), "nobody can be woken or made");
    acct.move_counts(IDLE, 0);
    assert!(acct.wants_worker());
    acct.move_counts(0, IDLE);
    acct.set_limit(3);
    assert!(acct.wants_worker());
}
