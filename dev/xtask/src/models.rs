//! `cargo xtask models`: the tests named `model_*`, in builds with the synchronization primitives of a model checker.
//!
//! Owns the flags of such a build. A checker is a `--cfg` and not a feature, because cargo unites the features of all
//! packages that it builds: with `--all-features`, every program would use a checker's locks. One call of cargo builds
//! and runs all crates of a checker, and third-party crates are built once for all checkers. Users run this command;
//! `test` calls it too.
//!
//! A checker is a dependency of tests, so it is in no lock file of a program that depends on the library. A crate that
//! another crate's models use is compiled without its tests, so its compiler wrapper gets the path of the checker from
//! here ([`checker_file`]).
//!
//! Invariant I1: a crate with a checker must run at least one model under it. Without a model the run would pass and
//! prove nothing.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};

use crate::cargo::{self, cargo};
use crate::counts::{Counts, strip_ansi};
use crate::workspace::{self, Member};

/// The crate that re-exports the types of the checker.
const FACADE: &str = "sheave-base";
/// Environment variable with the file of the compiled checker, for the compiler wrapper.
const CHECKER_ENV: &str = "SHEAVE_CHECKER";

pub fn main(args: &[String]) -> Result<()> {
    let mut members = workspace::members()?;
    if let Some(unknown) = args.iter().find(|name| !members.iter().any(|it| it.has_models() && it.name == **name)) {
        bail!("usage: cargo xtask models [CRATE ...]; {unknown} is no crate with models");
    }
    members.retain(|member| args.is_empty() || args.contains(&member.name));
    let mut counts = Counts::default();
    let result = run(&members, None, &mut counts);
    println!("{counts}");
    result
}

/// Runs the models of each crate under each of its checkers. Builds only the libraries with their unit tests (`--lib`),
/// because all models are there.
///
/// `schedules` is the number of random schedules for each model; `None` stands for the number that the model itself
/// has.
pub fn run(members: &[Member], schedules: Option<u64>, counts: &mut Counts) -> Result<()> {
    let mut failures = Vec::new();
    for (checker, crates) in runs(members) {
        println!("under {checker}: {}", crates.join(", "));
        let mut command = cargo::with_compiler(cargo(["test", "--no-fail-fast", "--lib"]), checker);
        command.args(crates.iter().flat_map(|name| ["-p", name]));
        command.arg("model_");
        if crates.iter().any(|name| *name != FACADE) {
            command.env(CHECKER_ENV, checker_file(checker)?);
        }
        if let Some(schedules) = schedules {
            command.env("SHEAVE_MODEL_RUNS", schedules.to_string());
        }
        let mut passed = Passed::default();
        if let Err(error) = cargo::run_tests_seen(command, counts, |line| passed.read_line(line)) {
            failures.push(format!("{error:#}"));
        } else {
            failures.extend(
                passed
                    .without(&crates)
                    .map(|name| format!("{name} is written for `{checker}` and has no test named model_* (I1)")),
            );
        }
    }
    ensure!(failures.is_empty(), "{}", failures.join("; "));
    Ok(())
}

/// Builds the tests of `FACADE` under a checker, and returns the file of the compiled checker.
fn checker_file(checker: &str) -> Result<String> {
    let build = ["test", "--lib", "--no-run", "--message-format", "json", "-p", FACADE];
    let (messages, said, built) = cargo::capture(cargo::with_compiler(cargo(build), checker))?;
    ensure!(built, "building the tests of {FACADE} under {checker} failed:\n{said}");
    let file = artifact(&messages, checker);
    file.with_context(|| format!("cargo names no file that it has made of {checker} for the tests of {FACADE}"))
}

/// Finds the library of a crate in the messages of cargo, which quote the path of each file that was built.
fn artifact(messages: &str, name: &str) -> Option<String> {
    let is_it = |file: &&str| {
        let last = file.rsplit('/').next().unwrap_or_default();
        last.starts_with(&format!("lib{name}-")) && last.ends_with(".rlib")
    };
    messages.split('"').find(is_it).map(str::to_owned)
}

/// Returns each checker with its crates.
fn runs(members: &[Member]) -> BTreeMap<&str, Vec<&str>> {
    let mut runs: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for member in members {
        for checker in &member.checkers {
            runs.entry(checker).or_default().push(&member.name);
        }
    }
    runs
}

/// Number of passed tests of each crate, parsed from the output of `cargo test`.
#[derive(Default)]
struct Passed {
    crates: BTreeMap<String, u64>,
    running: String,
}

impl Passed {
    fn read_line(&mut self, line: &str) {
        let line = strip_ansi(line);
        // "Running unittests src/lib.rs (target/debug/deps/sheave_base-0123456789abcdef)"
        if let Some((_, binary)) = line.split_once("Running unittests ") {
            let name = binary.rsplit('/').next().and_then(|file| file.rsplit_once('-'));
            self.running = name.map(|(name, _)| name.replace('_', "-")).unwrap_or_default();
        }
        let mut counts = Counts::default();
        counts.read_line(&line);
        *self.crates.entry(self.running.clone()).or_default() += counts.passed;
    }

    /// Returns those of `crates` in which no test passed.
    fn without<'a>(&'a self, crates: &'a [&str]) -> impl Iterator<Item = &'a str> {
        crates.iter().copied().filter(|name| self.crates.get(*name).is_none_or(|&passed| passed == 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_crate_runs_under_each_of_its_checkers() {
        let member = |name: &str, checkers: &[&str]| Member {
            name: name.into(),
            checkers: checkers.iter().map(|checker| (*checker).to_owned()).collect(),
        };
        let members = [member("a", &["shuttle", "loom"]), member("b", &[]), member("c", &["shuttle"])];
        assert_eq!(runs(&members), BTreeMap::from([("loom", vec!["a"]), ("shuttle", vec!["a", "c"])]));
    }

    #[test]
    fn a_crate_in_which_no_model_ran_is_named() {
        let mut passed = Passed::default();
        let lines = [
            "     Running unittests src/lib.rs (target/x/debug/deps/sheave_base-9cdab5c0d9f9a1b2)",
            "running 2 tests",
            "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 17 filtered out; finished in 5.65s",
            "\u{1b}[1m\u{1b}[92m     Running\u{1b}[0m unittests src/lib.rs (target/x/debug/deps/sheave_blk-0d9f9a1b)",
            "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 221 filtered out; finished in 0.00s",
        ];
        lines.iter().for_each(|line| passed.read_line(line));
        let crates = ["sheave-base", "sheave-blk", "sheave-vol"];
        assert_eq!(passed.without(&crates).collect::<Vec<_>>(), ["sheave-blk", "sheave-vol"]);
    }

    #[test]
    fn the_file_of_a_checker_is_found_among_what_cargo_has_made() {
        let messages = [
            r#"{"filenames":["/t/deps/libshuttle_engine-0a.rlib","/t/deps/libshuttle_engine-0a.rmeta"]}"#,
            r#"{"filenames":["/t/deps/libshuttle-1b.rmeta","/t/deps/libshuttle-1b.rlib"]}"#,
        ];
        assert_eq!(artifact(&messages.join("\n"), "shuttle").as_deref(), Some("/t/deps/libshuttle-1b.rlib"));
        assert_eq!(artifact(&messages.join("\n"), "loom"), None);
    }
}
