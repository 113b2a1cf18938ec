//! Counts of tests, parsed from the summary lines of cargo test and cargo nextest.
//!
//! Owns [`Counts`]. `cargo` passes each line of a test run's output to [`Counts::read_line`].

use std::fmt;
use std::ops::AddAssign;

/// Numbers of tests for each outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    pub passed: u64,
    /// Number of tests that failed, timed out or could not be started.
    pub failed: u64,
    /// Number of tests that were ignored or that skipped themselves.
    pub skipped: u64,
}

impl Counts {
    /// Adds the counts in `line`, if it is a summary line.
    pub fn read_line(&mut self, line: &str) {
        let line = strip_ansi(line);
        if let Some((_, list)) = line.split_once("test result: ") {
            self.add_list(list, ';'); // cargo test: "ok. 3 passed; 0 failed; 1 ignored; ..."
        } else if let Some((head, list)) = line.split_once(" run: ")
            && head.trim_start().starts_with("Summary")
        {
            self.add_list(list, ','); // nextest: "Summary [ 0.1s] 3 tests run: 3 passed (1 slow), 1 skipped"
        }
    }

    fn add_list(&mut self, list: &str, separator: char) {
        for item in list.split(separator) {
            let item = item.trim().trim_start_matches("ok. ").trim_start_matches("FAILED. ");
            let Some((number, what)) = item.split_once(' ') else {
                continue;
            };
            let Ok(number) = number.parse::<u64>() else { continue };
            match what.split(" (").next().unwrap_or(what).trim() {
                "passed" => self.passed += number,
                "failed" | "timed out" | "exec failed" => self.failed += number,
                "ignored" => self.skipped += number,
                _ => {} // measured and filtered out, and nextest's "skipped", which are tests outside the filter
            }
        }
    }

    /// Moves `number` tests from passed to skipped: they passed by skipping themselves.
    pub fn skipped_themselves(&mut self, number: u64) {
        let number = number.min(self.passed);
        self.passed -= number;
        self.skipped += number;
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// Returns `line` without the escape sequences of colours.
pub fn strip_ansi(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    let mut chars = line.chars();
    while let Some(char) = chars.next() {
        if char == '\x1b' {
            chars.by_ref().find(char::is_ascii_alphabetic);
        } else {
            plain.push(char);
        }
    }
    plain
}

#[cfg(test)]
mod tests {
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
}
