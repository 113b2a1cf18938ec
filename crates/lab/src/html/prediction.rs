//! What more cores would do, as a section of the page: a plot for each machine, what was counted, and what the threads'
//! own points say of it. Called a prediction wherever it appears.

use std::fmt::Write as _;

use super::axis::{Lie, log_ticks};
use super::frame::{Frame, Look, Sign};
use super::svg::{Mark, escape};
use super::words::{plain, prose};
use crate::report::{ExperimentReport, Prediction};
use crate::table::figure;
use crate::terms::Metric;

/// The section; empty where nothing is predicted.
pub fn section(report: &ExperimentReport, looks: &[Look]) -> String {
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
        html.push_str(&of_machine(prediction, looks));
    }
    html
}

fn of_machine(prediction: &Prediction, looks: &[Look]) -> String {
    let mut html = String::from("<div class=\"plots\">\n");
    if let Some(svg) = plot(prediction, looks) {
        let _ = writeln!(
            html,
            "<figure>{svg}<figcaption><b>Prediction</b> for {}. Dashed lines are predicted, with their bands; marks \
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
    html.push_str(
        "<details><summary>What the simulation has counted, an I/O</summary>\n<table>\n<thead><tr><th>arm</th>\
         <th>threads</th><th>lines that came</th><th>upgrades</th><th>invalidations</th><th>lock waits</th></tr>\
         </thead>\n<tbody>\n",
    );
    for counted in &prediction.counts {
        let each = |count| format!("{:.3}", counted.per_io(count));
        let _ = writeln!(
            html,
            "<tr><th>{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            escape(&counted.arm),
            counted.threads,
            each(counted.transfers),
            each(counted.upgrades),
            each(counted.invalidations),
            each(counted.lock_waits)
        );
    }
    html.push_str("</tbody></table></details>\n");
    html
}

/// The curves, dashed, in their bands, with the thread's points; both axes by their logarithm.
fn plot(prediction: &Prediction, looks: &[Look]) -> Option<String> {
    let places = || prediction.curves.iter().flat_map(|curve| &curve.points);
    let known = || prediction.published.iter().map(|known| known.iops);
    let values = || places().flat_map(|point| [point.low, point.high]).chain(known()).filter(|iops| *iops > 0.0);
    let (low, high) = values().fold((f64::INFINITY, 0.0f64), |(low, high), iops| (low.min(iops), high.max(iops)));
    let cores = places().map(|point| f64::from(point.cores)).fold(0.0, f64::max);
    if !low.is_finite() || cores < 1.0 {
        return None;
    }
    let (low, high) = (low / 1.6, high * 1.6);
    let x = Lie::Log { low: 0.94, high: cores * 1.06, zero: false };
    let mut frame = Frame::new("Prediction: I/O per second by cores", x, Lie::Log { low, high, zero: false });
    frame.across(&log_ticks(low, high), |tick| figure(tick, Metric::IOPS));
    let powers = (0..).map(|power| 2f64.powi(power)).take_while(|value| *value <= cores * 1.001);
    frame.below(&powers.map(|value| (value, format!("{value:.0}"))).collect::<Vec<_>>());
    frame.titles("cores, each with one thread", "I/O per second, all cores together");
    let look_of = |name: &str| looks.iter().find(|look| look.name == name).unwrap_or(&looks[0]);
    let named: Vec<Look> = prediction
        .curves
        .iter()
        .map(|curve| Look { name: format!("{} (prediction)", curve.arm), ..look_of(&curve.arm).clone() })
        .collect();
    frame.legend(named.iter(), Sign::Dashes);
    for curve in &prediction.curves {
        let class = &look_of(&curve.arm).class;
        let line = |iops: fn(&crate::report::Predicted) -> f64| -> Vec<(f64, f64)> {
            curve.points.iter().map(|point| frame.at(f64::from(point.cores), iops(point).max(low))).collect()
        };
        let (middle, mut band, back) = (line(|point| point.middle), line(|point| point.low), line(|point| point.high));
        band.extend(back.into_iter().rev());
        frame.svg.area(&format!("shade {class}"), &band);
        frame.svg.path(&format!("line dashed {class}"), &middle);
    }
    for known in &prediction.published {
        let look = look_of(&known.arm);
        let at = frame.at(f64::from(known.cores), known.iops);
        let says = format!("{}, {} cores: published {}", known.arm, known.cores, figure(known.iops, Metric::IOPS));
        let mark = if look.mark == Mark::Ring { Mark::Disc } else { look.mark };
        frame.svg.mark(&format!("mark {}", look.class), mark, at, &says);
    }
    Some(frame.finish())
}
