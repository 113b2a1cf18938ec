//! Counting the instructions of a program with valgrind's cachegrind: the command, and what it says.
//!
//! Owns no program and no difference of runs.

use std::path::Path;
use std::process::Command;

/// What comes before the program.
const OPTIONS: [&str; 3] = ["--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"];

/// The command, with the valgrind at this place; program and arguments are to follow.
pub fn command(valgrind: &Path) -> Command {
    let mut command = Command::new(valgrind);
    command.args(OPTIONS);
    command
}

/// The count in what valgrind says: `==1== I refs:        1,234,567`, or with more spaces before `refs`.
pub fn refs(said: &str) -> Option<u64> {
    let line = said.lines().find(|line| line.contains("I refs:") || line.contains("I   refs:"))?;
    line.rsplit(':').next()?.trim().replace(',', "").parse().ok()
}
