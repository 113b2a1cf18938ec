//! `cargo xtask sim`: runs of the crash simulator.
//!
//! Owns the nightly size. Everything else goes to the program `sheave-sim` (`crates/sim/src/main.rs`), which is built
//! in the release profile with the assertions of the dev profile: many crashes, and nothing looked over.

use anyhow::Result;

use crate::cargo::{self, cargo};

/// Crashes of the nightly task.
const NIGHTLY: &str = "100000";

/// The command.
pub fn main(args: &[String]) -> Result<()> {
    let mut run = cargo(["run", "--quiet", "--release", "-p", "sheave-sim", "--"]);
    run.args(arguments(args)).env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true");
    run.env("CARGO_TARGET_DIR", crate::workspace::root().join("target/sim"));
    cargo::run(run)
}

/// The arguments of the program.
fn arguments(args: &[String]) -> Vec<String> {
    let mut all = Vec::new();
    for arg in args {
        match arg.as_str() {
            "--nightly" => all.extend(["--points".to_string(), NIGHTLY.to_string()]),
            other => all.push(other.to_string()),
        }
    }
    all
}

#[cfg(test)]
mod tests;
