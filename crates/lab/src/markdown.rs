//! A run as tables of Markdown: what `docs/lab.md` has between its markers, so that no figure there is typed.
//!
//! Owns the text. Where it goes is the business of `cargo xtask lab --write`.

use std::fmt::Write;

use crate::names::{capital, short_name};
use crate::report::{ArmResult, ExperimentReport, FunctionRow, InstructionRow, LabReport, Row};
use crate::table::{beside, control, figure, interval, joint, repeated, signed, slide};
use crate::terms::{Role, Scale};

/// Functions that are named at a point, of those in which the arms before, of the thread and after differ.
const FUNCTIONS: usize = 5;
/// From this many instructions on.
const DIFFERS: f64 = 0.5;

/// The run, from the machine to the predictions.
pub fn page(report: &LabReport) -> String {
    let mut text = machine(report);
    text.push_str(&verdicts(report));
    text.push_str(&headlines(report));
    text.push_str(&instructions(report));
    text.push_str(&predictions(report));
    text.push_str(&shown(report));
    text.trim_end().to_owned() + "\n"
}

/// Where it ran and how, and what the same arms twice say of that.
fn machine(report: &LabReport) -> String {
    let LabReport { machine, command, began, seconds, rounds, turn_ms, .. } = report;
    let mut text = format!(
        "{}. `{command}`, {began}, {seconds:.0} s: medians of {rounds} rounds or more of {turn_ms} ms, in brackets the \
         95 % interval. {}.\n",
        machine.line(),
        capital(&joint(report))
    );
    if report.scale == Scale::Quick {
        text.push_str("A quick run claims nothing.\n");
    }
    if report.interrupted {
        text.push_str("Interrupted: what is missing was not measured.\n");
    }
    for (id, check) in report.failed_checks() {
        let _ = writeln!(text, "A check of `{id}` FAILED, so that its figures mean nothing: {}.", cell(&check.name));
    }
    text
}

/// A line an experiment.
fn verdicts(report: &LabReport) -> String {
    let mut text = String::from(
        "\n| experiment | the thread's claim | Sheave beside it | at the end of the run | the same arm twice |\n\
         |---|---|---|---|---|\n",
    );
    for experiment in &report.experiments {
        let verdict = experiment.verdict.as_ref().map(|verdict| slide(experiment, verdict.holds));
        let beside = experiment.verdict.as_ref().and_then(|_| beside(experiment));
        let cells = [
            verdict.unwrap_or("not judged".into()),
            beside.unwrap_or("-".into()),
            repeated(experiment).unwrap_or("not measured again".into()),
            control(experiment.control),
        ];
        let cells: Vec<String> = cells.iter().map(|text| cell(text)).collect();
        let _ = writeln!(text, "| `{}` | {} |", experiment.id, cells.join(" | "));
    }
    text
}

/// The threads' tables.
fn headlines(report: &LabReport) -> String {
    let mut text = String::from(
        "\n| experiment, at its thread's parameters | published | before | the thread's arm | after | other arms | \
         both again, at the end |\n\
         |---|---:|---:|---:|---:|---|---|\n",
    );
    for experiment in &report.experiments {
        for row in &experiment.headline {
            text.push_str(&headline(experiment, row));
        }
    }
    text
}

fn headline(experiment: &ExperimentReport, row: &Row) -> String {
    let (metric, after) = (experiment.metric, experiment.after());
    let told = |arm: &ArmResult| {
        let change = arm.change.map_or(String::new(), |change| format!(", {}", interval(change, metric)));
        format!("{}{change}", figure(arm.value, metric))
    };
    let of = |index: usize| row.arm(index).map_or("-".into(), told);
    let published = row.published.map_or("-".into(), |it| signed(it.change_percent, metric));
    let others = experiment.arms.iter().enumerate().filter(|(index, _)| {
        *index != 0 && *index != after && Some(*index) != row.threads_arm && row.arm(*index).is_some()
    });
    let others: Vec<String> = others.map(|(index, arm)| format!("{} {}", arm.name, of(index))).collect();
    let seed = row.threads_arm.filter(|arm| *arm != after).map_or("-".into(), |arm| {
        let name = experiment.arms.get(arm).map_or("", |arm| arm.name);
        format!("{name} {}", of(arm))
    });
    let others = if others.is_empty() { "-".into() } else { others.join("; ") };
    let again = |arm: usize| Some(interval(row.again(arm)?.change?, metric));
    let again: Vec<String> =
        row.threads_arm.filter(|arm| *arm != after).into_iter().chain([after]).filter_map(again).collect();
    let again = if again.is_empty() { "-".into() } else { again.join("; ") };
    let label = format!("`{}`: {}", experiment.id, row.label);
    format!("| {} | {published} | {} | {seed} | {} | {others} | {again} |\n", cell(&label), of(0), of(after))
}

