//! Verdicts on made-up figures with a known answer.

use std::collections::BTreeMap;

use super::*;
use crate::Experiment;
use crate::exp::io_wq::design::ARMS;
use crate::exp::io_wq::{IoWq, WAITING};
use crate::point::Point;

fn arm(value: f64, iops: f64, change: Option<Change>) -> Option<ArmResult> {
    Some(ArmResult {
        value,
        range: [value; 2],
        iops,
        cpu_ns_per_io: 1.0,
        switches_per_io: 0.5,
        change,
        cpu_change: None,
        latency: None,
        counters: BTreeMap::from([("locks_taken", 2.0), ("flag_reads", 3.0), ("lock_hold_ns", 40.0)]),
        gauges: BTreeMap::from([("workers", 64.0)]),
        rounds: 5,
    })
}

fn report(seed: Option<Change>) -> ExperimentReport {
    let arms = vec![
        arm(4.0, 1e6, None),
        arm(3.0, 1e6, seed),
        None,
        arm(0.1, 2e7, None),
        arm(0.1, 1e7, None),
        arm(f64::NAN, 2e6, None),
    ];
    let row = Row {
        label: "NOP flood".into(),
        x: 0.0,
        point: Point::default(),
        published: None,
        arms,
        again: Vec::new(),
        control: Vec::new(),
        threads_arm: None,
        command: String::new(),
    };
    let gap = Row { arms: vec![None; 6], ..row.clone() };
    let mut asleep = Row { label: BLOCKING.into(), ..row.clone() };
    asleep.arms[KERNEL] = None;
    ExperimentReport {
        id: "io-wq",
        title: "",
        seed: IoWq.seed(),
        metric: WAITING,
        arms: ARMS.to_vec(),
        headline: vec![row, asleep, gap],
        peer: None,
        sweeps: Vec::new(),
        instructions: Vec::new(),
        checks: Vec::new(),
        predictions: Vec::new(),
        control: None,
        strays: Vec::new(),
        verdict: None,
        interrupted: false,
    }
}

#[test]
fn the_seed_is_judged_by_its_interval_and_its_size() {
    let judged = |percent, low, high| verdict(&report(Some(Change { percent, low, high }))).holds;
    assert_eq!(judged(-2.0, -3.0, -1.0), Holds::Yes);
    assert_eq!(judged(-0.5, -0.8, -0.1), Holds::Partly);
    assert_eq!(judged(-0.5, -1.8, 0.4), Holds::CannotTell);
    assert_eq!(judged(0.5, 0.2, 0.9), Holds::No);
    assert_eq!(verdict(&report(None)).holds, Holds::CannotTell);
}

#[test]
fn what_nobody_waits_for_cannot_be_saved() {
    let change = Change { percent: -0.1, low: -0.3, high: 0.1 };
    let unclear = Some(change);
    let judged = |most: f64, seed: Option<Change>| {
        let mut report = report(seed);
        report.headline[0].arms[BEFORE].as_mut().expect("measured").range = [0.0, most];
        let verdict = verdict(&report);
        (verdict.holds, verdict.shows.contains("cannot be had here, because no more than"))
    };
    assert_eq!(judged(1.4, unclear), (Holds::No, true));
    assert_eq!(judged(1.6, unclear), (Holds::CannotTell, false), "in one round there was enough");
    assert_eq!(judged(1.4, Some(Change { high: -0.05, ..change })).0, Holds::Partly);
    assert_eq!(judged(1.4, None).0, Holds::CannotTell, "nothing was compared");
}

#[test]
fn where_time_is_noise_instructions_decide_nothing() {
    let per_io = [660.0, 654.0, 650.0, 500.0, 1700.0].map(Some).to_vec();
    let counted = crate::report::InstructionRow { per_io, ..Default::default() };
    let unclear = Some(Change { percent: -0.5, low: -1.8, high: 0.4 });
    let judged = verdict(&ExperimentReport { instructions: vec![counted], ..report(unclear) });
    assert_eq!(judged.holds, Holds::CannotTell);
    assert!(judged.shows.contains("660.0 before and 654.0 in seed"), "{}", judged.shows);
}

#[test]
fn words_carry_the_figures() {
    let verdict = verdict(&report(Some(Change { percent: -1.0, low: -2.0, high: 0.5 })));
    for part in [
        "4.00 %",
        "3.00 %",
        "may be chance",
        "20.0 times",
        "2.00M",
        "64 worker",
        "Blocking: items sleep 1 ms: before 1.00M",
    ] {
        assert!(verdict.shows.contains(part), "{part}: {}", verdict.shows);
    }
    assert!(verdict.does_not_show.contains("HTTP"));
    let none = ExperimentReport { headline: Vec::new(), ..report(None) };
    assert_eq!(super::verdict(&none).shows, "Nothing was measured.");
}
