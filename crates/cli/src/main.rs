//! The `sheave` command: parses the arguments, runs one subcommand, turns its outcome into an exit code.
//!
//! Exit codes are part of the interface:
//!
//! | code | means |
//! |---|---|
//! | 0 | done; a run that Ctrl-C ended early and that found nothing wrong counts as done |
//! | 1 | it failed: an I/O error, a wrong block, a device that cannot be opened, a check that found something |
//! | 2 | the command line or a device spec cannot be understood, or `--yes` is needed |
//! | 0 to 3 | `sheave status` only: ok, warning, critical, no server could be queried |
//! | that of the command | `serve --run` returns the exit code of the command that it has run |
//! | 130 | Ctrl-C ended a copy, and what it had begun was undone; or a second one gave up waiting for I/O in flight |
//!
//! Results go to stdout, everything else to stderr, so that the output of `--json` can be piped. With `--json`, a
//! failure is an object on stdout too, if there is no result. It is a failure if a result cannot be written to stdout
//! (a full disk). It is none if the reader of stdout has gone away.

mod args;
mod bench;
mod confirm;
mod control;
mod doctor;
mod made;
mod man;
mod moved;
mod output;
mod patience;
mod pool;
mod progress;
mod serve;
mod space;
mod spelling;
mod top;
mod volume;

use std::process::ExitCode;

use sheave_daemon::failure::Failure;

use crate::args::{Cli, Command};

fn main() -> ExitCode {
    sheave_load::signals::survive_file_size_limit();
    let args = spelling::rewrite(std::env::args_os().collect());
    let wants_json = args.iter().take_while(|arg| *arg != "--").any(|arg| arg == "--json");
    let outcome = match moved::refuse(args.iter().cloned()) {
        Ok(()) => match args::parse(&args) {
            Ok(cli) => run(cli),
            // Help and version are results, and go to stdout.
            Err(page) if !page.use_stderr() => {
                output::text(&args::page(&page));
                Ok(())
            }
            Err(refused) => {
                let failure = args::command_line(&refused);
                // Clap's own output is better for people, because it has colours and shows the usage.
                let _ = refused.print();
                output::failure_json(&failure, wants_json);
                return failure.exit_code();
            }
        },
        refused => refused,
    };
    match outcome.and_then(|()| Ok(sheave_load::output::finish()?)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::say(&failure);
            output::failure_json(&failure, wants_json);
            failure.exit_code()
        }
    }
}

fn run(cli: Cli) -> Result<(), Failure> {
    if cli.quiet {
        output::be_quiet();
    }
    match cli.command {
        Command::Bench(args) => bench::run(&args),
        Command::Client(args) => control::commands::client(&args),
        Command::Device(args) => control::device::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Export(args) => control::commands::export(&args),
        Command::Completions(args) => man::completions(args.shell),
        Command::Man(args) => man::pages(&args.dir),
        Command::Pool(args) => pool::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Upgrade(args) => control::upgrade::run(&args),
        Command::Slow(args) => control::slow::run(&args),
        Command::Status(args) => control::status::run(&args),
        Command::Trace(args) => control::trace::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Volume(args) => volume::run(&args),
    }
}