/// What an I/O takes by valgrind, and where arms differ.
fn instructions(report: &LabReport) -> String {
    let counted = || report.experiments.iter().flat_map(|it| it.instructions.iter().map(move |row| (it, row)));
    if counted().next().is_none() {
        return "\nInstructions were not counted.\n".into();
    }
    let mut text = String::from(
        "\n| at | instructions an I/O | cache lines fetched | functions in which before, seed and after differ \
         most |\n\
         |---|---|---|---|\n",
    );
    for (experiment, row) in counted() {
        let each = |value: &dyn Fn(usize) -> Option<String>| {
            let of = |(index, arm): (usize, &crate::terms::ArmInfo)| Some(format!("{} {}", arm.name, value(index)?));
            experiment.arms.iter().enumerate().filter_map(of).collect::<Vec<_>>().join(", ")
        };
        let net = each(&|index| row.net(index).map(|count| format!("{count:.1}")));
        let lines = each(&|index| row.lines_per_io.get(index).copied().flatten().map(|lines| format!("{lines:.2}")));
        let _ = writeln!(
            text,
            "| `{}` `{}` | {net} | {lines} | {} |",
            experiment.id,
            row.point.short(),
            differing(experiment, row)
        );
    }
    text
}

/// The functions in which the arms before, of the thread and after differ most, with what each takes there; what other
/// arms stand for is their own, and on the page.
fn differing(experiment: &ExperimentReport, row: &InstructionRow) -> String {
    let arms: Vec<usize> = (0..experiment.arms.len()).filter(|arm| experiment.arms[*arm].role != Role::Other).collect();
    let of = |function: &FunctionRow, arm: usize| function.per_io.get(arm).copied().flatten();
    let spread = |function: &FunctionRow| {
        let counts = || arms.iter().filter_map(|arm| of(function, *arm));
        counts().fold(f64::NEG_INFINITY, f64::max) - counts().fold(f64::INFINITY, f64::min)
    };
    let mut functions: Vec<(&FunctionRow, f64)> = row.functions.iter().map(|it| (it, spread(it))).collect();
    functions.retain(|(_, spread)| *spread >= DIFFERS);
    functions.sort_by(|a, b| b.1.total_cmp(&a.1));
    let told = functions.iter().take(FUNCTIONS).map(|(function, _)| {
        let each =
            arms.iter().filter_map(|arm| Some(format!("{} {:.1}", experiment.arms[*arm].name, of(function, *arm)?)));
        format!("`{}` {}", short_name(&function.name).replace('|', "/"), each.collect::<Vec<_>>().join(", "))
    });
    let told: Vec<String> = told.collect();
    if told.is_empty() { "in no function by half an instruction".into() } else { told.join("; ") }
}

/// What is predicted for more cores, beside what the threads have published.
fn predictions(report: &LabReport) -> String {
    let mut text = String::new();
    for experiment in &report.experiments {
        for prediction in &experiment.predictions {
            let name = format!("* Prediction, `{}`", experiment.id);
            if let Some(why) = &prediction.not_shown {
                let _ = writeln!(text, "{name}: there is none: {why}.");
            }
            for told in &prediction.against {
                let _ = writeln!(text, "{name}, {}: {told}", prediction.machine);
            }
        }
    }
    if text.is_empty() { text } else { format!("\n{text}") }
}

/// What the figures show, in sentences.
fn shown(report: &LabReport) -> String {
    let mut text = String::new();
    for experiment in &report.experiments {
        if let Some(verdict) = &experiment.verdict {
            let _ = writeln!(text, "* `{}`: {}", experiment.id, verdict.shows.trim());
        }
    }
    if text.is_empty() { text } else { format!("\n{text}") }
}

/// A cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

#[cfg(test)]
mod tests;
