//! The number of results after which a sleeping owner is woken.
//!
//! Owns the count that the owner of a queue sets before it sleeps, and that producers of results count down. Does not
//! own the queue, nor the sleep and wake-up of the owner ([`parker`](crate::parker)).
//!
//! ```text
//!   owner                                  any thread
//!   sleep_until(4)                         queue a result
//!   look for results                       is_due(1)?
//!   some: awake()                          yes: wake the owner
//!   none: sleep, then awake()
//! ```
//!
//! * I1: between `sleep_until` and `awake` the owner is woken at the latest when the given number of results has been
//!   queued; a result that finds the count at 0 always wakes.
//! * I2: a producer may count down late, after the owner's last look has found its results. The count then reaches its
//!   end early: the owner is woken once too often, and never too late.
//!
//! Called by rings, for the results of workers and for requests that other threads complete.

use crate::sync::atomic::{AtomicU32, Ordering, fence};

/// Number of results that a sleeping owner still waits for; see the [module](self).
#[derive(Debug, Default)]
pub struct WakeCount {
    /// Number of results left until the wake-up; 0 if every result wakes. Below zero, as a signed number, if more
    /// results came than the owner slept for.
    left: AtomicU32,
}

impl WakeCount {
    /// Makes the count of an owner that is woken for each result.
    #[must_use]
    pub fn new() -> WakeCount {
        WakeCount { left: AtomicU32::new(0) }
    }

    /// Announces that the owner will sleep until `results` results are queued. It must look for results after this
    /// call, not sleep if it finds some, and call [`awake`](Self::awake) at the end.
    #[inline]
    pub fn sleep_until(&self, results: u32) {
        // Relaxed: before the fence.
        self.left.store(results, Ordering::Relaxed);
        // SeqCst pairs with the fence in `is_due`: the owner's look sees the results, or they see the count.
        fence(Ordering::SeqCst);
    }

    /// Records that the owner is awake.
    #[inline]
    pub fn awake(&self) {
        // Relaxed: a producer that still sees the old count wakes an owner that is awake, or its results are found by
        // the look before the next sleep.
        self.left.store(0, Ordering::Relaxed);
    }

    /// Returns true if the caller, which has queued `results` results, must wake the owner.
    #[inline]
    #[must_use = "an owner that is not woken sleeps on"]
    pub fn is_due(&self, results: u32) -> bool {
        // SeqCst pairs with the fence in `sleep_until`.
        fence(Ordering::SeqCst);
        // Relaxed, both: after the fence; of all threads that count down, exactly one takes the last.
        self.left.load(Ordering::Relaxed) == 0
            || self.left.fetch_sub(results, Ordering::Relaxed).cast_signed() <= results.cast_signed()
    }
}

#[cfg(all(test, any(shuttle, loom)))]
mod model;
#[cfg(all(test, not(any(shuttle, loom))))]
mod tests;
