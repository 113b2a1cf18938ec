//! Tests that the earlier pools do their work, without which a comparison would mean nothing.

use super::super::Limit;
use super::super::pool_engine::PoolEngine;
use super::*;
use sheave_load::engine::Engine;

fn flood() -> Flood {
    Flood {
        depth: 64,
        batch: 8,
        workers: 3,
        submitters: 1,
        work: Work::Nop,
        hashed: 0,
        warm_up: Limit::Items(0),
        turn: Limit::Items(64),
        cpus: Vec::new(),
        worker_cpus: Vec::new(),
        stepped: false,
        stop: Arc::default(),
    }
}

#[test]
fn each_arm_ends_every_item_once_whatever_its_hash() {
    for (sharded, flags_once, hashed) in [(false, false, 0), (false, true, 3), (true, true, 0), (true, true, 5)] {
        let pool = OldPool::new(&flood(), sharded, flags_once, true);
        let mut engine = PoolEngine::new(64, hashed, true, |back| Ok(pool.client(0, back))).expect("an engine");
        for slot in 0..64 {
            engine.prep(slot, false, 0);
        }
        engine.submit(64).expect("submitted");
        let mut seen = Vec::new();
        engine.reap(|slot, res| seen.push((slot, res)));
        seen.sort_unstable();
        assert_eq!(seen, (0..64).map(|slot| (slot, 0)).collect::<Vec<_>>());
        let figures = pool.figures();
        let made = if sharded && hashed == 0 { 3 } else { figures.created };
        assert_eq!((figures.created, figures.starts.iter().map(|&(_, count)| count).sum::<u64>()), (made, 64));
        assert!((1..=3).contains(&made), "{made} workers of at most 3");
        assert!(figures.hold_ns > 0);
    }
}

#[test]
fn a_worker_is_made_for_each_item_that_finds_none_free_and_no_more_than_may_be() {
    for (items, made) in [(1, 1), (2, 2), (3, 3), (8, 3)] {
        // No item blocks, and none ends before the last is queued.
        let flood = Flood { work: Work::Spin(std::time::Duration::from_millis(5)), ..flood() };
        let pool = OldPool::new(&flood, false, true, false);
        let mut engine = PoolEngine::new(64, 0, true, |back| Ok(pool.client(0, back))).expect("an engine");
        (0..items).for_each(|slot| engine.prep(slot, false, 0));
        engine.submit(items).expect("submitted");
        assert_eq!(pool.figures().created, made, "{items} items");
    }
}

#[test]
fn another_worker_comes_when_the_last_one_blocks() {
    let flood = Flood { work: Work::Sleep(std::time::Duration::from_millis(2)), workers: 4, ..flood() };
    let pool = OldPool::new(&flood, false, true, false);
    let mut engine = PoolEngine::new(64, 0, true, |back| Ok(pool.client(0, back))).expect("an engine");
    for round in 0..2 {
        (0..8).for_each(|slot| engine.prep(slot, false, 0));
        engine.submit(8).expect("submitted");
        assert_eq!(engine.reap(|_, _| ()), 8, "round {round}");
    }
    assert_eq!(pool.figures().created, 4, "each that sleeps leaves work behind, up to the most there may be");
}

#[test]
fn the_lock_counts_what_is_spent_trying() {
    let pool = OldPool::new(&flood(), false, true, true);
    let held = pool.shared.lock(&pool.shared.shards[0]);
    let shared = pool.shared.clone();
    let waiter = std::thread::spawn(move || {
        let list = shared.lock(&shared.shards[0]).0;
        (list.contended, list.wait_cycles)
    });
    std::thread::sleep(std::time::Duration::from_millis(5));
    drop(held);
    let (contended, waited) = waiter.join().expect("no panic");
    assert!(contended == 1 && waited > 0);
}
