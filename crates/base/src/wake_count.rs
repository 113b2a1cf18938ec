//! After how many results a sleeping owner is woken.
//!
//! Owns the count that the owner of a queue sets before it sleeps, and that whoever queues results for it counts down.
//! Does not own the queue, nor how the owner sleeps and is woken ([`parker`](crate::parker)).
//!
//! ```text
//!   owner                                  any thread
//!   sleep_until(4)                         queue a result
//!   look for results                       is_due(1)?
//!   some: awake()                          yes: wake the owner
//!   none: sleep, then awake()
//! ```
//!
//! * I1: between `sleep_until` and `awake` the owner is woken when so many results have been queued, or earlier;
//!   a result that finds the count at 0 always wakes.
//! * I2: a count that somebody takes from late, who queued its results before the owner's last look, runs out early:
//!   the owner is woken once too often, and never too late.
//!
//! Called by rings, for the results of workers and for requests that other threads complete.

use crate::sync::atomic::{AtomicU32, Ordering, fence};

/// See the [module](self).
#[derive(Debug, Default)]
pub struct WakeCount {
    /// Results for which the owner need not be woken, and one more; 0 while it is to be woken for each. Below zero, as
    /// a signed number, when more came than it slept for.
    left: AtomicU32,
}

impl WakeCount {
    /// An owner that is woken for each result.
    #[must_use]
    pub fn new() -> WakeCount {
        WakeCount { left: AtomicU32::new(0) }
    }

    /// The owner is about to sleep until so many results are queued. It looks for results after this call, and does not
    /// sleep if it finds some. [`awake`](Self::awake) is to follow.
    #[inline]
    pub fn sleep_until(&self, results: u32) {
        // Relaxed: before the fence.
        self.left.store(results, Ordering::Relaxed);
        // SeqCst pairs with the fence in `is_due`: the owner's look sees the results, or they see the count.
        fence(Ordering::SeqCst);
    }

    /// The owner does not sleep any more.
    #[inline]
    pub fn awake(&self) {
        // Relaxed: who does not see it wakes an owner that is awake, or has its results found by the look that comes
        // before the next sleep.
        self.left.store(0, Ordering::Relaxed);
    }

    /// Whether the owner is to be woken for so many results, which were queued before this call.
    #[inline]
    #[must_use = "an owner that is not woken sleeps on"]
    pub fn is_due(&self, results: u32) -> bool {
        // SeqCst pairs with the fence in `sleep_until`.
        fence(Ordering::SeqCst);
        // Relaxed, both: after the fence; of those who take from the count, one takes the last.
        self.left.load(Ordering::Relaxed) == 0
            || self.left.fetch_sub(results, Ordering::Relaxed).cast_signed() <= results.cast_signed()
    }
}

#[cfg(all(test, any(shuttle, loom)))]
mod model;
#[cfg(all(test, not(any(shuttle, loom))))]
mod tests;
