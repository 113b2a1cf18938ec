//! Loud skips: a test that cannot run here prints that on the real stderr and into a log that `cargo xtask test` reads.
//!
//! Owns the environment variables `CI` and `SHEAVE_SKIP_LOG` as far as tests read them. Does not decide which tools
//! exist ([`crate::tools`] does). Maintains I2 and I3 of the crate.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

/// Environment variable with the file to which every skip appends one line. A runner that hides the output of tests
/// counts the skips in this file.
pub const SKIP_LOG_ENV: &str = "SHEAVE_SKIP_LOG";

/// Environment variable with the sanitizer under which the tests run. Set by `cargo xtask asan`.
pub const SANITIZER_ENV: &str = "SHEAVE_SANITIZER";

/// The beginning of each skip's line.
pub const PREFIX: &str = "SKIPPED: ";

/// Returns true in a CI run, where a missing tool is a failure: `CI` is set and is not `false`, `0` or empty.
pub fn in_ci() -> bool {
    means_ci(std::env::var_os("CI").as_deref())
}

pub(crate) fn means_ci(value: Option<&OsStr>) -> bool {
    value.is_some_and(|value| !value.is_empty() && value != "false" && value != "0")
}

/// Returns true under a sanitizer, where counts of instructions and allocations, and times, mean nothing.
pub fn under_sanitizer() -> bool {
    std::env::var_os(SANITIZER_ENV).is_some()
}

/// Skips the calling test for a reason that no package cures (the kernel forbids io_uring, no such device ...).
///
/// State what is missing and what would cure it; then return from the test. Never a failure, not even in CI: for a
/// missing tool use [`crate::require`].
///
/// ```
/// if !std::path::Path::new("/sys/block").exists() {
///     sheave_testkit::skip("no /sys/block here: run on a Linux host");
/// }
/// ```
pub fn skip(reason: &str) {
    let thread = std::thread::current();
    let test = thread.name().filter(|name| *name != "main").unwrap_or("test");
    let line = format!("{PREFIX}{test}: {}\n", reason.replace('\n', " "));
    let log = std::env::var_os(SKIP_LOG_ENV);
    // The harness captures `eprintln!` and shows it only for failed tests; a write to the handle itself is not
    // captured.
    tell(&line, &mut std::io::stderr(), log.as_deref().map(Path::new));
}

pub(crate) fn tell(line: &str, screen: &mut dyn Write, log: Option<&Path>) {
    let _ = screen.write_all(line.as_bytes());
    if let Some(path) = log {
        // One write of one short line in append mode, so that the lines of tests that run in parallel do not mix.
        let log = OpenOptions::new().append(true).create(true).open(path);
        let _ = log.and_then(|mut log| log.write_all(line.as_bytes()));
    }
}
