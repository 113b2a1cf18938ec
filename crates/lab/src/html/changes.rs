//! Changes against the first arm for the plot of them: what the thread published, ours with their intervals, and those
//! in instructions.

use super::data::Figures;
use super::json::Json;
use crate::report::{Change, ExperimentReport, Row};
use crate::terms::Metric;

/// Changes one below the other under their labels, drawn by the script.
pub fn draw(figures: &mut Figures, says: &str, metric: Metric, rows: Vec<(String, Vec<Json>)>) -> String {
    let rows = rows.into_iter().map(|(label, dots)| Json::List(vec![label.into(), Json::List(dots)]));
    figures.draw("changes", [says.into(), metric.in_points().into(), Json::list(rows)])
}

/// What was published for a row, and what was measured.
pub fn dots(report: &ExperimentReport, row: &Row) -> Vec<Json> {
    let mut dots: Vec<Json> = row.published.map(|it| published(it.change_percent)).into_iter().collect();
    for index in 0..report.arms.len() {
        dots.extend(row.arm(index).and_then(|arm| arm.change).map(|change| measured(index, change)));
        if index > 0 && !report.metric.in_points() {
            dots.extend(report.gain(row, index).map(|gain| instructions(index, gain)));
        }
    }
    dots
}

/// A change that the thread published.
pub fn published(change: f64) -> Json {
    Json::List(vec![Json::Number(-1.0), false.into(), Json::percent(change)])
}

/// A change of an arm that was measured, with its interval where there is one.
pub fn measured(arm: usize, change: Change) -> Json {
    let ends = [change.low, change.high].into_iter().filter(|_| change.is_measurable());
    let dot = [Json::Number(arm as f64), false.into(), Json::percent(change.percent)];
    Json::list(dot.into_iter().chain(ends.map(Json::percent)))
}

/// A change of an arm in instructions.
pub fn instructions(arm: usize, change: f64) -> Json {
    Json::List(vec![Json::Number(arm as f64), true.into(), Json::percent(change)])
}
