//! `cargo xtask nightly`: what takes too long for CI, with new seeds each time, for about three hours.
//!
//! Owns the list of long runs. CI runs `test`; this runs what `test` leaves out (the address sanitizer over all crates
//! and tests, the optimized build of the lab) and the same again for longer. It is run before a release, and after a
//! change to what it watches.

use std::process::exit;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};

use crate::asan::Extent;
use crate::report::Report;
use crate::{api, asan, cargo, fuzz, lab, models, sim, stress, workspace};

/// Random schedules of each model: ten times as many as most see in CI.
const SCHEDULES: u64 = 200_000;
const FUZZ_SECONDS: &str = "1200";
const RANDOM_SECONDS: u64 = 3600;
const STRESS_MINUTES: &str = "30";

/// The command.
pub fn main(args: &[String]) -> Result<()> {
    ensure!(args.is_empty(), "usage: cargo xtask nightly");
    // A number never used before: tests draw seeds of their own from it.
    let round = SystemTime::now().duration_since(UNIX_EPOCH).context("a clock before 1970")?.as_secs();
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let mut report = Report::new(false, workspace::skip_log());
    report.step("address sanitizer, everything", |counts| asan::run(&Extent::All { round }, counts));
    report.step("model checks, for longer", |counts| models::run(&workspace::members()?, Some(SCHEDULES), counts));
    report.step("first build of rings alone", |_| api::first_build());
    report.step("the lab, optimized", lab::smoke);
    report.step("crash simulator", |_| sim::main(&words(&["--nightly"])));
    report.step("fuzzers", |_| fuzz::main(&words(&["--seconds", FUZZ_SECONDS])));
    report.step("soak of the daemon", |_| soak());
    report.step("failover", |_| failover());
    report.step("random programs of safe code, sanitized", |counts| asan::random(RANDOM_SECONDS, counts));
    report.step("stress", |_| stress::main(&words(&["--minutes", STRESS_MINUTES])));
    if !report.finish() {
        exit(1); // without a word: the counts are to be the last line
    }
    Ok(())
}

/// Twenty owners of a pool on Ceph that are killed or stopped; CI has three.
fn failover() -> Result<()> {
    let mut command = cargo::cargo(["test", "-p", "sheave-cli", "--test", "command", "failover", "--", "--nocapture"]);
    command.env("SHEAVE_FAILOVER_ROUNDS", "20");
    cargo::run(command)
}

/// The daemon, its clients and its control for two minutes, with twenty kills; CI has ten seconds of it.
fn soak() -> Result<()> {
    let mut command = cargo::cargo(["test", "-p", "sheave-cli", "--test", "command", "soak", "--", "--nocapture"]);
    command.env("SHEAVE_SOAK_SECONDS", "120");
    cargo::run(command)
}
