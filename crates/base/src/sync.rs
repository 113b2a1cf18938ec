//! The only import of atomics, locks and threads for code whose correctness depends on how threads interleave.
//!
//! Owns the choice of implementation. It is std in every ordinary build, and the `shuttle` or the `loom` model checker
//! in a model build. In the lab's simulation, which is a build with `--cfg sheave_mesi`, it is a model of cache-line
//! states (`mesi`). Does not own any algorithm, and adds nothing to the re-exported items.
//!
//! * I1: a model build runs model tests only; outside of an execution of the checker its types panic. So `--cfg
//!   shuttle` and `--cfg loom` select it, not a feature, because cargo unites the features of everything it builds. The
//!   checkers are dependencies of tests alone. Where this crate is built for the models of another crate, the checker
//!   is passed with `--extern` (`cargo xtask models`).
//! * I2: a build has at most one checker.
//! * I3: only names that std, shuttle and loom all have are exported. Pure counters are std's in model builds, too.
//!
//! Called by every module with an atomic in it, here and on the floors above.

// Depends on the checker passed with `--extern`, so that cargo rebuilds this crate for another one.
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

/// Atomics that only count. No code makes a decision based on them, so a model checker would find nothing there, while
/// each of thousands of cells would become a switching point of its schedules.
pub mod count {
    #[cfg(not(any(shuttle, loom)))]
    pub use super::atomic::AtomicU64;
    #[cfg(any(shuttle, loom))]
    pub use std::sync::atomic::AtomicU64;
}

/// Marks plain data that one thread has written and another will read, or the other way round: the lab's simulation of
/// cache lines counts it as written as a whole. Does nothing in any other build.
#[inline(always)]
pub fn crossing<T>(data: &T) {
    #[cfg(sheave_mesi)]
    mesi::crossing(data);
    #[cfg(not(sheave_mesi))]
    let _ = data;
}

pub mod hint {
    pub use super::imp::hint::spin_loop;
}
