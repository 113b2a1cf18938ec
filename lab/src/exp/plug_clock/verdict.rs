//! The verdict of plug-clock, computed from the measured rows.

use std::fmt::Write as _;

use sheave_blk::plug::CHECK_EVERY;

use super::design::{AFTER, CLAIMED, KTIME, OWN, ROW, SEED, SHARES};
use crate::report::{Change, ExperimentReport, Holds, InstructionRow, Row, Verdict, decide};
use crate::table::told;

pub fn of(report: &ExperimentReport) -> Verdict {
    let claim = format!(
        "Reading the clock once for a batch, not for each request, gives more than {CLAIMED} % more IOPS with \
         statistics on (batch 32)."
    );
    let Some(row) = report.row(ROW) else {
        let shows = "The thread's row was not measured.".to_string();
        return Verdict { holds: Holds::CannotTell, claim, shows, does_not_show: String::new() };
    };
    let counted = report.instructions.iter().find(|counted| counted.point == row.point);
    // A reading of the clock takes as long as dozens of other instructions, so instruction counts show that there is a
    // difference but not its size. If times are noise, fewer instructions therefore make the claim hold partly at most.
    let time = change(row, SEED).filter(Change::is_clear);
    let fewer = counted.and_then(|counted| counted.gain_percent(SEED)).is_some_and(|gain| gain > 0.0);
    let holds = if time.is_none() && fewer { Holds::Partly } else { decide(CLAIMED, time, None) };
    Verdict { holds, claim, shows: shows(row, report, counted), does_not_show: limits() }
}

fn change(row: &Row, arm: usize) -> Option<Change> {
    row.arm(arm)?.change
}

fn shows(row: &Row, report: &ExperimentReport, counted: Option<&InstructionRow>) -> String {
    let mut text = format!(
        "Against a reading for each request the thread's unbounded stamp gives {} IOPS (published: +6.6 % by the \
         medians of its figures), and Sheave's bounded one {}.",
        told(change(row, SEED)),
        told(change(row, AFTER))
    );
    text += &shares(row);
    let counter = |arm: usize, name: &str| row.arm(arm)?.counters.get(name).copied();
    if let (Some(before), Some(after), Some(looks)) =
        (counter(0, "clock_reads"), counter(AFTER, "clock_reads"), counter(AFTER, "age_looks"))
    {
        let _ = write!(
            text,
            " Clock reads per I/O: {before:.2} before, {after:.2} after, and {looks:.2} looks at the age of a stamp."
        );
    }
    let _ = write!(
        text,
        " What sharing a stamp gives beside that, requests gathered and counted together, is an arm of its own: \
         without it {}.",
        told(change(row, OWN))
    );
    match counted.and_then(|counted| Some((counted.net(0)?, counted.net(OWN)?, counted.net(AFTER)?))) {
        Some((before, own, after)) => {
            let _ = write!(
                text,
                " In instructions an I/O takes {after:.1}; the readings are {:.1} of {before:.1}, gathering and \
                 counting one by one {:.1} more.",
                before - after,
                own - before
            );
        }
        None => text += " Instructions were not counted (valgrind is missing or was turned off).",
    }
    text += &small_batches(report);
    text += &ages(report);
    text
}

/// Describes the share of an I/O's time that reading the clock takes, for the cycle counter and for a clock like the
/// kernel's.
fn shares(row: &Row) -> String {
    let ns = |arm: usize| Some(row.arm(arm)?.cpu_ns_per_io);
    let (Some(before), Some(ktime), Some(seed)) = (ns(0), ns(KTIME), ns(SEED)) else { return String::new() };
    let [tsc, get] = SHARES;
    format!(
        " Readings for each request are {:.0} % of an I/O's CPU time with the bare cycle counter ({:.1} of {before:.1} \
         ns) and {:.0} % with a clock that does what the kernel's does ({:.1} of {ktime:.1} ns); the thread: {:.1} % \
         in read_tsc and ktime_get, of which {:.1} % are left.",
        (before - seed) / before * 100.0,
        before - seed,
        (ktime - seed) / ktime * 100.0,
        ktime - seed,
        tsc.0 + get.0,
        tsc.1 + get.1,
    )
}

/// Describes the change with batches of one, where there is no stamp to share.
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

/// Describes how the age of stamps depends on the time that each request takes to make. The age can exceed the bound of
/// 50 us, because it is checked only at every 16th request.
fn ages(report: &ExperimentReport) -> String {
    let rows = report.sweep("age").into_iter().flat_map(|sweep| &sweep.rows);
    let told = rows.filter_map(|row| {
        let age = |arm: usize| Some(*row.arm(arm)?.gauges.get("stamp_age_p99_ns")? / 1e3);
        let (seed, after) = (age(SEED)?, age(AFTER)?);
        Some(format!("{after:.0} us at {:.1} us a request (the thread's: {seed:.0})", row.x / 1e3))
    });
    let told: Vec<String> = told.collect();
    if told.is_empty() {
        return String::new();
    }
    format!(
        " 99 % of Sheave's stamps are younger than {}: the bound of 50 us is looked at for every {CHECK_EVERY}th \
         request.",
        told.join(", ")
    )
}

fn limits() -> String {
    "Valgrind runs the vDSO's clock as a system call, so the instructions of ktime lack what a reading takes. The \
     thread measured many drives and threads at once; a ring here shares no clock and no stamp with another, so \
     its gain is that of one thread. Stamps of completions, one for each batch, are the same in all arms. Throttling, \
     cgroups and latency control, which read the clock further times in the kernel, are not on this path. User space \
     cannot see when it is preempted: between two looks a stamp may get older than the bound."
        .into()
}
