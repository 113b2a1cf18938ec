//! What the figures show: worked out from the rows that were measured.

use std::fmt::Write as _;

use super::design::{AFTER, CLAIMED, ROW, SEED};
use crate::report::{Change, ExperimentReport, Holds, Row, Verdict};

/// The verdict.
pub fn of(report: &ExperimentReport) -> Verdict {
    let claim = format!(
        "Reading the clock once for a batch, not for each request, gives more than {CLAIMED} % more IOPS with \
         statistics on (batch 32)."
    );
    let Some(row) = report.row(ROW) else {
        let shows = "The thread's row was not measured.".to_string();
        return Verdict { holds: Holds::CannotTell, claim, shows, does_not_show: String::new() };
    };
    let instructions = report.instructions.first().and_then(|row| row.gain_percent(AFTER));
    Verdict { holds: judge(row, instructions), claim, shows: shows(row, report, instructions), does_not_show: limits() }
}

fn change(row: &Row, arm: usize) -> Option<Change> {
    row.arm(arm)?.change
}

/// Whether it holds, in time, or in instructions where noise hides it.
fn judge(row: &Row, instructions: Option<f64>) -> Holds {
    let counted = instructions.is_some_and(|gain| gain >= CLAIMED);
    match change(row, AFTER) {
        None => Holds::CannotTell,
        Some(change) if change.is_clear() && change.percent >= CLAIMED => Holds::Yes,
        Some(change) if change.is_clear() && change.percent <= 0.0 => Holds::No,
        Some(_) if counted => Holds::Yes,
        Some(change) if change.is_clear() => Holds::Partly,
        Some(_) => Holds::CannotTell,
    }
}

fn told(change: Option<Change>) -> String {
    change.map_or("not measured".into(), |change| {
        format!("{:+.1} % ({:+.1} to {:+.1})", change.percent, change.low, change.high)
    })
}

fn shows(row: &Row, report: &ExperimentReport, instructions: Option<f64>) -> String {
    let mut text = format!(
        "Against a reading for each request Sheave's bounded stamp gives {} IOPS and the thread's unbounded one {} \
         (published: +6.6 % by the medians of its figures).",
        told(change(row, AFTER)),
        told(change(row, SEED))
    );
    let counter = |arm: usize, name: &str| row.arm(arm)?.counters.get(name).copied();
    if let (Some(before), Some(after), Some(looks)) =
        (counter(0, "clock_reads"), counter(AFTER, "clock_reads"), counter(AFTER, "age_looks"))
    {
        let _ = write!(
            text,
            " Clock reads per I/O: {before:.2} before, {after:.2} after, and {looks:.2} looks at the age of a stamp."
        );
    }
    if let (Some(before), Some(after)) = (row.arm(0), row.arm(AFTER)) {
        let (before, after) = (before.cpu_ns_per_io, after.cpu_ns_per_io);
        let _ = write!(text, " That is {:.1} ns of CPU time an I/O, of which {after:.1} ns are left.", before - after);
    }
    match instructions {
        Some(gain) => {
            let _ = write!(
                text,
                " In instructions before takes {gain:+.1} % against after. That is more than readings alone, each of \
                 one instruction that takes as long as dozens: requests with one stamp are also added to the \
                 statistics together, those with their own one by one."
            );
        }
        None => text += " Instructions were not counted (valgrind is missing or was turned off).",
    }
    if change(row, AFTER).is_some_and(|change| change.percent < CLAIMED) {
        text += " In time that is below the thread's 6 %: Sheave reads the bare cycle counter, where the kernel's \
                 clock also has a sequence lock and a conversion, and reads it once for each request, where the thread \
                 counts several readings.";
    }
    text += &small_batches(report);
    text += &ages(report);
    text
}

/// A batch of one has nothing to share.
fn small_batches(report: &ExperimentReport) -> String {
    let Some(row) = report.sweep("batch").and_then(|sweep| sweep.rows.iter().find(|row| row.x == 1.0)) else {
        return String::new();
    };
    let Some(change) = change(row, AFTER) else { return String::new() };
    let sound = if change.is_clear() && change.percent.abs() > 2.0 {
        "though it should give nothing: the difference is noise or a cost of the cache itself"
    } else {
        "no clear difference, as it must be: there is nothing to share"
    };
    format!(" With batches of one it gives {}, {sound}.", told(Some(change)))
}

/// What the bound is for.
fn ages(report: &ExperimentReport) -> String {
    let Some(row) = report.sweep("age").and_then(|sweep| sweep.rows.last()) else { return String::new() };
    let age = |arm: usize| Some(*row.arm(arm)?.gauges.get("stamp_age_p99_ns")? / 1e3);
    match (age(SEED), age(AFTER)) {
        (Some(seed), Some(after)) => format!(
            " When each request takes {:.1} us to make, 99 % of the thread's stamps are younger than {seed:.0} us, of \
             Sheave's than {after:.0} us: its bound is looked at for every 16th request.",
            row.x / 1e3
        ),
        _ => String::new(),
    }
}

fn limits() -> String {
    "The thread measured many drives and threads at once; a ring here shares no clock and no stamp with another, so \
     its gain is that of one thread. Stamps of completions, one for each batch, are the same in all arms. Throttling, \
     cgroups and latency control, which read the clock further times in the kernel, are not on this path. User space \
     cannot see when it is preempted: between two looks a stamp may get older than the bound."
        .into()
}
