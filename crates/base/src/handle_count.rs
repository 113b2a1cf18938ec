//! How many handles of an owner there are, and when the owner hears that one has gone.
//!
//! Owns the count, and the mark of an owner that waits for nothing but what comes through handles. Does not own what
//! they send, nor how the owner sleeps and is woken ([`parker`](crate::parker)).
//!
//! ```text
//!   owner                                  who has a handle
//!   hear()                                 send something, or nothing
//!   count(): no handle but its own?        gone()?
//!   yes: do not wait                       yes: wake the owner
//!   no: sleep, then deaf()
//! ```
//!
//! * H1: between `hear` and `deaf` an owner that saw a handle is told when that goes.
//! * H2: an owner that sees that a handle has gone sees all that was sent through it.
//!
//! Called by rings: a wait that only handles could end ends with the last of them.

use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};

/// See the [module](self).
#[derive(Debug)]
pub struct HandleCount {
    handles: AtomicU32,
    /// The owner waits for nothing but what comes through handles (H1).
    is_heard: AtomicBool,
}

impl HandleCount {
    /// One handle, the owner's.
    #[must_use]
    pub fn new() -> HandleCount {
        HandleCount { handles: AtomicU32::new(1), is_heard: AtomicBool::new(false) }
    }

    /// One more, of somebody who has one.
    #[inline]
    pub fn add(&self) {
        // Relaxed: the handle that is cloned is counted already, and stays so until the clone is.
        self.handles.fetch_add(1, Ordering::Relaxed);
    }

    /// One less. Whether the owner is to be woken for that.
    #[inline]
    #[must_use = "an owner that is not woken waits for a handle that has gone"]
    pub fn gone(&self) -> bool {
        // Release pairs with the Acquire in `count` (H2).
        self.handles.fetch_sub(1, Ordering::Release);
        // SeqCst pairs with the fence in `hear`: this sees the mark, or the owner sees that the handle has gone (H1).
        fence(Ordering::SeqCst);
        // Relaxed: after the fence.
        self.is_heard.load(Ordering::Relaxed)
    }

    /// The owner is about to count, for nothing else keeps it waiting. [`deaf`](Self::deaf) is to follow.
    pub fn hear(&self) {
        // Relaxed: before the fence.
        self.is_heard.store(true, Ordering::Relaxed);
        // SeqCst pairs with the fence in `gone`.
        fence(Ordering::SeqCst);
    }

    /// The owner waits no more.
    pub fn deaf(&self) {
        // Relaxed: a handle that does not see it yet wakes the owner once for nothing.
        self.is_heard.store(false, Ordering::Relaxed);
    }

    /// How many there are, the owner's too.
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
