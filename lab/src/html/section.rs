//! The section of one experiment on the page.

use std::fmt::Write;

use super::changes::{self, dots};
use super::data::Figures;
use super::json::Json;
use super::look::looks;
use super::prediction;
use super::style::class_of;
use super::words::{escape, plain, prose, time};
use crate::names::short_name;
use crate::report::{ArmResult, Change, ExperimentReport, InstructionRow, Latency, Row, SweepReport};
use crate::table::{beside, control, figure, interval, peer, repeated, signed, slide};
use crate::terms::{AxisScale, Check, Metric};

pub fn of(report: &ExperimentReport, figures: &mut Figures) -> String {
    let looks = looks(&report.arms);
    figures.begin(report.id, &looks, &report.options());
    let mut html = format!("<section id=\"{}\">\n<h2>{}</h2>\n", escape(report.id), escape(report.title));
    html.push_str(&origin(report));
    html.push_str("<ul class=\"arms\">\n");
    for (arm, look) in report.arms.iter().zip(&looks) {
        let (class, name, what) = (&look.class, escape(arm.name), escape(arm.what));
        let _ = writeln!(html, "<li class=\"{class}\"><span><b>{name}</b> {what}</span></li>");
    }
    html.push_str("</ul>\n");
    html.push_str(&verdict(report));
    html.push_str(&headline(report, figures));
    if let Some(done) = &report.peer {
        let _ = writeln!(html, "<p>The same job, {}.</p>", prose(&peer(done)));
    }
    html.push_str(&instructions(report, figures));
    for sweep in report.sweeps.iter().filter(|sweep| !sweep.rows.is_empty()) {
        html.push_str(&self::sweep(sweep, figures));
    }
    html.push_str(&prediction::section(report, figures));
    html.push_str(&checks(report));
    html.push_str(&commands(report));
    html.push_str("</section>\n");
    html
}

/// Renders the origin: the mailing-list thread, as a link if it has an address, and its measurement.
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
    let lines = [beside(report), repeated(report)];
    format!(
        "<div class=\"verdict {}\">\n<h3>{}</h3>\n{}<p>{}</p>\n<details><summary>What was claimed, what this run \
         shows, and what it does not</summary>\n<p><b>Claim:</b> {}</p>\n<p><b>Shown here:</b> {}</p>\n<p><b>Not \
         shown:</b> {}</p>\n</details></div>\n",
        class_of(verdict.holds),
        escape(slide(report, verdict.holds)),
        lines.iter().flatten().map(|line| format!("<p>{}</p>\n", escape(line))).collect::<String>(),
        escape(control(report.control)),
        prose(&verdict.claim),
        prose(&verdict.shows),
        prose(&verdict.does_not_show)
    )
}

/// Renders our table next to the published one, the changes as a plot, and the latencies of the best-known row.
fn headline(report: &ExperimentReport, figures: &mut Figures) -> String {
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
    let rows: Vec<(String, Vec<Json>)> =
        report.headline.iter().map(|row| (row.label.clone(), dots(report, row))).collect();
    if rows.iter().any(|(_, dots)| !dots.is_empty()) {
        let _ = writeln!(
            html,
            "<figure>{}<figcaption>Changes against the first arm, with 95&nbsp;% intervals; the diamond is what the \
             thread published.</figcaption></figure>",
            changes::draw(figures, "Changes against before, published and here", metric, rows)
        );
    }
    if let Some(row) = report.best_known()
        && let Some(drawn) = latencies(row, figures)
    {
        let _ = writeln!(
            html,
            "<div class=\"plots\"><figure>{drawn}<figcaption>Latencies at {}: from handing an I/O over to seeing its \
             completion, all rounds together.</figcaption></figure></div>",
            escape(&row.label)
        );
    }
    html
}

/// Adds the plot of latencies of each arm: the number of the first bucket, and of each bucket the I/Os in ten thousand.
fn latencies(row: &Row, figures: &mut Figures) -> Option<String> {
    let spread = |latency: &Latency| {
        // A bucket below one I/O in ten thousand would be part of a flat line over half of the plot. The table shows
        // the tail.
        let mut shares: Vec<(i32, f64)> = latency.shares.iter().map(|&[ns, share]| (bucket(ns), share * 1e4)).collect();
        shares.retain(|(_, share)| *share >= 1.0);
        let (first, last) = (shares.first()?.0, shares.last()?.0);
        // The report leaves out empty buckets, but the script needs them.
        let each =
            (first..=last).map(|at| shares.iter().find(|(bucket, _)| *bucket == at).map_or(0.0, |it| it.1.round()));
        Some((f64::from(first), Json::list(each)))
    };
    let of = |(index, arm): (usize, &Option<ArmResult>)| {
        let (first, shares) = spread(arm.as_ref()?.latency.as_ref()?)?;
        Some(Json::List(vec![Json::Number(index as f64), first.into(), shares]))
    };
    let spreads: Vec<Json> = row.arms.iter().enumerate().filter_map(of).collect();
    (!spreads.is_empty()).then(|| figures.draw("latencies", [row.label.as_str().into(), Json::List(spreads)]))
}

