//! The number of handles of an owner, and the wake-up of the owner when one is dropped.
//!
//! Owns the count, and the flag of an owner that waits only for messages through handles. Does not own the messages,
//! nor the sleep and wake-up of the owner ([`parker`](crate::parker)).
//!
//! ```text
//!   owner                                  holder of a handle
//!   hear()                                 send something, or nothing
//!   count(): no handle but its own?        gone()?
//!   yes: do not wait                       yes: wake the owner
//!   no: sleep, then deaf()
//! ```
//!
//! * H1: an owner that saw a handle between `hear` and `deaf` is woken when that handle is dropped.
//! * H2: an owner that sees that a handle is gone sees all messages that were sent through it.
//!
//! Called by rings: a wait that only messages through handles could end ends when the last handle is dropped.

use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};

/// Number of the handles of an owner; see the [module](self).
#[derive(Debug)]
pub struct HandleCount {
    handles: AtomicU32,
    /// Set while the owner waits only for messages through handles (H1).
    is_heard: AtomicBool,
}

impl HandleCount {
    /// Starts with one handle, the owner's.
    #[must_use]
    pub fn new() -> HandleCount {
        HandleCount { handles: AtomicU32::new(1), is_heard: AtomicBool::new(false) }
    }

    /// Counts the clone of a handle.
    #[inline]
    pub fn add(&self) {
        // Relaxed: the cloned handle is counted already, and stays so until this call ends.
        self.handles.fetch_add(1, Ordering::Relaxed);
    }

    /// Uncounts a dropped handle. Returns true if the owner must be woken.
    #[inline]
    #[must_use = "an owner that is not woken waits for a handle that has gone"]
    pub fn gone(&self) -> bool {
        // Release pairs with the Acquire in `count` (H2).
        self.handles.fetch_sub(1, Ordering::Release);
        // SeqCst pairs with the fence in `hear`: this sees the mark, or the owner sees the handle uncounted (H1).
        fence(Ordering::SeqCst);
        // Relaxed: after the fence.
        self.is_heard.load(Ordering::Relaxed)
    }

    /// Announces that the owner will wait for messages through handles alone; it calls [`count`](Self::count) next, and
    /// [`deaf`](Self::deaf) at the end of the wait.
    pub fn hear(&self) {
        // Relaxed: before the fence.
        self.is_heard.store(true, Ordering::Relaxed);
        // SeqCst pairs with the fence in `gone`.
        fence(Ordering::SeqCst);
    }

    /// Ends the wait that [`hear`](Self::hear) announced.
    pub fn deaf(&self) {
        // Relaxed: a dropped handle that still sees the mark wakes the owner once without need.
        self.is_heard.store(false, Ordering::Relaxed);
    }

    /// Returns the number of handles, the owner's included.
    #[must_use]
    pub fn count(&self) -> u32 {
        // Acquire pairs with the Release in `gone` (H2).
        self.handles.load(Ordering::Acquire)
    }
}

impl Default for HandleCount {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, any(shuttle, loom)))]
mod model;
#[cfg(all(test, not(any(shuttle, loom))))]
mod tests;
