//! Sleep and wake-up of one owner: an event count over one eventfd.
//!
//! Owns the protocol that loses no wake-up and makes no system call unless the owner sleeps. Does not own what is
//! waited for: the owner checks its queues between announcing the sleep and sleeping.
//!
//! ```text
//!   owner                                  any thread
//!   prepare_sleep()   (announce)           put work where the owner looks
//!   look for work                          unpark()
//!   found: cancel_sleep()
//!   none:  park(), or wait for fd() in a kernel ring and then cancel_sleep()
//! ```
//!
//! | state | meaning | left by |
//! |---|---|---|
//! | `AWAKE` | the owner runs and will look for work before it sleeps | `prepare_sleep`, `unpark` |
//! | `ASLEEP` | the owner has announced its sleep: the next wake-up must ring the bell | `cancel_sleep`, `unpark` |
//! | `NOTIFIED` | work was put since the owner last looked | `prepare_sleep`, `cancel_sleep` |
//!
//! * I1: each change of `state` is one exchange. An `unpark` comes either before the announcement, which then sees
//!   it and what was put before it, or after, and then rings.
//! * I2: the bell is rung at most once a sleep, by the `unpark` that found `ASLEEP`.
//! * I3: a ring that comes late (the sleeper was awake again) at most shortens a later wait for `fd()`; `park`
//!   itself does not return for it.
//!
//! Called by rings and workers (owners), and by whoever pushes to their queues.

mod bell;

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use crossbeam_utils::CachePadded;

use crate::sync::Arc;
use crate::sync::atomic::{AtomicU8, Ordering};
use bell::Bell;

const AWAKE: u8 = 0;
const ASLEEP: u8 = 1;
const NOTIFIED: u8 = 2;

/// Why `park` returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// There was an `unpark`.
    Notified,
    /// The time was up.
    TimedOut,
}

/// The owner's side.
#[derive(Debug)]
pub struct Parker {
    shared: Arc<Shared>,
    /// True from `prepare_sleep` to the end of the sleep.
    prepared: bool,
}

/// The side of those who wake the owner.
#[derive(Debug, Clone)]
pub struct Unparker {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// One of the three states. On a line of its own: wakers write it while the owner works.
    state: CachePadded<AtomicU8>,
    bell: Bell,
}

impl Parker {
    /// A parker for the thread that will own it.
    ///
    /// # Errors
    /// When the process has no file descriptor left: raise `RLIMIT_NOFILE` or open fewer rings.
    pub fn new() -> io::Result<Self> {
        let shared = Shared { state: CachePadded::new(AtomicU8::new(AWAKE)), bell: Bell::new()? };
        Ok(Self { shared: Arc::new(shared), prepared: false })
    }

    /// The waking side, for as many threads as need it.
    #[must_use]
    pub fn unparker(&self) -> Unparker {
        Unparker { shared: Arc::clone(&self.shared) }
    }

    /// A descriptor that polls readable once the sleeper was woken, to wait for together with I/O. Non-blocking: a
    /// kernel ring waits for it by a poll request, not by a read.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.shared.bell.fd()
    }

    /// Announces a sleep. True: look for work once more, then sleep or [`cancel_sleep`](Self::cancel_sleep).
    /// False: there was an `unpark` since the last sleep, do not sleep; it is used up and there is nothing to cancel.
    #[must_use = "after false the owner is awake and must look for work"]
    pub fn prepare_sleep(&mut self) -> bool {
        if self.prepared {
            return true;
        }
        // Acquire pairs with the Release of `unpark`: after a false the owner sees what was put before. Only `AWAKE`
        // becomes `ASLEEP`; Release is not needed, a waker reads nothing of ours.
        let announced = self.shared.state.compare_exchange(AWAKE, ASLEEP, Ordering::Acquire, Ordering::Acquire);
        if announced.is_err() {
            // Taken by an exchange and not by a store, to acquire from a second `unpark` that came in between.
            self.shared.state.swap(AWAKE, Ordering::Acquire);
        }
        self.prepared = announced.is_ok();
        self.prepared
    }

    /// Ends an announced sleep, whether the owner slept (in a kernel ring) or found work. True when there was an
    /// `unpark` in the meantime. Makes a system call only then, to silence the bell. Does nothing
    /// when no sleep is announced.
    pub fn cancel_sleep(&mut self) -> bool {
        if !self.prepared {
            return false;
        }
        self.prepared = false;
        // Acquire pairs with the Release of `unpark`.
        let notified = self.shared.state.swap(AWAKE, Ordering::Acquire) == NOTIFIED;
        if notified {
            self.shared.bell.silence();
        }
        notified
    }

    /// Sleeps until there is an `unpark`, or for `timeout` at most. Returns at once when there was one since the
    /// last sleep. Announces the sleep itself unless [`prepare_sleep`](Self::prepare_sleep) has.
    pub fn park(&mut self, timeout: Option<Duration>) -> Wake {
        if !self.prepare_sleep() {
            return Wake::Notified;
        }
        let deadline = timeout.and_then(|timeout| std::time::Instant::now().checked_add(timeout));
        // Ends with the first ring of this sleep or with the timeout; late rings of the last sleep (I3) are at most
        // one, signals do not ring.
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(std::time::Instant::now()));
            let rang = self.shared.bell.wait(left);
            // Acquire pairs with the Release of `unpark`.
            if self.shared.state.load(Ordering::Acquire) == NOTIFIED {
                self.cancel_sleep();
                return Wake::Notified;
            }
            if rang {
                self.shared.bell.silence();
            } else if left.is_some_and(|left| left.is_zero()) {
                return if self.cancel_sleep() { Wake::Notified } else { Wake::TimedOut };
            }
        }
    }
}

impl Unparker {
    /// Wakes the owner, or keeps it from its next sleep. A system call only when the owner sleeps.
    ///
    /// Call it after the work was put where the owner looks.
    #[inline]
    pub fn unpark(&self) {
        // Release pairs with the Acquire in `prepare_sleep`, `cancel_sleep` and `park`. An exchange always, even over
        // `NOTIFIED`: the owner that takes the notification must see the work of each waker (I1).
        if self.shared.state.swap(NOTIFIED, Ordering::Release) == ASLEEP {
            self.shared.bell.ring();
        }
    }
}

#[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
mod tests;
