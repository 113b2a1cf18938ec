//! A run as Markdown tables: the generated part of `docs/internals/lab.md`, so that no figure there is typed by hand.
//!
//! Owns the text. `cargo xtask lab --write` puts it between the markers of the page.

use std::fmt::Write;

use crate::names::{capital, short_name};
use crate::report::{ArmResult, ExperimentReport, FunctionRow, InstructionRow, LabReport, Row};
use crate::table::{beside, control, figure, interval, joint, repeated, signed, slide};
use crate::terms::{Role, Scale};

/// Largest number of functions that are named at a point. Only the arms before, seed and after are compared.
const FUNCTIONS: usize = 5;
/// Smallest difference in instructions per I/O with which a function is named.
const DIFFERS: f64 = 0.5;

/// Renders the run, from the machine to the predictions.
pub fn page(report: &LabReport) -> String {
    let mut text = machine(report);
    text.push_str(&verdicts(report));
    text.push_str(&headlines(report));
    text.push_str(&instructions(report));
    text.push_str(&predictions(report));
    text.push_str(&shown(report));
    text.trim_end().to_owned() + "\n"
}

/// Renders the machine and the pace of the run, and the comparison of the first arms with themselves.
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

/// Renders the verdicts, one line per experiment.
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

/// Renders the published tables with our figures.
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

/// Renders instructions and cache lines per I/O, and the functions in which arms differ.
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

/// Returns the functions in which the arms before, seed and after differ most, with the counts of each arm. Other arms
/// have code of their own, which the HTML page lists.
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

/// Renders the predictions for more cores together with the published points.
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

/// Renders the findings of the verdicts.
fn shown(report: &LabReport) -> String {
    let mut text = String::new();
    for experiment in &report.experiments {
        if let Some(verdict) = &experiment.verdict {
            let _ = writeln!(text, "* `{}`: {}", experiment.id, verdict.shows.trim());
        }
    }
    if text.is_empty() { text } else { format!("\n{text}") }
}

/// Escapes the text of a table cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::html::tests::report;
    use crate::report::{Change, FunctionRow};

    /// Asserts that all lines of each table have the same number of columns.
    fn assert_tables_are_even(text: &str) {
        let mut columns = None;
        for line in text.lines() {
            let bars = line.replace("\\|", "").matches('|').count();
            match (line.starts_with('|'), columns) {
                (false, _) => columns = None,
                (true, None) => columns = Some(bars),
                (true, Some(columns)) => assert_eq!(bars, columns, "{line}"),
            }
        }
    }

    #[test]
    fn a_run_is_told_with_the_figures_of_its_report() {
        let mut report = report();
        let more = [("a|b", Some(0.4)), ("alike", Some(0.7)), ("one alone", None)];
        report.experiments[0].instructions[0]
            .functions
            .extend(more.map(|(name, after)| FunctionRow { name: name.into(), per_io: vec![Some(1.0), after] }));
        let arm = report.experiments[0].headline[0].arms[1].as_mut().expect("measured");
        arm.change = Some(Change { percent: 50.0, low: 49.0, high: 51.0 });
        let text = page(&report);
        assert_tables_are_even(&text);
        for told in [
            "`sheave-lab fake --html '<p>.html'`",
            "A quick run claims nothing.",
            "this machine cannot tell 2 %",
            "| `fake`: QD 1 | +10.0 % | 1.00k | - | 1.50k, +50.0 % [49.0, 51.0] | - |",
            "before 300.0, after 250.0 | before 3.00, after 2.50 | `malloc<&T>` before 50.0, after 0.0; `a/b` before \
             1.0, after 0.4 |",
            "* Prediction, `fake`, a <large> machine: published 2, predicted 3: MISSED",
            "`fake` | This run cannot tell.",
        ] {
            assert!(text.contains(told), "{told} is not in\n{text}");
        }
    }

    #[test]
    fn what_was_not_measured_is_not_told() {
        let mut report = report();
        report.interrupted = true;
        for experiment in &mut report.experiments {
            experiment.headline.clear();
            experiment.instructions.clear();
            experiment.verdict = None;
            experiment.predictions.clear();
        }
        let text = page(&report);
        assert_tables_are_even(&text);
        for told in ["Interrupted:", "not judged", "Instructions were not counted."] {
            assert!(text.contains(told), "{told} is not in\n{text}");
        }
        assert!(!text.contains("NaN") && !text.contains("Prediction"), "{text}");
    }
}