/// Returns the number of a bucket. There are twelve buckets per doubling.
fn bucket(ns: f64) -> i32 {
    (ns.log2() * Latency::PER_DOUBLING).round() as i32
}

/// Renders a change for a narrow cell: the estimate, and its interval on a line of its own.
fn change(change: Change, metric: Metric, before: &str) -> String {
    let (estimate, ends) = estimate_and_ends(change, metric);
    format!("<small>{before}{estimate}</small>{ends}")
}

/// Returns the estimate of a change as text, and its interval as an element, empty if there is none.
pub fn estimate_and_ends(change: Change, metric: Metric) -> (String, String) {
    let told = interval(change, metric);
    let (estimate, ends) = told.split_at(told.find('[').unwrap_or(told.len()));
    let ends = if ends.is_empty() { String::new() } else { format!("<small>{}</small>", escape(ends)) };
    (escape(estimate.trim_end()), ends)
}

/// Renders the cells of a row: each arm's figure, its change, and the change at the end of the run.
fn cells(row: &Row, metric: Metric) -> String {
    let cell = |(index, arm): (usize, &Option<ArmResult>)| {
        let Some(arm) = arm else { return "<td>-</td>".into() };
        let change = arm.change.map_or(String::new(), |change| self::change(change, metric, ""));
        let thread = if row.threads_arm == Some(index) { "<small>the thread&#39;s</small>" } else { "" };
        let again = row.again(index).and_then(|again| again.change);
        let again = again.map_or(String::new(), |change| self::change(change, metric, "at the end "));
        format!("<td>{}{change}{again}{thread}</td>", escape(figure(arm.value, metric)))
    };
    row.arms.iter().enumerate().map(cell).collect()
}

/// Renders the further figures of the best-known row: time, switches, latencies, and the arms' own counters.
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

