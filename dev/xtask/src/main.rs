//! Checks and chores of the repository: `cargo xtask help` lists them.
//!
//! Owns the table of commands. Each command is a module. None of them is part of the product, and no crate depends on
//! this one. It uses only the standard library, anyhow, and libc (through sheave-testkit), so that a new machine builds
//! it in seconds.

mod api;
mod asan;
mod bench;
mod budgets;
mod cargo;
mod counts;
mod failures;
mod fuzz;
mod guest;
mod lab;
mod models;
mod nbd_peers;
mod nightly;
mod product;
mod report;
mod sim;
mod smoke;
mod stress;
mod test;
mod tidy;
mod vhost_peers;
mod words;
mod workspace;

use std::process::ExitCode;

use anyhow::{Result, bail};

/// A command, with its arguments and its description for the help page.
struct Command {
    name: &'static str,
    args: &'static str,
    what: &'static str,
    run: fn(&[String]) -> Result<()>,
}

const COMMANDS: &[Command] = &[
    Command { name: "test", args: "[--fail-fast]", what: "everything CI checks, tools included", run: test::main },
    Command { name: "tidy", args: "[--lower]", what: "the repository's own rules, in a second", run: tidy::main },
    Command {
        name: "api",
        args: "[--write]",
        what: "the library's public names against their page, its features and crates",
        run: api::main,
    },
    Command {
        name: "budgets",
        args: "[--record]",
        what: "instructions an I/O against their budgets, or new budgets",
        run: budgets::main,
    },
    Command { name: "asan", args: "[-p CRATE]...", what: "the tests under the address sanitizer", run: asan::main },
    Command { name: "models", args: "", what: "the model checks, under each checker", run: models::main },
    Command {
        name: "stress",
        args: "[--minutes N] [FILTER]",
        what: "the tests with new seeds, again and again",
        run: stress::main,
    },
    Command {
        name: "sim",
        args: "[--seed N] [--ops M] [--cuts K] [--nightly]",
        what: "crashes of a simulated disk under thin volumes",
        run: sim::main,
    },
    Command {
        name: "lab",
        args: "[EXPERIMENT | wq] [ARGS]",
        what: "the experiments: builds and starts sheave-lab",
        run: lab::main,
    },
    Command { name: "lab-tests", args: "[FILTER]", what: "the tests of the lab and its hooks", run: lab::tests_main },
    Command {
        name: "product",
        args: "[BINARY]",
        what: "that nothing of the lab is in the release binary",
        run: product::main,
    },
    Command {
        name: "bench",
        args: "[SECTION]... [--write]",
        what: "the tables of docs/reference/performance.md",
        run: bench::main,
    },
    Command {
        name: "fuzz",
        args: "[--seconds N] [TARGET]...",
        what: "the fuzzers of all decoders, in turn",
        run: fuzz::main,
    },
    Command {
        name: "guest",
        args: "[OPTION]... SCRIPT [FILE]...",
        what: "runs a shell script in a Linux guest, for tests of disks",
        run: guest::main,
    },
    Command {
        name: "nbd-peers",
        args: "",
        what: "the tests of other NBD projects against `sheave serve`",
        run: nbd_peers::main,
    },
    Command {
        name: "nightly",
        args: "[STEP]...",
        what: "what takes too long for CI, with new seeds",
        run: nightly::main,
    },
    Command {
        name: "words",
        args: "[--seed N] [--comments N] [--paragraphs N]",
        what: "a sample of comments and paragraphs for a person to judge",
        run: words::main,
    },
    Command { name: "help", args: "", what: "this page", run: help },
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match dispatch(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(args: &[String]) -> Result<()> {
    let Some((name, rest)) = args.split_first() else {
        return help(&[]);
    };
    match COMMANDS.iter().find(|command| command.name == name.trim_start_matches("--")) {
        Some(command) => (command.run)(rest),
        None => bail!("no command `{name}`: `cargo xtask help` lists them"),
    }
}

fn help(_: &[String]) -> Result<()> {
    println!("cargo xtask COMMAND [ARGS]\n");
    for command in COMMANDS {
        println!("  {:<36} {}", format!("{} {}", command.name, command.args), command.what);
    }
    Ok(())
}
