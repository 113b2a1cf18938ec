//! When pools and volumes are made, and which ones they are: the one look at the wall clock, and at random numbers.
//!
//! Owns the time that `created` fields get, identities, and the numbers of openings. A thread that must do the same
//! thing twice, to the byte, as a simulation does, fixes the time for itself, and the random numbers with it; nothing
//! else depends on either.

use std::cell::Cell;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::rand::{GetRandomFlags, getrandom};
use sheave_base::status::{Errno, Status};

thread_local! {
    static FIXED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// For what this thread makes from now on, the time is `seconds` since 1970, and random numbers follow from what
/// they are for; `None`: they are what the wall clock says, and random.
pub fn fix(seconds: Option<u64>) {
    FIXED.set(seconds);
}

/// Seconds since 1970; 0 where the wall clock is before that.
pub(crate) fn now() -> u64 {
    FIXED.get().unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}

/// 128 random bits, of which no two are the same, and none all zero. Where the time is fixed they follow from `number`.
pub(crate) fn random(number: u64) -> Result<[u8; 16], Status> {
    if FIXED.get().is_some() {
        return Ok((u128::from(number) | 1 << 127).to_le_bytes());
    }
    let mut bytes = [0; 16];
    loop {
        // So few bytes come as a whole, or not at all (getrandom(2)).
        match getrandom(&mut bytes, GetRandomFlags::empty()) {
            Ok(_) if bytes != [0; 16] => return Ok(bytes),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(Status::from_errno(Errno(errno.raw_os_error()))),
        }
    }
}
