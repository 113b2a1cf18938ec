//! `cargo xtask sim`: runs of the crash simulator.
//!
//! Owns the size of the nightly run: `NIGHTLY` crashes of pools with checksums, as many of pools without, and as many
//! cuts of upgrades. The program `sheave-sim` (`dev/sim/src/main.rs`) does the rest. It is built in the release profile
//! with the assertions of the dev profile, so that many crashes run with full checking.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::cargo::{self, cargo};

const NIGHTLY: &str = "100000";

pub fn main(args: &[String]) -> Result<()> {
    let target = crate::workspace::root().join("target/sim");
    let mut build = cargo(["build", "--quiet", "--release", "-p", "sheave-sim"]);
    build.env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true").env("CARGO_TARGET_DIR", &target);
    cargo::run(build)?;
    // The runs are made in parallel, because each of them has only one thread at work at a time.
    let mut running = Vec::new();
    for args in runs(args) {
        let mut run = Command::new(target.join("release/sheave-sim"));
        run.args(args);
        let name = cargo::show(&run);
        println!("$ {name}");
        running.push((run.spawn().with_context(|| format!("running `{name}`"))?, name));
    }
    // All runs are waited for before any failure is reported.
    let ended: Vec<_> = running.into_iter().map(|(mut child, name)| (child.wait(), name)).collect();
    for (status, name) in ended {
        ensure!(status.with_context(|| format!("waiting for `{name}`"))?.success(), "`{name}` failed");
    }
    Ok(())
}

/// Returns the arguments of each run of the program.
fn runs(args: &[String]) -> Vec<Vec<String>> {
    let has = |wanted: &str| args.iter().any(|arg| arg == wanted);
    if !has("--nightly") {
        return vec![args.to_vec()];
    }
    let size = ["--tally", "--points", NIGHTLY].map(str::to_string);
    let others = || args.iter().filter(|arg| *arg != "--nightly").cloned().chain(size.clone());
    let kinds = ["--checksum", "--no-checksum"];
    if kinds.iter().any(|kind| has(kind)) {
        return vec![others().collect()];
    }
    let upgrades = ["--handover", NIGHTLY].map(str::to_string).to_vec();
    kinds.map(|kind| others().chain([kind.to_string()]).collect()).into_iter().chain([upgrades]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nightly_is_a_number_of_crashes_with_checksums_and_without_and_of_cut_upgrades() {
        let args = |words: &[&str]| runs(&words.iter().map(ToString::to_string).collect::<Vec<_>>());
        let with = |kind| ["--tally", "--points", NIGHTLY, kind];
        let all = args(&["--nightly"]);
        assert_eq!(all[..2], [with("--checksum"), with("--no-checksum")]);
        assert_eq!(all[2..], [["--handover", NIGHTLY]]);
        assert_eq!(args(&["--nightly", "--no-checksum"]), [["--no-checksum", "--tally", "--points", NIGHTLY]]);
        assert_eq!(args(&["--seed", "7", "--ops", "9"]), [["--seed", "7", "--ops", "9"]]);
    }
}
