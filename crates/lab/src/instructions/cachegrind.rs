//! Counting the instructions of a program with valgrind's cachegrind: the command, and what it says.
//!
//! Owns no program and no difference of runs. Shared, as a file, by `sheave-lab` and by `tests/budgets`, so that both
//! count alike; it names nothing but the standard library.

use std::path::Path;
use std::process::Command;

/// The command in front of the program's own, as one would type it.
pub const WORDS: [&str; 4] = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"];

/// The command, with the valgrind at this place; program and arguments are to follow.
pub fn command(valgrind: &Path) -> Command {
    let mut command = Command::new(valgrind);
    command.args(&WORDS[1..]);
    command
}

/// The count in what valgrind says: `==1== I refs:        1,234,567`, or with more spaces before `refs`.
pub fn refs(said: &str) -> Option<u64> {
    let line = said.lines().find(|line| line.contains("I refs:") || line.contains("I   refs:"))?;
    line.rsplit(':').next()?.trim().replace(',', "").parse().ok()
}
