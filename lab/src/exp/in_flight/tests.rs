//! Tests of the experiment's arms, points and checks, and of the verdict on made-up figures.

use std::sync::Arc;

use sheave_base::sync::atomic::AtomicBool;

use super::*;
use crate::TurnEnd;
use crate::report::Holds;

fn lab(cpus: Vec<usize>) -> Lab {
    Lab { scale: Scale::Full, cpus, stop: Arc::new(AtomicBool::new(false)) }
}

#[test]
fn every_point_of_every_sweep_can_be_had_by_every_arm() {
    let lab = lab(sheave_load::cpu::allowed());
    let headline = InFlight.headline().into_iter().map(|row| row.point);
    let sweeps = InFlight.sweeps(&lab).into_iter().flat_map(|sweep| sweep.points).map(|place| place.point);
    for point in headline.chain(sweeps).chain(InFlight.instruction_points()) {
        assert_eq!(point.to_string().parse::<Point>().as_ref(), Ok(&point), "goes through a command line");
        let ios = 128 * u64::from(point.threads);
        for (arm, info) in ARMS.iter().enumerate() {
            let turn = InFlight.prepare(&lab, arm, &point).and_then(|mut arm| {
                arm.turn(TurnEnd::Ios(ios))?;
                arm.turn(TurnEnd::Ios(ios))
            });
            let turn = turn.unwrap_or_else(|err| panic!("{} at {point}: {err}", info.name));
            assert_eq!(turn.ios, ios, "{} at {point}", info.name);
            let read = point.number("readers").is_some_and(|hz| hz > 0);
            assert_eq!(turn.gauges.contains_key("ns_per_reading"), read, "{} at {point}", info.name);
        }
    }
}

#[test]
fn the_checks_hold_on_one_cpu_and_on_all() {
    let all = sheave_load::cpu::allowed();
    for cpus in [vec![all[0]], all] {
        for check in InFlight.check(&lab(cpus)).expect("they run") {
            assert!(check.ok, "{}: {}", check.name, check.detail);
        }
    }
}

#[test]
fn a_word_that_a_point_cannot_have_is_refused() {
    let error = InFlight.prepare(&lab(vec![0]), 0, &one_by_one(1).with("ends", "there")).err().expect("refused");
    assert!(error.to_string().contains("ends=there"), "{error}");
}

#[test]
fn the_thread_counts_end_with_more_threads_than_cpus() {
    assert_eq!(threads(&lab(vec![0])), [1, 2, 4]);
    assert_eq!(threads(&lab(vec![0, 1])), [1, 2, 4, 8]);
    assert_eq!(threads(&lab((0..6).collect())), [1, 2, 4, 6, 12, 24]);
}

#[test]
fn the_verdict_follows_the_figures() {
    use crate::exp::verdict_tests::{report, row};
    let of = |per_thread: f64, after: f64| {
        let rows = InFlight.headline().into_iter();
        let rows = rows.map(|head| row(head.label, head.point, &[per_thread, 1.0, after])).collect();
        InFlight.verdict(&report(&InFlight, rows, Vec::new()))
    };
    let verdict = of(8.0, 12.0);
    assert_eq!(verdict.holds, Holds::Partly, "the direction, on a small machine");
    assert!(verdict.shows.contains("after +12.0 %"), "{}", verdict.shows);
    assert_eq!(of(700.0, 800.0).holds, Holds::Yes);
    assert_eq!(of(0.0, 12.0).holds, Holds::CannotTell, "by the thread's arm");
    assert_eq!(of(-9.0, 12.0).holds, Holds::No);
    assert_eq!(InFlight.verdict(&report(&InFlight, Vec::new(), Vec::new())).holds, Holds::CannotTell);
}
