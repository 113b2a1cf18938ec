//! Notices: who is told when the pool becomes low, full, or has space again.
//!
//! Owns the newest notice and those who wait for it. The rule by which the state changes is in
//! [`water`](crate::state::water).
//!
//! - W2: each change of the state is one notice with a number of its own, in order; none without a change.
//!
//! Told under the pool's lock; [`Watch`] by embedders, without it.

use std::time::{Duration, Instant};

use sheave_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sheave_base::sync::{Arc, Condvar, Mutex};

use crate::info::{SpaceNotice, SpaceState};

/// The newest notice, for all who watch.
#[derive(Debug)]
pub(crate) struct Notices {
    number: AtomicU64,
    closed: AtomicBool,
    newest: Mutex<SpaceNotice>,
    changed: Condvar,
}

/// A pool's end of its notices: when the pool goes, who waits is told.
#[derive(Debug)]
pub(crate) struct Publisher(pub(crate) Arc<Notices>);

impl Publisher {
    /// Nothing was told yet: there is space.
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
        // Relaxed: under the lock under which who waits looks at it.
        self.0.closed.store(true, Ordering::Relaxed);
        drop(newest);
        self.0.changed.notify_all();
    }
}

impl Notices {
    /// Tells it (W2). Under the pool's lock, so in order.
    pub(super) fn publish(&self, notice: SpaceNotice) {
        let mut newest = self.newest.lock().expect("invariant: no panic under this lock");
        *newest = SpaceNotice { number: newest.number + 1, ..notice };
        // Release: pairs with the load in `Watch::changed`; what is told is read under the lock anyway.
        self.number.store(newest.number, Ordering::Release);
        drop(newest);
        self.changed.notify_all();
    }
}

/// Hears when a pool's space becomes low, full, or enough again. It does not keep the pool open.
///
/// Each change is told once. What came and went between two looks shows as the last of it; numbers tell how many there
/// were.
#[derive(Clone, Debug)]
pub struct Watch {
    notices: Arc<Notices>,
    seen: u64,
}

impl Watch {
    /// From now on; a pool that has little space now is told first.
    pub(crate) fn new(notices: &Arc<Notices>) -> Watch {
        let newest = *notices.newest.lock().expect("invariant: no panic under this lock");
        let troubled = newest.state != SpaceState::Ok || newest.metadata_low;
        Watch { notices: Arc::clone(notices), seen: newest.number - u64::from(troubled) }
    }

    /// What has changed since the last call, if anything. One load when nothing has: cheap enough to poll.
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

    /// Waits for the next change, and tells it; `None` when the time is over, or the pool closed and nothing is left to
    /// tell.
    pub fn wait(&mut self, timeout: Duration) -> Option<SpaceNotice> {
        let until = Instant::now().checked_add(timeout);
        let mut newest = self.notices.newest.lock().expect("invariant: no panic under this lock");
        loop {
            if newest.number != self.seen {
                self.seen = newest.number;
                return Some(*newest);
            }
            // A timeout beyond what a clock can tell is for ever, in pieces.
            let left = until.map_or(Duration::from_secs(3600), |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() || self.is_closed() {
                return None;
            }
            let woken = self.notices.changed.wait_timeout(newest, left);
            newest = woken.expect("invariant: no panic under this lock").0;
        }
    }

    /// Whether the pool has closed: nothing more will be told.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        // Relaxed: it carries nothing but itself.
        self.notices.closed.load(Ordering::Relaxed)
    }
}
