//! The only import of atomics, locks and threads for code whose correctness depends on how threads interleave.
//!
//! Owns the choice: std in every ordinary build; the `shuttle` or the `loom` model checker in a model build.
//! Does not own any algorithm, and adds nothing to what it re-exports.
//!
//! * I1: a model build runs model tests only. Outside of an execution of the checker its types panic.
//! * I2: with both features set, `loom` is chosen, so that `--all-features` still compiles.
//! * I3: only names that std, shuttle and loom all have are exported.
//!
//! Called by every module with an atomic in it, here and on the floors above.

#[cfg(feature = "loom")]
use loom as imp;
#[cfg(all(feature = "shuttle", not(feature = "loom")))]
use shuttle as imp;
#[cfg(not(any(feature = "shuttle", feature = "loom")))]
use std as imp;

pub use imp::sync::{Arc, Condvar, Mutex, MutexGuard};
pub use imp::thread;

/// Atomic types and fences.
pub mod atomic {
    pub use super::imp::sync::atomic::{
        AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
}

/// Hints to the processor.
pub mod hint {
    pub use super::imp::hint::spin_loop;
}
