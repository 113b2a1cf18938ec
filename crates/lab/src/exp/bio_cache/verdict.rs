//! What the figures show: worked out from the rows that were measured.

use std::fmt::Write as _;

use super::design::{AFTER, CLAIMED, HOOK, POOL, ROW, SEED};
use crate::report::{ExperimentReport, Holds, InstructionRow, Row, Verdict};

/// The verdict.
pub fn of(report: &ExperimentReport) -> Verdict {
    let claim = format!(
        "Recycling bios from a cache of the ring gives {CLAIMED} % more IOPS on one core than the allocator (polled, \
         512 B, QD 128, batch 32)."
    );
    let Some(row) = report.row(ROW) else {
        let shows = "The thread's row was not measured.".to_string();
        return Verdict { holds: Holds::CannotTell, claim, shows, does_not_show: String::new() };
    };
    let net = report.instructions.first().and_then(net_gain);
    Verdict { holds: judge(row, net), claim, shows: shows(row, report, net), does_not_show: limits(report) }
}

/// How many more instructions the allocator takes, in percent of what an I/O of the product takes, without what the way
/// to the store costs: that way is the experiment's, and no allocator's.
fn net_gain(row: &InstructionRow) -> Option<f64> {
    let of = |arm: usize| *row.per_io.get(arm)?;
    let (before, hook, after) = (of(0)?, of(HOOK)?, of(AFTER)?);
    (after > 0.0).then(|| (before - hook) / after * 100.0)
}

/// How much more CPU time the allocator takes, in percent of an I/O of the product, without the way to the store.
fn net_time(row: &Row) -> Option<f64> {
    let of = |arm: usize| Some(row.arm(arm)?.cpu_ns_per_io);
    let (before, hook, after) = (of(0)?, of(HOOK)?, of(AFTER)?);
    (after > 0.0).then(|| (before - hook) / after * 100.0)
}

/// Whether it holds: by the gain without the way to the store, in time, or in instructions where noise hides it.
fn judge(row: &Row, net: Option<f64>) -> Holds {
    let (Some(change), Some(time)) = (row.arm(AFTER).and_then(|arm| arm.change), net_time(row)) else {
        return Holds::CannotTell;
    };
    let large = net.is_some_and(|net| net >= CLAIMED) || time >= CLAIMED;
    match (change.is_clear(), change.percent > 0.0) {
        (true, true) if large => Holds::Yes,
        (true, true) => Holds::Partly,
        (true, false) => Holds::No,
        (false, _) if net.is_some_and(|net| net >= CLAIMED) => Holds::Yes,
        (false, _) => Holds::CannotTell,
    }
}

fn percent(row: &Row, arm: usize) -> String {
    match row.arm(arm).and_then(|arm| arm.change) {
        Some(change) => format!("{:+.1} % ({:+.1} to {:+.1})", change.percent, change.low, change.high),
        None => "not measured".into(),
    }
}

fn shows(row: &Row, report: &ExperimentReport, net: Option<f64>) -> String {
    let mut text = format!(
        "Against the global allocator Sheave's cache gives {} IOPS, the thread's {} (published: +{CLAIMED} %); a pool \
         under a lock that one thread uses gives {}.",
        percent(row, AFTER),
        percent(row, SEED),
        percent(row, POOL)
    );
    if let Some(time) = net_time(row) {
        let _ = write!(
            text,
            " A part of that is the way to the store, which is this experiment's and no allocator's (arm hook): \
             without it the allocator costs {time:.1} % of an I/O's CPU time"
        );
        match net {
            Some(net) => {
                let _ = write!(text, ", and {net:.1} % of its instructions, which repeat to the digit.");
            }
            None => text += "; instructions were not counted (valgrind is missing or was turned off).",
        }
        let best = net.map_or(time, |net| net.max(time));
        if best < CLAIMED {
            let _ = write!(
                text,
                " That is below the thread's {CLAIMED} %: the C library's allocator has a cache for each thread \
                 itself, which the kernel's slab of 2021 had too, and an I/O of Sheave is short of the kernel's system \
                 call and driver, so the rest weighs differently."
            );
        }
    }
    text += &saved(row);
    let calls = |arm: usize| row.arm(arm)?.counters.get("allocator_calls").copied();
    if let (Some(before), Some(after)) = (calls(0), calls(AFTER)) {
        let _ = write!(text, " Allocator calls per I/O: {before:.2} before, {after:.2} after.");
    }
    text += &elsewhere(report);
    text
}

/// What the cache saves in ns, in words: a percentage is of an I/O, and that of the thread was another one.
fn saved(row: &Row) -> String {
    let of = |arm: usize| Some(row.arm(arm)?.cpu_ns_per_io);
    let (Some(before), Some(hook), Some(after), Some(published)) = (of(0), of(HOOK), of(AFTER), row.published) else {
        return String::new();
    };
    let (was, is) = (1e9 / published.before, 1e9 / published.after);
    format!(
        " In CPU time the allocator costs {:.0} ns on top of an I/O's {after:.0} ns; the thread's cost {:.0} ns on top \
         of {is:.0} ns, with system calls, driver and drive: the percentages differ because the I/Os do.",
        before - hook,
        was - is
    )
}

/// What becomes of it when the ring does not poll: the thread's cache was for polled I/O only.
fn elsewhere(report: &ExperimentReport) -> String {
    let Some(row) = report.sweep("ends").and_then(|sweep| sweep.rows.iter().find(|row| row.label == "not polled"))
    else {
        return String::new();
    };
    let calls = |arm: usize| row.arm(arm).and_then(|arm| arm.counters.get("allocator_calls").copied());
    let told = |arm: usize| calls(arm).map_or("-".into(), |calls| format!("{calls:.0}"));
    format!(
        " On a ring that does not poll the thread's cache is out of play ({}, {} allocator calls per I/O); Sheave's is \
         not ({}, {} calls).",
        percent(row, SEED),
        told(SEED),
        percent(row, AFTER),
        told(AFTER)
    )
}

fn limits(report: &ExperimentReport) -> String {
    let mut text = "A bio of Sheave lives in its ring's arena, whatever stands behind the cache: the arms allocate, \
                    initialise and free the memory of a bio beside it, but the I/O itself touches the arena, so the \
                    cache misses that scattered bios cost are not in the figures, and a header of 64 bytes is \
                    initialised twice. The device is a null device: a drive's own time would make the change smaller."
        .to_string();
    let threads = report.sweep("threads").map_or(1.0, |sweep| sweep.rows.iter().map(|row| row.x).fold(1.0, f64::max));
    let _ = write!(
        text,
        " With {threads:.0} thread{} the shared pool's lock shows little of what it costs on many cores.",
        if threads > 1.0 { "s" } else { "" }
    );
    text
}
