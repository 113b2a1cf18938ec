//! Writing results to stdout: without dying of a closed pipe, and without taking a full disk for a success.
//!
//! `println!` panics when the reader went away (`sheave bench ... | head -1`); a result that nobody reads any more is
//! not an error of the run. A result that could not be written is one, and [`finish`] tells: a program calls it last.
//! What tells without an end asks [`is_read`] whether to go on.

use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec};
use serde::Serialize;
use sheave_base::sync::atomic::{AtomicBool, Ordering};

use crate::error::LoadError;

/// Why stdout did not take a result, the first time.
static FAILED: Mutex<Option<io::Error>> = Mutex::new(None);
/// Its reader was seen to be gone.
static GONE: AtomicBool = AtomicBool::new(false);

/// Writes text to stdout as it is.
pub fn text(text: &str) {
    let mut stdout = io::stdout().lock();
    note(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()));
}

/// Notes the outcome of a write to stdout that somebody else made.
pub fn note(written: io::Result<()>) {
    match written {
        Ok(()) => {}
        // The reader has seen enough.
        // Relaxed: the flag carries nothing but itself.
        Err(err) if err.kind() == io::ErrorKind::BrokenPipe => GONE.store(true, Ordering::Relaxed),
        Err(err) => {
            FAILED.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(err);
        }
    }
}

/// Whether more can be told: nothing has failed, and the reader of a pipe is not gone, also when there was nothing to
/// tell it meanwhile.
pub fn is_read() -> bool {
    let failed = FAILED.lock().unwrap_or_else(PoisonError::into_inner).is_some();
    // Relaxed: as in `note`.
    if failed || GONE.load(Ordering::Relaxed) {
        return false;
    }
    let stdout = io::stdout();
    // An end of a pipe without another is told unasked.
    let mut polled = [PollFd::new(&stdout, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let found = rustix::event::poll(&mut polled, Some(&now));
    found.is_err() || !polled[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
}

/// Writes exactly one JSON object to stdout.
pub fn json<T: Serialize>(value: &T) -> Result<(), LoadError> {
    let mut line = serde_json::to_string_pretty(value)
        .map_err(|err| LoadError::run(format!("the report does not fit into JSON: {err}")))?;
    line.push('\n');
    text(&line);
    Ok(())
}

/// Whether all results were written.
///
/// # Errors
///
/// Why one was not.
pub fn finish() -> Result<(), LoadError> {
    match FAILED.lock().unwrap_or_else(PoisonError::into_inner).take() {
        None => Ok(()),
        Some(err) => Err(LoadError::run(format!("the result could not be written to stdout: {err}"))
            .fix("what was asked for is done; see where stdout goes, and ask for the result again")),
    }
}
