//! Formatting of the page's text and figures.
//!
//! * I1. All text that goes into an element or an attribute goes through [`escape`]; numbers are formatted here.

use std::fmt::Display;

use crate::table::figure;
use crate::terms::Metric;

/// Escapes text for HTML, attributes included.
pub fn escape(text: impl Display) -> String {
    let text = text.to_string();
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            // HTML allows no control characters but whitespace.
            c if c.is_control() && !c.is_whitespace() => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

/// Escapes text that the lab itself has written, and turns parts between backticks into code elements.
pub fn prose(text: &str) -> String {
    let parts = text.split('`').enumerate();
    parts.map(|(at, part)| if at % 2 == 1 { format!("<code>{}</code>", escape(part)) } else { escape(part) }).collect()
}

/// Formats a figure whose unit is in the name of its row.
pub fn plain(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        tiny if tiny < 0.001 => format!("{value:.1e}"),
        small if small < 1.0 => format!("{value:.3}"),
        _ => figure(value, Metric::IOPS),
    }
}

/// Formats a time: `500 ns`, `20 µs`.
pub fn time(ns: f64) -> String {
    let (value, unit) = match ns {
        ns if ns < 1e3 => (ns, "ns"),
        ns if ns < 1e6 => (ns / 1e3, "µs"),
        ns if ns < 1e9 => (ns / 1e6, "ms"),
        ns => (ns / 1e9, "s"),
    };
    let text = format!("{value:.2}");
    format!("{} {unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

/// Strips indentation, empty lines, and lines that begin with `comment` from a source.
pub fn lean(source: &str, comment: &str) -> String {
    let told = |line: &&str| !line.is_empty() && !(line.starts_with(comment));
    source.lines().map(str::trim).filter(told).flat_map(|line| [line, "\n"]).collect()
}
