//! Words and figures of the page's text.

use super::svg::escape;
use crate::table::figure;
use crate::terms::Metric;

/// Words of ours, with code between backticks.
pub fn prose(text: &str) -> String {
    let parts = text.split('`').enumerate();
    parts.map(|(at, part)| if at % 2 == 1 { format!("<code>{}</code>", escape(part)) } else { escape(part) }).collect()
}

/// A figure whose unit its row names.
pub fn plain(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        tiny if tiny < 0.001 => format!("{value:.1e}"),
        small if small < 1.0 => format!("{value:.3}"),
        _ => figure(value, Metric::IOPS),
    }
}
