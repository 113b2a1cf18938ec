//! Unit tests: a report becomes a row of the table.

use super::*;

const REPORT: &str = r#"{ "device": "null", "iops": 40000000.7, "ns_per_io": 25, "cpu_ns_per_io" : 2.5e1,
    "p99_ns":31, "compare": { "name": "kernel", "ratio_iops": 2.345, "ratio_cpu": 0.4 } }"#;

#[test]
fn a_report_becomes_a_row() {
    let row = table_row("null: --poll", REPORT).expect("complete");
    assert_eq!(row, "| `null: --poll` | 40000001 | 25.0 | 25.0 | 31 | 2.35 | 0.40 |");
    assert_eq!(heading().lines().count(), 2);
    assert_eq!(row.matches('|').count(), heading().lines().last().expect("rule").matches('|').count());
}

#[test]
fn without_a_comparison_its_cells_are_empty() {
    let alone = REPORT.split("\"compare\"").next().expect("a part");
    assert!(table_row("x", alone).expect("complete").ends_with("| 31 |  |  |"));
}

#[test]
fn an_incomplete_report_is_an_error() {
    assert!(table_row("x", "{\"iops\": 1}").is_err());
    assert_eq!(number("{\"iops\": \"many\"}", "iops"), None);
}
