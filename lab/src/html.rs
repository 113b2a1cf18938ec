//! The HTML page of a report: one file with its style, its figures and the script that draws them. It loads nothing
//! else.
//!
//! Owns the order of the page. Every experiment has our table next to the published one, the verdict, plots, checks,
//! and the command that repeats each row. A prediction is labelled as one wherever it appears. Verdicts, tables and
//! checks are text of the page. The script draws plots, and the tables behind them, from arrays ([`data`]), which are
//! six times smaller than the elements would be.
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

use crate::report::{ExperimentReport, LabReport};
use crate::table::{holds, joint, signed};
use crate::terms::{Role, Scale};
use changes::{instructions, measured, published};
use data::Figures;
use json::Json;
use words::{escape, lean};

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

/// Renders the description of the run and the machine, the notices, and a plot of all experiments.
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

/// Returns the warnings that stand before the figures.
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

/// Renders all experiments in one table and on one plot.
fn summary(report: &LabReport, figures: &mut Figures) -> String {
    let mut html = String::from(
        "<div class=\"scroll\"><table>\n<thead><tr><th>Experiment</th><th class=\"words\">At</th>\
         <th>Published</th><th>The thread&#39;s arm here, in time</th><th>Sheave, in time</th><th>In instructions: the \
         thread&#39;s arm, Sheave</th><th class=\"words\">The thread&#39;s claim</th></tr></thead>\n<tbody>\n",
    );
    for experiment in &report.experiments {
        html.push_str(&summary_row(experiment));
    }
    html.push_str("</tbody></table></div>\n");
    let Some(first) = report.experiments.first() else { return html };
    figures.begin("all", &look::looks(&first.arms), "");
    let place = |role| first.arms.iter().position(|arm| arm.role == role);
    // A share changes by percentage points, which do not fit on the axis of relative changes.
    for in_points in [false, true] {
        let of_kind: Vec<&ExperimentReport> =
            report.experiments.iter().filter(|experiment| experiment.metric.in_points() == in_points).collect();
        let Some(metric) = of_kind.first().map(|experiment| experiment.metric) else { continue };
        let rows = of_kind.iter().filter_map(|experiment| {
            let places = [place(Role::Seed), place(Role::After)];
            summary_dots(experiment, places).map(|(label, dots)| (format!("{}, {label}", experiment.id), dots))
        });
        let rows: Vec<(String, Vec<Json>)> = rows.collect();
        if rows.iter().all(|(_, dots)| dots.is_empty()) {
            continue;
        }
        let (says, what) = match in_points {
            false => ("Change of each experiment, published and here", "each mechanism changes".to_owned()),
            true => ("Change of shares, published and here", format!("each mechanism changes of the {}", metric.label)),
        };
        let _ = writeln!(
            html,
            "<figure>{}<figcaption>What {}: in its thread, here by the thread&#39;s arm (seed) and by Sheave \
             (after), with the 95&nbsp;% interval{}.</figcaption></figure>",
            changes::draw(figures, says, metric, rows),
            escape(what),
            if in_points { "" } else { "; in time, and in instructions" }
        );
    }
    html
}

/// Renders a row of the summary: the published change, the change of the published arm here, and that of Sheave's arm.
fn summary_row(experiment: &ExperimentReport) -> String {
    let Some((row, seed)) = experiment.judged() else { return String::new() };
    let after = experiment.after();
    let dash = |text: Option<String>| text.unwrap_or("-".into());
    let told = |arm: usize| {
        let change = row.arm(arm).and_then(|arm| arm.change);
        change.map_or("-".into(), |change| {
            let (estimate, ends) = section::estimate_and_ends(change, experiment.metric);
            estimate + &ends
        })
    };
    let gain = |arm: usize| Some(format!("{:+.1}&nbsp;%", experiment.gain_near(row, arm)?.0));
    let gains: Vec<String> = [seed, after].into_iter().filter_map(gain).collect();
    let verdict = experiment.verdict.as_ref().map(|verdict| verdict.holds);
    format!(
        "<tr><th><a href=\"#{0}\">{0}</a></th><td class=\"words\">{1}</td><td>{2}</td><td>{3}</td><td>{4}</td>\
         <td>{5}</td><td class=\"words {6}\">{7}</td></tr>\n",
        escape(experiment.id),
        escape(&row.label),
        dash(row.published.map(|it| escape(signed(it.change_percent, experiment.metric)))),
        told(seed),
        told(after),
        if gains.is_empty() { "-".into() } else { gains.join(", ") },
        verdict.map_or("", style::class_of),
        dash(verdict.map(|verdict| escape(holds(verdict)))),
    )
}

/// Returns the same changes as marks of the summary's plot. `places` are the indices of the arms whose looks the two
/// marks get.
fn summary_dots(experiment: &ExperimentReport, places: [Option<usize>; 2]) -> Option<(String, Vec<Json>)> {
    let (row, seed) = experiment.judged()?;
    let mut dots: Vec<Json> = row.published.map(|it| published(it.change_percent)).into_iter().collect();
    let after = experiment.after();
    let threads = (seed != after).then_some((seed, places[0]));
    for (arm, place) in threads.into_iter().chain([(after, places[1])]) {
        let place = place.unwrap_or(0);
        dots.extend(row.arm(arm).and_then(|arm| arm.change).and_then(|change| measured(place, change)));
        if !experiment.metric.in_points() {
            dots.extend(experiment.gain(row, arm).map(|gain| instructions(place, gain)));
        }
    }
    Some((row.label.clone(), dots))
}

#[cfg(test)]
pub(crate) mod tests;
