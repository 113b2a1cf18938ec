//! The verdict of dio-completion, computed from the measured rows.

use super::arm;
use super::design::{AFTER, DEPTHS, INLINE, ON_RINGS_CPU, PLACEMENT, SEED, SYNC, row_label};
use super::subject::{self, Cell};
use crate::report::{ArmResult, Change, ExperimentReport, Holds, Row, Verdict};
use crate::table::told as told_of;

/// Published gain in the best row, in percent.
const CLAIMED: f64 = 37.4;
/// Largest change, in percent, that counts as no change in a cell that is not eligible.
const NOISE: f64 = 3.0;

pub fn of(report: &ExperimentReport) -> Verdict {
    let claim =
        "Completing overwrites in the issuer's task and not in a worker gives up to 37 % more IOPS (interrupts, \
                 QD 16), completing them inline up to 11 % (polled, QD 1); what must block gains nothing."
            .to_string();
    let Some(best) = report.row(&row_label(16, "interrupts")) else {
        let shows = "The rows of the thread's table were not measured.".to_string();
        return Verdict { holds: Holds::CannotTell, claim, shows, does_not_show: String::new() };
    };
    let seed = best.arm(SEED).and_then(|arm| arm.change);
    let by_instructions = report.instructions.last().and_then(|counted| counted.gain_percent(SEED));
    let polled: Vec<f64> =
        DEPTHS.iter().filter_map(|&depth| gain(report.row(&row_label(depth, "polled"))?, INLINE)).collect();
    let cells = not_eligible(report);
    let holds = judge(seed, by_instructions, &polled, cells.odd.is_empty());
    Verdict { holds, claim, shows: shows(best, report, &polled, &cells), does_not_show: limits() }
}

/// Judges the claim on the published arms: completion in the issuer's task with interrupts, inline completion where the
/// ring polls. The size of the gain is compared at QD 16 with interrupts, where the published gain is largest.
fn judge(seed: Option<Change>, instructions: Option<f64>, polled: &[f64], quiet: bool) -> Holds {
    let Some(seed) = seed else { return Holds::CannotTell };
    let in_instructions = instructions.is_some_and(|seed| seed >= CLAIMED);
    if !seed.is_clear() {
        // Here times are noise. Instruction counts can be repeated, but do not include the time to wake a thread.
        return if in_instructions && quiet { Holds::Yes } else { Holds::CannotTell };
    }
    let large = seed.percent >= CLAIMED || in_instructions;
    let all_gain = seed.percent > 0.0 && polled.iter().all(|&gain| gain > 0.0);
    match (all_gain, large && quiet) {
        (true, true) => Holds::Yes,
        (true, false) => Holds::Partly,
        (false, _) if large => Holds::Partly,
        (false, _) => Holds::No,
    }
}

/// Returns the change of an arm against the first, in percent.
fn gain(row: &Row, arm: usize) -> Option<f64> {
    row.arm(arm)?.change.map(|change| change.percent)
}

/// Cells whose writes have work after the data, so that the place of completion should make no difference.
struct NotEligible {
    /// Cells that differ clearly all the same, without a known reason, each with its difference.
    odd: Vec<String>,
    /// Cells that differ because a flush needs no worker in Sheave.
    flushed: Vec<String>,
    /// Number of measured cells.
    measured: usize,
}

/// Counts the measured cells whose writes have work after the data, and lists those in which the arms differ clearly.
fn not_eligible(report: &ExperimentReport) -> NotEligible {
    let sweeps = ["cells", "volume"].into_iter().filter_map(|name| Some((name, report.sweep(name)?)));
    let rows = sweeps.flat_map(|(name, sweep)| sweep.rows.iter().map(move |row| (name, row)));
    let rows: Vec<_> = rows.filter(|(_, row)| !arm::is_eligible(&row.point)).collect();
    let measured = rows.len();
    let differing = rows.into_iter().filter_map(|(name, row)| {
        // An effect of the place of completion would show in all three arms that have another place. If only one arm
        // changes, the cause is its memory layout or its threads, which the interval over rounds does not include.
        let changes = [SEED, INLINE, AFTER].map(|arm| row.arm(arm).and_then(|arm| arm.change));
        let [Some(first), ..] = changes else { return None };
        let differs =
            |change: Change| change.is_clear() && change.percent.abs() > NOISE && change.percent * first.percent > 0.0;
        let all = changes.iter().all(|change| change.is_some_and(differs));
        let least = changes.iter().flatten().map(|change| change.percent).min_by(|a, b| a.abs().total_cmp(&b.abs()))?;
        let flushed = subject::cell(&row.point).is_ok_and(|cell| cell == Cell::DsyncFlush);
        all.then(|| (flushed, format!("{} in {name} ({least:+.1} % at least)", row.label)))
    });
    let (flushed, odd): (Vec<_>, Vec<_>) = differing.partition(|(flushed, _)| *flushed);
    let names = |cells: Vec<(bool, String)>| cells.into_iter().map(|(_, told)| told).collect();
    NotEligible { odd: names(odd), flushed: names(flushed), measured }
}

