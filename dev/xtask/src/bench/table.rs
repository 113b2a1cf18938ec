//! Rows of the tables of times, from the JSON of a run.
//!
//! Owns the columns. Finds the few numbers that it needs with their keys, without a JSON parser.

use anyhow::{Context, Result};

/// Columns after the command: the heading, and the key in the JSON object.
const COLUMNS: &[(&str, &str)] =
    &[("IOPS", "iops"), ("time/IO", "ns_per_io"), ("CPU/IO", "cpu_ns_per_io"), ("p99", "p99_ns")];

/// Columns about the other side, empty in a row without one.
const COMPARED: &[(&str, &str)] = &[
    ("their IOPS", "iops"),
    ("their CPU/IO", "cpu_ns_per_io"),
    ("IOPS ours/theirs", "ratio_iops"),
    ("CPU ours/theirs", "ratio_cpu"),
];

/// Returns the first two lines of a table of runs.
pub fn heading() -> String {
    let names = COLUMNS.iter().chain(COMPARED).map(|&(name, _)| name);
    let (names, rules): (String, String) = names.map(|name| (format!(" {name} |"), "---:|")).unzip();
    format!("| `sheave bench ...` |{names}\n|---|{rules}")
}

/// Returns the line of a run.
pub fn row(command: &str, json: &str) -> Result<String> {
    let (ours, theirs) = match json.split_once("\"compare\"") {
        Some((before, after)) => (before, Some(after)),
        None => (json, None),
    };
    let mut line = format!("| `{command}` |");
    for &(_, key) in COLUMNS {
        let value = number(ours, key).with_context(|| format!("no number `{key}` in:\n{json}"))?;
        line += &format!(" {} |", cell(key, value));
    }
    for &(_, key) in COMPARED {
        let Some(theirs) = theirs else {
            line += " |";
            continue;
        };
        let value = number(theirs, key).with_context(|| format!("no number `{key}` to compare with in:\n{json}"))?;
        line += &match key {
            "ratio_iops" => format!(" {value:.2}{} |", spread(theirs, key)),
            "ratio_cpu" => format!(" {value:.2}{} |", spread(theirs, key)),
            _ => format!(" {} |", cell(key, value)),
        };
    }
    Ok(line)
}

/// First two lines of the table of headlines.
pub const HEADLINES: &str = "| what | Sheave | other side | IOPS ours/theirs | CPU ours/theirs | `sheave bench ...` |\n\
                             |---|---:|---:|---:|---:|---|";

/// Returns the line of a run with a comparison; `what` is the name of the row.
pub fn headline(what: &str, command: &str, json: &str) -> Result<String> {
    let (ours, theirs) = json.split_once("\"compare\"").with_context(|| format!("no comparison in:\n{json}"))?;
    let get = |part, key| number(part, key).with_context(|| format!("no number `{key}` in:\n{json}"));
    let (mine, other) = (cell("iops", get(ours, "iops")?), cell("iops", get(theirs, "iops")?));
    let (iops, cpu) = (get(theirs, "ratio_iops")?, get(theirs, "ratio_cpu")?);
    Ok(format!("| {what} | {mine} IOPS | {other} | {iops:.2} | {cpu:.2} | `{command}` |"))
}

/// Formats a number with three digits and its unit.
fn cell(key: &str, value: f64) -> String {
    let units: &[&str] = if key == "iops" { &["", "k", "M", "G"] } else { &[" ns", " us", " ms", " s"] };
    let (mut value, mut at) = (value, 0);
    while value >= 999.5 && at + 1 < units.len() {
        value /= 1000.0;
        at += 1;
    }
    let digits = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.digits$}{}", units[at])
}

/// Formats the range of the ratios of the pairs, and the 95 % interval of their median if the run has one.
fn spread(theirs: &str, key: &str) -> String {
    let range = ends(theirs, &format!("{key}_range")).map(|[low, high]| format!("{low:.2} to {high:.2}"));
    let interval = ends(theirs, &format!("{key}_95")).map(|[low, high]| format!("95 %: {low:.3} to {high:.3}"));
    let words: Vec<String> = range.into_iter().chain(interval).collect();
    if words.is_empty() { String::new() } else { format!(" ({})", words.join("; ")) }
}

/// Parses the two numbers of the list after `"key":`.
fn ends(json: &str, key: &str) -> Option<[f64; 2]> {
    let after = json.split_once(&format!("\"{key}\""))?.1.trim_start().strip_prefix(':')?.trim_start();
    let (list, _) = after.strip_prefix('[')?.split_once(']')?;
    let ends: Vec<f64> = list.split(',').filter_map(|end| end.trim().parse().ok()).collect();
    ends.try_into().ok()
}

/// Returns the first two lines of the table of statistics.
pub fn statistics_heading() -> String {
    "| `sheave bench ...` | CPU ns/IO, `--stats on` | CPU ns/IO, `--stats off` | difference |\n|---|---:|---:|---:|"
        .into()
}

/// Returns the line of a run with statistics and without: the medians of both, and the median of the differences of
/// each turn.
pub fn statistics_row(command: &str, on: Vec<f64>, off: Vec<f64>) -> String {
    let difference = median(on.iter().zip(&off).map(|(on, off)| on - off).collect());
    format!("| `{command}` | {:.1} ns | {:.1} ns | {difference:.1} ns |", median(on), median(off))
}

/// Returns the median, or 0 if there are no values.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        len if len % 2 == 1 => values[len / 2],
        len => (values[len / 2 - 1] + values[len / 2]) / 2.0,
    }
}

/// Parses the number after the first `"key":`.
pub fn number(json: &str, key: &str) -> Option<f64> {
    let quoted = format!("\"{key}\"");
    let after = json.split_once(quoted.as_str())?.1.trim_start().strip_prefix(':')?.trim_start();
    let end = after.find(|char: char| !matches!(char, '0'..='9' | '.' | '-' | '+' | 'e' | 'E')).unwrap_or(after.len());
    after[..end].parse().ok()
}
