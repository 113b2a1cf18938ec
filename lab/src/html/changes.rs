//! The plot of changes against the first arm: the published changes, ours with their intervals, and changes in
//! instructions.

use super::data::Figures;
use super::json::Json;
use crate::report::{Change, ExperimentReport, Row};
use crate::terms::Metric;

/// Adds a plot of changes, which the script draws with one row below the other.
pub fn draw(figures: &mut Figures, says: &str, metric: Metric, rows: Vec<(String, Vec<Json>)>) -> String {
    let rows = rows.into_iter().map(|(label, dots)| Json::List(vec![label.into(), Json::List(dots)]));
    figures.draw("changes", [says.into(), metric.in_points().into(), Json::list(rows)])
}

/// Returns the marks of a row: the published change, and the measured ones.
pub fn dots(report: &ExperimentReport, row: &Row) -> Vec<Json> {
    let mut dots: Vec<Json> = row.published.map(|it| published(it.change_percent)).into_iter().collect();
    for index in 0..report.arms.len() {
        dots.extend(row.arm(index).and_then(|arm| arm.change).and_then(|change| measured(index, change)));
        if index > 0 && !report.metric.in_points() {
            dots.extend(report.gain(row, index).map(|gain| instructions(index, gain)));
        }
    }
    dots
}

pub fn published(change: f64) -> Json {
    Json::List(vec![Json::Number(-1.0), false.into(), Json::percent(change)])
}

/// Returns the mark of an arm's measured change with its interval, or `None` if the change is not measurable.
pub fn measured(arm: usize, change: Change) -> Option<Json> {
    let dot = [change.percent, change.low, change.high].map(Json::percent);
    let of = [Json::Number(arm as f64), false.into()];
    change.is_measurable().then(|| Json::list(of.into_iter().chain(dot)))
}

/// Returns the mark of an arm's change in instructions.
pub fn instructions(arm: usize, change: f64) -> Json {
    Json::List(vec![Json::Number(arm as f64), true.into(), Json::percent(change)])
}
