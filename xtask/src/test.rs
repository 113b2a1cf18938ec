//! `cargo xtask test`: the README's test command, and all that CI runs.
//!
//! Owns the order of the steps. Installs what is missing first (rustfmt and clippy through rustup, outside tools
//! through apt-get), then gathers the failures of all steps, and ends with the counts.

use std::process::{Command, exit};

use anyhow::{Result, bail, ensure};
use sheave_testkit::install::{Installer, Outcome};
use sheave_testkit::tools::TOOLS;
use sheave_testkit::{in_ci, python, skip};

use crate::asan::Extent;
use crate::cargo::{self, cargo};
use crate::report::Report;
use crate::{api, asan, budgets, fuzz, lab, models, product, smoke, tidy, workspace};

/// The command.
pub fn main(args: &[String]) -> Result<()> {
    let fail_fast = match args {
        [] => false,
        [flag] if flag == "--fail-fast" => true,
        _ => bail!("usage: cargo xtask test [--fail-fast]"),
    };
    let mut report = Report::new(fail_fast, workspace::skip_log());
    report.step("tools", |_| tools());
    report.step("format", |_| cargo::run(cargo(["fmt", "--all", "--check"])));
    report.step("tidy", |_| tidy::run());
    report.step("clippy", |_| {
        // All features: a model checker that were one would be joined into ordinary programs, and they would not build.
        let what = ["clippy", "--workspace", "--all-targets", "--all-features", "--quiet"];
        let mut command = cargo(what);
        command.args(["--", "-D", "warnings"]);
        cargo::run(command)?;
        lab::clippy()
    });
    report.step("fuzzers", |_| fuzz::check());
    // Before the documentation of the workspace: both have pages of `sheave`, and those with private items stay.
    report.step("library", |_| api::run());
    report.step("docs", |_| docs());
    // Before the tests: that of the budgets counts what it builds.
    report.step("release build", |_| release());
    report.step("nothing of the lab in it", |_| product::check(&workspace::target_dir().join("release/sheave")));
    report.step("tests", |counts| cargo::run_tests(all_tests(), counts));
    report.step("lab tests", |counts| lab::tests(&[], counts));
    report.step("doc tests", |counts| {
        let command = cargo(["test", "--workspace", "--doc", "--no-fail-fast", "--quiet"]);
        cargo::run_tests(cargo::with_compiler(command, COMPILER), counts)
    });
    report.step("model checks", |counts| models::run(&workspace::members()?, None, counts));
    report.step("address sanitizer", |counts| match asan::unsupported() {
        Some(why) => {
            println!("{}{why}", skip::PREFIX);
            Ok(())
        }
        None => asan::run(&Extent::Part, counts),
    });
    report.step("smoke", |counts| smoke::run(&workspace::target_dir().join("release/sheave"), counts));
    if !report.finish() {
        exit(1); // without a word: the counts are to be the last line
    }
    Ok(())
}

/// rustfmt, clippy and the outside tools, installed where that is allowed.
fn tools() -> Result<()> {
    for (component, subcommand) in [("rustfmt", "fmt"), ("clippy", "clippy")] {
        if !cargo::succeeds(cargo([subcommand, "--version"])) {
            let mut rustup = Command::new("rustup");
            rustup.args(["component", "add", component]);
            cargo::run(rustup)?;
        }
    }
    let runner = if cargo::has_nextest() { "cargo nextest" } else { "cargo test (cargo-nextest is not installed)" };
    println!("test runner: {runner}");
    let mut missing = Vec::new();
    for (tool, outcome) in TOOLS.iter().zip(Installer::host().ensure(TOOLS)) {
        match outcome {
            Outcome::Present(path) => println!("{}: present ({})", tool.name, path.display()),
            Outcome::Installed(path) => println!("{}: installed ({})", tool.name, path.display()),
            Outcome::Skipped(why) => {
                println!("{}{}: {why}", skip::PREFIX, tool.name);
                missing.push(tool.name);
            }
        }
    }
    for (module, outcome) in python::MODULES.iter().zip(python::ensure()) {
        match outcome {
            Outcome::Present(_) => println!("python {}: present", module.name),
            Outcome::Installed(path) => println!("python {}: installed ({})", module.name, path.display()),
            Outcome::Skipped(why) => {
                println!("{}python {}: {why}", skip::PREFIX, module.name);
                missing.push(module.name);
            }
        }
    }
    ensure!(missing.is_empty() || !in_ci(), "in CI a missing tool is a failure: {}", missing.join(", "));
    Ok(())
}

/// Documentation without warnings, private items included: their links rot first.
fn docs() -> Result<()> {
    // The binary `sheave` lands where the library of that name does: it goes first, the library's pages stay.
    // Without its cfg the lab is a program that names the command which builds it: its pages are made with the cfg.
    let others = ["--workspace", "--exclude", "sheave-cli", "--exclude", "sheave-lab"];
    for packages in [&["-p", "sheave-cli"][..], &others] {
        let mut command = cargo(["doc", "--no-deps", "--document-private-items", "--quiet"]);
        command.args(packages).env("RUSTDOCFLAGS", "-D warnings");
        cargo::run(command)?;
    }
    lab::docs()
}

/// What `cargo build --release` builds, and the program whose instructions are counted.
fn release() -> Result<()> {
    cargo::run(cargo(["build", "--release", "--quiet"]))?;
    budgets::build()
}

/// The compiler of tests, and of the crates that they and the examples in the documentation call: in `xtask/rustc`.
const COMPILER: &str = "tests";

fn all_tests() -> Command {
    let command = if cargo::has_nextest() {
        let threads = cargo::test_threads();
        cargo(["nextest", "run", "--workspace", "--no-fail-fast", "--status-level", "fail", "--test-threads", &threads])
    } else {
        cargo(["test", "--workspace", "--lib", "--bins", "--tests", "--no-fail-fast", "--quiet"])
    };
    cargo::with_compiler(command, COMPILER)
}
