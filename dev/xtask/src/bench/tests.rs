//! Tests of making rows from reports, of parsing counts, and of replacing a section of the page.

use std::time::Duration;

use super::counts::{parse_calls, parse_children, parse_instructions};
use super::page::replace;
use super::*;

const REPORT: &str = r#"{ "device": "null", "iops": 40000000.7, "ns_per_io": 25, "cpu_ns_per_io" : 2.5e1,
    "p99_ns":31, "compare": { "name": "kernel", "iops": 17000000, "cpu_ns_per_io": 58.8, "ratio_iops": 2.345,
    "ratio_cpu": 0.4, "ratio_iops_range": [ 2.1,
    2.5 ] } }"#;

#[test]
fn a_report_becomes_a_row() {
    let row = table::row("null: --poll", REPORT).expect("complete");
    assert_eq!(
        row,
        "| `null: --poll` | 40.0M | 25.0 ns | 25.0 ns | 31.0 ns | 17.0M | 58.8 ns | 2.35 (2.10 to 2.50) | 0.40 |"
    );
    assert_eq!(table::heading().lines().count(), 2);
    assert_eq!(row.matches('|').count(), table::heading().lines().last().expect("rule").matches('|').count());
}

#[test]
fn a_row_has_the_intervals_that_a_report_has() {
    let report = REPORT.replace("2.5 ] }", "2.5 ], \"ratio_iops_95\": [2.2, 2.41], \"ratio_cpu_95\":[0.39,0.4125] }");
    let row = table::row("x", &report).expect("complete");
    assert!(row.ends_with("| 2.35 (2.10 to 2.50; 95 %: 2.200 to 2.410) | 0.40 (95 %: 0.390 to 0.412) |"), "{row}");
    // Too few pairs for an interval.
    let none = REPORT.replace("2.5 ] }", "2.5 ], \"ratio_iops_95\": null, \"ratio_cpu_95\": null }");
    assert_eq!(table::row("x", &none).expect("complete"), table::row("x", REPORT).expect("complete"));
}

#[test]
fn without_a_comparison_its_cells_are_empty() {
    let alone = REPORT.split("\"compare\"").next().expect("a part");
    let row = table::row("x", alone).expect("complete");
    assert!(row.ends_with("| 31.0 ns | | | | |"), "{row}");
    assert_eq!(row.matches('|').count(), table::heading().lines().last().expect("rule").matches('|').count());
}

#[test]
fn an_incomplete_report_is_an_error() {
    assert!(table::row("x", "{\"iops\": 1}").is_err());
    assert!(table::row("x", &REPORT.replace("ratio_cpu", "gone")).is_err());
    assert_eq!(table::number("{\"iops\": \"many\"}", "iops"), None);
}

#[test]
fn statistics_are_compared_turn_by_turn() {
    let row = table::statistics_row("x", vec![30.0, 20.0, 40.0], vec![29.0, 18.0, 36.0]);
    assert_eq!(row, "| `x` | 30.0 ns | 29.0 ns | 2.0 ns |");
    assert_eq!(table::median(vec![4.0, 1.0]), 2.5);
    assert_eq!(table::median(Vec::new()), 0.0);
}

#[test]
fn requests_are_read_from_what_fio_prints() {
    let fields = |from: usize, values: &str| {
        let mut all = vec!["0"; 130];
        all[0] = "3";
        values.split(' ').enumerate().for_each(|(at, value)| all[from + at] = value);
        all.join(";")
    };
    assert_eq!(nbd::terse(&fields(5, "4000 2000 500 2000"), false), Some((1000.0, 2.0)));
    assert_eq!(nbd::terse(&format!("words\n{}", fields(46, "800 400 100 1000")), true), Some((200.0, 1.0)));
    assert_eq!(nbd::terse(&fields(46, "800 400 100 1000"), false), None);
}

#[test]
fn counts_are_read() {
    assert_eq!(parse_instructions("x\n==12== I   refs:      44,389,419\n"), Some(44_389_419));
    assert_eq!(parse_instructions("==12== nothing\n"), None);
    let calls = "  0.00   0.000000    0     2       prlimit64\n100.00   0.003443   23   148     1 total\n";
    assert_eq!(parse_calls(calls), Some(148));
    assert_eq!(parse_calls("strace: gone\n"), None);
    let stat = "12 (a ) b) S 1 12 12 0 -1 4194560 1 2 0 0 7 8 150 25 20 0 1 0 1 2 3";
    assert_eq!(parse_children(stat), Some(Duration::from_millis(1750)));
    assert_eq!(parse_children("12"), None);
}

