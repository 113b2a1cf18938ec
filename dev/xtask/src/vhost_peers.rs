//! Builds and tests `dev/vhost-peers`, a workspace of its own: back-ends and message handlers on the crates of
//! rust-vmm.
//!
//! Owns the target directory. Called by `bench`, which measures the back-ends, and by `test`.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::cargo::{self, cargo};
use crate::counts::Counts;
use crate::workspace;

fn target_dir() -> PathBuf {
    workspace::target_dir().join("vhost-peers")
}

fn command(words: &[&str]) -> Command {
    let mut command = cargo(words);
    command.args(["--quiet", "--locked", "--manifest-path", "dev/vhost-peers/Cargo.toml", "--target-dir"]);
    command.arg(target_dir());
    command
}

/// Builds the back-ends.
pub fn build() -> Result<()> {
    cargo::run(command(&["build", "--release"]))
}

/// Returns the path of a back-end.
pub fn program(name: &str) -> PathBuf {
    target_dir().join("release").join(name)
}

/// Lints the package, and runs its tests, which read the messages of `dev/vhost-front` with the crate `vhost`.
pub fn test(counts: &mut Counts) -> Result<()> {
    let mut clippy = command(&["clippy", "--all-targets"]);
    clippy.args(["--", "-D", "warnings"]);
    cargo::run(clippy)?;
    cargo::run_tests(command(&["test"]), counts)
}
