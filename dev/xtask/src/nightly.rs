//! `cargo xtask nightly`: the checks that take too long for CI, with new seeds each time, for about three hours.
//!
//! Owns the list of long steps. Some are checks that `test` leaves out (the address sanitizer over all crates and
//! tests, the optimized build of the lab), the others repeat checks of `test` for longer. Run this before a release,
//! and after a change to the code that the steps check.

use std::process::exit;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};

use crate::asan::Extent;
use crate::counts::Counts;
use crate::report::Report;
use crate::{api, asan, budgets, cargo, fuzz, lab, models, sim, stress, workspace};

/// Number of random schedules of each model: ten times as many as most models have in CI.
const SCHEDULES: u64 = 200_000;
const FUZZ_SECONDS: &str = "1200";
const RANDOM_SECONDS: u64 = 3600;
const STRESS_MINUTES: &str = "30";

/// A step: its name, and its function, which gets the number of this round.
type Step = (&'static str, fn(u64, &mut Counts) -> Result<()>);

const STEPS: &[Step] = &[
    ("address sanitizer, everything", |round, counts| asan::run(&Extent::All { round }, counts)),
    ("model checks, for longer", |_, counts| models::run(&workspace::members()?, Some(SCHEDULES), counts)),
    ("first build of rings alone", |_, _| api::first_build()),
    ("instructions of packages", |_, _| budgets::main(&[])),
    ("the lab, optimized", |_, counts| lab::smoke(counts)),
    ("crash simulator", |_, _| sim::main(&["--nightly".to_owned()])),
    ("fuzzers", |_, _| fuzz::main(&["--seconds", FUZZ_SECONDS].map(str::to_owned))),
    ("soak of the daemon", |_, _| soak()),
    ("failover", |_, _| failover()),
    ("guests on vhost-user", |_, counts| guests(counts)),
    ("random programs of safe code, sanitized", |_, counts| asan::random(RANDOM_SECONDS, counts)),
    ("stress", |_, _| stress::main(&["--minutes", STRESS_MINUTES].map(str::to_owned))),
];

pub fn main(args: &[String]) -> Result<()> {
    let steps = chosen(args)?;
    // The round is the current time, so it was never used before. Tests derive seeds of their own from it.
    let round = SystemTime::now().duration_since(UNIX_EPOCH).context("a clock before 1970")?.as_secs();
    let mut report = Report::new(false, workspace::skip_log());
    for (name, run) in steps {
        report.step(name, |counts| run(round, counts));
    }
    if report.finish().is_none() {
        exit(1); // without a message: the counts must be the last line
    }
    Ok(())
}

/// Returns the steps whose names begin with one of `words`, in the order of the list, or all steps if there are no
/// words.
fn chosen(words: &[String]) -> Result<Vec<Step>> {
    let names = || STEPS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join("\n  ");
    for word in words {
        let known = STEPS.iter().any(|(name, _)| name.starts_with(word.as_str()));
        ensure!(known, "no step of the nightly run begins with `{word}`: it has these\n  {}", names());
    }
    let wanted = |name: &str| words.is_empty() || words.iter().any(|word| name.starts_with(word.as_str()));
    Ok(STEPS.iter().filter(|(name, _)| wanted(name)).copied().collect())
}

/// Runs the failover test with twenty owners of a pool on Ceph that are killed or stopped. CI has three.
fn failover() -> Result<()> {
    let mut command = cargo::cargo(["test", "-p", "sheave-cli", "--test", "command", "failover", "--", "--nocapture"]);
    command.env("SHEAVE_FAILOVER_ROUNDS", "20");
    cargo::run(command)
}

/// Runs the tests of Linux guests on vhost-user disks, of our server and of qemu-storage-daemon. CI has one of them.
fn guests(counts: &mut Counts) -> Result<()> {
    let mut command = cargo::cargo(["test", "-p", "sheave-cli", "--test", "command", "vhost_guest::", "--"]);
    command.args(["--include-ignored", "--test-threads", "1"]);
    cargo::run_tests(command, counts)
}

/// Runs the daemon, its clients and its control for two minutes, with twenty kills. CI has ten seconds of it.
fn soak() -> Result<()> {
    let mut command = cargo::cargo(["test", "-p", "sheave-cli", "--test", "command", "soak", "--", "--nocapture"]);
    command.env("SHEAVE_SOAK_SECONDS", "120");
    cargo::run(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(words: &[&str]) -> Result<Vec<&'static str>> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        Ok(chosen(&words)?.into_iter().map(|(name, _)| name).collect())
    }

    #[test]
    fn all_steps_run_or_those_that_are_named() {
        assert_eq!(names(&[]).unwrap().len(), STEPS.len());
        // The steps are in the order of the list, whatever the order of the words is.
        assert_eq!(names(&["stress", "soak"]).unwrap(), ["soak of the daemon", "stress"]);
        let error = names(&["fuzzers", "sok"]).unwrap_err().to_string();
        assert!(error.contains("`sok`") && error.contains("\n  soak of the daemon"), "{error}");
    }
}
