//! Stores against a model, the arms' counts, and verdicts of made-up figures.

use std::collections::BTreeSet;

use sheave_blk::bio_set::BioStore;

use super::design::{AFTER, POOL, SEED};
use super::stores::{Allocator, Nothing, SharedPool};
use super::*;
use crate::experiment::TurnEnd;
use crate::fake;
use crate::report::{ArmResult, Change, Holds, InstructionRow, Row};

#[test]
fn stores_keep_memory_for_what_is_out() {
    let pool = SharedPool::default();
    let mut rings = [pool.another(), pool.another()];
    let mut out: BTreeSet<(usize, u32)> = BTreeSet::new();
    let mut most = 0;
    let mut random = sheave_base::rng::Rng::new(7);
    for _ in 0..2000 {
        let draw = random.draw();
        let (ring, bio) = ((draw % 2) as usize, (draw >> 8) as u32 % 40);
        if out.insert((ring, bio)) {
            assert!(rings[ring].get(bio));
        } else {
            out.remove(&(ring, bio));
            rings[ring].put(bio);
        }
        most = most.max(out.len());
        assert_eq!(pool.free() + out.len(), most, "as much memory as ever was in use at once");
    }
    drop(rings);
    for store in [&mut Allocator::default() as &mut dyn BioStore, &mut Nothing] {
        assert!(store.get(9) && store.get(0));
        store.put(9);
        assert!(store.get(9));
    }
}

#[test]
fn every_check_passes() {
    fake::assert_checks_pass(&BioCache, 3 * ARMS.len());
}

#[test]
fn the_allocator_is_called_where_it_should_be() {
    let calls = |arm: usize, ends: &str| {
        arm::BioArm::new(&fake::lab(), arm, &Point::default().with("ends", ends)).expect("an arm").allocator_calls()
    };
    assert_eq!((calls(0, "polled"), calls(AFTER, "polled")), (Some(2.0), Some(0.0)));
    assert_eq!((calls(SEED, "unpolled"), calls(AFTER, "unpolled")), (Some(2.0), Some(0.0)));
}

#[test]
fn threads_share_the_work() {
    let point = Point { threads: 2, ..Point::default() };
    for arm in [POOL, AFTER] {
        let mut run = BioCache.prepare(&fake::lab(), arm, &point).expect("an arm");
        assert_eq!(run.turn(TurnEnd::Ios(6400)).expect("a turn").ios, 6400);
    }
}

#[test]
fn a_wrong_point_is_refused() {
    let point = Point::default().with("ends", "never");
    let err = BioCache.prepare(&fake::lab(), AFTER, &point).err().expect("refused");
    assert!(err.to_string().contains("ends=never"), "{err}");
}

fn result(cpu_ns: f64, change: Option<f64>) -> Option<ArmResult> {
    let change = change.map(|percent| Change { percent, low: percent - 1.0, high: percent + 1.0 });
    Some(ArmResult {
        value: 1.0,
        range: [1.0; 2],
        iops: 1.0,
        cpu_ns_per_io: cpu_ns,
        switches_per_io: 0.0,
        change,
        cpu_change: None,
        latency: None,
        counters: Default::default(),
        gauges: Default::default(),
        rounds: 3,
    })
}

/// A report with these CPU times, changes and instructions, in the order of the arms.
fn report(ns: [f64; 5], changes: [f64; 4], instructions: Option<[f64; 5]>) -> crate::report::ExperimentReport {
    let mut arms = vec![result(ns[0], None)];
    arms.extend(ns[1..].iter().zip(changes).map(|(&ns, change)| result(ns, Some(change))));
    let row = Row { label: ROW.into(), x: 0.0, point: Point::default(), published: None, arms, command: String::new() };
    let mut report = crate::run::empty(&BioCache);
    report.headline = vec![row];
    report.instructions = instructions
        .map(|per_io| InstructionRow {
            point: Point::default(),
            per_io: per_io.map(Some).to_vec(),
            commands: Vec::new(),
        })
        .into_iter()
        .collect();
    report
}

#[test]
fn the_verdict_is_that_of_the_figures() {
    let of = |ns, changes, instructions| BioCache.verdict(&report(ns, changes, instructions));
    let yes = of([80.0, 70.0, 60.0, 50.0, 50.0], [14.0, 33.0, 60.0, 60.0], None);
    assert_eq!(yes.holds, Holds::Yes, "(80 - 60) / 50");
    assert!(yes.shows.contains("40.0 % of an I/O's CPU time; instructions were not counted"), "{}", yes.shows);
    let mostly_hook = of([80.0, 79.0, 78.0, 50.0, 50.0], [1.0, 2.0, 60.0, 60.0], None);
    assert_eq!(mostly_hook.holds, Holds::Partly, "the experiment's own way is no gain");
    assert!(mostly_hook.shows.contains("below the thread's 9.8 %"), "{}", mostly_hook.shows);
    let counted = of([80.0, 79.0, 78.0, 50.0, 50.0], [1.0, 2.0, 60.0, 60.0], Some([500.0, 450.0, 420.0, 380.0, 380.0]));
    assert_eq!(counted.holds, Holds::Yes, "80 instructions of 380");
    let slower = of([50.0, 50.0, 50.0, 50.0, 60.0], [0.0, 0.0, 0.0, -17.0], None);
    assert_eq!(slower.holds, Holds::No);
    let noisy = of([50.0, 50.0, 50.0, 50.0, 50.0], [0.0, 0.0, 0.0, 0.5], None);
    assert_eq!(noisy.holds, Holds::CannotTell);
    let mut nothing = report([1.0; 5], [0.0; 4], None);
    nothing.headline.clear();
    assert_eq!(BioCache.verdict(&nothing).holds, Holds::CannotTell);
}
