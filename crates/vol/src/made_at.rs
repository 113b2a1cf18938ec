//! Times of creation, and identities: the only place that reads the wall clock and draws random numbers.
//!
//! Owns the time that `created` fields get, identities, and the numbers of openings. A thread whose work must be
//! exactly repeatable, such as a simulation, fixes the time for itself, and with it the random numbers. Nothing else
//! depends on either.

use std::cell::Cell;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::rand::{GetRandomFlags, getrandom};
use sheave_base::status::{Errno, Status};

thread_local! {
    static FIXED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Fixes the time of this thread to `seconds` since 1970. Its random numbers are then computed from fixed numbers, so
/// that they repeat. `None` selects the wall clock and random numbers again.
pub fn fix(seconds: Option<u64>) {
    FIXED.set(seconds);
}

/// Returns the seconds since 1970; 0 if the wall clock is before that.
pub(crate) fn now() -> u64 {
    FIXED.get().unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}

/// Returns 128 random bits, which are unique and not all zero. While the time is fixed they follow from `number`.
pub(crate) fn random(number: u64) -> Result<[u8; 16], Status> {
    if FIXED.get().is_some() {
        // The highest bit is set, so that number 0 is not all zero.
        return Ok((u128::from(number) | 1 << 127).to_le_bytes());
    }
    let mut bytes = [0; 16];
    loop {
        // getrandom(2) gives so few bytes as a whole, or not at all.
        match getrandom(&mut bytes, GetRandomFlags::empty()) {
            Ok(_) if bytes != [0; 16] => return Ok(bytes),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(Status::from_errno(Errno(errno.raw_os_error()))),
        }
    }
}
