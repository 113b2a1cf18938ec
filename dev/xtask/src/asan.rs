//! `cargo xtask asan`: the tests under the address sanitizer, which finds uses after free, overflows and leaks.
//!
//! Owns the build flags, and the selection of tests. The nightly run has the tests of all crates. CI has the tests of
//! those crates with unsafe code that a program embeds, because safe code alone cannot touch freed memory.
//!
//! A stable toolchain suffices: it contains the sanitizer's runtime, and the flag only needs RUSTC_BOOTSTRAP. CI does
//! not optimize, because optimizing the instrumented code would take longer than running the tests without
//! optimization. The nightly run optimizes, because otherwise its crash simulator would take an hour.
//!
//! Invariants:
//! - I1: the tests count only after a deliberate use after free was caught on this machine.
//! - I2: every crate with unsafe product code (`tidy/unsafety.rs`) is in CI's run, or named in [`NIGHTLY`].
//! - I3: CI's build shares third-party crates with the ordinary tests, so that only crates of the workspace are
//!   instrumented. The nightly run instruments everything but the standard library.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use sheave_testkit::skip;

use crate::cargo::{self, cargo};
use crate::counts::Counts;
use crate::lab;
use crate::tidy::unsafety;

/// The target is given explicitly, so that the sanitizer's flags apply to the target's code and not to build scripts.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Compiler wrapper in `dev/xtask/rustc` that instruments the crates of the workspace.
const COMPILER: &str = "asan";

/// Crates whose tests cannot show anything to the sanitizer.
const EXCLUDED: &[&str] = &["xtask", "sheave-testkit"];

/// Crates whose own tests only the nightly run has:
///
/// - No program embeds the lab, the simulator and the load generator, whose tests drive the other crates.
/// - The tests of the driver for Ceph start a cluster.
/// - Volumes have one file with unsafe code. All their blocking I/O goes through it, so the tests of the library reach
///   it too. The tests of volumes spend minutes in maps, which are safe code.
const NIGHTLY: &[&str] = &["sheave-lab", "sheave-load", "sheave-rbd", "sheave-sim", "sheave-vol"];

/// The library. It has no unsafe code itself, but its tests drive the unsafe code of the crates below it.
const FACADE: &str = "sheave";
/// Program of safe code that calls the library at random, for the time in `SHEAVE_RANDOM_SECONDS`.
const RANDOM: &str = "sheave-outside-random";
/// The program of safe code, and a driver with unsafe code that stands for one of an outside crate.
const OUTSIDE: [&str; 2] = [RANDOM, "sheave-outside-sock"];

/// Extent of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Extent {
    /// The tests of CI.
    Part,
    /// Every crate and test, with the seeds of this round.
    All { round: u64 },
    /// Crates and tests that the user names: `-p CRATE`, names of tests.
    Given(Vec<String>),
}

/// Runs the command: the tests of CI, or those of the crates given with `-p`.
pub fn main(args: &[String]) -> Result<()> {
    let extent = match args {
        [] => Extent::Part,
        [flag, ..] if flag == "-p" => Extent::Given(args.to_vec()),
        _ => bail!("usage: cargo xtask asan [-p CRATE]... [TEST]"),
    };
    let mut counts = Counts::default();
    let result = run(&extent, &mut counts);
    println!("{counts}");
    result
}

/// Checks that the sanitizer works, then runs the tests under it.
pub fn run(extent: &Extent, counts: &mut Counts) -> Result<()> {
    let sees_leaks = prove_it_catches()?;
    if *extent == Extent::Part {
        println!("left to `cargo xtask nightly`: {}", NIGHTLY.join(", "));
    }
    cargo::run_tests(tests(extent, sees_leaks), counts)
}

/// Runs new random programs of safe code, which use the whole library, until the time is up.
pub fn random(seconds: u64, counts: &mut Counts) -> Result<()> {
    let sees_leaks = prove_it_catches()?;
    let words = ["-p", RANDOM, "programs_for_as_long_as_one_likes"].map(str::to_owned);
    let mut command = tests(&Extent::Given(words.to_vec()), sees_leaks);
    command.env("SHEAVE_RANDOM_SECONDS", seconds.to_string());
    cargo::run_tests(command, counts)
}

/// Returns the reason if this machine lacks something that the sanitizer needs. Returns `None` otherwise.
pub fn unsupported() -> Option<String> {
    let sysroot = cargo::capture(rustc(&["--print", "sysroot"])).map(|(out, ..)| PathBuf::from(out.trim()));
    let Ok(sysroot) = sysroot else { return Some("rustc does not answer".into()) };
    let lib = sysroot.join("lib/rustlib").join(TARGET).join("lib");
    let runtime = std::fs::read_dir(&lib).into_iter().flatten().flatten();
    let shipped = runtime.into_iter().any(|file| file.file_name().to_string_lossy().ends_with("_rt.asan.a"));
    (!shipped).then(|| format!("{} has no address sanitizer runtime: use a rustup toolchain", lib.display()))
}