#[test]
fn a_section_of_the_page_is_replaced() {
    let page = "a\n<!-- bench:x -->\nold\n<!-- /bench -->\nb\n<!-- bench:y -->\n<!-- /bench -->\n";
    let new = replace(page, "x", "| new |\n").expect("there");
    assert_eq!(new, page.replace("old\n", "\n| new |\n\n"));
    assert_eq!(replace(page, "z", ""), None);
    assert_eq!(replace("<!-- bench:x -->\n<!-- bench:y -->\n<!-- /bench -->\n", "x", ""), None, "no end of its own");
}

#[test]
fn the_pages_have_every_section_and_no_other() {
    let pages = ["README.md", "docs/reference/performance.md"];
    let text = |page| std::fs::read_to_string(workspace::root().join(page)).expect("it is there");
    for section in SECTIONS {
        assert!(pages.contains(&section.page()), "{}", section.name);
        assert!(replace(&text(section.page()), section.name, "").is_some(), "{}", section.name);
    }
    let markers: usize = pages.iter().map(|page| text(page).matches("<!-- bench:").count()).sum();
    assert_eq!(markers, SECTIONS.len());
}

#[test]
fn a_headline_has_a_few_words_and_the_ratios() {
    let row = table::headline("x; beside y", "null:", REPORT).expect("complete");
    assert_eq!(row, "| x; beside y | 40.0M IOPS | 17.0M | 2.35 | 0.40 | `null:` |");
    assert_eq!(row.matches('|').count(), table::HEADLINES.lines().last().expect("rule").matches('|').count());
    assert!(table::headline("x", "null:", "{\"iops\": 1}").is_err(), "nothing beside it");
}

#[test]
fn sections_are_chosen_by_name() {
    let args = |list: &[&str]| list.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>();
    let some = args(&["null", "ram", "--runtime", "1s"]);
    let options = parse(&some).expect("known");
    assert_eq!(options.sections.iter().map(|section| section.name).collect::<Vec<_>>(), ["null", "ram"]);
    assert_eq!((options.runtime, options.write), ("1s", false));
    assert_eq!(parse(&args(&["--write"])).expect("all").sections.len(), SECTIONS.len());
    assert!(parse(&args(&["nul"])).is_err_and(|error| error.to_string().contains("null|")));
    assert!(parse(&args(&["--runtime"])).is_err());
    let turns = args(&["peers", "--rounds", "1"]);
    assert_eq!(parse(&turns).expect("known").rounds, Some(1));
    for wrong in [&["--rounds"][..], &["--rounds", "0"], &["--rounds", "x"]] {
        assert!(parse(&args(wrong)).is_err_and(|error| error.to_string().contains("--rounds N")), "{wrong:?}");
    }
}

#[test]
fn what_qemu_io_is_told_is_as_many_writes_as_counted_inside_the_image() {
    for (alone, flushes) in [(false, 7), (true, 0)] {
        let text = peers::qemu_io(alone, 1 << 20, 100);
        let lines: Vec<&str> = text.lines().collect();
        let writes: Vec<&&str> = lines.iter().filter(|line| line.contains("write -q ")).collect();
        assert_eq!((writes.len(), lines.len() - writes.len()), (100, flushes));
        assert_eq!(lines.last() == Some(&"aio_flush"), !alone, "the last ones end, too");
        let mut places = std::collections::BTreeSet::new();
        for line in writes {
            let at: u64 = line.split(' ').nth(2).expect("a place").parse().expect("a number");
            assert!(at & 4095 == 0 && at < 1 << 20 && line.ends_with(" 4k"), "{line}");
            places.insert(at);
        }
        assert!(places.len() > 64, "{} of 256 places by 100 writes", places.len());
    }
}

#[test]
fn every_aim_is_of_a_case() {
    assert_eq!(counts::AIMS.len(), 8);
    for (_, _, name, less) in counts::AIMS {
        assert!(counts::case_words(name).is_ok() && (less.is_empty() || counts::case_words(less).is_ok()), "{name}");
    }
}
