//! Results on stdout, as all programs here write them ([`sheave_load::output`]); a failure is one of this command.
//!
//! O1. With `--json` stdout gets exactly one JSON value: the result, or the failure when there was no result.

use std::fmt;
use std::io::Write;

use serde::Serialize;
use sheave_base::sync::atomic::{AtomicBool, Ordering};

use sheave_daemon::failure::Failure;

pub use sheave_load::output::{is_read, text};

/// A JSON value was written (O1).
static WRITTEN: AtomicBool = AtomicBool::new(false);

/// Writes exactly one JSON object to stdout.
pub fn json<T: Serialize>(value: &T) -> Result<(), Failure> {
    // Relaxed: the main thread alone writes results.
    WRITTEN.store(true, Ordering::Relaxed);
    Ok(sheave_load::output::json(value)?)
}

/// Returns a time in the unit that suits it.
pub fn span(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// Returns a name without the control characters that a terminal would obey.
pub fn plain(name: &str) -> String {
    name.chars().map(|sign| if sign.is_control() { '?' } else { sign }).collect()
}

/// Writes to stderr. Nobody listening, or no room, is no reason to stop, nor to panic.
pub fn say(text: impl fmt::Display) {
    let _ = write!(std::io::stderr().lock(), "{text}");
}

/// `--quiet` was given.
static QUIET: AtomicBool = AtomicBool::new(false);

/// From now on notes are not told.
pub fn be_quiet() {
    // Relaxed: the main thread alone sets it, before it does anything else.
    QUIET.store(true, Ordering::Relaxed);
}

/// Whether notes are told.
pub fn is_quiet() -> bool {
    // Relaxed: as above.
    QUIET.load(Ordering::Relaxed)
}

/// Writes to stderr what goes well, and is told for people who look on.
pub fn note(text: impl fmt::Display) {
    if !is_quiet() {
        say(text);
    }
}

/// Warnings, a line each, to stderr.
pub fn warn(words: &[String]) {
    words.iter().for_each(|word| say(format_args!("sheave: warning: {word}\n")));
}

/// Tells programs why the command failed, if JSON was asked for and there is none yet (O1).
pub fn failure_json(failure: &Failure, wants_json: bool) {
    // Relaxed: as above.
    if wants_json && !WRITTEN.load(Ordering::Relaxed) {
        // What stdout does not take is told by the exit code all the same.
        let _ = sheave_load::output::json(&failure.json());
    }
}