fn instructions(report: &ExperimentReport, figures: &mut Figures) -> String {
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
        let _ = write!(html, "<tr><th><code>{}</code></th>", escape(row.point.short()));
        for index in 0..report.arms.len() {
            let gain = row.gain_percent(index).filter(|_| index > 0);
            let gain = gain.map_or(String::new(), |gain| format!("<small>{gain:+.1} % I/O per instruction</small>"));
            let count = row.net(index).map_or("-".into(), |count| format!("{count:.1}"));
            let _ = write!(html, "<td>{count}{gain}</td>");
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</tbody></table></div>\n");
    report.instructions.iter().for_each(|row| html.push_str(&functions(report, row, figures)));
    html
}

/// Largest number of functions that are listed at a point.
const FUNCTIONS: usize = 16;

/// Adds the table of a point's instructions in each function: the functions in which arms differ, the rest, and the
/// sum, so that the columns can be added up. The last row has the cache lines fetched.
fn functions(report: &ExperimentReport, row: &InstructionRow, figures: &mut Figures) -> String {
    // Other arms are shown by their difference from the first arm, if the first was counted.
    let first = |values: &[Option<f64>]| values.first().copied().flatten();
    let against = first(&row.per_io).is_some();
    let line = |name: String, values: &[Option<f64>]| {
        let base = first(values).filter(|_| against).unwrap_or(0.0);
        let less = |(at, value): (usize, &Option<f64>)| {
            let value = value.map(|value| if at > 0 { value - base } else { value });
            Json::from(value.map(|value| (value * 10.0).round() / 10.0))
        };
        let cells = values.iter().enumerate().map(less);
        Json::list([name.into()].into_iter().chain(cells))
    };
    let listed = &row.functions[..row.functions.len().min(FUNCTIONS)];
    let mut rows: Vec<Json> = listed.iter().map(|it| line(short_name(&it.name), &it.per_io)).collect();
    let rest = |(arm, all): (usize, &Option<f64>)| {
        let of = |function: &crate::report::FunctionRow| function.per_io.get(arm).copied().flatten().unwrap_or(0.0);
        all.map(|all| all - listed.iter().map(of).sum::<f64>())
    };
    rows.push(line("all other functions".into(), &row.per_io.iter().enumerate().map(rest).collect::<Vec<_>>()));
    rows.push(line("all functions".into(), &row.per_io));
    if row.way.iter().any(|way| *way != 0.0) {
        let name = "of these the way that is the experiment's own (taken out above)".to_owned();
        let way = |way: &f64| Json::Text(format!("{way:.1}"));
        rows.push(Json::list([name.into()].into_iter().chain(row.way.iter().map(way))));
    }
    let lines = row.lines_per_io.iter().map(|lines| Json::from(lines.map(|lines| format!("{lines:.2}"))));
    rows.push(Json::list(["lines fetched into a first-level cache of 32 KiB".into()].into_iter().chain(lines)));
    let how = if against { ", against the first arm" } else { "" };
    let summary = format!("What differs between the arms at {}, by function{how}", row.point.short());
    let head = ["Instructions per I/O in"].into_iter().chain(report.arms.iter().map(|arm| arm.name));
    figures.draw("table", [summary.into(), Json::list(head), against.into(), Json::List(rows)])
}

/// Renders a sweep: the metric and its change next to each other, and the figures behind them.
fn sweep(sweep: &SweepReport, figures: &mut Figures) -> String {
    let SweepReport { title, axis, metric, rows, .. } = sweep;
    let cell = |arm: &ArmResult| {
        let mut cell: Vec<Json> = vec![arm.value.into(), arm.range[0].into(), arm.range[1].into()];
        if let Some(change) = arm.change {
            cell.push(Json::percent(change.percent));
            if change.is_measurable() {
                cell.extend([Json::percent(change.low), Json::percent(change.high)]);
            }
        }
        Json::List(cell)
    };
    let row = |row: &Row| {
        let cells = row.arms.iter().map(|arm| arm.as_ref().map_or(Json::Null, cell));
        Json::List(vec![row.label.as_str().into(), row.x.into(), row.point.short().into(), Json::list(cells)])
    };
    let along = if axis.unit.is_empty() { axis.label.into() } else { format!("{} ({})", axis.label, axis.unit) };
    let lie = match axis.scale {
        AxisScale::Linear => 0u32,
        AxisScale::Log2 => 1,
        AxisScale::Categories => 2,
    };
    let parts = [
        Json::List(vec![metric.label.into(), metric.title().into(), metric.in_points().into()]),
        Json::List(vec![axis.label.into(), along.into(), lie.into()]),
        Json::list(rows.iter().map(row)),
    ];
    format!("<h3>{}</h3>\n{}", escape(title), figures.draw("sweep", parts))
}

/// Renders the checks. Checks with the same text and figures for several arms share a line.
fn checks(report: &ExperimentReport) -> String {
    if report.checks.is_empty() {
        return String::new();
    }
    let mut told: Vec<(&Check, &str, Vec<&str>)> = Vec::new();
    for check in &report.checks {
        let (arm, what) = of_arm(report, &check.name);
        let same = told.iter_mut().find(|(other, rest, arms)| {
            !arms.is_empty() && arm.is_some() && *rest == what && (other.ok, &other.detail) == (check.ok, &check.detail)
        });
        match same {
            Some((_, _, arms)) => arms.extend(arm),
            None => told.push((check, what, arm.into_iter().collect())),
        }
    }
    let passed = report.checks.iter().filter(|check| check.ok).count();
    let mut html = format!(
        "<h3>Checked before anything was timed: {passed} of {} passed</h3>\n<ul class=\"checks\">\n",
        report.checks.len()
    );
    for (check, what, arms) in told {
        let (class, word) = if check.ok { ("", "") } else { (" class=\"no\"", "FAILED: ") };
        let (arms, what, detail) = (escape(arms.join(", ")), prose(what), prose(&check.detail));
        let _ = writeln!(html, "<li{class}>{word}{arms}{what} <i>({detail})</i></li>");
    }
    html.push_str("</ul>\n");
    html
}

/// Splits the name of a check into the arm that it begins with, if any, and the rest.
fn of_arm<'a>(report: &ExperimentReport, name: &'a str) -> (Option<&'static str>, &'a str) {
    let rest = |arm: &'static str| Some((arm, name.strip_prefix(arm).filter(|rest| rest.starts_with([':', ',']))?));
    match report.arms.iter().find_map(|arm| rest(arm.name)) {
        Some((arm, rest)) => (Some(arm), rest),
        None => (None, name),
    }
}

/// Renders the commands that repeat the rows of the published table and the counting of instructions. The commands of
/// sweeps are shown with the figures of the sweeps.
fn commands(report: &ExperimentReport) -> String {
    let mut html = String::from(
        "<details><summary>Commands that repeat the rows of the thread&#39;s table</summary>\n<table><tbody>\n",
    );
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
    // One command is enough, because the others differ only in the name of the arm and in the point.
    let commands = report.instructions.iter().flat_map(|row| report.arms.iter().zip(&row.commands));
    if let Some((arm, command)) = commands.into_iter().find(|(_, command)| !command.is_empty()) {
        line(&format!("instructions of {}; of other arms and points with their names", arm.name), command);
    }
    html.push_str("</tbody></table></details>\n");
    html
}
