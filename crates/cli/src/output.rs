//! Output of results on stdout, like in all programs here ([`sheave_load::output`]), with the failures of this command.
//!
//! O1. With `--json`, stdout gets exactly one JSON value: the result, or the failure if there was no result.

use std::fmt;
use std::io::Write;

use serde::Serialize;
use sheave_base::sync::atomic::{AtomicBool, Ordering};

use sheave_daemon::failure::Failure;

pub use sheave_load::output::{is_read, text};

/// True after a JSON value was written (O1).
static WRITTEN: AtomicBool = AtomicBool::new(false);

/// Writes exactly one JSON object to stdout.
pub fn json<T: Serialize>(value: &T) -> Result<(), Failure> {
    // Relaxed: only the main thread writes results.
    WRITTEN.store(true, Ordering::Relaxed);
    Ok(sheave_load::output::json(value)?)
}

/// Formats a time in a suitable unit.
pub fn span(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// Replaces control characters, because a terminal would interpret them.
pub fn plain(name: &str) -> String {
    name.chars().map(|sign| if sign.is_control() { '?' } else { sign }).collect()
}

/// Writes to stderr, ignoring errors: a closed or full stderr must not stop or panic the command.
pub fn say(text: impl fmt::Display) {
    let _ = write!(std::io::stderr().lock(), "{text}");
}

/// True if `--quiet` was given.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Suppresses notes from now on.
pub fn be_quiet() {
    // Relaxed: only the main thread sets it, before it does anything else.
    QUIET.store(true, Ordering::Relaxed);
}

/// Returns true if notes are suppressed.
pub fn is_quiet() -> bool {
    // Relaxed: as above.
    QUIET.load(Ordering::Relaxed)
}

/// Writes a note to stderr: information for a user who watches, not a problem.
pub fn note(text: impl fmt::Display) {
    if !is_quiet() {
        say(text);
    }
}

/// Writes warnings to stderr, one line each.
pub fn warn(words: &[String]) {
    words.iter().for_each(|word| say(format_args!("sheave: warning: {word}\n")));
}

/// Writes the failure as JSON, if JSON was requested and nothing was written yet (O1).
pub fn failure_json(failure: &Failure, wants_json: bool) {
    // Relaxed: as above.
    if wants_json && !WRITTEN.load(Ordering::Relaxed) {
        // If stdout cannot be written, the exit code still reports the failure.
        let _ = sheave_load::output::json(&failure.json());
    }
}