fn shows(best: &Row, report: &ExperimentReport, polled: &[f64], cells: &NotEligible) -> String {
    let percent = |row: &Row, arm: usize| told_of(row.arm(arm).and_then(|arm| arm.change));
    let mut text = format!(
        "At QD 16 with interrupts, for which every arm sleeps, the issuer's task gives {} against a worker (thread: \
         +37.4 %), and Sheave {}.",
        percent(best, SEED),
        percent(best, AFTER)
    );
    if let (Some(least), Some(most)) =
        (polled.iter().copied().reduce(f64::min), polled.iter().copied().reduce(f64::max))
    {
        text += &format!(
            " Polled, where every arm looks for its completions without sleeping and the workers have another CPU, \
             completing inline alone gives {least:+.1} % to {most:+.1} % over the queue depths (thread: +0.5 to \
             +11 %)"
        );
        let whole = report.row(&row_label(16, "polled")).map_or("not measured".into(), |row| percent(row, AFTER));
        text += &format!("; with overwrites going in as one run it is {whole} at QD 16.");
    }
    if let Some(first) = report.row(&row_label(1, "polled")) {
        text += &hand_over(first);
    }
    text += &on_rings_cpu(report);
    text += &synchronous(report);
    if let (Some(before), Some(after)) = (best.arm(0), best.arm(AFTER)) {
        text += &per_io(before, after);
    }
    text += &counted(report);
    text + &told_of_cells(cells)
}

/// Returns sentences about the cells that are not eligible, with the known reasons for differences.
fn told_of_cells(NotEligible { odd, flushed, measured }: &NotEligible) -> String {
    let mut text = match (*measured - flushed.len(), &odd[..]) {
        (0, _) => String::new(),
        (quiet, []) => {
            let others = if flushed.is_empty() { "" } else { "other " };
            format!(
                " In none of the {quiet} {others}cells that are not eligible do all arms change by more than {NOISE} %."
            )
        }
        (_, odd) => format!(" Not eligible, and yet different: {}.", odd.join(", ")),
    };
    if !flushed.is_empty() {
        text += &format!(
            " Not eligible in the kernel, and different here: {}, because the flush after the data is an I/O of the \
             ring where the file has nothing of its own to write down, and needs a worker in `before` alone.",
            flushed.join(", ")
        );
    }
    text
}

/// Compares a synchronous write with async ones, which is the comparison for which the patch series was written.
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

/// Describes the instructions of each arm at the deepest point that was counted.
fn counted(report: &ExperimentReport) -> String {
    let Some(row) = report.instructions.last() else { return String::new() };
    let each = report.arms.iter().zip(&row.per_io).filter_map(|(arm, per_io)| Some((arm.name, (*per_io)?)));
    let each: Vec<String> = each.map(|(name, per_io)| format!("{name} {per_io:.0}")).collect();
    let depth = row.point.depth;
    if each.is_empty() { String::new() } else { format!(" Instructions per I/O at QD {depth}: {}.", each.join(", ")) }
}

/// Returns the time in us by which an I/O gets shorter if `before` I/Os a second become `percent` more.
fn added_us(before: f64, percent: f64) -> f64 {
    (1.0 - 1.0 / (1.0 + percent / 100.0)) * 1e6 / before
}

/// Returns the time in us that a worker adds to the one I/O in flight: middle, low and high value. They are computed
/// from the ratios of paired turns.
fn way_to_a_worker(row: &Row) -> Option<[f64; 3]> {
    let (before, inline) = (row.arm(0)?, row.arm(INLINE)?.change.filter(Change::is_clear)?);
    Some([inline.percent, inline.low, inline.high].map(|percent| added_us(before.iops, percent)))
}

/// Describes the time that a worker adds, here and in the published table.
fn hand_over(first: &Row) -> String {
    let Some([here, low, high]) = way_to_a_worker(first) else {
        return " At QD 1 this run cannot tell what the way to a worker and back takes.".into();
    };
    let there = first.published.map_or(String::new(), |published| {
        let us = added_us(published.before, (published.after / published.before - 1.0) * 100.0);
        format!("; in the thread {us:.1} us")
    });
    format!(" At QD 1 the way to a worker and back takes {here:.1} us here ({low:.1} to {high:.1}{there}).")
}

/// Describes the time that a worker adds on the CPU of the ring.
fn on_rings_cpu(report: &ExperimentReport) -> String {
    let rows = report.sweep(PLACEMENT).into_iter().flat_map(|sweep| &sweep.rows);
    let row = rows.into_iter().find(|row| row.label == ON_RINGS_CPU);
    row.and_then(way_to_a_worker).map_or(String::new(), |[here, low, high]| {
        format!(
            " On the ring's own CPU, which a polling kernel thread gives away by one switch and a thread of user space \
             by a sleep and a wake-up, it takes {here:.1} us ({low:.1} to {high:.1}); every arm sleeps for the device \
             there."
        )
    })
}

/// Describes context switches, CPU time and 99 % latency, before and after.
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
     own, so the rows for many I/Os have no ceiling but the CPU's, and gains there are larger than the thread's. In \
     the thread a polled write's worker ran on the CPU of its issuer; here it has another one, or every arm would \
     have to sleep. An interrupt is a completion by another CPU, which takes nothing from the ring's and wakes it; \
     with interrupts ring and workers share a CPU, so that a worker costs a further sleep and wake-up. The worker \
     is Sheave's io-wq, which ends writes of a file in batches."
        .to_string()
}
