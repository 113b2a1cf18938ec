//! Tests that each arm completes at small points, and that points are parsed correctly.

use std::time::Duration;

use super::*;
use crate::experiment::TurnEnd;
use crate::fake::lab;
use crate::wq::Work;
use crate::wq::{Flood, Limit};

#[test]
fn checks_hold() {
    for check in IoWq.check(&lab()).expect("every arm completes") {
        assert!(check.ok, "{check:?}");
    }
}

#[test]
fn every_arm_has_its_turn_in_time_and_in_items() {
    for (arm, info) in ARMS.iter().enumerate() {
        let mut run = IoWq.prepare(&lab(), arm, &flood(3)).expect(info.name);
        let turn = run.turn(TurnEnd::Time(Duration::from_millis(20))).expect(info.name);
        assert!(turn.ios > 0 && turn.wall_ns > 0 && turn.latency.is_some(), "{}: {turn:?}", info.name);
        assert_eq!(turn.gauges.contains_key(WAITING.name), arm != KERNEL, "{}", info.name);
        assert_eq!(turn.counters.contains_key("locks_taken"), arm != KERNEL, "{}", info.name);
        if let Some(reads) = turn.counters.get("flag_reads").filter(|_| arm < AFTER) {
            let each = [3.0, 1.0, 1.0][arm];
            assert!((reads / turn.ios as f64 - each).abs() < 1e-9, "{}: {reads} reads for {}", info.name, turn.ios);
        }
        assert_eq!(run.turn(TurnEnd::Ios(1000)).expect(info.name).ios, 1000, "{}", info.name);
    }
}

#[test]
fn without_threads_the_same_items_are_done() {
    for (arm, info) in ARMS.iter().enumerate().filter(|&(arm, _)| IoWq.counts_instructions(arm)) {
        let mut run = IoWq.prepare(&lab(), arm, &flood(2).with("stepped", 1)).expect(info.name);
        assert_eq!(run.turn(TurnEnd::Ios(640)).expect(info.name).ios, 640, "{}", info.name);
        let flood =
            Flood { turn: Limit::Items(640), ..flood::of(&lab(), &flood(2).with("stepped", 1)).expect("a flood") };
        assert_eq!(SIDES[arm].turn(&flood, false).expect(info.name).pool.created, 0, "{}", info.name);
    }
}

#[test]
fn points_are_read_as_they_are_meant() {
    let asleep: Point = "workers=4,work=sleep:100us,cpus=1,threads=3,depth=8".parse().expect("a point");
    let flood = flood::of(&lab(), &asleep).expect("a flood");
    assert_eq!((flood.workers, flood.submitters, flood.cpus.len(), flood.batch), (4, 3, 1, 8));
    assert_eq!(flood.work, Work::Sleep(Duration::from_micros(100)));
    let serving: Point = "work=http".parse().expect("a point");
    let work = flood::of(&lab(), &serving).expect("a flood").work;
    let (waits, computes) = (Work::Sleep(Duration::from_micros(50)), Work::Spin(Duration::from_micros(2)));
    assert_eq!((work.of(0), work.of(1), work.of(7), work.of(8)), (waits, computes, computes, waits));
    for wrong in ["workers=0", "workers=5000", "workers=x", "work=7", "work=dance", "work=spin:x", "stepped=2", "x=1"] {
        let point = wrong.parse().expect("a point");
        let error = IoWq.prepare(&lab(), AFTER, &point).err().unwrap_or_else(|| panic!("{wrong} was taken"));
        assert!(error.usage && error.fix.is_some(), "{wrong}: {error}");
    }
    for (arm, wrong) in [(RING, "work=sleep:1ms"), (KERNEL, "work=spin:1us"), (KERNEL, "stepped=1")] {
        assert!(IoWq.prepare(&lab(), arm, &wrong.parse().expect("a point")).is_err(), "{wrong}");
    }
    assert!(IoWq.prepare(&lab(), AFTER, &"stepped=1,threads=2".parse().expect("a point")).is_err());
}

#[test]
fn submitters_spin_only_if_workers_have_another_cpu() {
    let spins = |cpus: &[usize], worker_cpus: &[usize]| {
        let flood = flood::of(&lab(), &flood(2)).expect("a flood");
        Flood { cpus: cpus.to_vec(), worker_cpus: worker_cpus.to_vec(), ..flood }.has_cpus_for_both()
    };
    assert!(spins(&[1], &[1, 0]) && spins(&[1], &[0]) && spins(&[0, 1], &[1]));
    assert!(!spins(&[1], &[1]));
    // The calling thread is pinned, like the runner's thread is. That must not restrict the CPUs of the workers.
    let cpu = sheave_load::cpu::allowed()[0];
    sheave_load::cpu::pin(cpu).expect("pinned");
    assert!(spins(&[cpu], &[cpu, cpu + 1]) && !spins(&[], &[]));
}

#[test]
fn a_row_asks_no_arm_for_what_it_cannot_do() {
    let rows = IoWq.headline();
    assert_eq!(rows.len(), 3, "a flood, items that block, items like a web server's");
    for row in rows {
        let part: Vec<usize> = (0..ARMS.len()).filter(|&arm| IoWq.takes_part(arm, &row.point)).collect();
        assert_eq!(part.len(), if row.published.is_some() { ARMS.len() } else { ARMS.len() - 2 }, "{}", row.label);
        for arm in 0..ARMS.len() {
            assert_eq!(IoWq.prepare(&lab(), arm, &row.point).is_ok(), part.contains(&arm), "{} {arm}", row.label);
        }
    }
}

#[test]
fn a_sweep_asks_no_arm_for_what_it_cannot_do() {
    for scale in [Scale::Quick, Scale::Full] {
        let lab = Lab { scale, ..lab() };
        for sweep in IoWq.sweeps(&lab) {
            let arms = if sweep.arms.is_empty() { (0..ARMS.len()).collect() } else { sweep.arms };
            for (arm, place) in arms.iter().flat_map(|arm| sweep.points.iter().map(move |place| (*arm, place))) {
                assert!(IoWq.prepare(&lab, arm, &place.point).is_ok(), "{} {arm}", sweep.name);
            }
        }
    }
}
