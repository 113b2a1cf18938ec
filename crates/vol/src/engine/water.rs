//! Watermarks: how much space is left, in one word, and the notice when that word changes.
//!
//! Owns the marks, the rule by which the state changes, and who is told. The mark itself is kept in the superblock.
//!
//! ```text
//!              free < mark                free = 0
//!     ok   ------------------>   low   ------------->   full
//!          <------------------         <-------------
//!        free >= mark and a quarter   free >= mark / 64, one unit at least
//! ```
//!
//! - W1: the state is what [`next`] makes of the state before it and of the free units; it is looked at after every
//!   change of them, before the lock is let go.
//! - W2: each change of it is one notice with a number of its own, in order; none without a change.
//! - W3: an allocation pays one comparison for it ([`Units::is_calm`](crate::state::alloc::Units::is_calm)),
//!   everything else on the way of an I/O nothing.
//!
//! Called under the pool's lock by what takes and frees units; [`Watch`] by embedders, without it.

use std::time::{Duration, Instant};

use sheave_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sheave_base::sync::{Arc, Condvar, Mutex};

use crate::engine::inner::{PoolInner, State};
use crate::format::settings::LowWater;
use crate::info::{SpaceNotice, SpaceState};

/// The free units at which the state changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Marks {
    /// Below this it is low.
    low: u64,
    /// From here on it is low no more; above `low`, so that it does not flap.
    ok_again: u64,
    /// From here on it is full no more.
    not_full: u64,
}

impl Marks {
    /// Of a pool of `total` units, of which `most` can be free for data.
    pub(crate) fn new(low: LowWater, total: u64, unit_bytes: u64, most: u64) -> Marks {
        let low = match low {
            LowWater::Off => 0,
            LowWater::Bytes(bytes) => bytes.div_ceil(unit_bytes),
            LowWater::Percent(percent) => (u128::from(total) * u128::from(percent) / 100) as u64,
        };
        let above = if low == 0 { 0 } else { low.saturating_add((low / 4).max(1)) };
        Marks { low, ok_again: above.min(most).max(low), not_full: (low / 64).min(most / 2).max(1) }
    }

    /// Units of the low-water mark.
    pub(crate) fn low(&self) -> u64 {
        self.low
    }

    /// Free units, the reserve not counted, that leave the state what it is: from, and how many.
    fn calm(&self, state: SpaceState) -> (u64, u64) {
        let range = match state {
            SpaceState::Ok => self.low.max(1)..u64::MAX,
            SpaceState::Low => 1..self.ok_again.max(1),
            SpaceState::Full => 0..self.not_full,
        };
        (range.start, range.end - range.start)
    }
}

/// What the state becomes with so many units free for data (W1).
pub(crate) fn next(state: SpaceState, free: u64, marks: &Marks) -> SpaceState {
    let low = free < marks.low || (state != SpaceState::Ok && free < marks.ok_again);
    let full = free == 0 || (state == SpaceState::Full && free < marks.not_full);
    match (full, low) {
        (true, _) => SpaceState::Full,
        (false, true) => SpaceState::Low,
        (false, false) => SpaceState::Ok,
    }
}

impl State {
    /// The marks of the pool as it is.
    pub(crate) fn marks(&self) -> Marks {
        let units = &self.tree.units;
        let counts = units.counts();
        let most = (counts.total - counts.fixed).saturating_sub(units.reserve);
        Marks::new(self.sb.low_water, counts.total, u64::from(self.sb.unit_bytes), most)
    }

    /// Looks at space: the change, if it is one (W1).
    fn survey(&mut self) -> Option<SpaceNotice> {
        let marks = self.marks();
        let free = self.tree.units.available();
        let state = next(self.space.0, free, &marks);
        let metadata_low = self.is_metadata_low(self.space.1);
        let (from, count) = marks.calm(state);
        // With nothing free for data the reserve may be touched: that changes nothing.
        let reserve = self.tree.units.reserve;
        let (from, count) = if from == 0 { (0, count.saturating_add(reserve)) } else { (from + reserve, count) };
        self.tree.units.set_calm(from, count);
        let before = std::mem::replace(&mut self.space, (state, metadata_low));
        let shift = self.sb.unit_bytes.trailing_zeros();
        (before != self.space).then_some(SpaceNotice {
            number: 0,
            state,
            metadata_low,
            free_bytes: free << shift,
            low_water_bytes: marks.low << shift,
        })
    }
}

impl PoolInner {
    /// After units were taken or freed.
    #[inline]
    pub(crate) fn watch_space(&self, state: &mut State) {
        if !state.tree.units.is_calm() {
            self.survey_space(state);
        }
    }

    /// After anything else that may change the state.
    #[cold]
    pub(crate) fn survey_space(&self, state: &mut State) {
        if let Some(notice) = state.survey() {
            self.notices.0.publish(notice);
        }
    }
}

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
    fn publish(&self, notice: SpaceNotice) {
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

    /// The same, but waits for it; `None` when the time is over, or the pool closed and nothing is left to tell.
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

#[cfg(test)]
mod tests;
