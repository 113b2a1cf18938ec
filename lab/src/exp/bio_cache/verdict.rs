//! The verdict of bio-cache, computed from the measured rows.

use std::fmt::Write as _;

use super::design::{AFTER, CLAIMED, DEEP, HOOK, MALLOC, NO_BIO, PER_CPU, ROW, SEED};
use crate::report::{ExperimentReport, Holds, InstructionRow, Row, Verdict, decide};
use crate::table::told;

pub fn of(report: &ExperimentReport) -> Verdict {
    let claim = format!(
        "Recycling bios from a cache of the ring gives {CLAIMED} % more IOPS on one core than the slab (polled, 512 B, \
         QD 128, batch 32)."
    );
    let Some(row) = report.row(ROW) else {
        let shows = "The thread's row was not measured.".to_string();
        return Verdict { holds: Holds::CannotTell, claim, shows, does_not_show: String::new() };
    };
    let counted = report.instructions.iter().find(|counted| counted.point == row.point);
    // The claim is about the published cache, so Sheave's own cache does not count here.
    let gain = counted.and_then(|counted| counted.gain_percent(SEED));
    let holds = decide(CLAIMED, row.arm(SEED).and_then(|arm| arm.change), gain);
    Verdict { holds, claim, shows: shows(row, report, counted, holds), does_not_show: limits() }
}

fn percent(row: &Row, arm: usize) -> String {
    told(row.arm(arm).and_then(|arm| arm.change))
}

fn shows(row: &Row, report: &ExperimentReport, counted: Option<&InstructionRow>, holds: Holds) -> String {
    let mut text = format!(
        "Against a slab of the thread the thread's cache gives {} IOPS (published: +{CLAIMED} %), Sheave's {}, the \
         review's cache per CPU {}; malloc instead of the slab gives {}. The way to slab, malloc and cache per CPU \
         is this experiment's (arm hook), and is taken out of them.",
        percent(row, SEED),
        percent(row, AFTER),
        percent(row, PER_CPU),
        percent(row, MALLOC),
    );
    match counted {
        Some(counted) => text += &net_effect(counted),
        None => text += " Instructions were not counted (valgrind is missing or was turned off).",
    }
    if matches!(holds, Holds::Partly | Holds::No) {
        let _ = write!(
            text,
            " It is not {CLAIMED} % here because a slab that only its own thread uses is itself a list with one end: \
             the kernel's also disables preemption, looks for its CPU, and clears what it hands out."
        );
    }
    let _ = write!(
        text,
        " All these take a bio for each I/O. As it ships Sheave needs none for a plain read: {}.",
        percent(row, NO_BIO)
    );
    text += &saved(row);
    if let Some(deep) = report.instructions.iter().find(|counted| counted.point.depth == DEEP) {
        text += &pruning(deep);
    }
    text += &elsewhere(report);
    text
}

/// Describes how many instructions and cache lines each arm uses more than Sheave, without those of calling a store.
fn net_effect(counted: &InstructionRow) -> String {
    let lines = |arm: usize| {
        let of = |arm: usize| counted.lines_per_io.get(arm).copied().flatten();
        let way = if counted.way.get(arm).is_some_and(|way| *way != 0.0) { of(HOOK)? - of(AFTER)? } else { 0.0 };
        Some(of(arm)? - way)
    };
    let mut text = String::new();
    let arms = [(0, "the slab"), (MALLOC, "malloc"), (PER_CPU, "the cache per CPU"), (SEED, "the thread's cache")];
    if let (Some(after), Some(after_lines)) = (counted.net(AFTER), lines(AFTER)) {
        let costs = arms.iter().filter_map(|&(arm, name)| {
            let (more, more_lines) = (counted.net(arm)? - after, lines(arm)? - after_lines);
            Some(format!("{name} {more:+.1} instructions and {more_lines:+.2} cache lines"))
        });
        let costs: Vec<String> = costs.collect();
        let _ = write!(
            text,
            " Net, against an I/O of {after:.1} instructions and {after_lines:.2} lines fetched with Sheave's cache: \
             {}.",
            costs.join(", ")
        );
    }
    text
}

/// Describes the saving in ns next to the published one. Percentages cannot be compared, because the published I/O
/// takes longer.
fn saved(row: &Row) -> String {
    let of = |arm: usize| Some(row.arm(arm)?.cpu_ns_per_io);
    let (Some(before), Some(after), Some(published)) = (of(0), of(AFTER), row.published) else {
        return String::new();
    };
    let (was, is) = (1e9 / published.before, 1e9 / published.after);
    format!(
        " In CPU time the slab costs {:.1} ns on top of an I/O's {after:.1} ns; the thread's cost {:.0} ns on top of \
         {is:.0} ns, with system calls, driver and drive: the percentages differ because the I/Os do.",
        before - after,
        was - is
    )
}

/// Describes the extra work of a bounded cache when more bios come back at once than it holds.
fn pruning(deep: &InstructionRow) -> String {
    let (Some(seed), Some(per_cpu), Some(after)) = (deep.net(SEED), deep.net(PER_CPU), deep.net(AFTER)) else {
        return String::new();
    };
    format!(
        " With {DEEP} I/Os handed over and ended at once a cache of 512 is pruned and refilled each time: {:+.1} \
         instructions an I/O for the thread's cache, {:+.1} for the one per CPU, against Sheave's, which is as large \
         as its ring.",
        seed - after,
        per_cpu - after
    )
}

/// Describes the change on a ring that does not poll, where the published cache is not used.
fn elsewhere(report: &ExperimentReport) -> String {
    let Some(row) = report.sweep("ends").and_then(|sweep| sweep.rows.iter().find(|row| row.label == "not polled"))
    else {
        return String::new();
    };
    let misses = |arm: usize| row.arm(arm).and_then(|arm| arm.counters.get("cache_misses").copied());
    let told = |arm: usize| misses(arm).map_or("-".into(), |misses| format!("{misses:.0}"));
    format!(
        " On a ring that does not poll the thread's cache is out of play ({}, {} misses per I/O); Sheave's is not ({}, \
         {} misses).",
        percent(row, SEED),
        told(SEED),
        percent(row, AFTER),
        told(AFTER)
    )
}

fn limits() -> String {
    "A bio of Sheave lives in its ring's arena, whatever stands behind the cache: the arms take and give back the \
     memory of a bio beside it, but the I/O itself touches the arena, so the misses that scattered bios cost are not \
     in the figures. The slab is a thread's own and is never preempted, so it disables nothing, and it is not the \
     kernel's. The device is a null device: a drive's own time would make the change smaller."
        .into()
}
