//! The steps of a long run: a heading and a time each, failures gathered, and a summary that ends with the counts.
//!
//! Invariants:
//! - I1: the last line is `N passed, N failed, N skipped`, and it says 0 failed only if every step succeeded.
//! - I2: a test that skipped itself counts as skipped, and its reason is in the summary.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::counts::Counts;

struct Step {
    name: &'static str,
    took: Duration,
    failure: Option<String>,
}

/// A run in progress.
pub struct Report {
    started: Instant,
    steps: Vec<Step>,
    counts: Counts,
    fail_fast: bool,
    skip_log: PathBuf,
}

impl Report {
    /// A run with no steps yet; tests write why they skip to `skip_log`, which is emptied first.
    pub fn new(fail_fast: bool, skip_log: PathBuf) -> Self {
        let _ = std::fs::remove_file(&skip_log);
        Self { started: Instant::now(), steps: Vec::new(), counts: Counts::default(), fail_fast, skip_log }
    }

    /// Runs one step under its heading; a failure is kept for the summary, unless the run is to fail fast.
    pub fn step(&mut self, name: &'static str, work: impl FnOnce(&mut Counts) -> Result<()>) {
        if self.fail_fast && self.failed() {
            return;
        }
        println!("\n=== {name} (at {})", seconds(self.started.elapsed()));
        let started = Instant::now();
        let mut counts = Counts::default();
        let failure = work(&mut counts).err().map(|error| format!("{error:#}"));
        if let Some(failure) = &failure {
            println!("--- {name}: FAILED: {failure}");
            counts.failed = counts.failed.max(1); // a step that fails without a failed test is itself one failure
        }
        self.counts += counts;
        self.steps.push(Step { name, took: started.elapsed(), failure });
    }

    fn failed(&self) -> bool {
        self.steps.iter().any(|step| step.failure.is_some())
    }

    /// Prints the summary; true if every step succeeded.
    pub fn finish(mut self) -> bool {
        let log = std::fs::read_to_string(&self.skip_log).unwrap_or_default();
        self.counts.skipped_themselves(log.lines().count() as u64);
        println!("\n=== summary ({})", seconds(self.started.elapsed()));
        for step in &self.steps {
            let verdict = if step.failure.is_some() { "FAILED" } else { "ok" };
            println!("{verdict:>8}  {:>8}  {}", seconds(step.took), step.name);
        }
        print!("{log}");
        for step in &self.steps {
            if let Some(failure) = &step.failure {
                println!("FAILED: {}: {failure}", step.name);
            }
        }
        println!("{}", self.counts);
        !self.failed()
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.1}s", time.as_secs_f64())
}

#[cfg(test)]
mod tests;
