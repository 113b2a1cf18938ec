//! Tests of the summary lines of both runners, as they print them.

use super::*;

fn read(lines: &[&str]) -> Counts {
    let mut counts = Counts::default();
    lines.iter().for_each(|line| counts.read_line(line));
    counts
}

#[test]
fn cargo_test_lines_add_up() {
    let counts = read(&[
        "running 3 tests",
        "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 7 filtered out; finished in 0.11s",
        "test result: FAILED. 2 passed; 4 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.11s",
    ]);
    assert_eq!(counts, Counts { passed: 5, failed: 4, skipped: 1 });
}

#[test]
fn nextest_lines_add_up() {
    let counts = read(&[
        "     Summary [   0.005s] 3 tests run: 3 passed (1 slow), 2 skipped",
        "     Summary [ 301.005s] 9/12 tests run: 5 passed, 1 failed, 2 timed out, 1 exec failed, 0 skipped",
    ]);
    assert_eq!(counts, Counts { passed: 8, failed: 4, skipped: 0 });
}

#[test]
fn colours_do_not_hide_a_summary() {
    let bold = |text: &str| format!("\x1b[32;1m{text}\x1b[0m");
    let (summary, one, passed) = (bold("Summary"), bold("1"), bold("passed"));
    let counts = read(&[&format!("     {summary} [   0.005s] {one} test run: {one} {passed}, 0 skipped")]);
    assert_eq!(counts, Counts { passed: 1, failed: 0, skipped: 0 });
}

#[test]
fn other_lines_count_nothing() {
    assert_eq!(read(&["test a ... ok", "5 passed", "error: test run failed", ""]), Counts::default());
}

#[test]
fn a_test_that_skipped_itself_did_not_pass() {
    let mut counts = Counts { passed: 3, failed: 0, skipped: 1 };
    counts.skipped_themselves(2);
    assert_eq!(counts.to_string(), "1 passed, 0 failed, 3 skipped");
    counts.skipped_themselves(9);
    assert_eq!(counts.passed, 0, "never below zero");
}
