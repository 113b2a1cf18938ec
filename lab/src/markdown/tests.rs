//! Tests that every table of a report is valid Markdown, and that every figure is the report's.

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
        "before 300.0, after 250.0 | before 3.00, after 2.50 | `malloc<&T>` before 50.0, after 0.0; `a/b` before 1.0, \
         after 0.4 |",
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
