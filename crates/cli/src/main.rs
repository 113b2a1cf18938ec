//! The `sheave` command: parses the arguments, runs one subcommand, turns its outcome into an exit code.
//!
//! Exit codes are part of the interface:
//!
//! | code | means |
//! |---|---|
//! | 0 | done; a run that Ctrl-C ended early and that found nothing wrong counts as done |
//! | 1 | it failed: an I/O error, a wrong block, a device that cannot be opened, a check that found something |
//! | 2 | the command line or a device spec cannot be understood, or `--yes` is needed |
//! | 130 | Ctrl-C ended a copy, and what it had begun was undone; or a second one gave up waiting for I/O in flight |
//!
//! Results go to stdout, everything else to stderr, so that `--json` can be piped.

mod args;
mod bench;
mod confirm;
mod doctor;
mod failure;
mod moved;
mod output;
mod pool;
mod progress;
mod volume;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Command};
use crate::failure::Failure;

fn main() -> ExitCode {
    match moved::refuse(std::env::args_os()).and_then(|()| run()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprint!("{failure}");
            failure.exit_code()
        }
    }
}

fn run() -> Result<(), Failure> {
    match Cli::parse().command {
        Command::Bench(args) => bench::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Pool(args) => pool::run(&args),
        Command::Volume(args) => volume::run(&args),
    }
}
