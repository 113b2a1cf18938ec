//! Writing results to stdout: a closed pipe must not end the program, and a full disk must not pass for success.
//!
//! `println!` panics when the reader is gone (`sheave bench ... | head -1`), but a result without a reader is no error
//! of the run. A result that could not be written is an error: a program calls [`finish`] last, which returns it. Code
//! that prints without end calls [`is_read`] to decide if it goes on.

use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec};
use serde::Serialize;
use sheave_base::sync::atomic::{AtomicBool, Ordering};

use crate::error::LoadError;

/// First error of a write to stdout.
static FAILED: Mutex<Option<io::Error>> = Mutex::new(None);
/// True after a write has found that the reader of stdout is gone.
static GONE: AtomicBool = AtomicBool::new(false);

/// Writes text to stdout, unchanged.
pub fn text(text: &str) {
    let mut stdout = io::stdout().lock();
    note(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()));
}

/// Records the outcome of a write to stdout that was made elsewhere.
pub fn note(written: io::Result<()>) {
    match written {
        Ok(()) => {}
        // The reader has closed the pipe because it needs no more.
        // Relaxed: the flag carries nothing but itself.
        Err(err) if err.kind() == io::ErrorKind::BrokenPipe => GONE.store(true, Ordering::Relaxed),
        Err(err) => {
            FAILED.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(err);
        }
    }
}

/// Returns true if more can be printed: no write has failed, and the reader of a pipe is not gone. Also detects that
/// the reader is gone if nothing was printed meanwhile.
pub fn is_read() -> bool {
    let failed = FAILED.lock().unwrap_or_else(PoisonError::into_inner).is_some();
    // Relaxed: as in `note`.
    if failed || GONE.load(Ordering::Relaxed) {
        return false;
    }
    let stdout = io::stdout();
    // No events requested: poll(2) always reports a pipe whose other end is closed.
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

/// Returns an error if a result was not written.
///
/// # Errors
///
/// Returns the error of the first write that failed.
pub fn finish() -> Result<(), LoadError> {
    match FAILED.lock().unwrap_or_else(PoisonError::into_inner).take() {
        None => Ok(()),
        Some(err) => Err(LoadError::run(format!("the result could not be written to stdout: {err}"))
            .fix("what was asked for is done; see where stdout goes, and ask for the result again")),
    }
}
