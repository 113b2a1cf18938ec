//! `cargo xtask fuzz`: runs the fuzzers of `dev/fuzz/src/bin` in turn, for a given time in all.
//!
//! Owns the build flags, which insert coverage counters for libFuzzer; a stable compiler can do that. Builds into a
//! target directory of its own and keeps the corpus there (`target-fuzz/corpus/TARGET`), from which the next run
//! continues. Needs a C++ compiler for libFuzzer itself.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::cargo::{self, cargo};
use crate::workspace;

const USAGE: &str = "usage: cargo xtask fuzz [--seconds N] [TARGET]...";

/// Total time of a run, divided among the targets.
const DEFAULT_SECONDS: u64 = 80;
/// Least time that each target gets.
const LEAST_SECONDS: u64 = 2;
/// Time limit of an input. A slower input is a finding, because every loop must have a bound. A busy machine can
/// stretch a millisecond to a second.
const SLOWEST_INPUT_SECONDS: u64 = 60;
/// Memory limit of a target, in MiB. A target that needs more is a finding, because every allocation of the code must
/// have a bound.
const MEMORY_MIB: u64 = 1024;

/// The target is given explicitly, so that the flags apply to the target's code and not to build scripts.
const TARGET: &str = "x86_64-unknown-linux-gnu";
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing -Cdebug-assertions -Ccodegen-units=1";

pub fn main(args: &[String]) -> Result<()> {
    let (seconds, wanted) = parse(args)?;
    let all = targets(&workspace::root().join("dev/fuzz/src/bin"))?;
    let chosen = choose(&all, wanted)?;
    let each = (seconds / chosen.len() as u64).max(LEAST_SECONDS);
    build()?;
    let mut found = Vec::new();
    for name in &chosen {
        println!("\n=== {name}, {each} s");
        if let Err(error) = run(name, each) {
            println!("{error:#}");
            found.push(*name);
        }
    }
    ensure!(found.is_empty(), "inputs that break a decoder were found: {}", found.join(", "));
    println!("\n{} fuzzers, nothing found", chosen.len());
    Ok(())
}

fn parse(args: &[String]) -> Result<(u64, &[String])> {
    let (seconds, rest) = match args {
        [flag, seconds, rest @ ..] if flag == "--seconds" => (seconds.parse().context(USAGE)?, rest),
        _ => (DEFAULT_SECONDS, args),
    };
    ensure!(!rest.iter().any(|arg| arg.starts_with('-')), USAGE);
    Ok((seconds, rest))
}

/// Returns the names of the programs in a directory, sorted.
fn targets(dir: &Path) -> Result<Vec<String>> {
    let files = std::fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))?;
    let names = files.filter_map(|file| {
        let name = file.ok()?.file_name().to_string_lossy().into_owned();
        name.strip_suffix(".rs").map(str::to_owned)
    });
    let mut names: Vec<String> = names.collect();
    names.sort();
    ensure!(!names.is_empty(), "there are no fuzzers in {}", dir.display());
    Ok(names)
}

/// Returns the wanted targets, or all if the list is empty.
fn choose<'a>(all: &'a [String], wanted: &'a [String]) -> Result<Vec<&'a str>> {
    if let Some(unknown) = wanted.iter().find(|name| !all.contains(name)) {
        bail!("no fuzzer `{unknown}`: there are {}", all.join(", "));
    }
    Ok(if wanted.is_empty() { all } else { wanted }.iter().map(String::as_str).collect())
}

fn home() -> PathBuf {
    workspace::root().join("target-fuzz")
}

fn build() -> Result<()> {
    let mut build =
        cargo(["build", "--release", "--quiet", "--manifest-path", "dev/fuzz/Cargo.toml", "--target", TARGET]);
    build.arg("--target-dir").arg(home()).env("RUSTFLAGS", FLAGS);
    cargo::run(build).context("building the fuzzers (libFuzzer wants a C++ compiler: apt-get install g++)")
}

/// Compiles the fuzzers without linking, to check that they still fit the code; no other step compiles them. libFuzzer
/// itself is not compiled: its crate gets the path of an empty library.
pub fn check() -> Result<()> {
    let ready = home().join("none/libfuzzer.a");
    std::fs::create_dir_all(home().join("none")).and_then(|()| std::fs::write(&ready, "")).context("target-fuzz")?;
    let mut clippy = cargo(["clippy", "--quiet", "--all-targets", "--manifest-path", "dev/fuzz/Cargo.toml"]);
    clippy.arg("--target-dir").arg(home()).args(["--", "-D", "warnings"]).env("CUSTOM_LIBFUZZER_PATH", ready);
    cargo::run(clippy)
}

fn run(name: &str, seconds: u64) -> Result<()> {
    let (corpus, artifacts) = (home().join("corpus").join(name), home().join("artifacts").join(name));
    for dir in [&corpus, &artifacts] {
        std::fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
    }
    let mut fuzzer = Command::new(home().join(TARGET).join("release").join(name));
    fuzzer
        .arg(&corpus)
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-timeout={SLOWEST_INPUT_SECONDS}"))
        .arg(format!("-rss_limit_mb={MEMORY_MIB}"))
        .args(["-max_len=4200", "-len_control=20", "-print_final_stats=1", "-verbosity=0"]);
    let (_, stderr, success) = cargo::capture(fuzzer)?;
    let stats = stderr.lines().filter(|line| line.starts_with("stat::number_of_executed_units"));
    stats.for_each(|line| println!("{}", line.trim_start_matches("stat::")));
    ensure!(success, "{stderr}\nthe input is in {}", artifacts.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(all: &[&str]) -> Vec<String> {
        all.iter().map(|one| (*one).to_owned()).collect()
    }

    #[test]
    fn time_and_targets_are_parsed() {
        let args = strings(&["--seconds", "9", "leaf", "table"]);
        let (seconds, rest) = parse(&args).expect("valid");
        assert_eq!((seconds, rest), (9, &args[2..]));
        assert_eq!(parse(&[]).expect("valid").0, DEFAULT_SECONDS);
        assert!(parse(&strings(&["--seconds", "soon"])).is_err());
        assert!(parse(&strings(&["--minutes", "9"])).is_err());
    }

    #[test]
    fn unknown_targets_are_refused() {
        let all = strings(&["index", "leaf"]);
        assert_eq!(choose(&all, &[]).expect("all"), ["index", "leaf"]);
        assert_eq!(choose(&all, &strings(&["leaf"])).expect("one"), ["leaf"]);
        let error = choose(&all, &strings(&["laef"])).expect_err("unknown").to_string();
        assert!(error.contains("index, leaf"), "{error}");
    }

    #[test]
    fn every_decoder_has_a_fuzzer() {
        let all = targets(&workspace::root().join("dev/fuzz/src/bin")).expect("there are some");
        for name in ["superblock", "leaf", "index", "table", "record", "journal", "check", "open"] {
            assert!(all.iter().any(|have| have == name), "{name}");
        }
    }
}
