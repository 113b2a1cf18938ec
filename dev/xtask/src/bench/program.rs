//! The measured `sheave`: the release build, run in the root of the repository.

use std::process::Command;

use anyhow::{Result, ensure};

use crate::{cargo, workspace};

/// Makes a command `sheave bench` with these arguments, in the root of the repository.
pub fn sheave(row: &str) -> Command {
    let mut command = Command::new(workspace::target_dir().join("release/sheave"));
    command.current_dir(workspace::root()).arg("bench").args(row.split(' '));
    command
}

/// Runs `sheave bench` with these arguments and returns its JSON.
pub fn run(row: &str, more: &[&str]) -> Result<String> {
    let mut command = sheave(row);
    command.args(more).args(["--json", "--progress", "none"]);
    let shown = cargo::show(&command);
    let (json, errors, success) = cargo::capture(command)?;
    ensure!(success, "{shown} failed:\n{errors}");
    Ok(json)
}
