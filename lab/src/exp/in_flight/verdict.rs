//! The verdict of in-flight, computed from the measured rows.

use super::design::{AFTER, ARMS, PER_THREAD, PER_THREAD_JIFFY, TAGS_JIFFY};
use crate::report::{ArmResult, Change, ExperimentReport, Holds, Row, Verdict};
use crate::table::told;

pub fn of(report: &ExperimentReport) -> Verdict {
    let claim = "With 80 jobs on 80 CPUs, one pair of atomic counters for all holds null_blk at 1.5 M IOPS, and \
                 counters for each CPU let it reach 11.4 M; derived from the tags the same number costs nothing at the \
                 start and the end of an I/O."
        .to_string();
    let (Some(one), Some(all)) = (report.headline.first(), report.headline.last()) else {
        let shows = "No row was measured.".to_string();
        return Verdict { holds: Holds::CannotTell, claim, shows, does_not_show: String::new() };
    };
    let holds = judge(all, report);
    Verdict { holds, claim, shows: shows(one, all, report), does_not_show: limits(all.point.threads) }
}

/// Judges the claim on the published arm. The published gain was measured on 80 CPUs, so a smaller machine can at most
/// confirm its direction.
fn judge(all: &Row, report: &ExperimentReport) -> Holds {
    let Some(seed) = change(all, PER_THREAD) else { return Holds::CannotTell };
    let fewer = report.instructions.iter().filter_map(|row| row.gain_percent(PER_THREAD)).any(|gain| gain > 0.0);
    match (seed.low > 0.0, seed.high < 0.0) {
        (true, _) if seed.percent >= 660.0 => Holds::Yes,
        (true, _) => Holds::Partly,
        (_, true) => Holds::No,
        // Here times are noise. Instructions show the part of the gain that is not due to contention.
        _ if fewer => Holds::Partly,
        _ => Holds::CannotTell,
    }
}

fn change(row: &Row, arm: usize) -> Option<Change> {
    row.arm(arm)?.change
}

/// Describes how the time of a reading depends on the number of queues: going through the tags takes longer with each
/// queue.
fn by_queues(report: &ExperimentReport) -> String {
    let Some((few, many)) = report.sweep("queues").and_then(|sweep| Some((sweep.rows.first()?, sweep.rows.last()?)))
    else {
        return String::new();
    };
    let each = |row: &Row, arm: usize| gauge(row.arm(arm)?);
    let told = [PER_THREAD, AFTER].into_iter().filter_map(|arm| {
        let (few_ns, many_ns) = (each(few, arm)?, each(many, arm)?);
        Some(format!(
            "{} {few_ns:.0} ns with {} queue(s), {many_ns:.0} ns with {}",
            ARMS[arm].name, few.label, many.label
        ))
    });
    let told: Vec<String> = told.collect();
    if told.is_empty() { String::new() } else { format!(" A reading by queues: {}.", told.join("; ")) }
}

/// Describes how much the reader in the I/O path slows I/O down: once in each jiffy an I/O sums the counters or goes
/// through the tags.
fn in_path(all: &Row) -> String {
    let pairs = [(PER_THREAD, PER_THREAD_JIFFY), (AFTER, TAGS_JIFFY)];
    let told = pairs.into_iter().filter_map(|(without, with)| {
        let [without, with] = [without, with].map(|arm| change(all, arm).map(|change| told(Some(change))));
        Some((without?, with?))
    });
    let told: Vec<String> = ["per thread", "after"]
        .into_iter()
        .zip(told)
        .map(|(name, (without, with))| format!("{name} {without}, with it {with}"))
        .collect();
    if told.is_empty() { String::new() } else { format!(" The reader in the path, once a jiffy: {}.", told.join("; ")) }
}

fn shows(one: &Row, all: &Row, report: &ExperimentReport) -> String {
    let mut text = format!("One thread: {}. {} threads: {}.", changes(one), all.point.threads, changes(all));
    if let (Some(before), Some(after)) = (ns(one, all, 0), ns(one, all, AFTER)) {
        text += &format!(
            " From one thread to {} an I/O takes {before:+.0} ns of each thread's time with one pair, and \
             {after:+.0} ns with tags: the cache line that travels, and what else the CPUs share.",
            all.point.threads
        );
    }
    if let Some(readings) = report.sweep("readers").and_then(|sweep| sweep.rows.last()) {
        let each = ARMS.iter().zip(&readings.arms).filter_map(|(info, arm)| Some((info.name, gauge(arm.as_ref()?)?)));
        let each: Vec<String> = each.map(|(name, ns)| format!("{name} {ns:.0} ns")).collect();
        if !each.is_empty() {
            text += &format!(" A reading takes: {}.", each.join(", "));
        }
    }
    text += &by_queues(report);
    text += &in_path(all);
    let impossible = |arm: usize| -> f64 {
        let rows = report.sweeps.iter().flat_map(|sweep| &sweep.rows).filter_map(|row| row.arm(arm));
        rows.filter_map(|arm| arm.gauges.get("impossible_readings")).sum()
    };
    if impossible(PER_THREAD) > 0.0 && impossible(AFTER) == 0.0 {
        text += " Sums over threads were seen below zero or above what can be in flight; the tags never were.";
    }
    if let Some(row) = report.instructions.first() {
        let each = ARMS.iter().zip(&row.per_io).filter_map(|(info, per_io)| Some((info.name, (*per_io)?)));
        let each: Vec<String> = each.map(|(name, per_io)| format!("{name} {per_io:.1}")).collect();
        if !each.is_empty() {
            text += &format!(" Instructions per I/O: {}.", each.join(", "));
        }
    }
    text
}

/// Describes the change of every arm, with its interval.
fn changes(row: &Row) -> String {
    let each = ARMS.iter().enumerate().filter_map(|(arm, info)| {
        let change = change(row, arm)?;
        Some(format!("{} {}", info.name, told(Some(change))))
    });
    let each: Vec<String> = each.collect();
    if each.is_empty() { "not measured".into() } else { each.join(", ") }
}

/// Returns the time in ns by which an I/O takes longer with all threads than with one.
fn ns(one: &Row, all: &Row, arm: usize) -> Option<f64> {
    let each = |row: &Row| Some(f64::from(row.point.threads) * 1e9 / row.arm(arm)?.iops).filter(|ns| ns.is_finite());
    Some(each(all)? - each(one)?)
}

fn gauge(arm: &ArmResult) -> Option<f64> {
    arm.gauges.get("ns_per_reading").copied()
}

fn limits(threads: u32) -> String {
    format!(
        "It does not show the thread's 7.6 times: that is what a cache line costs that 80 CPUs on several sockets pass \
         around, and here {threads} threads share it. With more threads than CPUs they take turns, so that the line \
         travels no more often than with as many threads as CPUs. What more cores would make of it is a prediction, \
         and labelled so. The thread's null_blk does much else for each I/O, which hides more of the counters than \
         Sheave's null device does."
    )
}
