//! Text of a run for the terminal: headings, a line per point, and the closing sentences.
//!
//! Owns the text; the caller writes it. Columns have a fixed width, so that a line can be written as soon as its point
//! has been measured.

use std::fmt::Write;

use crate::peer::Peer;
use crate::report::{
    Change, ExperimentReport, Holds, InstructionRow, LabReport, Part, Predicted, Prediction, Row, SameArmsTwice, Stray,
};
use crate::terms::Metric;

/// Widths of the columns: here the first one, then those of the published figures and of an arm.
const LABEL: usize = 24;
const PUBLISHED: usize = 24;
const ARM: usize = 24;
/// Column at which paragraphs are broken.
const PAGE: usize = 100;

/// Returns the heading of an experiment.
pub fn heading(report: &ExperimentReport) -> String {
    let seed = &report.seed;
    let mut text = format!("\n{}: {}\n", report.id, report.title);
    let _ = writeln!(text, "  after: {} ({}, {})", seed.subject, seed.author, seed.date);
    let _ = writeln!(text, "  its command: {}", seed.command);
    let _ = writeln!(text, "  its machine: {}", seed.machine);
    for arm in &report.arms {
        paragraph(&mut text, &format!("  {:<12} ", arm.name), arm.what);
    }
    text
}

/// Returns the heading of a table and of its columns.
pub fn part(report: &ExperimentReport, part: &Part<'_>) -> String {
    let first = part.axis.map_or("", |axis| axis.label);
    let mut text = format!("\n  {}: {}\n  {first:<LABEL$} ", part.heading, part.metric.title());
    if part.axis.is_none() {
        let _ = write!(text, "{:<PUBLISHED$} ", "published (for arm *)");
    }
    for arm in &report.arms {
        let _ = write!(text, "{:<ARM$} ", arm.name);
    }
    finish(text)
}

/// Returns the line of a row: published figures if there are any, and each arm with its change.
pub fn row(part: &Part<'_>, row: &Row) -> String {
    let metric = part.metric;
    let mut text = format!("  {:<LABEL$} ", row.label);
    if part.axis.is_none() {
        let published = row.published.map_or(String::new(), |published| {
            let (before, after) = (figure(published.before, metric), figure(published.after, metric));
            format!("{before} -> {after} {}", signed(published.change_percent, metric))
        });
        let _ = write!(text, "{published:<PUBLISHED$} ");
    }
    for (index, arm) in row.arms.iter().enumerate() {
        let cell = match arm {
            None => "-".into(),
            Some(arm) => match arm.change {
                None => figure(arm.value, metric),
                Some(change) => format!("{} {}", figure(arm.value, metric), interval(change, metric)),
            },
        };
        let thread = if row.threads_arm == Some(index) { "*" } else { "" };
        let _ = write!(text, "{:<ARM$} ", format!("{cell}{thread}"));
    }
    finish(text)
}

/// Largest number of functions that are listed at a point.
const FUNCTIONS: usize = 12;

