//! Unit tests: what a run makes of failing steps and of tests that skip themselves.

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
    assert!(!report.finish());
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
    assert!(!report.finish());
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
    assert!(report.finish());
    let _ = std::fs::remove_file(log);
}
