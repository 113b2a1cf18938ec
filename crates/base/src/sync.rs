//! The only import of atomics, locks and threads for code whose correctness depends on how threads interleave.
//!
//! Owns the choice: std in every ordinary build; the `shuttle` or the `loom` model checker in a model build; a machine
//! that keeps the states of cache lines (`mesi`) in the lab's simulation, which is a build with `--cfg sheave_mesi`.
//! Does not own any algorithm, and adds nothing to what it re-exports.
//!
//! * I1: a model build runs model tests only. Outside of an execution of the checker its types panic. So a model build
//!   is asked for by `--cfg shuttle` or `--cfg loom`, and not by a feature, which cargo joins over all that it builds.
//!   The checkers are dependencies of tests alone. Where this crate is built for the models of another one, the checker
//!   comes by `--extern` (`cargo xtask models`).
//! * I2: a build has one checker at most.
//! * I3: only names that std, shuttle and loom all have are exported. What only counts is std's in model builds, too.
//!
//! Called by every module with an atomic in it, here and on the floors above.

// The checker that came by `--extern`: with another one this is built again.
#[cfg(shuttle)]
const _: Option<&str> = option_env!("SHEAVE_CHECKER");

#[cfg(loom)]
use loom as imp;
#[cfg(shuttle)]
use shuttle as imp;
#[cfg(not(any(shuttle, loom, sheave_mesi)))]
use std as imp;

#[cfg(sheave_mesi)]
use mesi as imp;
#[cfg(any(sheave_mesi, all(test, not(any(shuttle, loom)))))]
pub mod mesi;

#[cfg(any(all(shuttle, loom), all(sheave_mesi, any(shuttle, loom))))]
compile_error!(
    "`--cfg shuttle` and `--cfg loom` are builds of their own, and so is `--cfg sheave_mesi`: choose one (I2)"
);

pub use imp::sync::{Arc, Condvar, Mutex, MutexGuard};
pub use imp::thread;

/// Atomic types and fences.
pub mod atomic {
    pub use super::imp::sync::atomic::{
        AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
}

/// Atomics that only count: no code decides anything by them, so a model checker has nothing to find there, and its
/// types would make each of thousands of cells a point of its schedules.
pub mod count {
    #[cfg(not(any(shuttle, loom)))]
    pub use super::atomic::AtomicU64;
    #[cfg(any(shuttle, loom))]
    pub use std::sync::atomic::AtomicU64;
}

/// Plain data that one thread has written and another will read, or the other way round: in the lab's simulation of
/// cache lines it counts as written, whole. Nothing in any other build.
#[inline(always)]
pub fn crossing<T>(data: &T) {
    #[cfg(sheave_mesi)]
    mesi::crossing(data);
    #[cfg(not(sheave_mesi))]
    let _ = data;
}

/// Hints to the processor.
pub mod hint {
    pub use super::imp::hint::spin_loop;
}
