//! What the figures show: worked out from the rows that were measured.

use super::arm;
use super::design::{AFTER, DEPTHS, INLINE, SEED, SYNC, row_label};
use crate::report::{ArmResult, Change, ExperimentReport, Holds, Row, Verdict};
use crate::table::told as told_of;

/// What the thread claims at its best row, in percent.
const CLAIMED: f64 = 37.4;
/// What a cell that is not eligible may differ by, in percent, when its interval says that it does.
const NOISE: f64 = 3.0;

/// The verdict.
pub fn of(report: &ExperimentReport) -> Verdict {
    let claim =
        "Completing overwrites in the issuer's task and not in a worker gives up to 37 % more IOPS (interrupts, \
                 QD 16), completing them inline up to 11 % (polled, QD 1); what must block gains nothing."
            .to_string();
    let Some(best) = report.row(&row_label(16, "interrupts")) else {
        let shows = "The rows of the thread's table were not measured.".to_string();
        return Verdict { holds: Holds::CannotTell, claim, shows, does_not_show: String::new() };
    };
    let change = |arm: usize| best.arm(arm)?.change;
    let (seed, after) = (change(SEED), change(AFTER));
    let of_last = |arm: usize| report.instructions.last()?.gain_percent(arm);
    let by_instructions = of_last(AFTER).zip(of_last(SEED));
    let polled: Vec<f64> =
        DEPTHS.iter().filter_map(|&depth| gain(report.row(&row_label(depth, "polled"))?, INLINE)).collect();
    let (odd, told) = not_eligible(report);
    let holds = judge(seed, after, by_instructions, &polled, odd.is_empty());
    Verdict { holds, claim, shows: shows(best, report, &polled, &odd, told), does_not_show: limits() }
}

/// Whether it holds. The size is judged where the thread gives it: QD 16, interrupts.
fn judge(
    seed: Option<Change>,
    after: Option<Change>,
    instructions: Option<(f64, f64)>,
    polled: &[f64],
    quiet: bool,
) -> Holds {
    let (Some(seed), Some(after)) = (seed, after) else { return Holds::CannotTell };
    let in_instructions = instructions.is_some_and(|(after, seed)| after >= CLAIMED && seed >= CLAIMED);
    if !(seed.is_clear() && after.is_clear()) {
        // Time is noise here; instructions are not, and do not know what waking a thread takes.
        return if in_instructions && quiet { Holds::Yes } else { Holds::CannotTell };
    }
    let (seed, after) = (seed.percent, after.percent);
    let large = (after >= CLAIMED && seed >= CLAIMED) || in_instructions;
    let all_gain = seed > 0.0 && after > 0.0 && polled.iter().all(|&gain| gain > 0.0);
    match (all_gain, large && quiet) {
        (true, true) => Holds::Yes,
        (true, false) => Holds::Partly,
        (false, _) if large => Holds::Partly,
        (false, _) => Holds::No,
    }
}

/// The change of an arm against the first, in percent.
fn gain(row: &Row, arm: usize) -> Option<f64> {
    row.arm(arm)?.change.map(|change| change.percent)
}

/// Cells that are not eligible and yet differ clearly, each with its difference; and how many were measured.
fn not_eligible(report: &ExperimentReport) -> (Vec<String>, usize) {
    let sweeps = ["cells", "volume"].into_iter().filter_map(|name| Some((name, report.sweep(name)?)));
    let rows = sweeps.flat_map(|(name, sweep)| sweep.rows.iter().map(move |row| (name, row)));
    let rows: Vec<_> = rows.filter(|(_, row)| !arm::is_eligible(&row.point)).collect();
    let odd = rows.iter().filter_map(|(name, row)| {
        // What the place of completion did would show in all three arms that have another; one alone is its memory's
        // or its threads' luck, which intervals of rounds do not know of.
        let changes = [SEED, INLINE, AFTER].map(|arm| row.arm(arm).and_then(|arm| arm.change));
        let [Some(first), ..] = changes else { return None };
        let differs =
            |change: Change| change.is_clear() && change.percent.abs() > NOISE && change.percent * first.percent > 0.0;
        let all = changes.iter().all(|change| change.is_some_and(differs));
        let least = changes.iter().flatten().map(|change| change.percent).min_by(|a, b| a.abs().total_cmp(&b.abs()))?;
        all.then(|| format!("{} in {name} ({least:+.1} % at least)", row.label))
    });
    (odd.collect(), rows.len())
}

