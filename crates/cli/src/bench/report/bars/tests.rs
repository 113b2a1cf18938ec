//! Tests of the drawing.

use super::*;
use sheave_load::live::report_histogram;

#[test]
fn nothing_draws_nothing() {
    assert_eq!(draw(&report_histogram()), "");
}

#[test]
fn rows_are_doublings_and_lose_nothing() {
    let mut latency = report_histogram();
    for (ns, count) in [(100, 900), (1000, 90), (100_000, 10), (5_000_000, 1)] {
        latency.record_n(ns, count).expect("within range");
    }
    let rows = rows(&latency);
    assert_eq!(rows.iter().map(|row| row.1).sum::<u64>(), latency.len());
    assert_eq!(rows[0].0, 128);
    let text = draw(&latency);
    assert!(text.contains("89.9"), "{text}");
    assert!(text.lines().last().is_some_and(|line| line.ends_with('.')), "{text}");
}
