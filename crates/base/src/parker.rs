//! Sleep and wake-up of one owner: an event count over a futex and one eventfd.
//!
//! An owner that waits only for a wake-up sleeps on its state word, a futex, which costs one system call on each side.
//! An owner that waits for I/O too, in a kernel ring or in an application's event loop, is woken by an eventfd, which
//! it must read afterwards. An owner that never waits for I/O needs no eventfd ([`Parker::without_fd`]).
//!
//! Owns the protocol that loses no wake-up and makes no system call unless the owner sleeps. Does not own the queues:
//! the owner checks them between announcing the sleep and sleeping.
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
//! | `ASLEEP` | the owner has announced its sleep: the next wake-up rings the bell | `park`, `cancel_sleep`, `unpark` |
//! | `PARKED` | the owner sleeps on this word: the next wake-up wakes it there, without a ring | `park`, `unpark` |
//! | `NOTIFIED` | work was queued since the owner last looked | `prepare_sleep`, `cancel_sleep`, `park` |
//!
//! * I1: each change of `state` is one exchange. An `unpark` comes either before the announcement, which then sees it
//!   and the work put before it, or after, and then rings the bell.
//! * I2: an announced sleep that ends `NOTIFIED` has exactly one ring, by the `unpark` that found `ASLEEP`. An `unpark`
//!   that found `PARKED` wakes the word instead, and any other makes no system call.
//! * I3: a ring may come late, when the owner is awake again. `owed` counts the rings that are still to come, and the
//!   end of the next announced sleep takes them. `park` ignores the bell; a wait for `fd()` returns once for a late
//!   ring. A late wake-up of the word ends no sleep: `park` checks the state and sleeps on.
//!
//! Called by rings and workers (owners), and by all threads that push to their queues.

#[cfg(not(any(shuttle, loom)))]
mod bell;
#[cfg(any(shuttle, loom))]
#[path = "parker/model_bell.rs"]
mod bell;

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;

use crate::sync::Arc;
use crate::sync::atomic::{AtomicU32, Ordering};
use bell::Bell;

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;
const NOTIFIED: u32 = 2;
const PARKED: u32 = 3;

/// Reason why `park` returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// There was an `unpark`.
    Notified,
    /// The timeout passed.
    TimedOut,
}

/// Owner's side.
#[derive(Debug)]
pub struct Parker {
    shared: Arc<ParkState>,
    /// True from `prepare_sleep` to the end of the sleep.
    prepared: bool,
    /// Sleeps that ended notified, minus rings taken (I2): above 0 a ring is still to come or to be taken (I3).
    owed: i64,
}

/// Waker's side.
#[derive(Debug, Clone)]
pub struct Unparker {
    shared: Arc<ParkState>,
}

#[derive(Debug)]
struct ParkState {
    /// One of the four states. On a line of its own: wakers write it while the owner works.
    state: CachePadded<AtomicU32>,
    bell: Bell,
}

impl Parker {
    /// Makes a parker for the thread that will own it.
    ///
    /// # Errors
    /// When the process has no file descriptor left: raise `RLIMIT_NOFILE` or open fewer rings.
    pub fn new() -> io::Result<Self> {
        Ok(Self::with_bell(Bell::new()?))
    }

    /// Makes a parker whose owner sleeps in [`park`](Self::park) only. Needs no file descriptor, and has no
    /// [`fd`](Self::fd).
    #[must_use]
    pub fn without_fd() -> Self {
        Self::with_bell(Bell::silent())
    }

    fn with_bell(bell: Bell) -> Self {
        let shared = ParkState { state: CachePadded::new(AtomicU32::new(AWAKE)), bell };
        Self { shared: Arc::new(shared), prepared: false, owed: 0 }
    }

    /// Returns a waker's side, for as many threads as need it.
    #[must_use]
    pub fn unparker(&self) -> Unparker {
        Unparker { shared: Arc::clone(&self.shared) }
    }