fn shows(best: &Row, report: &ExperimentReport, polled: &[f64], odd: &[String], told: usize) -> String {
    let percent = |row: &Row, arm: usize| told_of(row.arm(arm).and_then(|arm| arm.change));
    let mut text = format!(
        "At QD 16 with interrupts the issuer's task gives {} and Sheave {} against a worker (thread: +37.4 %).",
        percent(best, SEED),
        percent(best, AFTER)
    );
    if let (Some(least), Some(most)) =
        (polled.iter().copied().reduce(f64::min), polled.iter().copied().reduce(f64::max))
    {
        text += &format!(" Polled, completing inline alone gives {least:+.1} % to {most:+.1} % over the queue depths");
        let whole = report.row(&row_label(16, "polled")).map_or("not measured".into(), |row| percent(row, AFTER));
        text += &format!("; with overwrites going in as one run it is {whole} at QD 16.");
    }
    if let Some(first) = report.row(&row_label(1, "polled")) {
        text += &hand_over(first);
    }
    text += &synchronous(report);
    if let (Some(before), Some(after)) = (best.arm(0), best.arm(AFTER)) {
        text += &per_io(before, after);
    }
    text += &counted(report);
    text += &match (told, odd) {
        (0, _) => String::new(),
        (_, []) => {
            format!(" In none of the {told} cells that are not eligible do all arms gain, or lose, above {NOISE} %.")
        }
        (_, odd) => format!(" Not eligible, and yet different: {}.", odd.join(", ")),
    };
    text
}

/// Why the series was written: what a synchronous write does better than async ones, before and after.
fn synchronous(report: &ExperimentReport) -> String {
    let ends = [("polled", INLINE), ("interrupts", SEED)];
    let told = ends.into_iter().filter_map(|(ends, arm)| {
        let row = report.row(&row_label(1, ends))?;
        let change = |arm: usize| row.arm(arm).and_then(|arm| arm.change).map(|change| told_of(Some(change)));
        Some(format!("{ends}, {}, and the thread's arm {}", change(SYNC)?, change(arm)?))
    });
    let told: Vec<String> = told.collect();
    match told.is_empty() {
        true => String::new(),
        false => {
            format!(" Against an async write that completes in a worker a synchronous one gives {}.", told.join("; "))
        }
    }
}

/// Instructions of each arm at the deepest point that was counted.
fn counted(report: &ExperimentReport) -> String {
    let Some(row) = report.instructions.last() else { return String::new() };
    let each = report.arms.iter().zip(&row.per_io).filter_map(|(arm, per_io)| Some((arm.name, (*per_io)?)));
    let each: Vec<String> = each.map(|(name, per_io)| format!("{name} {per_io:.0}")).collect();
    let depth = row.point.depth;
    if each.is_empty() { String::new() } else { format!(" Instructions per I/O at QD {depth}: {}.", each.join(", ")) }
}

/// What a worker adds to the one I/O that is in flight, here and in the thread's table.
fn hand_over(first: &Row) -> String {
    let (Some(before), Some(inline)) = (first.arm(0), first.arm(INLINE).and_then(|arm| arm.change)) else {
        return String::new();
    };
    if !inline.is_clear() {
        return " At QD 1 this run cannot tell what the way to a worker and back takes.".into();
    }
    // The ratios of paired turns, in the time of an I/O that goes the way.
    let added_us = |before: f64, percent: f64| (1.0 - 1.0 / (1.0 + percent / 100.0)) * 1e6 / before;
    let [here, low, high] = [inline.percent, inline.low, inline.high].map(|percent| added_us(before.iops, percent));
    let there = first.published.map_or(String::new(), |published| {
        let us = added_us(published.before, (published.after / published.before - 1.0) * 100.0);
        format!("; in the thread {us:.1} us")
    });
    format!(" At QD 1 the way to a worker and back takes {here:.1} us here ({low:.1} to {high:.1}{there}).")
}

/// Context switches, CPU time and the slowest percent, before and after.
fn per_io(before: &ArmResult, after: &ArmResult) -> String {
    let mut text = format!(
        " At QD 16 with interrupts context switches per I/O go from {:.2} to {:.2}, CPU time from {:.0} to {:.0} ns",
        before.switches_per_io, after.switches_per_io, before.cpu_ns_per_io, after.cpu_ns_per_io
    );
    if let (Some(before), Some(after)) = (&before.latency, &after.latency) {
        text += &format!(", p99 from {:.1} to {:.1} us", before.p99 as f64 / 1e3, after.p99 as f64 / 1e3);
    }
    text + "."
}

fn limits() -> String {
    "It does not show what a disk would do: the device here takes 5 us for any number of I/Os and has no limit of its \
     own, so the rows for many I/Os have no ceiling but the CPU's, and gains there are larger than the thread's. \
     Waking a thread from user space, on a virtual machine, costs more than the kernel's workqueue on the thread's \
     machine; most of the gain is that. An interrupt is a completion by another CPU, which takes nothing from the \
     ring's; the ring looks for it before it sleeps. The worker is Sheave's io-wq, which ends writes of a file in \
     batches."
        .to_string()
}
