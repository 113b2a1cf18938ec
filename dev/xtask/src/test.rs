//! `cargo xtask test`: the README's test command, and with `--all` everything that CI checks.
//!
//! Owns the two tiers and the order of their steps. The quick tier needs only the toolchain, writes nothing outside the
//! target directory and the directory of temporary files, and leaves out the tests of [`later`]. `--all` adds those
//! tests, the checks of the code, the model checkers and the sanitizer. `--all --install` first installs the tools that
//! the tests need. Both tiers collect the failures of all steps, and end with the counts.

mod later;
mod passed;

use std::process::{Command, exit};

use anyhow::{Result, bail, ensure};
use sheave_guest::Kit;
use sheave_testkit::hot_loop::Profile;
use sheave_testkit::install::{Installer, Outcome};
use sheave_testkit::tools::TOOLS;
use sheave_testkit::{in_ci, python, skip};

use crate::asan::Extent;
use crate::cargo::{self, cargo};
use crate::counts::Counts;
use crate::report::Report;
use crate::{api, asan, budgets, fuzz, guest, lab, models, nbd_peers, product, smoke, tidy, vhost_peers, workspace};
use later::Tests;
use passed::Passed;

const USAGE: &str = "usage: cargo xtask test [--fail-fast] [--all [--install]]";

/// Printed at the end of the quick tier. Names the checks that the quick tier left out.
const ALL_ADDS: &str = "left to `cargo xtask test --all`: tests that run long, change the machine or want tools; \
                        rustfmt, clippy, tidy, the public names, documentation, fuzzers, the peers of vhost-user, \
                        the tests of other NBD projects, the lab, model checks, the address sanitizer (20 minutes \
                        more; `--install` installs missing tools, and lists them before)";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Options {
    all: bool,
    install: bool,
    fail_fast: bool,
}

impl Options {
    fn parse(args: &[String]) -> Result<Options> {
        let mut options = Options::default();
        for arg in args {
            match arg.as_str() {
                "--all" => options.all = true,
                "--install" => options.install = true,
                "--fail-fast" => options.fail_fast = true,
                _ => bail!(USAGE),
            }
        }
        ensure!(options.all || !options.install, "--install goes with --all: the quick tier wants no tool\n{USAGE}");
        Ok(options)
    }
}

pub fn main(args: &[String]) -> Result<()> {
    let options = Options::parse(args)?;
    let passed = Passed::on_this_commit();
    let mut report = Report::new(options.fail_fast, workspace::skip_log());
    if options.all {
        all(&mut report, options.install, passed);
    } else {
        Passed::forget();
        quick(&mut report);
        println!("\n{ALL_ADDS}");
    }
    let Some(counts) = report.finish() else {
        exit(1); // without a message: the counts must be the last line
    };
    if !options.all {
        Passed::note(counts)?;
    }
    Ok(())
}

fn quick(report: &mut Report) {
    println!("test runner: {}", runner());
    report.step("tests", |counts| {
        let mut command = tests(&Tests::Quick);
        // A missing tool is no failure here, because `--all` runs these tests again where tools can be installed.
        command.env("CI", "false");
        cargo::run_tests(command, counts)
    });
    report.step("doc tests", doc_tests);
}

/// Runs everything that CI checks, except for the tests that the quick tier has passed on the same commit.
fn all(report: &mut Report, install: bool, passed: Option<Passed>) {
    report.step("tools", |_| tools(install));
    report.step("format", |_| cargo::run(cargo(["fmt", "--all", "--check"])));
    report.step("tidy", |_| tidy::run());
    report.step("clippy", |_| clippy());
    report.step("fuzzers", |_| fuzz::check());
    report.step("vhost-user peers", vhost_peers::test);
    // Runs before `docs`, because both write pages of `sheave`, and the pages with private items must remain.
    report.step("library", |_| api::run());
    report.step("docs", |_| docs());
    // Runs before the tests, because the test of the budgets counts the instructions of these builds.
    report.step("release build", |_| budgets::build(Profile::Release));
    report.step("nothing of the lab in it", |_| product::check(&workspace::target_dir().join("release/sheave")));
    report.step("tests of other NBD projects", |counts| {
        nbd_peers::run(&workspace::target_dir().join("release/sheave"), counts)
    });
    match passed {
        None => {
            report.step("tests", |counts| cargo::run_tests(tests(&Tests::All), counts));
            report.step("doc tests", doc_tests);
        }
        Some(passed) => {
            report.step("quick tier, before this on the same commit", |counts| {
                println!("passed; {} of its tests skipped themselves, and run again", passed.skipped.len());
                counts.passed = passed.passed;
                Ok(())
            });
            report.step("the other tests", |counts| cargo::run_tests(tests(&Tests::Rest(passed.skipped)), counts));
        }
    }
    report.step("lab tests", |counts| lab::tests(&[], counts));
    report.step("model checks", |counts| models::run(&workspace::members()?, None, counts));
    report.step("address sanitizer", |counts| match asan::unsupported() {
        Some(why) => {
            println!("{}{why}", skip::PREFIX);
            Ok(())
        }
        None => asan::run(&Extent::Part, counts),
    });
    report.step("smoke", |counts| smoke::run(&workspace::target_dir().join("release/sheave"), counts));
}