fn tests(extent: &Extent, sees_leaks: bool) -> Command {
    let threads = cargo::test_threads();
    let mut command = if cargo::has_nextest() {
        let mut command = cargo(["nextest", "run", "--status-level", "fail", "--test-threads", &threads]);
        if matches!(extent, Extent::All { .. }) {
            command.args(["--profile", "nightly"]);
        }
        command
    } else {
        cargo(["test", "--quiet"])
    };
    command.args(["--no-fail-fast", "--lib", "--bins", "--tests"]).args(selection(extent));
    if let Extent::All { round } = extent {
        command.env(sheave_testkit::ROUND_ENV, round.to_string());
    } else {
        command.env("CARGO_PROFILE_DEV_OPT_LEVEL", "0");
    }
    if has_lab(extent) {
        // The lab's compiler wrapper is used instead of the sanitizer's, so the flag goes to every crate of the target
        // (I3).
        command.args(["--target", TARGET]).env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", "-Zsanitizer=address");
        command = cargo::with_compiler(command, lab::CFG);
    } else {
        command = cargo::with_compiler(command, COMPILER);
    }
    let leaks = u8::from(sees_leaks);
    command.env("ASAN_OPTIONS", format!("detect_leaks={leaks}:detect_stack_use_after_return=1"));
    command.env(sheave_testkit::SANITIZER_ENV, "address");
    command
}

/// Returns true if the lab's tests are among those that run; they need the lab's compiler wrapper.
fn has_lab(extent: &Extent) -> bool {
    match extent {
        Extent::Part => false,
        Extent::All { .. } => true,
        Extent::Given(given) => given.iter().any(|word| word == "sheave-lab"),
    }
}

/// Returns the arguments that select crates and tests.
fn selection(extent: &Extent) -> Vec<String> {
    let mut words = Vec::new();
    match extent {
        Extent::Part => {
            let packages = unsafety::packages().into_iter().filter(|name| !NIGHTLY.contains(&name.as_str()));
            let others = [FACADE].into_iter().chain(OUTSIDE).map(str::to_owned);
            words.extend(packages.chain(others).flat_map(|name| ["-p".to_owned(), name]));
        }
        Extent::All { .. } => {
            words.push("--workspace".to_owned());
            words.extend(EXCLUDED.iter().flat_map(|name| ["--exclude".to_owned(), (*name).to_owned()]));
        }
        Extent::Given(given) => words.extend(given.iter().cloned()),
    }
    words
}

/// Checks I1. Returns true if the sanitizer also finds leaks.
fn prove_it_catches() -> Result<bool> {
    if let Some(why) = unsupported() {
        bail!(why);
    }
    let dir = std::env::temp_dir().join(format!("sheave-asan-{}", std::process::id()));
    std::fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
    let result = catches(&dir);
    let _ = std::fs::remove_dir_all(&dir);
    result
}

const USE_AFTER_FREE: &str = "fn main() {
    let freed = { let memory = Box::new(7u8); &raw const *memory };
    let value = unsafe { freed.read_volatile() };
    std::process::exit(i32::from(value & 0));
}";

const LEAK: &str = "#[inline(never)] fn leak() { std::hint::black_box(Box::leak(Box::new([7u8; 999]))); }
fn main() { leak(); std::hint::black_box([0u8; 4096]); }";

fn catches(dir: &Path) -> Result<bool> {
    let freed = outcome(dir, "freed", USE_AFTER_FREE)?;
    ensure!(freed.contains("heap-use-after-free"), "the sanitizer does not see a deliberate use after free:\n{freed}");
    let leak = outcome(dir, "leak", LEAK)?;
    let sees_leaks = leak.contains("detected memory leaks");
    if sees_leaks {
        println!("the sanitizer sees a deliberate use after free and a deliberate leak");
    } else {
        // The leak check stops the process with ptrace to read its memory, which some containers forbid.
        ensure!(
            leak.contains("LeakSanitizer has encountered"),
            "the sanitizer does not see a deliberate leak:\n{leak}"
        );
        println!("{}leaks are not looked for: this container forbids ptrace", skip::PREFIX);
    }
    Ok(sees_leaks)
}

/// Builds a program with the sanitizer and runs it. Returns its standard error.
fn outcome(dir: &Path, name: &str, text: &str) -> Result<String> {
    let (source, binary) = (dir.join(format!("{name}.rs")), dir.join(name));
    std::fs::write(&source, text)?;
    let mut build = rustc(&["-Zsanitizer=address", "--target", TARGET, "-o"]);
    build.arg(&binary).arg(&source).env("RUSTC_BOOTSTRAP", "1");
    cargo::run(build)?;
    let (_, stderr, success) = cargo::capture(Command::new(&binary))?;
    ensure!(!success, "a deliberate bug ({name}) passes under the sanitizer");
    Ok(stderr)
}

fn rustc(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    command.args(args);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_crate_with_unsafe_code_is_sanitized_in_ci_or_named_for_the_nightly_run() {
        let part = selection(&Extent::Part);
        for name in unsafety::packages() {
            let in_ci = part.windows(2).any(|pair| pair == ["-p", &name]);
            assert_eq!(in_ci, !NIGHTLY.contains(&name.as_str()), "{name} (I2)");
        }
        assert!(part.windows(2).any(|pair| pair == ["-p", FACADE]));
        assert!(NIGHTLY.iter().all(|name| unsafety::packages().contains(*name)), "nothing is named for nothing");
    }
}
