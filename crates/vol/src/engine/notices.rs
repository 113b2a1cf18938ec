//! Notices of a pool's space: low, full, or enough again.
//!
//! Owns the newest notice and the threads that wait for it. [`water`](crate::state::water) defines when the state
//! changes.
//!
//! - W2: each change of the state produces one notice, with the next number. Without a change there is no notice.
//!
//! Published under the pool's lock; read by embedders through [`Watch`], without that lock.

use std::time::{Duration, Instant};

use sheave_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sheave_base::sync::{Arc, Condvar, Mutex};

use crate::info::{SpaceNotice, SpaceState};

/// The newest notice, shared by the pool and all its watches.
#[derive(Debug)]
pub(crate) struct Notices {
    number: AtomicU64,
    closed: AtomicBool,
    newest: Mutex<SpaceNotice>,
    changed: Condvar,
}

/// The pool's end of its notices. Dropping it closes them, and wakes all who wait.
#[derive(Debug)]
pub(crate) struct Publisher(pub(crate) Arc<Notices>);

impl Publisher {
    /// Makes a publisher at notice 0, in the state that there is enough space.
    pub(crate) fn new() -> Publisher {
        let newest =
            SpaceNotice { number: 0, state: SpaceState::Ok, metadata_low: false, free_bytes: 0, low_water_bytes: 0 };
        Publisher(Arc::new(Notices {
            number: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            newest: Mutex::new(newest),
            changed: Condvar::new(),
        }))
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        let newest = self.0.newest.lock();
        // Relaxed: stored under the lock that `Watch::wait` holds for its load.
        self.0.closed.store(true, Ordering::Relaxed);
        drop(newest);
        self.0.changed.notify_all();
    }
}

impl Notices {
    /// Publishes a notice with the next number (W2). Called under the pool's lock, so notices are in order.
    pub(super) fn publish(&self, notice: SpaceNotice) {
        let mut newest = self.newest.lock().expect("invariant: no panic under this lock");
        *newest = SpaceNotice { number: newest.number + 1, ..notice };
        // Release: pairs with the load in `Watch::changed`; the notice itself is read under the lock anyway.
        self.number.store(newest.number, Ordering::Release);
        drop(newest);
        self.changed.notify_all();
    }
}

/// Reports when a pool's space becomes low, full, or enough again. A watch does not keep the pool open.
///
/// Each change is reported once. If there were several changes between two calls, only the last one is returned; the
/// numbers of the notices give the count of changes.
#[derive(Clone, Debug)]
pub struct Watch {
    notices: Arc<Notices>,
    seen: u64,
}

impl Watch {
    /// Starts at the present notice. If the pool has little space now, the first call reports that.
    pub(crate) fn new(notices: &Arc<Notices>) -> Watch {
        let newest = *notices.newest.lock().expect("invariant: no panic under this lock");
        let troubled = newest.state != SpaceState::Ok || newest.metadata_low;
        Watch { notices: Arc::clone(notices), seen: newest.number - u64::from(troubled) }
    }

    /// Returns the newest notice if there is one since the last call. A call without a notice costs one load, so
    /// polling is cheap.
    #[inline]
    pub fn changed(&mut self) -> Option<SpaceNotice> {
        // Acquire: pairs with the store in `Notices::publish`.
        if self.notices.number.load(Ordering::Acquire) == self.seen {
            return None;
        }
        let newest = *self.notices.newest.lock().expect("invariant: no panic under this lock");
        self.seen = newest.number;
        Some(newest)
    }

    /// Waits for the next notice and returns it. `None` after `timeout`, or if the pool has closed and no notice is
    /// left.
    pub fn wait(&mut self, timeout: Duration) -> Option<SpaceNotice> {
        let until = Instant::now().checked_add(timeout);
        let mut newest = self.notices.newest.lock().expect("invariant: no panic under this lock");
        loop {
            if newest.number != self.seen {
                self.seen = newest.number;
                return Some(*newest);
            }
            // A timeout beyond the range of the clock never ends: the wait is repeated, an hour at a time.
            let left = until.map_or(Duration::from_secs(3600), |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() || self.is_closed() {
                return None;
            }
            let woken = self.notices.changed.wait_timeout(newest, left);
            newest = woken.expect("invariant: no panic under this lock").0;
        }
    }

    /// Returns true if the pool has closed: no notice will follow.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        // Relaxed: the flag orders nothing.
        self.notices.closed.load(Ordering::Relaxed)
    }
}
