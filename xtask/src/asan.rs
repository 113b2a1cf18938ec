//! `cargo xtask asan`: the tests under the address sanitizer, which sees uses after free, overflows and leaks.
//!
//! Owns the build flags. Works with a stable toolchain: it ships the sanitizer's runtime, only the flag asks for
//! RUSTC_BOOTSTRAP. Builds into its own target directory, so that the ordinary builds stay warm.
//!
//! Invariant I1: the tests count for something only after a deliberate use after free was caught here.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use sheave_testkit::skip;

use crate::cargo::{self, cargo};
use crate::counts::Counts;
use crate::workspace;

/// Makes the sanitizer's flags apply to the target's code only, not to build scripts.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Crates whose tests touch no memory that the sanitizer could say anything about.
const EXCLUDED: &[&str] = &["xtask", "sheave-testkit"];

/// The command: all product crates, or those given with `-p`.
pub fn main(args: &[String]) -> Result<()> {
    let mut counts = Counts::default();
    let result = run(args, &mut counts);
    println!("{counts}");
    result
}

/// Proves that the sanitizer works, then runs the tests under it.
pub fn run(args: &[String], counts: &mut Counts) -> Result<()> {
    let sees_leaks = prove_it_catches()?;
    cargo::run_tests(tests(args, sees_leaks)?, counts)
}

/// Whether this machine has what the sanitizer needs; the reason if not.
pub fn unsupported() -> Option<String> {
    let sysroot = cargo::capture(rustc(&["--print", "sysroot"])).map(|(out, ..)| PathBuf::from(out.trim()));
    let Ok(sysroot) = sysroot else { return Some("rustc does not answer".into()) };
    let lib = sysroot.join("lib/rustlib").join(TARGET).join("lib");
    let runtime = std::fs::read_dir(&lib).into_iter().flatten().flatten();
    let shipped = runtime.into_iter().any(|file| file.file_name().to_string_lossy().ends_with("_rt.asan.a"));
    (!shipped).then(|| format!("{} has no address sanitizer runtime: use a rustup toolchain", lib.display()))
}

fn tests(args: &[String], sees_leaks: bool) -> Result<Command> {
    let mut command = cargo(["test", "--lib", "--bins", "--tests", "--no-fail-fast", "--quiet", "--target", TARGET]);
    command.arg("--target-dir").arg(workspace::root().join("target-asan"));
    match args {
        [] => {
            command.arg("--workspace");
            for name in EXCLUDED {
                command.args(["--exclude", name]);
            }
        }
        [flag, ..] if flag == "-p" => {
            command.args(args);
        }
        _ => bail!("usage: cargo xtask asan [-p CRATE]... [TEST ARGS]"),
    }
    command.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", "-Zsanitizer=address");
    let leaks = u8::from(sees_leaks);
    command.env("ASAN_OPTIONS", format!("detect_leaks={leaks}:detect_stack_use_after_return=1"));
    command.env(sheave_testkit::SANITIZER_ENV, "address");
    Ok(command)
}

/// I1. True if leaks are seen too.
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
        // It stops the process by ptrace to look at its memory, which some containers forbid.
        ensure!(
            leak.contains("LeakSanitizer has encountered"),
            "the sanitizer does not see a deliberate leak:\n{leak}"
        );
        println!("{}leaks are not looked for: this container forbids ptrace", skip::PREFIX);
    }
    Ok(sees_leaks)
}

/// What a program says to standard error when it is built with the sanitizer and run.
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