fn runner() -> &'static str {
    if cargo::has_nextest() { "cargo nextest" } else { "cargo test (cargo-nextest is not installed)" }
}

/// Checks for rustfmt, clippy and the outside tools. If `install` is true, installs the missing ones.
fn tools(install: bool) -> Result<()> {
    for (component, subcommand) in [("rustfmt", "fmt"), ("clippy", "clippy")] {
        if !cargo::succeeds(cargo([subcommand, "--version"])) {
            ensure!(install, "{component} is missing: `rustup component add {component}`, or --install");
            let mut rustup = Command::new("rustup");
            rustup.args(["component", "add", component]);
            cargo::run(rustup)?;
        }
    }
    println!("test runner: {}", runner());
    let machine = Installer::host();
    let programs = if install { machine.ensure(TOOLS) } else { machine.look(TOOLS) };
    let modules = if install { python::ensure() } else { python::look() };
    let named = TOOLS.iter().map(|tool| tool.name.to_owned()).zip(programs);
    let named = named.chain(python::MODULES.iter().map(|module| format!("python {}", module.name)).zip(modules));
    let named = named.chain([("a Linux guest".to_owned(), guest(install))]);
    let mut missing = Vec::new();
    for (name, outcome) in named {
        match outcome {
            Outcome::Present(path) => println!("{name}: present ({})", path.display()),
            Outcome::Installed(path) => println!("{name}: installed ({})", path.display()),
            Outcome::Skipped(why) => {
                println!("{}{name}: {why}", skip::PREFIX);
                missing.push(name);
            }
        }
    }
    ensure!(missing.is_empty() || !in_ci(), "in CI a missing tool is a failure: {}", missing.join(", "));
    Ok(())
}

/// Searches for what guests are made of, and downloads it if `install` is true.
fn guest(install: bool) -> Outcome {
    let was_there = Kit::find().is_ok();
    match if install { guest::install() } else { Kit::find() } {
        Ok(kit) if was_there => Outcome::Present(kit.kernel),
        Ok(kit) => Outcome::Installed(kit.kernel),
        Err(error) => Outcome::Skipped(format!("{error:#}")),
    }
}

fn clippy() -> Result<()> {
    // `--all-features` is possible because model checkers are not features. As features, united into ordinary programs,
    // they would break the build.
    let mut command = cargo(["clippy", "--workspace", "--all-targets", "--all-features", "--quiet"]);
    command.args(["--", "-D", "warnings"]);
    cargo::run(command)?;
    lab::clippy()
}

/// Builds the documentation, private items included. Warnings are errors, because links of private items break most
/// often.
fn docs() -> Result<()> {
    // The program `sheave` and the library of that name write to the same pages. The program is built first, so that
    // the library's pages remain. The lab is built below with its cfg, without which it would be an empty program.
    let others = ["--workspace", "--exclude", "sheave-cli", "--exclude", "sheave-lab"];
    for packages in [&["-p", "sheave-cli"][..], &others] {
        let mut command = cargo(["doc", "--no-deps", "--document-private-items", "--quiet"]);
        command.args(packages).env("RUSTDOCFLAGS", "-D warnings");
        cargo::run(command)?;
    }
    lab::docs()
}

/// Compiler wrapper in `dev/xtask/rustc` for tests, and for the crates that are called by tests and by examples in the
/// documentation.
const COMPILER: &str = "tests";

fn tests(which: &Tests) -> Command {
    let mut command = if cargo::has_nextest() {
        let threads = cargo::test_threads();
        let mut command = cargo(["nextest", "run", "--workspace", "--no-fail-fast", "--status-level", "fail"]);
        command.args(["--test-threads", &threads]);
        command
    } else {
        let targets = ["--lib", "--bins", "--tests", "--examples"];
        let mut command = cargo(["test", "--workspace", "--no-fail-fast", "--quiet"]);
        command.args(targets);
        command
    };
    command.args(if cargo::has_nextest() { which.for_nextest() } else { which.for_cargo() });
    cargo::with_compiler(command, COMPILER)
}

fn doc_tests(counts: &mut Counts) -> Result<()> {
    let command = cargo(["test", "--workspace", "--doc", "--no-fail-fast", "--quiet"]);
    cargo::run_tests(cargo::with_compiler(command, COMPILER), counts)
}

#[cfg(test)]
mod tests;
