//! One experiment on the page.

use std::fmt::Write;

use super::axis::time;
use super::forest::{self, Dot};
use super::frame::{Look, looks};
use super::style::class_of;
use super::svg::escape;
use super::words::{plain, prose};
use super::{plot, prediction};
use crate::report::{ArmResult, ExperimentReport, InstructionRow, Row, SweepReport};
use crate::table::{control, figure, interval, peer, signed, slide};
use crate::terms::Metric;

/// Its section.
pub fn of(report: &ExperimentReport) -> String {
    let looks = looks(&report.arms);
    let mut html = format!("<section id=\"{}\">\n<h2>{}</h2>\n", escape(report.id), escape(report.title));
    html.push_str(&origin(report));
    html.push_str("<ul class=\"arms\">\n");
    for (arm, look) in report.arms.iter().zip(&looks) {
        let (class, name, what) = (&look.class, escape(arm.name), escape(arm.what));
        let _ = writeln!(html, "<li class=\"{class}\"><span><b>{name}</b> {what}</span></li>");
    }
    html.push_str("</ul>\n");
    html.push_str(&verdict(report));
    html.push_str(&headline(report, &looks));
    if let Some(done) = &report.peer {
        let _ = writeln!(html, "<p>The same job, {}.</p>", prose(&peer(done)));
    }
    html.push_str(&instructions(report));
    for sweep in report.sweeps.iter().filter(|sweep| !sweep.rows.is_empty()) {
        html.push_str(&self::sweep(sweep, &looks));
    }
    html.push_str(&prediction::section(report, &looks));
    html.push_str(&checks(report));
    html.push_str(&commands(report));
    html.push_str("</section>\n");
    html
}

/// The thread: a link where it has an address, and what it measured with.
fn origin(report: &ExperimentReport) -> String {
    let seed = &report.seed;
    let plain = |c: char| c.is_ascii_alphanumeric() || "@.-_+$".contains(c);
    let subject = match seed.message_id {
        id if id.contains('@') && id.chars().all(plain) => {
            format!("<a href=\"https://lore.kernel.org/r/{id}\">{}</a>", escape(seed.subject))
        }
        _ => escape(seed.subject),
    };
    format!(
        "<dl>\n<dt>After</dt><dd>{subject}, {}, {}</dd>\n<dt>Its command</dt><dd><code>{}</code></dd>\n<dt>Its \
         machine</dt><dd>{}</dd>\n</dl>\n",
        escape(seed.author),
        escape(seed.date),
        escape(seed.command),
        escape(seed.machine)
    )
}

fn verdict(report: &ExperimentReport) -> String {
    let Some(verdict) = &report.verdict else { return String::new() };
    format!(
        "<div class=\"verdict {}\">\n<h3>{}</h3>\n<p>{}</p>\n<details><summary>What was claimed, what this run \
         shows, and what it does not</summary>\n<p><b>Claim:</b> {}</p>\n<p><b>Shown here:</b> {}</p>\n<p><b>Not \
         shown:</b> {}</p>\n</details></div>\n",
        class_of(verdict.holds),
        escape(slide(report, verdict.holds)),
        escape(control(report.control)),
        prose(&verdict.claim),
        prose(&verdict.shows),
        prose(&verdict.does_not_show)
    )
}

