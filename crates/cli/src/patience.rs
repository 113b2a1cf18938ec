//! `--wait`: the time for which a command waits for a pool that another process holds.
//!
//! Owns the time limit, which is set once, before the command does anything. It polls, because there is no notification
//! when the lock of a file is released. A queue of waiting processes would be no alternative, because a killed process
//! could leave its entry behind.

use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use sheave_base::sync::atomic::Ordering;
use sheave_daemon::failure::Failure;
use sheave_load::signals;

use crate::output;

/// Polling interval.
const LOOK_EVERY: Duration = Duration::from_millis(50);

static LONGEST: OnceLock<Duration> = OnceLock::new();

/// Sets the time limit. With `None` commands do not wait.
pub fn set(longest: Option<Duration>) {
    if let Some(longest) = longest {
        // Fails only on a second call; the command line is parsed once.
        let _ = LONGEST.set(longest);
    }
}

/// Repeats `attempt` until it no longer fails as busy, or until the time is over. In the second case the failure names
/// the holder.
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
                // The operation that follows may not check the flag, so from now on Ctrl-C must end the process again.
                signals::stop_unheard();
                return done;
            }
        }
    }
}
