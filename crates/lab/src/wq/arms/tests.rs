//! The earlier pools do their work too, or they would be no comparison.

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
        let pool = OldPool::new(&flood(), sharded, flags_once, true).expect("threads");
        let mut engine = PoolEngine::new(64, hashed, |back| Ok(pool.client(0, back))).expect("an engine");
        for slot in 0..64 {
            engine.prep(slot, false, 0);
        }
        engine.submit(64).expect("submitted");
        let mut seen = Vec::new();
        engine.reap(|slot, res| seen.push((slot, res)));
        seen.sort_unstable();
        assert_eq!(seen, (0..64).map(|slot| (slot, 0)).collect::<Vec<_>>());
        let figures = pool.figures();
        assert_eq!((figures.created, figures.starts.iter().map(|&(_, count)| count).sum::<u64>()), (3, 64));
        assert!(figures.hold_ns > 0);
    }
}
