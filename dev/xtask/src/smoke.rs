//! Smoke tests of the release binary: a few commands with known exit codes and output.
//!
//! Owns the list of commands. The tests of `crates/cli` run the debug build; these do not replace them.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail, ensure};

use crate::cargo;
use crate::counts::Counts;

/// A command line with its expected outcome.
struct Smoke {
    args: &'static [&'static str],
    exit: Exit,
    /// Words that the output must contain: standard error if the command must fail, otherwise standard output.
    says: &'static [&'static str],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exit {
    Success,
    Failure,
    /// Either outcome is allowed, because it depends on the machine.
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
mod tests {
    use super::*;

    const SH: &str = "/bin/sh";

    fn smoke(args: &'static [&'static str], exit: Exit, says: &'static [&'static str]) -> Result<()> {
        check(Path::new(SH), &Smoke { args, exit, says })
    }

    #[test]
    fn the_right_exit_code_and_words_pass() {
        assert!(smoke(&["-c", "echo sheave 0.1"], Exit::Success, &["sheave 0."]).is_ok());
        assert!(smoke(&["-c", "echo no such file >&2; exit 2"], Exit::Failure, &["no such file"]).is_ok());
        assert!(smoke(&["-c", "echo fix; exit 1"], Exit::Any, &["fix"]).is_ok());
    }

    #[test]
    fn each_wrong_answer_fails() {
        assert!(smoke(&["-c", "exit 1"], Exit::Success, &[]).is_err(), "must succeed");
        assert!(smoke(&["-c", "exit 0"], Exit::Failure, &[]).is_err(), "must fail");
        assert!(smoke(&["-c", "echo a"], Exit::Success, &["b"]).is_err(), "lacks words");
        assert!(
            smoke(&["-c", "echo why; exit 1"], Exit::Failure, &["why"]).is_err(),
            "a reason belongs on standard error"
        );
        assert!(smoke(&["-c", "echo thread x panicked at y >&2; exit 101"], Exit::Failure, &["y"]).is_err(), "a panic");
    }
}
