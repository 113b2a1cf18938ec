//! Cache-line traffic of the fast path: none on one thread, and a bounded number of transfers where rings share.
//!
//! Run by `cargo xtask lab-tests` in the build with the simulated machine. `tests/lines.rs` checks that the program's
//! counts repeat for a seed.

use sheave_base::sbitmap::Sbitmap;
use sheave_base::sync::hint;
use sheave_base::sync::mesi::machine::Counts;

use super::*;
use crate::wq::Arm;

const NEAR: Topology = Topology { complex: 64, socket: 64 };

fn per_io(count: u64, ios: u64) -> f64 {
    count as f64 / ios as f64
}

fn moved(counts: &Counts) -> u64 {
    counts.transfers + counts.upgrades
}

#[test]
fn a_ring_alone_moves_no_line() {
    for way in design::WAYS {
        for point in [design::one_by_one(1), design::in_batches(1)] {
            let (counts, _) = in_flight(1, NEAR, way, &point);
            assert_eq!((moved(&counts), counts.invalidations, counts.lock_waits), (0, 0, 0), "{way:?} {counts:?}");
            assert!(counts.accesses > 0, "its atomics were seen");
        }
    }
}

#[test]
fn rings_that_share_a_device_move_no_line_of_the_product() {
    for point in [design::one_by_one(8), design::in_batches(8)] {
        let (counts, ios) = in_flight(1, NEAR, Way::Tags, &point);
        assert_eq!(moved(&counts), 0, "of {ios} I/Os: {counts:?}");
    }
}

#[test]
fn a_pair_of_counters_comes_for_the_start_of_an_io_and_for_its_end() {
    let (counts, ios) = in_flight(1, NEAR, Way::Pair, &design::one_by_one(16));
    let lines = per_io(moved(&counts), ios);
    assert!((1.7..=2.0).contains(&lines), "{lines} lines an I/O: {counts:?}");
    assert_eq!(counts.transfers, counts.invalidations, "each addition takes the line from one other");
    // All transfers are of one line.
    assert_eq!(counts.busiest.len(), 1, "{counts:?}");
}

/// Simulates threads that take tags of one bitmap, each beginning in a word of its own.
fn tags(depth: u32, threads: u32) -> (Counts, u64) {
    let map = Arc::new(Sbitmap::new(depth));
    let bodies = (0..threads).map(|index| {
        let map = Arc::clone(&map);
        Box::new(move || {
            let mut hint = index;
            let mut ios = |count: u64| {
                for _ in 0..count {
                    // No tag is free while another thread folds the freed ones back.
                    let (first, mask) = loop {
                        match map.get_batch(&mut hint, 1) {
                            Some(granted) => break granted,
                            None => hint::spin_loop(),
                        }
                    };
                    map.clear_batch(first, mask);
                }
            };
            ios(WARM_UP);
            sched::measure();
            ios(IOS);
            sched::measured();
        }) as Body
    });
    let outcome = sched::simulate(1, NEAR, threads as usize, bodies.collect());
    (outcome.counts, IOS * u64::from(threads))
}

#[test]
fn tags_of_a_word_for_each_ring_move_nothing_and_of_one_word_a_bounded_number() {
    let (own, _) = tags(8 * 64, 8);
    assert_eq!(moved(&own), 0, "{own:?}");
    let (one, ios) = tags(64, 8);
    let lines = per_io(moved(&one), ios);
    // Transfers of the word that is taken from, with retries, and of the word that is freed to, and now and then a
    // fold.
    assert!((2.0..6.0).contains(&lines), "{lines} lines an I/O: {one:?}");
}

#[test]
fn an_item_of_the_pool_moves_less_than_one_line_and_one_of_a_list_many() {
    let (sheave, items) = flood(1, NEAR, Arm::Stealing, 4, 4);
    let (list, list_items) = flood(1, NEAR, Arm::OneList, 4, 4);
    let (ours, theirs) = (per_io(moved(&sheave), items), per_io(moved(&list), list_items));
    assert!(ours < 1.0, "{ours} lines an item: {sheave:?}");
    assert!(theirs > 5.0, "{theirs} lines an item: {list:?}");
    let waits = (per_io(sheave.lock_waits, items), per_io(list.lock_waits, list_items));
    assert!(waits.0 < 0.05 && waits.1 > 0.5, "{waits:?} lock waits an item");
}

/// Each item that finds no free worker makes one, so that with one submitter and many workers the lock is contended.
#[test]
fn one_task_with_many_workers_waits_for_their_lock() {
    let waits = |workers| {
        let (counts, items) = flood(1, NEAR, Arm::OneList, 1, workers);
        per_io(counts.lock_waits, items)
    };
    let (few, many) = (waits(1), waits(15));
    assert!(many > few && many > 0.5, "{few} with one worker, {many} with 15");
}

#[test]
fn every_place_has_a_machine_with_as_many_cores() {
    for id in ["in-flight", "io-wq"] {
        let places = places(id);
        assert!(!places.is_empty() && places.iter().all(|place| place.threads as usize <= 2 * place.machine.socket));
    }
    assert!(places("plug-clock").is_empty());
}
