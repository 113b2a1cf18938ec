//! The page: one HTML file with its style and its plots in it, which needs no network and runs no script.
//!
//! Owns what stands where. Every experiment has the thread's table beside ours, the verdict, plots, checks, and the
//! command that repeats each row. A prediction is called one wherever it appears.
//!
//! * I1. All text that comes from a report goes through [`escape`].

mod axis;
mod forest;
mod frame;
mod plot;
mod prediction;
mod section;
mod style;
mod svg;
mod words;

use std::fmt::Write;

use crate::report::LabReport;
use crate::table::{holds, interval, joint, signed};
use crate::terms::{Metric, Scale};
use forest::Dot;
use frame::looks;
use svg::escape;

/// The whole page.
pub fn page(report: &LabReport) -> String {
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\">\n<title>Sheave lab, {}</title>\n<style>{}</style>\n\
         </head>\n<body>\n",
        escape(&report.began),
        style::CSS
    );
    page.push_str(&head(report));
    for experiment in &report.experiments {
        page.push_str(&section::of(experiment));
    }
    page.push_str("</body>\n</html>\n");
    page
}

/// What the run was, where it ran, and all experiments on one plot.
fn head(report: &LabReport) -> String {
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
        "<p class=\"lead\">{}</p>\n<dl>\n<dt>Machine</dt><dd>{}{}{}</dd>\n<dt>Run</dt><dd>{}, Sheave {version}, \
         {:.0} s, on CPUs {:?} in that order</dd>\n<dt>Command</dt><dd><code>{}</code></dd>\n\
         <dt>Figures</dt><dd>medians of {rounds} rounds or more of \
         {turn_ms} ms; in a round every arm has a turn. Changes pair turns of the same round and come with their \
         95&nbsp;% interval.</dd>\n</dl>",
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
    html.push_str("</header>\n");
    if report.experiments.len() > 1 {
        html.push_str(&summary(report));
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
fn summary(report: &LabReport) -> String {
    let mut html = String::from(
        "<div class=\"scroll\"><table>\n<thead><tr><th>Experiment</th><th class=\"words\">At</th>\
         <th>Published</th><th>Here, in time</th><th>Here, in instructions</th><th class=\"words\">Claim</th></tr>\
         </thead>\n<tbody>\n",
    );
    let mut rows = Vec::new();
    for experiment in &report.experiments {
        let Some(row) = experiment.best_known() else { continue };
        let after = experiment.after();
        let change = row.arm(after).and_then(|arm| arm.change);
        let gain = experiment.gain(row, after);
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
            or_dash(gain.map(|gain| format!("{gain:+.1} %"))),
            verdict.map_or("", style::class_of),
            or_dash(verdict.map(|verdict| holds(verdict).into())),
        );
        // Shares change by points, which do not belong on the same axis.
        if !experiment.metric.in_points() {
            let look = &looks(&experiment.arms)[after];
            let mut dots: Vec<Dot> = row.published.map(|it| Dot::published(it.change_percent)).into_iter().collect();
            dots.extend(change.map(|change| Dot::measured(look, change)));
            dots.extend(gain.map(|gain| Dot::instructions(look, gain)));
            rows.push((format!("{}, {}", experiment.id, row.label), dots));
        }
    }
    html.push_str("</tbody></table></div>\n");
    if let Some(svg) = forest::draw(&rows, Metric::IOPS, "Change of each experiment, published and here") {
        let _ = writeln!(
            html,
            "<figure>{svg}<figcaption>What each mechanism changes: in its thread, here in time with the 95&nbsp;% \
             interval, and here in instructions.</figcaption></figure>"
        );
    }
    html
}

#[cfg(test)]
pub(crate) mod tests;
