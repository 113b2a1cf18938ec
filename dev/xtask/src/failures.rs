//! Names and reasons of failed tests, parsed from the output of cargo test and cargo nextest, for the summary.
//!
//! Owns [`Failures`]. `cargo` passes it each line of a test run's output. The summary names the failed tests for
//! readers who see only the end of a long run.

use std::fmt;

use crate::counts::strip_ansi;

/// Length of the longest reason that is kept, in characters.
const LONGEST: usize = 300;

/// Largest number of failures that are named. The others are counted.
const MOST: usize = 20;

/// Failed tests of one run, each with the start of its panic message.
#[derive(Debug, Default)]
pub struct Failures {
    tests: Vec<Failure>,
    /// True if the next line is the message of a panic.
    in_panic: bool,
}

#[derive(Debug)]
struct Failure {
    name: String,
    why: String,
}

impl Failures {
    /// Parses a line of output, and keeps the name or the reason of a failed test if it has one.
    pub fn read_line(&mut self, line: &str) {
        let line = strip_ansi(line);
        let line = line.trim();
        if self.in_panic {
            // The message may begin with an empty line.
            self.in_panic = line.is_empty();
            if !line.is_empty() {
                self.explain(line);
            }
        } else if let Some(name) = failed_test(line) {
            if self.tests.iter().all(|test| test.name != name) {
                self.tests.push(Failure { name: name.into(), why: String::new() });
            }
        } else if let Some((_, place)) = line.split_once(" panicked at ") {
            self.in_panic = self.explain(place);
        } else if let Some((_, report)) = line.split_once("ERROR: ")
            && report.contains("Sanitizer: ")
        {
            self.tests.push(Failure { name: "a sanitizer".into(), why: String::new() });
            self.explain(report);
        }
    }

    /// Appends words to the reason of the last failed test, unless that reason is complete. Returns true if it appended
    /// them.
    fn explain(&mut self, words: &str) -> bool {
        let Some(test) = self.tests.last_mut().filter(|test| test.why.is_empty() || test.why.ends_with(':')) else {
            return false;
        };
        let space = if test.why.is_empty() { "" } else { " " };
        test.why.extend(space.chars().chain(words.chars()).take(LONGEST));
        true
    }
}

/// Returns the name in a line that reports a failed test.
fn failed_test(line: &str) -> Option<&str> {
    if let Some(name) = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----")) {
        return Some(name); // cargo test
    }
    let (verdict, rest) = line.split_once(" [")?; // nextest: "FAIL [   0.004s] (1/3) sheave-vol pool::tests::name"
    let failed = ["FAIL", "TIMEOUT", "ABORT", "LEAK-FAIL"].contains(&verdict) || verdict.starts_with("SIG");
    let (_, name) = rest.split_once(']').filter(|_| failed)?;
    let name = name.trim();
    Some(if name.starts_with('(') { name.split_once(')')?.1.trim() } else { name })
}

impl fmt::Display for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for test in self.tests.iter().take(MOST) {
            write!(f, "\n  {}: {}", test.name, if test.why.is_empty() { "no panic was printed" } else { &test.why })?;
        }
        match self.tests.len().saturating_sub(MOST) {
            0 => Ok(()),
            others => write!(f, "\n  and {others} others"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(output: &str) -> String {
        let mut failures = Failures::default();
        output.lines().for_each(|line| failures.read_line(line));
        failures.to_string()
    }

    #[test]
    fn cargo_test() {
        let output = "running 2 tests\n..\nfailures:\n\n---- pool::tests::opens stdout ----\n\n\
        thread 'pool::tests::opens' (7) panicked at crates/vol/src/pool/tests.rs:3:5:\n\
        assertion `left == right` failed: a size\n  left: 1\n right: 2\nnote: run with `RUST_BACKTRACE=1`\n\n\
        ---- quiet stdout ----\nError: \"no space\"\n\nfailures:\n    pool::tests::opens\n    quiet\n\n\
        test result: FAILED. 0 passed; 2 failed; 0 ignored";
        let expected = "\n  pool::tests::opens: crates/vol/src/pool/tests.rs:3:5: assertion `left == right` failed: a \
            size\n  quiet: no panic was printed";
        assert_eq!(read(output), expected);
    }

    #[test]
    fn nextest_names_a_failure_twice() {
        let output = "        FAIL [   0.004s] (1/3) sheave-vol pool::tests::opens\n  stderr ───\n\n\
        thread 'pool::tests::opens' (7) panicked at src/lib.rs:3:5:\n\nno pool\n\
        \u{1b}[31;1m     TIMEOUT\u{1b}[0m [ 120.0s] sheave-sim rot\n     Summary [ 0.1s] 3 tests run: 1 passed\n\
        \x20       FAIL [   0.004s] (1/3) sheave-vol pool::tests::opens";
        let expected =
            "\n  sheave-vol pool::tests::opens: src/lib.rs:3:5: no pool\n  sheave-sim rot: no panic was printed";
        assert_eq!(read(output), expected);
    }

    #[test]
    fn a_panic_that_a_test_expects_is_nobodys_failure() {
        assert_eq!(read("thread 'x' panicked at a.rs:1:1:\nexpected\ntest result: ok. 1 passed; 0 failed"), "");
    }

    #[test]
    fn sanitizers() {
        let output = "==7==ERROR: AddressSanitizer: heap-use-after-free on address 0x50 at pc 0x55\n#0 0x55";
        assert_eq!(read(output), "\n  a sanitizer: AddressSanitizer: heap-use-after-free on address 0x50 at pc 0x55");
    }

    #[test]
    fn many_failures_do_not_fill_the_summary() {
        let output: String = (0..25).map(|n| format!("---- test_{n} stdout ----\n")).collect();
        assert!(read(&output).ends_with("and 5 others"));
    }
}
