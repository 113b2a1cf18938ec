//! Counts the instructions of a program with valgrind's cachegrind: the command, and the parser of its output.
//!
//! Does not choose the programs, nor compute differences between runs.

use std::path::Path;
use std::process::Command;

/// Arguments before the program.
const OPTIONS: [&str; 3] = ["--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"];

/// Returns the command with the valgrind at this path. Program and arguments are to be added.
pub fn command(valgrind: &Path) -> Command {
    let mut command = Command::new(valgrind);
    command.args(OPTIONS);
    command
}

/// Returns the count in valgrind's output: `==1== I refs:        1,234,567`, or with more spaces before `refs`.
pub fn refs(said: &str) -> Option<u64> {
    let line = said.lines().find(|line| line.contains("I refs:") || line.contains("I   refs:"))?;
    line.rsplit(':').next()?.trim().replace(',', "").parse().ok()
}
