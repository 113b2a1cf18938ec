//! Tests of the stores against a model, of the counts of the arms, and of verdicts on made-up figures.

use std::collections::BTreeSet;

use sheave_blk::bio_set::BioStore;

use super::design::{AFTER, DEEP, HOOK, MALLOC, NO_BIO, PER_CPU, SEED};
use super::stores::{Malloc, Nothing, PER_CPU_MAX, PerCpu, ThreadSlab};
use super::*;
use crate::experiment::TurnEnd;
use crate::fake;
use crate::report::{ArmResult, Change, Holds, InstructionRow, Row};

#[test]
fn a_slab_has_each_object_once() {
    let mut slab = ThreadSlab::default();
    let mut out: BTreeSet<u32> = BTreeSet::new();
    let mut most = 0;
    let mut random = sheave_base::rng::Rng::new(7);
    for _ in 0..20_000 {
        let bio = (random.draw() >> 8) as u32 % 200;
        if out.insert(bio) {
            assert!(slab.get(bio));
        } else {
            out.remove(&bio);
            slab.put(bio);
        }
        most = most.max(out.len());
        // Pages have 32 objects, and the first one also fills the reserve of 4.
        assert_eq!(slab.idle() + out.len(), (most + 4).div_ceil(32) * 32, "S2");
    }
}

#[test]
fn when_no_page_is_to_be_had_the_reserve_serves_and_is_filled_first() {
    let mut slab = ThreadSlab::bounded(1);
    assert!((0..32).all(|bio| slab.get(bio)), "28 of the page, and the 4 of the reserve");
    assert!(!slab.get(32), "then an I/O waits");
    slab.put(5);
    assert!(slab.get(5) && !slab.get(32), "what comes back serves the next");
    (0..4).for_each(|bio| slab.put(bio));
    assert_eq!((slab.idle(), slab.kept()), (4, 4), "the reserve is full again before the page has one");
    slab.put(4);
    assert_eq!((slab.idle(), slab.kept()), (5, 4));
    assert!((0..4).all(|bio| slab.get(bio)));
}

#[test]
fn every_store_keeps_a_bio_until_it_is_put() {
    for store in [&mut Malloc::default() as &mut dyn BioStore, &mut Nothing::default(), &mut PerCpu::new(false)] {
        assert!(store.get(9) && store.get(0));
        store.put(9);
        assert!(store.get(9));
    }
}

/// Runs `work` on a new thread, which has its own copy of the CPU's variable.
fn on_a_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(work).join().expect("no panic"))
}

#[test]
fn rings_of_a_cpu_share_its_cache_which_is_pruned_by_64() {
    let most = PER_CPU_MAX as u32 + 64;
    let seen = on_a_thread(|| {
        let mut rings = [PerCpu::new(true), PerCpu::new(true)];
        assert!((0..=most).all(|bio| rings[0].get(bio)));
        (0..most).for_each(|bio| rings[0].put(bio));
        let full = PerCpu::cached_and_pruned();
        assert!(rings[1].get(1), "from what the other ring put");
        let shared = PerCpu::cached_and_pruned();
        rings[1].put(1);
        rings[0].put(most);
        [full, shared, PerCpu::cached_and_pruned()]
    });
    assert_eq!(seen, [(576, 0), (575, 0), (513, 64)]);
}

#[test]
fn rings_without_opt_in_bypass_the_cpu_cache() {
    let cached = on_a_thread(|| {
        let mut ring = PerCpu::new(false);
        assert!((0..40).all(|bio| ring.get(bio)));
        (0..40).for_each(|bio| ring.put(bio));
        PerCpu::cached_and_pruned()
    });
    assert_eq!(cached, (0, 0));
    let shared = on_a_thread(|| {
        let (mut polled, mut other) = (PerCpu::new(true), PerCpu::new(false));
        assert!((0..40).all(|bio| polled.get(bio)));
        (0..40).for_each(|bio| polled.put(bio));
        assert!((0..8).all(|bio| other.get(bio)));
        PerCpu::cached_and_pruned()
    });
    assert_eq!(shared, (40, 0), "nor what a ring that has opted in put there");
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
    assert_eq!((calls(MALLOC, "polled"), calls(0, "polled")), (Some(2.0), Some(0.0)), "a slab is no malloc");
    assert_eq!((calls(SEED, "unpolled"), calls(AFTER, "unpolled")), (Some(0.0), Some(0.0)));
}