/// Returns the instructions per I/O at a point, their cache lines, and the functions in which arms differ.
pub fn instructions(report: &ExperimentReport, row: &InstructionRow) -> String {
    let mut text = format!("\n  Instructions per I/O at {}\n", row.point);
    let mut line = |name: &str, cell: &dyn Fn(usize) -> Option<String>| {
        let _ = write!(text, "  {name:<LABEL$} ");
        for index in 0..report.arms.len() {
            let _ = write!(text, "{:<ARM$} ", cell(index).unwrap_or("-".into()));
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    };
    line("", &|index| {
        let (count, gain) = (row.net(index)?, row.gain_percent(index).filter(|_| index > 0));
        Some(gain.map_or(format!("{count:.1}"), |gain| format!("{count:.1} ({gain:+.1} %)")))
    });
    if row.way.iter().any(|way| *way != 0.0) {
        line("without its own way of", &|index| row.way.get(index).map(|way| format!("{way:.1}")));
    }
    line("cache lines fetched", &|index| row.lines_per_io.get(index).copied().flatten().map(|it| format!("{it:.2}")));
    for function in row.functions.iter().take(FUNCTIONS) {
        let of = |index: usize| function.per_io.get(index).copied().flatten().map(|it| format!("{it:.1}"));
        line(&format!("  in {}", last(&function.name, LABEL - 5)), &of);
    }
    text
}

/// Returns the last `most` characters of a name, because the end of a path is its most specific part.
fn last(name: &str, most: usize) -> String {
    let from = name.chars().count().saturating_sub(most);
    name.chars().skip(from).collect()
}

/// Returns the end of an experiment's text: prediction, checks, verdict. If `long` is true, all of them are complete.
pub fn ending(report: &ExperimentReport, long: bool) -> String {
    let mut text = String::from("\n");
    if let Some(done) = &report.peer {
        paragraph(&mut text, "  the same job: ", &peer(done));
    }
    for one in &report.predictions {
        text.push_str(&prediction(one, long));
    }
    if !long && !report.checks.is_empty() {
        let passed = report.checks.iter().filter(|check| check.ok).count();
        let _ = writeln!(text, "  {passed} of {} checks passed", report.checks.len());
    }
    for check in report.checks.iter().filter(|check| long || !check.ok) {
        let word = if check.ok { "ok    " } else { "FAILED" };
        let _ = writeln!(text, "  {word} {} ({})", check.name, check.detail);
    }
    if report.interrupted {
        text.push_str("  interrupted: what is missing was not measured\n");
    }
    if let Some(verdict) = &report.verdict {
        text.push('\n');
        let lines = [Some(slide(report, verdict.holds)), beside(report), repeated(report)];
        lines.iter().flatten().for_each(|line| paragraph(&mut text, "  ", line));
        paragraph(&mut text, "  ", &control(report.control));
        if !long {
            return text;
        }
        paragraph(&mut text, "  claim:         ", &verdict.claim);
        paragraph(&mut text, "  shown here:    ", &verdict.shows);
        paragraph(&mut text, "  not shown:     ", &verdict.does_not_show);
    }
    text
}

/// Returns the result of fio, or the reason why there is none.
pub fn peer(peer: &Peer) -> String {
    let Peer { name, iops, not_measured, command } = peer;
    match (iops, not_measured) {
        (Some(iops), _) => {
            format!("{name}: {} IOPS on the file that the job names (`{command}`)", figure(*iops, Metric::IOPS))
        }
        (None, why) => format!("{name}: not measured, {} (`{command}`)", why.as_deref().unwrap_or("for no reason")),
    }
}

/// Returns the text of a prediction, in which every figure is labelled as one.
fn prediction(prediction: &Prediction, long: bool) -> String {
    let mut text = format!("  PREDICTION (not measured) for {}\n", prediction.machine);
    if let Some(why) = &prediction.not_shown {
        text = String::from("  PREDICTION\n");
        paragraph(&mut text, "    ", &format!("there is none: {why}"));
    }
    if long {
        paragraph(&mut text, "    ", &prediction.assumes);
        for (name, value, unit) in &prediction.inputs {
            let _ = writeln!(text, "    {name}: {value:.1} {unit}");
        }
    }
    for curve in &prediction.curves {
        let at = |point: &Predicted| format!("{}: {}", point.cores, figure(point.middle, Metric::IOPS));
        let places: Vec<String> = curve.points.iter().map(at).collect();
        paragraph(&mut text, &format!("    predicted, {:<14} ", curve.arm), &places.join("  "));
        let Some(most) = prediction.counts.iter().rfind(|counted| counted.arm == curve.arm) else { continue };
        let [lines, lost, waits] = [most.transfers + most.upgrades, most.invalidations, most.lock_waits]
            .map(|count| format!("{:.2}", most.per_io(count)));
        let what = format!("an I/O with {} threads moves {lines} lines, takes {lost} copies away", most.threads);
        paragraph(&mut text, "      ", &format!("{what} and finds {waits} locks taken"));
    }
    for told in &prediction.against {
        paragraph(&mut text, "    ", told);
    }
    text.push('\n');
    text
}

/// Returns the last lines of a run.
pub fn closing(report: &LabReport) -> String {
    let mut text = String::from("\n");
    if report.experiments.len() > 1 {
        for experiment in &report.experiments {
            let verdict = experiment.verdict.as_ref().map(|verdict| slide(experiment, verdict.holds));
            let _ = writeln!(text, "  {:<16} {}", experiment.id, verdict.unwrap_or("not judged".into()));
            if let Some(beside) = experiment.verdict.as_ref().and_then(|_| beside(experiment)) {
                let _ = writeln!(text, "  {:<16} {beside}", "");
            }
        }
        text.push('\n');
    }
    let _ = writeln!(text, "  {}", report.machine.line());
    let LabReport { cpus, rounds, turn_ms, seconds, .. } = report;
    let _ = writeln!(text, "  on CPUs {cpus:?}, in that order; took {seconds:.0} s");
    let _ =
        writeln!(text, "  figures are medians of {rounds} rounds or more of {turn_ms} ms; changes have 95 % intervals");
    let _ = writeln!(text, "  {}", joint(report));
    text
}

/// Summarises the comparison of the first arms with themselves over all experiments.
pub fn same_arms(report: &LabReport) -> SameArmsTwice {
    SameArmsTwice { change: report.control(), tells: report.machine_tells(), says: joint(report) }
}

/// Returns the summary of that comparison as a sentence.
pub fn joint(report: &LabReport) -> String {
    let control = report.control().map_or("not measured".into(), |control| interval(control, Metric::IOPS));
    let can = if report.machine_tells() { "can" } else { "cannot" };
    format!("the same arms twice, all experiments together: {control} (99 %); this machine {can} tell 2 %")
}

/// Returns the verdict in short form: if the published claim holds, and the result of the published arm.
pub fn slide(report: &ExperimentReport, verdict: Holds) -> String {
    let Some((row, arm)) = report.judged() else { return holds(verdict).into() };
    let mut by = by(report, row, arm);
    by.extend(row.published.map(|it| format!("published {}", signed(it.change_percent, report.metric))));
    let name = report.arms.get(arm).map_or("", |arm| arm.name);
    format!("{} The thread's arm ({name}) at {}: {}.", holds(verdict), row.label, by.join(", "))
}

/// Returns the result of Sheave's arm, or `None` if the verdict is about that arm anyway.
pub fn beside(report: &ExperimentReport) -> Option<String> {
    let (row, threads) = report.judged()?;
    let arm = report.after();
    let by = by(report, row, arm);
    (arm != threads && !by.is_empty()).then(|| format!("Sheave (after) at {}: {}.", row.label, by.join(", ")))
}

/// Lists the changes of an arm in a row: in time, in time at the end of the run, in instructions.
fn by(report: &ExperimentReport, row: &Row, arm: usize) -> Vec<String> {
    let told = |change: Change| interval(change, report.metric);
    let mut by = Vec::new();
    by.extend(row.arm(arm).and_then(|arm| arm.change).map(|change| format!("time {}", told(change))));
    by.extend(row.again(arm).and_then(|again| again.change).map(|again| format!("at the end {}", told(again))));
    by.extend(report.gain_near(row, arm).map(|(gain, other)| {
        let at = other.map_or(String::new(), |point| format!("at {} ", point.short()));
        format!("instructions {at}{gain:+.1} %")
    }));
    by
}

/// Describes a change that the end of the run does not repeat.
pub fn stray(stray: &Stray, metric: Metric) -> String {
    let Stray { row, arm, first, again } = stray;
    format!("{row}, {arm}: {}, at the end of the run {}", interval(*first, metric), interval(*again, metric))
}

/// Compares the table with its repetition at the end of the run. Returns `None` if it was measured once.
pub fn repeated(report: &ExperimentReport) -> Option<String> {
    let told: Vec<String> = report.strays.iter().map(|it| stray(it, report.metric)).collect();
    report.is_repeated().then(|| match told.is_empty() {
        true => {
            "Measured again at the end of the run: each interval of the thread's arm and of Sheave's meets its first."
                .into()
        }
        false => format!("Measured again at the end of the run, and not repeated: {}.", told.join("; ")),
    })
}

/// Returns the verdict as a sentence.
pub fn holds(holds: Holds) -> &'static str {
    match holds {
        Holds::Yes => "Holds.",
        Holds::Partly => "Holds in part.",
        Holds::No => "Does not hold here.",
        Holds::CannotTell => "This run cannot tell.",
        Holds::DoesNotRepeat => "No verdict: the end of the run does not repeat its beginning.",
    }
}

