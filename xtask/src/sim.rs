//! `cargo xtask sim`: runs of the crash simulator.
//!
//! Owns the nightly size: so many crashes of pools with checksums, and as many of pools without. Everything else goes
//! to the program `sheave-sim` (`crates/sim/src/main.rs`), which is built in the release profile with the assertions of
//! the dev profile: many crashes, and nothing looked over.

use anyhow::Result;

use crate::cargo::{self, cargo};

/// Crashes of the nightly task.
const NIGHTLY: &str = "100000";

/// The command.
pub fn main(args: &[String]) -> Result<()> {
    for args in runs(args) {
        let mut run = cargo(["run", "--quiet", "--release", "-p", "sheave-sim", "--"]);
        run.args(args).env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true");
        run.env("CARGO_TARGET_DIR", crate::workspace::root().join("target/sim"));
        cargo::run(run)?;
    }
    Ok(())
}

/// The arguments of the program, run by run.
fn runs(args: &[String]) -> Vec<Vec<String>> {
    let has = |wanted: &str| args.iter().any(|arg| arg == wanted);
    if !has("--nightly") {
        return vec![args.to_vec()];
    }
    let size = ["--points", NIGHTLY].map(str::to_string);
    let others = || args.iter().filter(|arg| *arg != "--nightly").cloned().chain(size.clone());
    let kinds = ["--checksum", "--no-checksum"];
    if kinds.iter().any(|kind| has(kind)) {
        return vec![others().collect()];
    }
    kinds.map(|kind| others().chain([kind.to_string()]).collect()).to_vec()
}

#[cfg(test)]
mod tests;
