//! Tests of the formatting of figures and lines.

use super::*;

const SHARE: Metric = Metric { name: "share", label: "share of CPU time", unit: "%", more_is_better: false };

#[test]
fn figures_have_three_digits() {
    let shown = [0.0, 1.234, 12.34, 999.4, 999.6, 180_000.0, 999_600.0, 3_111_520.0, 115.1e6, 2e13]
        .map(|value| figure(value, Metric::IOPS));
    assert_eq!(shown, ["0", "1.23", "12.3", "999", "1.00k", "180k", "1.00M", "3.11M", "115M", "20.0T"]);
    assert_eq!((figure(38.86, SHARE), figure(f64::NAN, SHARE)), ("38.9 %".into(), "-".into()));
}

#[test]
fn changes_say_their_unit() {
    let change = Change { percent: 9.82, low: 9.14, high: 10.46 };
    assert_eq!(interval(change, Metric::IOPS), "+9.8 % [9.1, 10.5]");
    let few = Change { low: f64::NAN, high: f64::NAN, ..change };
    assert_eq!((interval(few, Metric::IOPS), told(Some(few))), ("not measurable".into(), "not measurable".into()));
    assert_eq!(told(Some(change)), "+9.8 % (+9.1 to +10.5)");
    assert_eq!(signed(-1.49, SHARE), "-1.5 points");
}

#[test]
fn paragraphs_hang() {
    let mut text = String::new();
    paragraph(&mut text, "  claim: ", &"word ".repeat(40));
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines.len() == 3 && lines[0].starts_with("  claim: word") && lines[1].starts_with("         word"),
        "{text}"
    );
    assert!(lines.iter().all(|line| line.len() <= PAGE), "{text}");
}

#[test]
fn the_run_says_whether_this_machine_can_tell() {
    let mut report = crate::html::tests::report();
    for experiment in &mut report.experiments {
        experiment.headline[0].control.clear();
    }
    let mut said = |ratios: &[f64]| {
        report.experiments[0].headline[0].control = ratios.to_vec();
        let (last, page) = (closing(&report), crate::html::page(&report));
        let tables = crate::markdown::page(&report);
        let told = ["this machine can tell 2 %", "this machine cannot tell 2 %"];
        report.same_arms_twice = same_arms(&report);
        let json = crate::stored::text(&report).expect("JSON");
        assert_eq!(json.contains("\"tells\":true"), json.contains(told[0]), "{json}");
        told.map(|told| [&last, &page, &tables, &json].into_iter().filter(|text| text.contains(told)).count())
    };
    assert_eq!(said(&[1.019, 0.981, 1.0, 1.0, 1.0, 1.0, 0.99, 1.01]), [4, 0]);
    assert_eq!(said(&[1.05, 0.95, 1.0, 1.0, 1.0, 1.0, 0.99, 1.01]), [0, 4], "wider than 2 %");
    assert_eq!(said(&[1.002, 1.001, 1.003, 1.001, 1.002, 1.001, 1.004, 1.001]), [0, 4], "narrow, without zero");
    assert_eq!(said(&[1.0; 5]), [0, 4], "too few rounds for an interval");
    assert_eq!(said(&[]), [0, 4], "no control at all");
}

#[test]
fn a_slide_names_the_point_of_its_instructions_where_it_is_another() {
    let mut report = crate::html::tests::report();
    let fake = &mut report.experiments[0];
    let said = |fake: &ExperimentReport| slide(fake, Holds::Yes);
    assert!(said(fake).contains(", instructions +20.0 %, "), "{}", said(fake));
    let point = fake.instructions[0].point.clone();
    fake.instructions[0].point = point.clone().with("fail", "no");
    assert!(said(fake).contains(", instructions at fail=no +20.0 %, "), "{}", said(fake));
    // Instructions at a point with other I/Os are not shown.
    fake.instructions[0].point.depth = 1;
    assert!(!said(fake).contains("instructions"), "{}", said(fake));
}
