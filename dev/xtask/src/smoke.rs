//! Smoke tests of the release binary: a few commands with known exit codes and output.
//!
//! Owns the list of commands. The tests of `crates/cli` run the debug build, and these do not replace them.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail, ensure};

use crate::cargo;
use crate::counts::Counts;

/// A command line with its expected outcome.
struct Smoke {
    args: &'static [&'static str],
    exit: Exit,
    /// Words that the output must contain: standard error if the command must fail, else standard output.
    says: &'static [&'static str],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exit {
    Success,
    Failure,
    /// Depends on the machine.
    Any,
}

const SMOKES: &[Smoke] = &[
    Smoke { args: &["--version"], exit: Exit::Success, says: &["sheave 0."] },
    Smoke { args: &["bench", "--help"], exit: Exit::Success, says: &["--compare", "--verify", "--json"] },
    Smoke { args: &["doctor"], exit: Exit::Any, says: &["io_uring", "memlock", "clock"] },
    Smoke {
        args: &["bench", "null:size=1G", "--rw", "randread", "--bs", "512", "--ios", "100k", "--poll", "--json"],
        exit: Exit::Success,
        says: &["\"iops\":", "\"ns_per_io\":", "\"p999_ns\":", "\"errors\":"],
    },
    Smoke {
        args: &["bench", "ram:size=16M", "--rw", "randrw", "--bs", "4k", "--ios", "20k", "--verify", "--json"],
        exit: Exit::Success,
        says: &["\"iops\":", "\"errors\":"],
    },
    Smoke { args: &["lab", "all"], exit: Exit::Failure, says: &["sheave-lab", "cargo xtask lab all"] },
    Smoke { args: &["bench", "file:/nonexistent/x"], exit: Exit::Failure, says: &["/nonexistent/x"] },
    Smoke { args: &["bench", "nosuchdriver:"], exit: Exit::Failure, says: &["nosuchdriver"] },
];

pub fn run(binary: &Path, counts: &mut Counts) -> Result<()> {
    let mut failures = Vec::new();
    for smoke in SMOKES {
        let line = format!("sheave {}", smoke.args.join(" "));
        match check(binary, smoke) {
            Ok(()) => {
                counts.passed += 1;
                println!("ok      {line}");
            }
            Err(error) => {
                counts.failed += 1;
                println!("FAILED  {line}: {error:#}");
                failures.push(line);
            }
        }
    }
    ensure!(failures.is_empty(), "{} of {} commands failed", failures.len(), SMOKES.len());
    Ok(())
}

fn check(binary: &Path, smoke: &Smoke) -> Result<()> {
    let mut command = Command::new(binary);
    command.args(smoke.args);
    let (stdout, stderr, success) = cargo::capture(command)?;
    let expected = if success { Exit::Success } else { Exit::Failure };
    if smoke.exit != Exit::Any && smoke.exit != expected {
        bail!("must end in {:?}, ended in {expected:?}:\n{stdout}{stderr}", smoke.exit);
    }
    ensure!(!stderr.contains("panicked at"), "it panicked:\n{stderr}");
    let said = if smoke.exit == Exit::Failure { &stderr } else { &stdout };
    for words in smoke.says {
        ensure!(said.contains(words), "its output lacks `{words}`:\n{stdout}{stderr}");
    }
    Ok(())
}

#[cfg(test)]
mod tests;
