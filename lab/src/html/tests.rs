//! Tests of the page of an experiment without I/O: its text is escaped, its tags match, and it loads nothing. Running
//! the script under node tests its drawings.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::*;
use crate::fake::{FAKE, lab};

use crate::model::counted::Counted;
use crate::report::{Curve, ExperimentReport, FunctionRow, InstructionRow, Known, Part, Predicted, Prediction, Row};
use crate::run::{Plan, Show, Sweeps, run};
use crate::terms::Metric;
use crate::turns::Pace;

pub(crate) struct Silent;

impl Show for Silent {
    fn begin(&mut self, _: &ExperimentReport) {}
    fn part(&mut self, _: &ExperimentReport, _: &Part<'_>) {}
    fn row(&mut self, _: &Part<'_>, _: &Row) {}
    fn instructions(&mut self, _: &ExperimentReport, _: &InstructionRow) {}
    fn end(&mut self, _: &ExperimentReport) {}
    fn progress(&mut self, _: Duration, _: Duration, _: &str) {}
}

/// Makes a report with everything that a page can show.
pub(crate) fn report() -> LabReport {
    let plan = Plan {
        experiments: vec![&FAKE, &FAKE],
        pace: Pace { rounds: 2, turn: Duration::from_millis(10) },
        sweeps: Sweeps::All,
        instructions: false,
        point: None,
        peer: None,
        command: "sheave-lab fake --html '<p>.html'".into(),
        options: String::new(),
    };
    let mut report = run(&plan, &lab(), &mut Silent).unwrap();
    let fake = &mut report.experiments[0];
    let point = fake.headline[0].point.clone();
    fake.instructions.push(InstructionRow {
        point,
        per_io: vec![Some(300.0), Some(250.0)],
        commands: vec!["valgrind a".into(), "valgrind b".into()],
        lines_per_io: vec![Some(3.0), Some(2.5)],
        functions: vec![FunctionRow { name: "malloc<&T>".into(), per_io: vec![Some(50.0), Some(0.0)] }],
        way: vec![0.0; 2],
    });
    let point = |cores, middle| Predicted { cores, low: middle / 1.4, middle, high: middle * 1.4 };
    fake.predictions.push(Prediction {
        machine: "a <large> machine".into(),
        assumes: "That <nothing> changes.".into(),
        inputs: vec![("a line that moves".into(), 40.0, "ns")],
        curves: vec![Curve { arm: "after".into(), points: vec![point(1, 1.5e3), point(2, 3e3), point(512, 6e5)] }],
        counts: vec![Counted { arm: "after".into(), threads: 512, ios: 10, transfers: 25, ..Counted::default() }],
        published: vec![Known { arm: "after".into(), cores: 80, iops: 1e5, used: false }],
        against: vec!["published 2, predicted 3: MISSED".into()],
        not_shown: None,
    });
    report
}

/// Fails at the first tag that does not close the innermost open one.
fn assert_balanced(html: &str) {
    let empty = ["!DOCTYPE", "meta", "br", "line", "polyline", "polygon", "circle", "path"];
    let mut open: Vec<String> = Vec::new();
    let mut body = html.to_owned();
    for (from, to) in [("<style>", "</style>"), ("<script", "</script>"), ("<script", "</script>")] {
        if let Some((at, end)) = body.find(from).and_then(|at| Some((at, body[at..].find(to)? + at))) {
            body.replace_range(at..end + to.len(), "");
        }
    }
    for part in body.split('<').skip(1) {
        let (tag, _) = part.split_once('>').unwrap_or_else(|| panic!("a tag without an end: {part}"));
        let name = tag.trim_start_matches('/').split([' ', '/', '\n']).next().unwrap();
        if tag.starts_with('/') {
            let last = open.pop();
            assert_eq!(last.as_deref(), Some(name), "</{name}> closes it, near {part:.60}");
        } else if !tag.ends_with('/') && !empty.contains(&name) {
            open.push(name.to_owned());
        }
    }
    assert_eq!(open, Vec::<String>::new());
}

#[test]
fn the_page_is_whole() {
    let page = page(&report());
    assert_balanced(&page);
    for word in [
        "Nothing &lt;at&gt; all",
        "nothing -a &amp; -b",
        "That &lt;nothing&gt; changes.",
        "a &lt;large&gt; machine",
        "MISSED",
        "1 of 1 passed",
    ] {
        assert!(page.contains(word), "the page lacks {word}");
    }
    // `<` in a function's name is escaped, so that it cannot end the element.
    assert!(page.contains("malloc\\u003c&T>") && page.matches("</script>").count() == 2);
    assert!(page.contains("<code>sheave-lab fake --point bs=512,"), "the command of a row");
}

#[test]
fn the_page_needs_no_network() {
    let page = page(&report());
    let loads = ["<img", "<link", "<iframe", "src=", "url(", "@import", "import(", "javascript:", "fetch(", "XMLHttp"];
    for loads in loads {
        assert!(!page.contains(loads), "the page has {loads}");
    }
    // The only addresses are links to mailing-list threads.
    for (at, _) in page.match_indices("http") {
        assert!(page[..at].ends_with("href=\"") && page[at..].starts_with("https://lore.kernel.org/r/"));
    }
}

#[test]
fn nothing_that_is_not_a_number_is_drawn() {
    let mut report = report();
    for row in &mut report.experiments[0].sweeps[0].rows {
        row.arms[1] = None;
    }
    report.experiments[1].sweeps[0].rows.clear();
    report.experiments[1].headline.clear();
    let page = page(&report);
    assert_balanced(&page);
    for bad in ["NaN", "inf\"", "inf,", "-inf"] {
        assert!(!page.contains(bad), "the page has {bad}");
    }
}

#[test]
fn an_interrupted_run_says_so() {
    let page = page(&LabReport { interrupted: true, ..report() });
    assert!(page.contains("Interrupted: what is missing was not measured."));
}

/// Runs the script of a page like a browser does, and prints the page with its drawings. Then runs the code in the
/// argument, and prints its result instead if it returns one.
const BROWSER: &str = r#"
const page = require('fs').readFileSync(0, 'utf8');
const data = page.match(/<script type="application\/json" id="data">(.*?)<\/script>/s)[1];
const script = page.match(/<script>\n(.*)<\/script>/s)[1];
const drawn = {};
globalThis.document = { getElementById: id => {
  if (id === 'data') return { textContent: data };
  if (page.split(`<div id="${id}"></div>`).length !== 2) throw new Error(`no place for ${id}, or several`);
  return drawn[id] = {};
} };
const said = new Function(script + '\n' + process.argv[1])();
const text = page.slice(0, page.indexOf('<script type'));
const whole = text.replace(/<div id="(f\d+)"><\/div>/g, (place, id) => `<div>${drawn[id].innerHTML}</div>`);
process.stdout.write(said === undefined ? whole + '</body></html>' : said.join('|'));
"#;

/// Returns the output of the script under node, or `None` if node is not installed.
fn by_node(page: &str, more: &str) -> Option<String> {
    let node = sheave_testkit::require("node")?;
    let mut command = Command::new(node);
    command.args(["-e", BROWSER, "--", more]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("node starts");
    child.stdin.take().expect("a pipe").write_all(page.as_bytes()).expect("node reads");
    let output = child.wait_with_output().expect("node ends");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).expect("text"))
}

#[test]
fn the_script_draws_what_was_measured() {
    let mut report = report();
    let clear = |low| Some(crate::report::Change { percent: 50.0, low, high: 51.0 });
    report.experiments[0].headline[0].arms[1].as_mut().expect("measured").change = clear(49.0);
    for row in &mut report.experiments[0].sweeps[0].rows {
        row.arms[1].as_mut().expect("measured").change = clear(48.5);
    }
    let Some(drawn) = by_node(&page(&report), "") else { return };
    assert_balanced(&drawn);
    for told in [
        "<title>after, QD 1: +50.0 %</title>",
        "<title>after (instructions), QD 1: +20.0 %</title>",
        "<title>published, QD 1: +10.0 %</title>",
        "<title>before, 4: 1.00k</title>",
        "<title>after, 4: +50.0 % [48.5, 51.0]</title>",
        "<td>1.50k<small>+50.0 % [48.5, 51.0]</small></td>",
        "<code>sheave-lab fake --point depth=4</code>",
        "Latencies of each arm, QD 1",
        "<th>malloc&#60;&#38;T&#62;</th><td>50</td><td>-50.0</td>",
        "<th>all other functions</th><td>250</td><td></td>",
        "<th>all functions</th><td>300</td><td>-50.0</td>",
        "after (prediction)",
        "<title>after, 80 cores: published 100k</title>",
        "<tr><th>after</th><td>512</td><td>2.5</td>",
    ] {
        assert!(drawn.contains(told), "{told} is not drawn");
    }
    for bad in ["NaN", "Infinity", "undefined", "null"] {
        assert!(!drawn.contains(bad), "{bad} is drawn");
    }
}

/// Makes a report in which the second arm of the first experiment changes clearly by `percent` in every row.
fn changed(percent: f64) -> LabReport {
    let mut report = report();
    let clear = Some(crate::report::Change { percent, low: percent - 1.0, high: percent + 1.0 });
    let experiment = &mut report.experiments[0];
    let sweeps = experiment.sweeps.iter_mut().flat_map(|sweep| &mut sweep.rows);
    for row in experiment.headline.iter_mut().chain(sweeps) {
        row.arms[1].as_mut().expect("measured").change = clear;
    }
    report
}

#[test]
fn what_is_not_measurable_has_no_mark_on_a_plot() {
    let mut report = changed(50.0);
    let arm = report.experiments[0].headline[0].arms[1].as_mut().expect("measured");
    arm.change = arm.change.map(crate::report::Change::blinded);
    let page = page(&report);
    assert!(page.contains("<td>1.50k<small>not measurable</small></td>"));
    let Some(drawn) = by_node(&page, "") else { return };
    assert!(!drawn.contains("<title>after, QD 1: "), "a table says that it is not measurable");
    assert!(drawn.contains("<title>published, QD 1: +10.0 %</title>"), "the rest is drawn");
}

#[test]
fn every_experiment_is_on_the_plot_of_all() {
    let mut report = changed(50.0);
    // A share changes by percentage points, which do not fit on the axis of relative changes.
    let shares = &mut report.experiments[1];
    shares.metric = Metric { name: "share", label: "share of CPU time", unit: "%", more_is_better: false };
    let change = Some(crate::report::Change { percent: -16.1, low: -19.1, high: -15.0 });
    shares.headline[0].arms[1].as_mut().expect("measured").change = change;
    let Some(drawn) = by_node(&page(&report), "") else { return };
    let summary = &drawn[..drawn.find("<section").expect("sections")];
    assert!(summary.contains("<title>after, fake, QD 1: +50.0 %</title>"), "{summary}");
    assert!(summary.contains("<title>after, fake, QD 1: -16.1 points</title>"), "{summary}");
}

#[test]
fn an_effect_that_another_arm_hides_has_a_plot_of_its_own() {
    let mut report = changed(2.0);
    let experiment = &mut report.experiments[0];
    let what = "Hides the others.";
    experiment.arms.push(crate::terms::ArmInfo { name: "no bio", role: Role::Other, what });
    for row in &mut experiment.sweeps[0].rows {
        row.arms.push(row.arms[1].clone());
    }
    let own = "The same change of after alone, at its own scale";
    let plots = |report: &LabReport, percent: f64| {
        let mut report = report.clone();
        let change = Some(crate::report::Change { percent, low: percent - 1.0, high: percent + 1.0 });
        for row in &mut report.experiments[0].sweeps[0].rows {
            row.arms[2].as_mut().expect("measured").change = change;
        }
        by_node(&page(&report), "").map(|drawn| drawn.matches(own).count())
    };
    let Some(hidden) = plots(&report, 480.0) else { return };
    assert_eq!((hidden, plots(&report, 5.0)), (1, Some(0)));
}

#[test]
fn the_script_draws_what_is_there_when_much_is_missing() {
    let mut report = report();
    for row in &mut report.experiments[0].sweeps[0].rows {
        row.arms[1] = None;
        row.arms[0].as_mut().expect("measured").range = [f64::NAN; 2];
    }
    report.experiments[0].headline[0].published = None;
    report.experiments[0].predictions[0].curves.clear();
    report.experiments[0].instructions[0].per_io = vec![None, Some(2.0)];
    report.experiments[1].sweeps[0].rows.clear();
    report.experiments[1].headline.clear();
    let Some(drawn) = by_node(&page(&report), "") else { return };
    assert_balanced(&drawn);
    for bad in ["NaN", "Infinity", "undefined", "null"] {
        assert!(!drawn.contains(bad), "{bad} is drawn");
    }
}

#[test]
fn the_script_tells_figures_as_the_tables_do() {
    let values =
        [0.0, 0.004, 1.234, 12.34, 99.94, 99.96, 999.4, 999.6, 180_000.0, 999_600.0, 3.11e6, -4.5, -1.2e7, 2e13];
    let page = page(&report());
    let of = |call: &str| by_node(&page, &format!("return {values:?}.map(value => {call});"));
    let ours = |how: &dyn Fn(f64) -> String| values.map(how).join("|");
    let Some(figures) = of("figure(value, false)") else { return };
    assert_eq!(figures, ours(&|value| crate::table::figure(value, Metric::IOPS)));
    assert_eq!(of("signed(value, false)"), Some(ours(&|value| signed(value, Metric::IOPS))));
    let interval = |value| crate::report::Change { percent: value, low: value - 0.3, high: value + 0.3 };
    let expected = ours(&|value| crate::table::interval(interval(value), Metric::IOPS));
    assert_eq!(of("told([value, value - .3, value + .3], false)"), Some(expected));
    assert_eq!(of("time(Math.abs(value))"), Some(ours(&|value| words::time(value.abs()))));
}

#[test]
fn the_axes_of_the_script_hold_what_is_drawn_on_them() {
    let page = page(&report());
    let Some(said) = by_node(
        &page,
        "return [roundTicks(0, 10, 5), roundTicks(-3, 7, 5), roundTicks(1, 1, 5), \
        logTicks(100, 1e5), logTicks(30, 900), fromZero([3.1, 17.2]), fromZero([]), even(0, 10)(5), log(1, 256)(16), \
        log(1, 1000, true)(0), log(1, 1)(1), slots(4)(3)].map(value => JSON.stringify(value));",
    ) else {
        return;
    };
    let expected = "[0,2,4,6,8,10]|[-2,0,2,4,6]|[1]|[100,1000,10000,100000]|[50,100,200,500]|\
        [0,20,[0,5,10,15,20]]|[0,1,[0,0.2,0.4,0.6000000000000001,0.8,1]]|0.5|0.5|0|0.5|0.875";
    assert_eq!(said, expected);
}

#[test]
fn a_legend_stays_within_its_plot() {
    let more = "return legend(['a', 'b', 'c'].map(name => [name.repeat(30)]), 72, 560, 16)\
        .map(([look, x, row]) => `${look[0][0]} ${Math.round(x)} ${row}`);";
    let Some(said) = by_node(&page(&report()), more) else { return };
    assert_eq!(said, "a 72 0|b 304 0|c 72 1", "30 letters of 6.6, 16 for the mark, 18 to the next");
}

#[test]
fn what_checks_say_of_several_arms_is_said_once() {
    let mut report = report();
    let check = |name: &str, ok, detail: &str| crate::terms::Check { name: name.into(), ok, detail: detail.into() };
    report.experiments[0].checks = vec![
        check("before: data comes back", true, "0 of 4"),
        check("after: data comes back", true, "0 of 4"),
        check("after, batch 1: data comes back", true, "0 of 4"),
        check("before: it ends", true, "3 of 3"),
        check("after: it ends", false, "2 of 3"),
        check("nobody: else", true, "1"),
    ];
    let page = page(&report);
    for line in [
        "5 of 6 passed",
        "<li>before, after: data comes back <i>(0 of 4)</i></li>",
        "<li>after, batch 1: data comes back <i>(0 of 4)</i></li>",
        "<li>before: it ends <i>(3 of 3)</i></li>",
        "<li class=\"no\">FAILED: after: it ends <i>(2 of 3)</i></li>",
        "<li>nobody: else <i>(1)</i></li>",
    ] {
        assert!(page.contains(line), "{line} is not on the page");
    }
}

#[test]
fn numbers_are_as_short_as_what_is_shown_of_them() {
    let values = [0.0, 1024.0, 12.345, 10_987_654.0, 0.000_012_344, -46.64, 345.6, f64::NAN, f64::INFINITY];
    let told = values.map(|value| Json::Number(value).to_string());
    assert_eq!(told, ["0", "1024", "12.3", "1.1e7", "1.23e-5", "-46.6", "346", "null", "null"]);
    let list = Json::list([Json::from("a\"b\\<\n"), Json::Null, Json::percent(1.239), true.into()]);
    assert_eq!(list.to_string(), "[\"a\\\"b\\\\\\u003c\\u000a\",null,1.2,1]");
}
