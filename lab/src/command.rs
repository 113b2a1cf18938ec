//! The command `sheave-lab`: parses the arguments, runs the command, and turns the outcome into an exit code.
//!
//! | code | means |
//! |---|---|
//! | 0 | done; a claim that does not hold here is a result, and a run that Ctrl-C ended early counts as done |
//! | 1 | a check or an arm failed |
//! | 2 | the command line makes no sense |
//! | 130 | a second Ctrl-C gave up waiting for the end of a turn |
//!
//! Results go to stdout, everything else to stderr, so that `--json` can be piped.
//!
//! | module | holds |
//! |---|---|
//! | [`args`] | the command line |
//! | [`experiments`], [`shown`] | running experiments, and showing them |
//! | [`wq`] | the worker pool, without an experiment around it |

mod args;
mod experiments;
mod job;
mod shown;
mod wq;

use std::process::ExitCode;

use clap::Parser;
use sheave_load::{output, signals};

use crate::LabError;
use args::{LabArgs, LabCommand};

pub fn main() -> ExitCode {
    let args = LabArgs::parse();
    let outcome = match &args.command {
        None => experiments::run(&args),
        Some(LabCommand::RunArm(arm)) => experiments::run_arm(&args, arm),
        Some(LabCommand::Wq(flood)) => signals::stop_flag().and_then(|stop| wq::run(flood, stop)),
    };
    let outcome = outcome.and_then(|code| output::finish().map(|()| code));
    outcome.unwrap_or_else(|error| {
        let LabError { cause, fix, usage } = error;
        eprintln!("sheave-lab: {cause}");
        if let Some(fix) = fix {
            eprintln!("   fix: {fix}");
        }
        ExitCode::from(if usage { 2 } else { 1 })
    })
}
