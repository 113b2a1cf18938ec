//! The page of an experiment without I/O: its text is escaped, its tags match, it needs nothing from elsewhere.

use std::time::Duration;

use super::*;
use crate::fake::{FAKE, lab};

use crate::model::counted::Counted;
use crate::report::{Curve, ExperimentReport, FunctionRow, InstructionRow, Known, Part, Predicted, Prediction, Row};
use crate::run::{Plan, Show, Sweeps, run};
use crate::turns::Pace;

struct Silent;

impl Show for Silent {
    fn begin(&mut self, _: &ExperimentReport) {}
    fn part(&mut self, _: &ExperimentReport, _: &Part<'_>) {}
    fn row(&mut self, _: &Part<'_>, _: &Row) {}
    fn instructions(&mut self, _: &ExperimentReport, _: &InstructionRow) {}
    fn end(&mut self, _: &ExperimentReport) {}
    fn progress(&mut self, _: Duration, _: Duration, _: &str) {}
}

/// Everything a page can have.
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

/// Fails at the first tag that does not close the one that is open.
fn assert_balanced(html: &str) {
    let empty = ["!DOCTYPE", "meta", "br", "line", "polyline", "polygon", "circle", "path"];
    let mut open: Vec<String> = Vec::new();
    let body = format!("{}{}", &html[..html.find("<style>").unwrap()], &html[html.find("</style>").unwrap() + 8..]);
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
        "(prediction)",
        "dashed",
        "a &lt;large&gt; machine",
        "2.500",
        "MISSED",
    ] {
        assert!(page.contains(word), "the page lacks {word}");
    }
    assert!(page.contains("<code>sheave-lab fake --point bs=512,"), "the command of a row");
}

#[test]
fn the_page_needs_no_network_and_no_script() {
    let page = page(&report());
    for loads in ["<script", "<img", "<link", "<iframe", "src=", "url(", "@import", "javascript:"] {
        assert!(!page.contains(loads), "the page has {loads}");
    }
    // The only addresses are links to the threads.
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