/// The thread's table beside ours, the changes as a plot, and the latencies of its best-known row.
fn headline(report: &ExperimentReport, looks: &[Look]) -> String {
    if report.headline.is_empty() {
        return String::new();
    }
    let metric = report.metric;
    let mut html = format!("<h3>The thread&#39;s table, and ours: {}</h3>\n", escape(metric.label));
    html.push_str(
        "<div class=\"scroll\"><table>\n<thead><tr><th></th><th>Published before</th><th>Published after</th>",
    );
    for arm in &report.arms {
        let _ = write!(html, "<th>{}</th>", escape(arm.name));
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for row in &report.headline {
        let published = row.published.map_or("<td>-</td><td>-</td>".into(), |published| {
            format!(
                "<td>{}</td><td>{}<small>{}</small></td>",
                escape(figure(published.before, metric)),
                escape(figure(published.after, metric)),
                escape(signed(published.change_percent, metric))
            )
        });
        let _ = writeln!(html, "<tr><th>{}</th>{published}{}</tr>", escape(&row.label), cells(row, metric));
    }
    html.push_str("</tbody></table></div>\n");
    html.push_str(&more(report));
    let rows: Vec<(String, Vec<Dot>)> =
        report.headline.iter().map(|row| (row.label.clone(), dots(report, row, looks))).collect();
    if let Some(svg) = forest::draw(&rows, metric, "Changes against before, published and here") {
        let _ = writeln!(
            html,
            "<figure>{svg}<figcaption>Changes against the first arm, with 95&nbsp;% intervals; the diamond is what the \
             thread published.</figcaption></figure>"
        );
    }
    if let Some(row) = report.best_known()
        && let Some(svg) = plot::latencies(row, looks)
    {
        let _ = writeln!(
            html,
            "<div class=\"plots\"><figure>{svg}<figcaption>Latencies at {}: from handing an I/O over to seeing its \
             completion, all rounds together.</figcaption></figure></div>",
            escape(&row.label)
        );
    }
    html
}

/// Each arm's figure and its change.
fn cells(row: &Row, metric: Metric) -> String {
    let cell = |(index, arm): (usize, &Option<ArmResult>)| {
        let Some(arm) = arm else { return "<td>-</td>".into() };
        let change =
            arm.change.map_or(String::new(), |change| format!("<small>{}</small>", escape(interval(change, metric))));
        let thread = if row.threads_arm == Some(index) { "<small>the thread&#39;s</small>" } else { "" };
        format!("<td>{}{change}{thread}</td>", escape(figure(arm.value, metric)))
    };
    row.arms.iter().enumerate().map(cell).collect()
}

/// What was published for a row, and what was measured.
fn dots(report: &ExperimentReport, row: &Row, looks: &[Look]) -> Vec<Dot> {
    let mut dots: Vec<Dot> =
        row.published.map(|published| Dot::published(published.change_percent)).into_iter().collect();
    for (index, look) in looks.iter().enumerate() {
        dots.extend(row.arm(index).and_then(|arm| arm.change).map(|change| Dot::measured(look, change)));
        if index > 0 && !report.metric.in_points() {
            dots.extend(report.gain(row, index).map(|gain| Dot::instructions(look, gain)));
        }
    }
    dots
}

/// Beside the metric: time, switches, latencies and what the arms count, for the best-known row.
fn more(report: &ExperimentReport) -> String {
    let Some(row) = report.best_known() else { return String::new() };
    let arms: Vec<Option<&ArmResult>> = (0..report.arms.len()).map(|index| row.arm(index)).collect();
    let mut lines: Vec<(String, Vec<String>)> = Vec::new();
    let mut line = |name: &str, text: fn(f64) -> String, value: &dyn Fn(&ArmResult) -> Option<f64>| {
        let values: Vec<Option<f64>> = arms.iter().map(|arm| arm.and_then(value)).collect();
        if values.iter().any(Option::is_some) {
            lines.push((name.into(), values.iter().map(|value| value.map_or("-".into(), text)).collect()));
        }
    };
    if report.metric.name != Metric::IOPS.name {
        line("I/O per second", plain, &|arm| Some(arm.iops));
    }
    line("CPU time per I/O", time, &|arm| Some(arm.cpu_ns_per_io));
    line("context switches per I/O", plain, &|arm| Some(arm.switches_per_io));
    line("latency p50", time, &|arm| arm.latency.as_ref().map(|latency| latency.p50 as f64));
    line("latency p99", time, &|arm| arm.latency.as_ref().map(|latency| latency.p99 as f64));
    line("latency p99.9", time, &|arm| arm.latency.as_ref().map(|latency| latency.p999 as f64));
    let mut counted: Vec<(&str, bool)> = Vec::new();
    for arm in arms.iter().flatten() {
        counted.extend(arm.counters.keys().map(|name| (*name, true)));
        counted.extend(arm.gauges.keys().map(|name| (*name, false)));
    }
    counted.sort_unstable();
    counted.dedup();
    for (name, per_io) in counted {
        let title = format!("{}{}", name.replace('_', " "), if per_io { " per I/O" } else { "" });
        line(&title, plain, &|arm| if per_io { arm.counters.get(name) } else { arm.gauges.get(name) }.copied());
    }
    let mut html = format!("<div class=\"scroll\"><table>\n<thead><tr><th>At {}</th>", escape(&row.label));
    for arm in &report.arms {
        let _ = write!(html, "<th>{}</th>", escape(arm.name));
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for (name, values) in lines {
        let cells = values.iter().map(|value| format!("<td>{}</td>", escape(value)));
        let _ = writeln!(html, "<tr><th>{}</th>{}</tr>", escape(name), cells.collect::<String>());
    }
    html.push_str("</tbody></table></div>\n");
    html
}

fn instructions(report: &ExperimentReport) -> String {
    if report.instructions.is_empty() {
        return String::new();
    }
    let mut html = String::from(
        "<h3>Instructions per I/O</h3>\n<div class=\"scroll\"><table>\n<thead><tr><th>Counted by valgrind at</th>",
    );
    for arm in &report.arms {
        let _ = write!(html, "<th>{}</th>", escape(arm.name));
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for row in &report.instructions {
        let _ = write!(html, "<tr><th><code>{}</code></th>", escape(&row.point));
        for index in 0..report.arms.len() {
            let gain = row.gain_percent(index).filter(|_| index > 0);
            let gain = gain.map_or(String::new(), |gain| format!("<small>{gain:+.1} % I/O per instruction</small>"));
            let count = row.net(index).map_or("-".into(), |count| format!("{count:.1}"));
            let _ = write!(html, "<td>{count}{gain}</td>");
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</tbody></table></div>\n");
    report.instructions.iter().for_each(|row| html.push_str(&functions(report, row)));
    html
}

/// Where the instructions of a point are in which arms differ, and the lines that they fetch: for who wants to know.
fn functions(report: &ExperimentReport, row: &InstructionRow) -> String {
    let mut html = format!(
        "<details><summary>What differs between the arms at {}, by function</summary>\n<div class=\"scroll\"><table>\n\
         <thead><tr><th>Instructions per I/O in</th>",
        escape(&row.point)
    );
    for arm in &report.arms {
        let _ = write!(html, "<th>{}</th>", escape(arm.name));
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    let mut line = |name: &str, values: &[Option<f64>]| {
        let cells =
            values.iter().map(|value| value.map_or("<td>-</td>".into(), |value| format!("<td>{value:.1}</td>")));
        let _ = writeln!(html, "<tr><th>{}</th>{}</tr>", escape(name), cells.collect::<String>());
    };
    for function in &row.functions {
        line(&function.name, &function.per_io);
    }
    line(
        "the way that is the experiment's own (taken out above)",
        &row.way.iter().copied().map(Some).collect::<Vec<_>>(),
    );
    line("lines fetched into a first-level cache of 32 KiB", &row.lines_per_io);
    html.push_str("</tbody></table></div></details>\n");
    html
}

/// A sweep: the metric and its change side by side.
fn sweep(sweep: &SweepReport, looks: &[Look]) -> String {
    let axis = sweep.axis.label;
    let mut html = format!("<h3>{}</h3>\n<div class=\"plots\">\n", escape(sweep.title));
    let _ = writeln!(
        html,
        "<figure>{}<figcaption>{} by {}; whiskers are the lowest and highest round.</figcaption></figure>",
        plot::metric(sweep, looks),
        escape(capital(sweep.metric.label)),
        escape(axis)
    );
    if let Some(svg) = plot::changes(sweep, looks) {
        let _ = writeln!(
            html,
            "<figure>{svg}<figcaption>The same as a change against {}; whiskers are 95&nbsp;% intervals, \
             cut where they leave the plot.</figcaption></figure>",
            escape(&looks[0].name)
        );
    }
    html.push_str("</div>\n");
    html
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

fn checks(report: &ExperimentReport) -> String {
    if report.checks.is_empty() {
        return String::new();
    }
    let mut html = String::from("<h3>Checked before anything was timed</h3>\n<ul class=\"checks\">\n");
    for check in &report.checks {
        let (class, word) = if check.ok { ("yes", "ok") } else { ("no", "FAILED") };
        let (name, detail) = (prose(&check.name), prose(&check.detail));
        let _ =
            writeln!(html, "<li class=\"{class}\"><b>{word}</b> {name} <span class=\"faint\">({detail})</span></li>");
    }
    html.push_str("</ul>\n");
    html
}

/// The command of each row.
fn commands(report: &ExperimentReport) -> String {
    let mut html = String::from("<details><summary>Commands that repeat each row</summary>\n<table><tbody>\n");
    let mut line = |what: &str, command: &str| {
        let _ = writeln!(
            html,
            "<tr><th>{}</th><td class=\"words\"><code>{}</code></td></tr>",
            escape(what),
            escape(command)
        );
    };
    for row in &report.headline {
        line(&row.label, &row.command);
    }
    for sweep in &report.sweeps {
        for row in &sweep.rows {
            line(&format!("{} {}", sweep.axis.label, row.label), &row.command);
        }
    }
    for row in &report.instructions {
        for (arm, command) in report.arms.iter().zip(&row.commands) {
            line(&format!("instructions, {}", arm.name), command);
        }
    }
    html.push_str("</tbody></table></details>\n");
    html
}
