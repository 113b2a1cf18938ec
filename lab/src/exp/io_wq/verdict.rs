//! The verdict of io-wq, computed from the measured rows.

use std::fmt::Write;

use super::design::{AFTER, BEFORE, BLOCKING, KERNEL, RING, SEED, SERVING};
use crate::names::capital;
use crate::report::{ArmResult, Change, ExperimentReport, Holds, Row, SweepReport, Verdict};
use crate::table::{figure, interval};
use crate::terms::Metric;

/// Published change of the share of CPU time, in percentage points.
const CLAIMED: f64 = -1.49;

/// Judges the claim on the arm `seed`. The text also compares the other designs that the mailing-list thread proposed
/// for storing and taking items.
pub fn verdict(report: &ExperimentReport) -> Verdict {
    let row = report.headline.iter().find(|row| row.arm(BEFORE).is_some());
    let change = row.and_then(|row| row.arm(SEED)).and_then(|arm| arm.change);
    let little = row.and_then(|row| row.arm(BEFORE)).is_some_and(too_little);
    Verdict {
        holds: holds(change, little),
        claim:
            "Reading an item's flags once keeps the lock for less time: in a flood of NOPs, 1.49 points less of the \
                CPU time (38.86 %) goes into waiting for it. The thread adds that the items would have to be stored \
                and grabbed in another way."
                .into(),
        shows: row.map_or_else(|| "Nothing was measured.".into(), |row| shows(report, row)),
        does_not_show: "The HTTP rows: they need a web server on the kernel's io_uring. The share of CPU time that \
                        the thread saw: there, dozens of workers ran at once on 96 cores and spun; here no more run \
                        at once than there are CPUs, and a worker that waits for a lock yields its CPU in the end, for \
                        in user space the one that has the lock may be preempted. The kernel's locks: its column has \
                        throughput only. Nothing here says what the patch does to the kernel; the arms are pools of \
                        ours that differ as its code does."
            .into(),
    }
}

/// Returns true if every round waited for less time than the published saving, so that no change could save as much.
fn too_little(before: &ArmResult) -> bool {
    before.range[1] < -CLAIMED
}

/// Returns the instructions of an item in the arms `before` and `seed`, if both were counted.
fn saved_instructions(report: &ExperimentReport) -> Option<[f64; 2]> {
    let counted = report.instructions.first()?;
    Some([counted.net(BEFORE)?, counted.net(SEED)?])
}

/// Judges the change of the arm `seed`. If `little` is true, there is too little waiting to save as much as published,
/// and an unclear change counts against the claim. Instructions do not decide, because they do not include waiting, and
/// because `seed` lacks reads that the lab itself has added to the arm `before`.
fn holds(change: Option<Change>, little: bool) -> Holds {
    match change {
        Some(change) if change.high < 0.0 && change.percent <= CLAIMED => Holds::Yes,
        Some(change) if change.high < 0.0 => Holds::Partly,
        Some(change) if change.low > 0.0 => Holds::No,
        Some(_) if little => Holds::No,
        _ => Holds::CannotTell,
    }
}

fn shows(report: &ExperimentReport, row: &Row) -> String {
    let metric = report.metric;
    let mut text = String::new();
    let (before, seed, after) = (row.arm(BEFORE), row.arm(SEED), row.arm(AFTER));
    if let (Some(before), Some(seed)) = (before, seed) {
        let change = seed.change.map_or_else(|| "no change known".into(), |change| interval(change, metric));
        let clear = seed.change.is_some_and(|change| change.is_clear());
        let _ = write!(
            text,
            "Waiting for locks: {} of the CPU time before, {} in seed ({change}{}); {:.1} and {:.1} reads of the flags \
             an item, the lock held {:.0} and {:.0} ns an item. ",
            figure(before.value, metric),
            figure(seed.value, metric),
            if clear { "" } else { ", which may be chance" },
            counter(before, "flag_reads"),
            counter(seed, "flag_reads"),
            counter(before, "lock_hold_ns"),
            counter(seed, "lock_hold_ns"),
        );
    }
    if let Some(before) = before.filter(|before| too_little(before)) {
        let _ = write!(
            text,
            "The saving of {:.2} points cannot be had here, because no more than {} of the CPU time goes into waiting: \
             as many workers run at once as there are CPUs, and the thread had dozens. ",
            -CLAIMED,
            figure(before.range[1], metric),
        );
    }
    if let Some([before, seed]) = saved_instructions(report) {
        let _ = write!(text, "In instructions an item takes {before:.1} before and {seed:.1} in seed. ");
    }
    if let (Some(before), Some(after)) = (before, after) {
        let _ = write!(
            text,
            "After: {} of the CPU time, {:.2} locks an item instead of {:.2}, held {:.1} ns an item instead of {:.0}, \
             {:.3} context switches an item instead of {:.3}, {:.0} worker(s) made instead of {:.0}, and {:.1} times \
             the items a second ({}, {} before). ",
            figure(after.value, metric),
            counter(after, "locks_taken"),
            counter(before, "locks_taken"),
            counter(after, "lock_hold_ns"),
            counter(before, "lock_hold_ns"),
            after.switches_per_io,
            before.switches_per_io,
            gauge(after, "workers"),
            gauge(before, "workers"),
            after.iops / before.iops,
            figure(after.iops, Metric::IOPS),
            figure(before.iops, Metric::IOPS),
        );
    }
    if let (Some(ring), Some(kernel)) = (row.arm(RING), row.arm(KERNEL)) {
        let _ = write!(
            text,
            "With a ring around it: {} items a second; the kernel's io-wq under the same flood {}. ",
            figure(ring.iops, Metric::IOPS),
            figure(kernel.iops, Metric::IOPS),
        );
    }
    for label in [BLOCKING, SERVING] {
        text.push_str(&working(report, label));
    }
    if let Some(sweep) = report.sweep("workers") {
        text.push_str(&grows(sweep));
    }
    text.trim_end().into()
}

/// Describes the items a second of a row whose items do some work.
fn working(report: &ExperimentReport, label: &str) -> String {
    let Some(row) = report.row(label) else { return String::new() };
    let told = [BEFORE, SEED, AFTER].into_iter().filter_map(|arm| {
        let name = report.arms.get(arm)?.name;
        Some(format!("{name} {}", figure(row.arm(arm)?.iops, Metric::IOPS)))
    });
    let told: Vec<String> = told.collect();
    if told.is_empty() { String::new() } else { format!("{}: {} items a second. ", capital(label), told.join(", ")) }
}

/// Compares how the first arm and Sheave's arm change with more workers.
fn grows(sweep: &SweepReport) -> String {
    let (Some(few), Some(many)) = (sweep.rows.first(), sweep.rows.last()) else { return String::new() };
    let ratio = |arm| Some(many.arm(arm)?.iops / few.arm(arm)?.iops);
    let (Some(before), Some(after)) = (ratio(BEFORE), ratio(AFTER)) else { return String::new() };
    format!(
        "With {} workers allowed instead of {}, throughput is {before:.2} times as high before and {after:.2} times \
         after.",
        many.label, few.label
    )
}

fn counter(arm: &ArmResult, name: &str) -> f64 {
    arm.counters.get(name).copied().unwrap_or(f64::NAN)
}

fn gauge(arm: &ArmResult, name: &str) -> f64 {
    arm.gauges.get(name).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
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
    fn too_little_lock_waiting_denies_the_claim() {
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
}