/// Formats a figure with three digits: `3.11M`, `180k`, `38.9 %`.
pub fn figure(value: f64, metric: Metric) -> String {
    let unit = if metric.in_points() { " %" } else { "" };
    if !value.is_finite() {
        return "-".into();
    }
    let scales = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    // The limit is 0.9995 and not 1, so that 999.6k becomes 1.00M.
    let (scaled, letter) = scales
        .into_iter()
        .find(|(scale, _)| value.abs() >= scale * 0.9995)
        .map_or((value, ""), |(scale, letter)| (value / scale, letter));
    let digits = match scaled.abs() {
        0.0 => 0,
        big if big >= 99.95 => 0,
        middle if middle >= 9.995 => 1,
        _ => 2,
    };
    format!("{scaled:.digits$}{letter}{unit}")
}

/// Formats a change: `+9.8 %`, or `-1.5 points` if the metric is a percentage.
pub fn signed(percent: f64, metric: Metric) -> String {
    let digits = usize::from(percent.abs() < 99.95);
    format!("{percent:+.digits$} {}", if metric.in_points() { "points" } else { "%" })
}

/// Formats a change with its interval: `+9.8 % [9.1, 10.5]`.
pub fn interval(change: Change, metric: Metric) -> String {
    if !change.is_measurable() {
        return "not measurable".into();
    }
    format!("{} [{}, {}]", signed(change.percent, metric), end(change.low), end(change.high))
}

