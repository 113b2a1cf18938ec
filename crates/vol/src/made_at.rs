//! When pools and volumes are made: the one look at the wall clock; and the one source of random numbers.
//!
//! Owns the time that `created` fields get. A thread that must do the same thing twice, to the byte, as a simulation
//! does, fixes it for itself; nothing else depends on the wall clock, and nothing is random then.

use std::cell::Cell;
use std::hash::{BuildHasher, Hasher};
use std::time::{SystemTime, UNIX_EPOCH};

thread_local! {
    static FIXED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// For what this thread makes from now on, the time is `seconds` since 1970; `None`: what the wall clock says.
pub fn fix(seconds: Option<u64>) {
    FIXED.set(seconds);
}

/// Random bytes, from the hasher keys that the system seeds; never all zero. Where the time is fixed they are of `number`
/// alone.
pub(crate) fn random(number: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    match FIXED.get() {
        Some(_) => bytes[..8].copy_from_slice(&number.to_le_bytes()),
        None => bytes.chunks_mut(8).for_each(|half| {
            half.copy_from_slice(&std::hash::RandomState::new().build_hasher().finish().to_ne_bytes());
        }),
    }
    bytes[15] |= 1;
    bytes
}

/// Seconds since 1970; 0 where the wall clock is before that.
pub(crate) fn now() -> u64 {
    FIXED.get().unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}
