//! Tests of failing steps, and of tests that skip themselves.

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