#[test]
fn threads_share_the_work() {
    let point = Point { threads: 2, ..Point::default() };
    for arm in [0, PER_CPU, AFTER] {
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

/// Makes a report with these changes and instructions, listed in the order of the arms.
fn report(changes: [f64; 6], counted: Option<([f64; 7], [f64; 7])>) -> crate::report::ExperimentReport {
    let mut arms = vec![result(50.0, None)];
    arms.extend(changes.iter().map(|&change| result(45.0, Some(change))));
    let row = Row {
        label: ROW.into(),
        x: 0.0,
        point: Point::default(),
        published: None,
        arms,
        again: Vec::new(),
        control: Vec::new(),
        threads_arm: None,
        command: String::new(),
    };
    let mut report = crate::run::empty(&BioCache);
    report.headline = vec![row];
    report.instructions = counted
        .map(|(per_io, lines)| InstructionRow {
            way: BioCache.ways(&Point::default(), &per_io.map(Some)),
            per_io: per_io.map(Some).to_vec(),
            lines_per_io: lines.map(Some).to_vec(),
            ..InstructionRow::default()
        })
        .into_iter()
        .collect();
    report
}

#[test]
fn the_way_to_the_store_is_no_cost_of_an_allocator() {
    let counted = ([420.0, 500.0, 400.0, 425.0, 381.0, 380.0, 100.0], [4.0, 6.0, 3.5, 4.0, 3.0, 3.0, 1.0]);
    let of = |changes| BioCache.verdict(&report(changes, Some(counted)));
    let small = of([-20.0, 0.0, 0.0, 5.0, 5.0, 99.0]);
    assert_eq!(small.holds, Holds::Partly, "20 instructions of 380, and not 40");
    assert!(small.shows.contains("the slab +20.0 instructions and +0.50 cache lines"), "{}", small.shows);
    assert!(small.shows.contains("malloc +100.0 instructions and +2.50 cache lines"), "{}", small.shows);
    assert!(small.shows.contains("the thread's cache +1.0 instructions and +0.00 cache lines"), "{}", small.shows);
    assert!(small.shows.contains("It is not 9.8 % here because"), "{}", small.shows);
    assert_eq!(of([0.0, 0.0, 0.0, 10.0, 12.0, 99.0]).holds, Holds::Yes, "in time");
    assert_eq!(of([0.0, 0.0, 0.0, -3.0, 20.0, 99.0]).holds, Holds::No, "slower is slower, whatever Sheave's own is");
    let unpolled = Point::default().with("ends", "unpolled");
    assert_eq!(BioCache.way(SEED, &Point::default()), None, "what is polled stays in its cache");
    assert!(BioCache.way(SEED, &unpolled).is_some() && BioCache.way(0, &unpolled).is_some());
    assert!([HOOK, AFTER].iter().all(|&arm| BioCache.way(arm, &unpolled).is_none()));
}

#[test]
fn all_but_the_product_as_it_ships_take_a_bio_for_each_io() {
    let takes_bios = |arm| {
        let run = arm::BioArm::new(&fake::lab(), arm, &Point::default()).expect("an arm");
        !run.ring().io().bios().promises()
    };
    assert!((0..NO_BIO).all(takes_bios) && !takes_bios(NO_BIO));
}

#[test]
fn without_figures_nothing_is_claimed() {
    assert_eq!(BioCache.verdict(&report([0.0; 6], None)).holds, Holds::CannotTell);
    let mut nothing = report([0.0; 6], None);
    nothing.headline.clear();
    assert_eq!(BioCache.verdict(&nothing).holds, Holds::CannotTell);
}

#[test]
fn what_does_not_fit_the_bounded_caches_is_pruned() {
    let point = Point { depth: DEEP, batch: DEEP, ..Point::default() };
    let misses = |arm| arm::BioArm::new(&fake::lab(), arm, &point).expect("an arm").misses();
    assert_eq!(misses(AFTER), 0.0);
    // Of 1,024 bios that come back at once at most 576 stay, and 512 after the last pruning.
    assert!((0.4..=0.5).contains(&misses(SEED)), "{}", misses(SEED));
}
