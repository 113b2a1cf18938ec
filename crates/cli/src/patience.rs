//! `--wait`: how long a command waits for a pool that another process has.
//!
//! Owns the time, which is set once, before the command does anything. Looks again and again: nobody tells when a lock
//! on a file comes free, and a queue would be one more thing that a killed process leaves behind.

use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use sheave_base::sync::atomic::Ordering;
use sheave_daemon::failure::Failure;
use sheave_load::signals;

use crate::output;

/// How often it looks.
const LOOK_EVERY: Duration = Duration::from_millis(50);

static LONGEST: OnceLock<Duration> = OnceLock::new();

/// Waits so long from now on; `None`: not at all.
pub fn set(longest: Option<Duration>) {
    if let Some(longest) = longest {
        // The command line is read once.
        let _ = LONGEST.set(longest);
    }
}

/// Tries until nobody else has what it needs, or the time is over; then the error says who has it.
pub fn until_free<T>(mut attempt: impl FnMut() -> Result<T, Failure>) -> Result<T, Failure> {
    let first = attempt();
    let (Some(longest), Err(busy)) = (LONGEST.get(), &first) else { return first };
    if !busy.is_busy() {
        return first;
    }
    let bound = if *longest == Duration::MAX { String::new() } else { format!(", {longest:?} at most") };
    output::note(format_args!("sheave: waiting{bound}: {}\n", busy.cause()));
    let (since, stop) = (Instant::now(), signals::stop_flag()?);
    loop {
        thread::sleep(LOOK_EVERY);
        // Relaxed: the flag carries nothing but itself.
        if stop.load(Ordering::Relaxed) {
            return Err(Failure::interrupted("the wait was ended; nothing was done"));
        }
        match attempt() {
            Err(busy) if busy.is_busy() && since.elapsed() < *longest => {}
            Err(busy) if busy.is_busy() => return Err(busy.after(since.elapsed())),
            done => {
                // What follows may look at no flag.
                signals::stop_unheard();
                return done;
            }
        }
    }
}