/// Formats a change for use in a sentence: `+9.8 % (+9.1 to +10.5)`.
pub fn told(change: Option<Change>) -> String {
    match change {
        None => "not measured".into(),
        Some(change) if !change.is_measurable() => "not measurable".into(),
        Some(Change { percent, low, high }) => format!("{percent:+.1} % ({low:+.1} to {high:+.1})"),
    }
}

/// Returns a sentence about the smallest change in time that this machine can show, derived from the difference between
/// two runs of the same arm.
pub fn control(control: Option<Change>) -> String {
    match control {
        Some(control) if control.is_clear() => format!(
            "The same arm twice differs by {} (99 %): this machine cannot tell in time, and only instructions decide.",
            interval(control, Metric::IOPS)
        ),
        Some(control) if control.is_measurable() => format!(
            "The same arm twice differs by {} (99 %): this machine cannot tell less than {:.1} % in time.",
            interval(control, Metric::IOPS),
            control.low.abs().max(control.high.abs())
        ),
        _ => "The same arm twice was not measured often enough to say what this machine can tell in time: only \
              instructions decide."
            .into(),
    }
}

/// Formats an end of an interval. Large values have no digits after the point.
fn end(percent: f64) -> String {
    match percent.abs() {
        near if near < 99.95 => format!("{percent:.1}"),
        far if far < 1e6 => format!("{percent:.0}"),
        _ => format!("{percent:.0e}"),
    }
}

/// Appends text broken into lines, indented to the end of `first`.
fn paragraph(text: &mut String, first: &str, words: &str) {
    let (mut line, indent) = (first.to_owned(), " ".repeat(first.len()));
    let mut fresh = true;
    for word in words.split_whitespace() {
        if !fresh && line.chars().count() + 1 + word.chars().count() > PAGE {
            let _ = writeln!(text, "{}", line.trim_end());
            line.clone_from(&indent);
            fresh = true;
        }
        if !fresh {
            line.push(' ');
        }
        line.push_str(word);
        fresh = false;
    }
    let _ = writeln!(text, "{}", line.trim_end());
}

