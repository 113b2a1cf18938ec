//! The steps of a long run, each with a heading, wall time and CPU time. A summary with all failures and the counts
//! follows at the end. CPU time is shown because it is nearly the same on a machine that is busy with other work.
//!
//! Invariants:
//! - I1: the last line is `N passed, N failed, N skipped`, with 0 failed only if every step succeeded.
//! - I2: a test that skipped itself counts as skipped, and its reason is in the summary.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::counts::Counts;

struct Step {
    name: &'static str,
    took: Duration,
    cpu: Duration,
    failure: Option<String>,
}

pub struct Report {
    started: Instant,
    steps: Vec<Step>,
    counts: Counts,
    fail_fast: bool,
    skip_log: PathBuf,
}

impl Report {
    /// Makes a run without steps. Empties `skip_log`, the file in which tests record their reasons for skipping.
    pub fn new(fail_fast: bool, skip_log: PathBuf) -> Self {
        let _ = std::fs::remove_file(&skip_log);
        Self { started: Instant::now(), steps: Vec::new(), counts: Counts::default(), fail_fast, skip_log }
    }

    /// Runs one step under its heading. A failure is kept for the summary. After a failure, a run with `fail_fast`
    /// skips the further steps.
    pub fn step(&mut self, name: &'static str, work: impl FnOnce(&mut Counts) -> Result<()>) {
        if self.fail_fast && self.failed() {
            return;
        }
        println!("\n=== {name} (at {})", seconds(self.started.elapsed()));
        let (started, cpu) = (Instant::now(), cpu_time());
        let mut counts = Counts::default();
        let failure = work(&mut counts).err().map(|error| format!("{error:#}"));
        if let Some(failure) = &failure {
            println!("--- {name}: FAILED: {failure}");
            counts.failed = counts.failed.max(1); // a step that fails without a failed test counts as one failure (I1)
        }
        self.counts += counts;
        let cpu = cpu_time().saturating_sub(cpu);
        self.steps.push(Step { name, took: started.elapsed(), cpu, failure });
    }

    fn failed(&self) -> bool {
        self.steps.iter().any(|step| step.failure.is_some())
    }

    /// Prints the summary. Returns the counts if every step succeeded.
    pub fn finish(mut self) -> Option<Counts> {
        let log = std::fs::read_to_string(&self.skip_log).unwrap_or_default();
        self.counts.skipped_themselves(log.lines().count() as u64);
        println!("\n=== summary ({}, {} of CPU)", seconds(self.started.elapsed()), seconds(cpu_time()));
        println!("{:>8}  {:>8}  {:>8}  step", "", "wall", "CPU");
        for step in &self.steps {
            let verdict = if step.failure.is_some() { "FAILED" } else { "ok" };
            println!("{verdict:>8}  {:>8}  {:>8}  {}", seconds(step.took), seconds(step.cpu), step.name);
        }
        print!("{log}");
        for step in &self.steps {
            if let Some(failure) = &step.failure {
                println!("FAILED: {}: {failure}", step.name);
            }
        }
        println!("{}", self.counts);
        (!self.failed()).then_some(self.counts)
    }
}

/// Returns the CPU time of this process and of all descendants that were waited for.
fn cpu_time() -> Duration {
    cpu_time_in(&std::fs::read_to_string("/proc/self/stat").unwrap_or_default())
}

/// Returns the sum of fields 14 to 17 of `/proc/PID/stat`: user and system time of the process and of its children.
/// Parsing starts after the last `) `, because the program's name in the second field may contain spaces.
fn cpu_time_in(stat: &str) -> Duration {
    /// Number of ticks per second in all times that the kernel shows to user space (`USER_HZ`).
    const TICKS: u64 = 100;
    let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
    let ticks: u64 = fields.split(' ').skip(11).take(4).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 1000 / TICKS)
}

fn seconds(time: Duration) -> String {
    format!("{:.1}s", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    fn report(name: &str, fail_fast: bool) -> Report {
        Report::new(fail_fast, std::env::temp_dir().join(format!("sheave-report-{}-{name}", std::process::id())))
    }

    #[test]
    fn a_failed_step_fails_the_run_and_the_others_still_run() {
        let mut report = report("gather", false);
        let mut ran = false;
        report.step("bad", |_| bail!("broken"));
        report.step("good", |counts| {
            ran = true;
            counts.passed = 3;
            Ok(())
        });
        assert!(ran);
        assert_eq!(report.counts, Counts { passed: 3, failed: 1, skipped: 0 });
        assert!(report.finish().is_none());
    }

    #[test]
    fn fail_fast_runs_nothing_after_a_failure() {
        let mut report = report("fast", true);
        report.step("bad", |counts| {
            counts.failed = 2;
            bail!("broken")
        });
        report.step("good", |_| panic!("must not run"));
        assert_eq!(report.counts.failed, 2, "the failed tests, not one more");
        assert!(report.finish().is_none());
    }

    #[test]
    fn skips_in_the_log_are_not_passes() {
        let mut report = report("skips", false);
        let log = report.skip_log.clone();
        report.step("tests", |counts| {
            std::fs::write(&log, "SKIPPED: a: no fio\nSKIPPED: b: no fio\n")?;
            counts.passed = 5;
            Ok(())
        });
        assert!(report.finish().is_some());
        let _ = std::fs::remove_file(log);
    }

    #[test]
    fn cpu_time_is_that_of_the_process_and_of_its_children() {
        let stat = "1234 (a ) name) S 1 2 3 4 5 6 7 8 9 10 250 50 1000 100 20 0 1 0 99999";
        assert_eq!(cpu_time_in(stat), Duration::from_secs(14));
        assert_eq!(cpu_time_in(""), Duration::ZERO);
    }

    #[test]
    fn what_a_child_has_used_is_counted() {
        let before = cpu_time();
        let mut busy = std::process::Command::new("sh");
        let status = busy.args(["-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"]).status();
        assert!(status.is_ok_and(|status| status.success()));
        assert!(cpu_time() > before, "a loop that takes longer than a tick of 10 ms");
    }
}
