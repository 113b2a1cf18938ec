//! `sheave doctor`: checks what this machine, and a path on it, provide for Sheave, and gives advice on what is
//! missing.
//!
//! | module | holds |
//! |---|---|
//! | [`check`] | a check and its result |
//! | [`ring`] | kernel version, io_uring and what forbids it |
//! | [`machine`] | limits, CPUs, clock source |
//! | [`path`] | direct I/O, alignment and polling of a file or device |

mod check;
mod machine;
mod path;
mod ring;
#[cfg(test)]
mod tests;

use std::fmt::Write;
use std::path::PathBuf;

use check::{Check, Verdict};
use serde::Serialize;
use sheave_daemon::failure::Failure;

use crate::args::DoctorArgs;
use crate::output;

/// Result of all checks.
#[derive(Debug, Serialize)]
struct Examination {
    /// The worst verdict.
    status: Verdict,
    path: Option<PathBuf>,
    checks: Vec<Check>,
}

/// Runs the checks and prints the result. Fails if `file:` devices cannot work.
pub fn run(args: &DoctorArgs) -> Result<(), Failure> {
    let mut checks = ring::checks();
    checks.extend(machine::checks());
    if let Some(path) = &args.path {
        checks.extend(path::checks(path));
    }
    let status = worst(&checks);
    if args.json {
        output::json(&Examination { status, path: args.path.clone(), checks })?;
    } else {
        output::text(&table(&checks, args.path.is_some()));
    }
    if status == Verdict::Fail { Err(Failure::reported()) } else { Ok(()) }
}

fn worst(checks: &[Check]) -> Verdict {
    match checks {
        _ if checks.iter().any(|check| check.status == Verdict::Fail) => Verdict::Fail,
        _ if checks.iter().any(|check| check.status == Verdict::Warn) => Verdict::Warn,
        _ => Verdict::Ok,
    }
}

fn table(checks: &[Check], with_path: bool) -> String {
    let mut text = String::new();
    for check in checks {
        let mark = match check.status {
            Verdict::Ok => "ok  ",
            Verdict::Warn => "warn",
            Verdict::Fail => "FAIL",
        };
        // Writing to a String does not fail.
        let _ = writeln!(text, "{mark}  {:<14} {}", check.name, check.found);
        if let Some(fix) = &check.fix {
            let _ = writeln!(text, "      {:<14} fix: {fix}", "");
        }
    }
    if !with_path {
        text.push_str("      give a file, directory or block device as PATH to probe direct I/O on it\n");
    }
    text
}