fn finish(text: String) -> String {
    format!("{}\n", text.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARE: Metric = Metric { name: "share", label: "share of CPU time", unit: "%", more_is_better: false };

    #[test]
    fn figures_have_three_digits() {
        let shown = [0.0, 1.234, 12.34, 999.4, 999.6, 180_000.0, 999_600.0, 3_111_520.0, 115.1e6, 2e13]
            .map(|value| figure(value, Metric::IOPS));
        assert_eq!(shown, ["0", "1.23", "12.3", "999", "1.00k", "180k", "1.00M", "3.11M", "115M", "20.0T"]);
        assert_eq!((figure(38.86, SHARE), figure(f64::NAN, SHARE)), ("38.9 %".into(), "-".into()));
    }

    #[test]
    fn changes_say_their_unit() {
        let change = Change { percent: 9.82, low: 9.14, high: 10.46 };
        assert_eq!(interval(change, Metric::IOPS), "+9.8 % [9.1, 10.5]");
        let few = Change { low: f64::NAN, high: f64::NAN, ..change };
        assert_eq!((interval(few, Metric::IOPS), told(Some(few))), ("not measurable".into(), "not measurable".into()));
        assert_eq!(told(Some(change)), "+9.8 % (+9.1 to +10.5)");
        assert_eq!(signed(-1.49, SHARE), "-1.5 points");
    }

    #[test]
    fn paragraphs_have_a_hanging_indent() {
        let mut text = String::new();
        paragraph(&mut text, "  claim: ", &"word ".repeat(40));
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines.len() == 3 && lines[0].starts_with("  claim: word") && lines[1].starts_with("         word"),
            "{text}"
        );
        assert!(lines.iter().all(|line| line.len() <= PAGE), "{text}");
    }

    #[test]
    fn the_run_says_whether_this_machine_can_tell() {
        let mut report = crate::html::tests::report();
        for experiment in &mut report.experiments {
            experiment.headline[0].control.clear();
        }
        let mut said = |ratios: &[f64]| {
            report.experiments[0].headline[0].control = ratios.to_vec();
            let (last, page) = (closing(&report), crate::html::page(&report));
            let tables = crate::markdown::page(&report);
            let told = ["this machine can tell 2 %", "this machine cannot tell 2 %"];
            report.same_arms_twice = same_arms(&report);
            let json = crate::stored::text(&report).expect("JSON");
            assert_eq!(json.contains("\"tells\":true"), json.contains(told[0]), "{json}");
            told.map(|told| [&last, &page, &tables, &json].into_iter().filter(|text| text.contains(told)).count())
        };
        assert_eq!(said(&[1.019, 0.981, 1.0, 1.0, 1.0, 1.0, 0.99, 1.01]), [4, 0]);
        assert_eq!(said(&[1.05, 0.95, 1.0, 1.0, 1.0, 1.0, 0.99, 1.01]), [0, 4], "wider than 2 %");
        assert_eq!(said(&[1.002, 1.001, 1.003, 1.001, 1.002, 1.001, 1.004, 1.001]), [0, 4], "narrow, without zero");
        assert_eq!(said(&[1.0; 5]), [0, 4], "too few rounds for an interval");
        assert_eq!(said(&[]), [0, 4], "no control at all");
    }

    #[test]
    fn a_slide_names_the_point_of_its_instructions_where_it_is_another() {
        let mut report = crate::html::tests::report();
        let fake = &mut report.experiments[0];
        let said = |fake: &ExperimentReport| slide(fake, Holds::Yes);
        assert!(said(fake).contains(", instructions +20.0 %, "), "{}", said(fake));
        let point = fake.instructions[0].point.clone();
        fake.instructions[0].point = point.clone().with("fail", "no");
        assert!(said(fake).contains(", instructions at fail=no +20.0 %, "), "{}", said(fake));
        // Instructions at a point with other I/Os are not shown.
        fake.instructions[0].point.depth = 1;
        assert!(!said(fake).contains("instructions"), "{}", said(fake));
    }
}
