//! Counts of tests, parsed from the summary lines of cargo test and cargo nextest.
//!
//! Owns [`Counts`]. `cargo` passes each line of a test run's output to [`Counts::read_line`].

use std::fmt;
use std::ops::AddAssign;

/// Numbers of tests by outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    pub passed: u64,
    /// Tests that failed, timed out or could not be started.
    pub failed: u64,
    /// Tests that were ignored, or that skipped themselves.
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
mod tests;
