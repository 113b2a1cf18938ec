//! When pools and volumes are made: the one look at the wall clock.
//!
//! Owns the time that `created` fields get. A thread that must do the same thing twice, to the byte, as a simulation
//! does, fixes it for itself; nothing else depends on the wall clock.

use std::cell::Cell;
use std::time::{SystemTime, UNIX_EPOCH};

thread_local! {
    static FIXED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// For what this thread makes from now on, the time is `seconds` since 1970; `None`: what the wall clock says.
pub fn fix(seconds: Option<u64>) {
    FIXED.set(seconds);
}

/// Seconds since 1970; 0 where the wall clock is before that.
pub(crate) fn now() -> u64 {
    FIXED.get().unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}
