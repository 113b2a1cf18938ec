//! The section with predictions for more cores: a plot for each machine, the counts of the simulation, and a comparison
//! with the published points. Every figure is labelled as a prediction.

use std::fmt::Write as _;

use super::data::Figures;
use super::json::Json;
use super::words::{escape, plain, prose};
use crate::report::{Curve, ExperimentReport, Known, Predicted, Prediction};

/// Renders the section. Returns an empty text if there is no prediction.
pub fn section(report: &ExperimentReport, figures: &mut Figures) -> String {
    let mut html = String::new();
    for prediction in &report.predictions {
        if html.is_empty() {
            html.push_str("<h3>Prediction for more cores: a simulation of cache lines, not a measurement</h3>\n");
            let _ = writeln!(html, "<p>{}</p>", prose(&prediction.assumes));
        }
        if let Some(why) = &prediction.not_shown {
            let _ = writeln!(html, "<p class=\"notice\">No curves: {}</p>", escape(why));
            continue;
        }
        html.push_str(&of_machine(report, prediction, figures));
    }
    html
}

fn of_machine(report: &ExperimentReport, prediction: &Prediction, figures: &mut Figures) -> String {
    let mut html = String::from("<div class=\"plots\">\n");
    if let Some(drawn) = curves(report, prediction, figures) {
        let _ = writeln!(
            html,
            "<figure>{drawn}<figcaption><b>Prediction</b> for {}. Dashed lines are predicted, with their bands; marks \
             are what the thread has published.</figcaption></figure>",
            escape(&prediction.machine)
        );
    }
    html.push_str("<div>\n");
    if !prediction.against.is_empty() {
        html.push_str("<ul>\n");
        for told in &prediction.against {
            let _ = writeln!(html, "<li>{}</li>", escape(told));
        }
        html.push_str("</ul>\n");
    }
    html.push_str("<table>\n<thead><tr><th>What goes in</th><th></th></tr></thead>\n<tbody>\n");
    for (name, value, unit) in &prediction.inputs {
        let _ = writeln!(html, "<tr><th>{}</th><td>{} {}</td></tr>", escape(name), plain(*value), escape(unit));
    }
    html.push_str("</tbody></table></div>\n</div>\n");
    html.push_str(&counts(prediction, figures));
    html
}

/// Renders the counts of the simulation per I/O.
fn counts(prediction: &Prediction, figures: &mut Figures) -> String {
    let head = ["arm", "threads", "lines that came", "upgrades", "invalidations", "lock waits"];
    let rows = prediction.counts.iter().map(|counted| {
        let each = [counted.transfers, counted.upgrades, counted.invalidations, counted.lock_waits];
        let each = each.map(|count| Json::Number((counted.per_io(count) * 1e3).round() / 1e3));
        Json::list([counted.arm.as_str().into(), counted.threads.into()].into_iter().chain(each))
    });
    let summary = "What the simulation has counted, an I/O";
    figures.draw("table", [summary.into(), Json::list(head), false.into(), Json::list(rows)])
}

/// Adds the plot of the curves in their bands, with the published points. Returns `None` if there is nothing to draw.
fn curves(report: &ExperimentReport, prediction: &Prediction, figures: &mut Figures) -> Option<String> {
    let mut points = prediction.curves.iter().flat_map(|curve| &curve.points);
    if !points.any(|point| point.cores > 0 && point.high > 0.0) {
        return None;
    }
    let index = |name: &str| Json::Number(report.arm(name).unwrap_or(0) as f64);
    let point = |it: &Predicted| Json::List(vec![it.cores.into(), it.low.into(), it.middle.into(), it.high.into()]);
    let curve = |curve: &Curve| Json::List(vec![index(&curve.arm), Json::list(curve.points.iter().map(point))]);
    let known = |known: &Known| Json::List(vec![index(&known.arm), known.cores.into(), known.iops.into()]);
    let parts = [Json::list(prediction.curves.iter().map(curve)), Json::list(prediction.published.iter().map(known))];
    Some(figures.draw("prediction", parts))
}
