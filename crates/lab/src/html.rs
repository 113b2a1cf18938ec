//! The page: one HTML file with its style, its figures and the script that draws them in it, which needs no network.
//!
//! Owns what stands where. Every experiment has the thread's table beside ours, the verdict, plots, checks, and the
//! command that repeats each row. A prediction is called one wherever it appears. Verdicts, the threads' tables and
//! checks are the page's own text; plots, and the tables behind them, are drawn by its script from arrays
//! ([`data`]), because as elements they take six times the room.
//!
//! * I1. All text that comes from a report goes through [`escape`], or is in the arrays.

mod changes;
mod data;
mod json;
mod look;
mod prediction;
mod section;
mod style;
mod words;

use std::fmt::Write;

use crate::report::LabReport;
use crate::table::{holds, interval, joint, signed};
use crate::terms::{Metric, Role, Scale};
use changes::{instructions, measured, published};
use data::Figures;
use json::Json;
use words::{escape, lean};

/// The whole page.
pub fn page(report: &LabReport) -> String {
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\">\n<title>Sheave lab, {}</title>\n<style>{}</style>\n\
         </head>\n<body>\n",
        escape(&report.began),
        lean(style::CSS, "/*")
    );
    let mut figures = Figures::default();
    page.push_str(&head(report, &mut figures));
    for experiment in &report.experiments {
        page.push_str(&section::of(experiment, &mut figures));
    }
    page.push_str(&figures.finish());
    page.push_str("</body>\n</html>\n");
    page
}

/// What the run was, where it ran, and all experiments on one plot.
fn head(report: &LabReport, figures: &mut Figures) -> String {
    let LabReport { version, began, machine, command, rounds, turn_ms, .. } = report;
    let mut html = String::from("<header>\n<h1>Sheave lab: before and after</h1>\n");
    html.push_str(
        "<p class=\"lead\">Five ideas from the kernel's mailing lists, measured on Sheave's own path beside the \
         figures that their threads published. Every experiment runs the same stack with one thing changed.</p>\n",
    );
    let caches = machine.caches.join(", ");
    let governor = machine.governor.as_ref().map_or(String::new(), |governor| format!(", governor {governor}"));
    let _ = writeln!(
        html,
        "<p class=\"{}\">{}</p>\n<dl>\n<dt>Machine</dt><dd>{}{}{}</dd>\n<dt>Run</dt><dd>{}, Sheave {version}, \
         {:.0} s, on CPUs {:?} in that order</dd>\n<dt>Command</dt><dd><code>{}</code></dd>\n\
         <dt>Figures</dt><dd>medians of {rounds} rounds or more of \
         {turn_ms} ms; in a round every arm has a turn. Changes pair turns of the same round and come with their \
         95&nbsp;% interval.</dd>\n</dl>",
        if report.machine_tells() { "lead" } else { "notice" },
        escape(joint(report)),
        escape(machine.line()),
        escape(if caches.is_empty() { String::new() } else { format!(", {caches}") }),
        escape(governor),
        escape(began),
        report.seconds,
        report.cpus,
        escape(command)
    );
    for notice in notices(report) {
        let _ = writeln!(html, "<p class=\"notice\">{}</p>", escape(notice));
    }
    html.push_str(
        "<noscript><p class=\"notice\">Plots, and the tables behind them, are drawn by the script in this page, which \
         loads nothing. Verdicts and the threads&#39; tables need none.</p></noscript>\n</header>\n",
    );
    if report.experiments.len() > 1 {
        html.push_str(&summary(report, figures));
    }
    html
}

/// What a reader must know before the figures.
fn notices(report: &LabReport) -> Vec<String> {
    let mut notices = Vec::new();
    if report.interrupted {
        notices.push("Interrupted: what is missing was not measured.".into());
    }
    if report.scale == Scale::Quick {
        notices.push(
            "A quick run: few points, short turns, wide intervals. It shows that everything works, and claims nothing."
                .into(),
        );
    }
    for (id, check) in report.failed_checks() {
        notices.push(format!("A check failed, so the figures of {id} mean nothing: {} ({})", check.name, check.detail));
    }
    if report.machine.cpus < 8 {
        notices.push(format!(
            "{} CPUs: effects of many CPUs that contend for one cache line cannot be measured here; where a model \
             predicts them, the prediction is drawn dashed and called so.",
            report.machine.cpus
        ));
    }
    notices
}

/// All experiments in one table and on one plot.
fn summary(report: &LabReport, figures: &mut Figures) -> String {
    let mut html = String::from(
        "<div class=\"scroll\"><table>\n<thead><tr><th>Experiment</th><th class=\"words\">At</th>\
         <th>Published</th><th>Here, in time</th><th>Here, in instructions</th><th class=\"words\">Claim</th></tr>\
         </thead>\n<tbody>\n",
    );
    let mut rows = Vec::new();
    let Some(first) = report.experiments.first() else { return html };
    for experiment in &report.experiments {
        let Some(row) = experiment.best_known() else { continue };
        let after = experiment.after();
        let change = row.arm(after).and_then(|arm| arm.change);
        let (gain, near) = (experiment.gain(row, after), experiment.gain_near(row, after));
        let or_dash = |text: Option<String>| text.map_or("-".into(), escape);
        let verdict = experiment.verdict.as_ref().map(|verdict| verdict.holds);
        let _ = writeln!(
            html,
            "<tr><th><a href=\"#{0}\">{0}</a></th><td class=\"words\">{1}</td><td>{2}</td><td>{3}</td><td>{4}</td>\
             <td class=\"words {5}\">{6}</td></tr>",
            escape(experiment.id),
            escape(&row.label),
            or_dash(row.published.map(|published| signed(published.change_percent, experiment.metric))),
            or_dash(change.map(|change| interval(change, experiment.metric))),
            or_dash(near.map(|(gain, _)| format!("{gain:+.1} %"))),
            verdict.map_or("", style::class_of),
            or_dash(verdict.map(|verdict| holds(verdict).into())),
        );
        // Shares change by points, which do not belong on the same axis.
        if !experiment.metric.in_points() {
            let (place, arm) = (first.arms.iter().position(|arm| arm.role == Role::After), row.arm(after));
            let place = place.unwrap_or(0);
            let mut dots: Vec<Json> = row.published.map(|it| published(it.change_percent)).into_iter().collect();
            dots.extend(arm.and_then(|arm| arm.change).map(|change| measured(place, change)));
            dots.extend(gain.map(|gain| instructions(place, gain)));
            rows.push((format!("{}, {}", experiment.id, row.label), dots));
        }
    }
    html.push_str("</tbody></table></div>\n");
    if rows.iter().any(|(_, dots)| !dots.is_empty()) {
        figures.begin("all", &look::looks(&first.arms), "");
        let _ = writeln!(
            html,
            "<figure>{}<figcaption>What each mechanism changes: in its thread, here in time with the 95&nbsp;% \
             interval, and here in instructions.</figcaption></figure>",
            changes::draw(figures, "Change of each experiment, published and here", Metric::IOPS, rows)
        );
    }
    html
}

#[cfg(test)]
pub(crate) mod tests;