    /// Returns a descriptor that polls readable once the sleeper was woken, to be waited for together with I/O. For
    /// polling only: `cancel_sleep` reads it, and nothing else may.
    ///
    /// # Panics
    ///
    /// Panics if the parker was made by [`without_fd`](Self::without_fd).
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.shared.bell.fd()
    }

    /// Announces a sleep. After true, look for work once more, then sleep or [`cancel_sleep`](Self::cancel_sleep).
    /// After false there was an `unpark` since the last sleep, which is consumed: do not sleep, there is nothing to
    /// cancel.
    #[must_use = "after false the owner is awake and must look for work"]
    #[inline]
    pub fn prepare_sleep(&mut self) -> bool {
        if self.prepared {
            return true;
        }
        // Acquire pairs with the Release of `unpark`: after a false the owner sees the work that was put before. Only
        // `AWAKE` becomes `ASLEEP`. Release is not needed, because a waker reads nothing of the owner's.
        let announced = self.shared.state.compare_exchange(AWAKE, ASLEEP, Ordering::Acquire, Ordering::Acquire);
        if announced.is_err() {
            // An exchange and not a store, to acquire from a second `unpark` that came in between.
            self.shared.state.swap(AWAKE, Ordering::Acquire);
        }
        self.prepared = announced.is_ok();
        self.prepared
    }

    /// Ends an announced sleep, whether the owner slept (in a kernel ring) or found work. Returns true if there was an
    /// `unpark` in the meantime. Only then, or after a late ring, makes a system call to read the eventfd. Does nothing
    /// if no sleep is announced.
    #[inline]
    pub fn cancel_sleep(&mut self) -> bool {
        if !self.prepared {
            return false;
        }
        self.prepared = false;
        // Acquire pairs with the Release of `unpark`.
        let notified = self.shared.state.swap(AWAKE, Ordering::Acquire) == NOTIFIED;
        self.owed += i64::from(notified);
        if self.owed > 0 {
            self.silence();
        }
        notified
    }

    /// Sleeps until there is an `unpark`, or for at most `timeout`. Returns at once if there was one since the last
    /// sleep. Announces the sleep itself unless [`prepare_sleep`](Self::prepare_sleep) has.
    pub fn park(&mut self, timeout: Option<Duration>) -> Wake {
        if !self.prepare_sleep() {
            return Wake::Notified;
        }
        let state = &self.shared.state;
        // Acquire on failure pairs with the Release of `unpark`; the owner has nothing to release.
        if state.compare_exchange(ASLEEP, PARKED, Ordering::Acquire, Ordering::Acquire).is_err() {
            // The `unpark` came between announcement and sleep, and has rung the bell.
            self.cancel_sleep();
            return Wake::Notified;
        }
        // `None` if the deadline is beyond the range of the clock.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut in_time = true;
        self.prepared = false;
        loop {
            // Acquire pairs with the Release of `unpark`. Relaxed on failure: nothing was put.
            if state.compare_exchange(NOTIFIED, AWAKE, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return Wake::Notified;
            }
            if !in_time {
                break;
            }
            in_time = self.shared.bell.sleep_on(state, PARKED, deadline);
        }
        // Acquire as above: an `unpark` may have come in the last moment.
        if state.swap(AWAKE, Ordering::Acquire) == NOTIFIED { Wake::Notified } else { Wake::TimedOut }
    }

    /// Reads the eventfd and subtracts its rings from `owed`. Without an eventfd no ring is to come.
    #[cold]
    fn silence(&mut self) {
        // The cast is safe: each ring is a system call, so their count stays below 2^63.
        self.owed = self.shared.bell.silence().map_or(0, |rings| self.owed - rings as i64);
    }
}

impl Unparker {
    /// Wakes the owner, or prevents its next sleep. Makes a system call only if the owner sleeps.
    ///
    /// Call it after the work was put where the owner looks.
    #[inline]
    pub fn unpark(&self) {
        // Release pairs with the Acquire in `prepare_sleep`, `cancel_sleep` and `park`. An exchange always, even over
        // `NOTIFIED`: the owner that takes the notification must see the work of each waker (I1).
        match self.shared.state.swap(NOTIFIED, Ordering::Release) {
            PARKED => self.shared.bell.wake(&self.shared.state),
            ASLEEP => self.shared.bell.ring(),
            _ => {}
        }
    }
}

#[cfg(all(test, any(shuttle, loom)))]
mod model;
#[cfg(all(test, not(any(shuttle, loom))))]
mod tests;
