//! Watermarks: the space state (ok, low, full), and the notice of its changes.
//!
//! Owns the marks and the rule of transitions. Delivery of notices is in [`notices`](crate::engine::notices). The
//! superblock has the low-water mark itself.
//!
//! ```text
//!              free < mark                free = 0
//!     ok   ------------------>   low   ------------->   full
//!          <------------------         <-------------
//!        free >= mark and a quarter   free >= mark / 64, one unit at least
//! ```
//!
//! - W1: [`next`] computes the state from the previous state and the number of free units. The state is updated after
//!   every change of the free units, before the lock is dropped.
//! - W3: the watermarks cost one comparison per allocation ([`Units::is_calm`](crate::state::alloc::Units::is_calm)),
//!   and nothing elsewhere on the I/O path.
//!
//! Called under the pool's lock by code that takes and frees units.

use crate::format::settings::LowWater;
use crate::info::{SpaceNotice, SpaceState};
use crate::state::State;

/// Counts of free units at which the state changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Marks {
    /// Number of free units below which the state becomes low.
    low: u64,
    /// Number of free units from which the state returns to ok. It is above `low`, so that the state does not flap.
    ok_again: u64,
    /// Number of free units from which the state is no longer full.
    not_full: u64,
}

impl Marks {
    /// Marks of a pool of `total` units, of which at most `most` can be free for data.
    pub(crate) fn new(low: LowWater, total: u64, unit_bytes: u64, most: u64) -> Marks {
        let low = match low {
            LowWater::Off => 0,
            LowWater::Bytes(bytes) => bytes.div_ceil(unit_bytes),
            LowWater::Percent(percent) => (u128::from(total) * u128::from(percent) / 100) as u64,
        };
        let above = if low == 0 { 0 } else { low.saturating_add((low / 4).max(1)) };
        // Capped at `most`, as more units can never be free.
        Marks { low, ok_again: above.min(most).max(low), not_full: (low / 64).min(most / 2).max(1) }
    }

    /// Returns the low-water mark in units.
    pub(crate) fn low(&self) -> u64 {
        self.low
    }

    /// Returns the range (first, length) of free units, without the reserve, that leaves the state unchanged.
    fn calm(&self, state: SpaceState) -> (u64, u64) {
        let range = match state {
            SpaceState::Ok => self.low.max(1)..u64::MAX,
            SpaceState::Low => 1..self.ok_again.max(1),
            SpaceState::Full => 0..self.not_full,
        };
        (range.start, range.end - range.start)
    }
}

/// Returns the state after `state` when `free` units are free for data (W1).
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
    /// Returns the marks for the present size and reserve of the pool.
    pub(crate) fn marks(&self) -> Marks {
        let units = &self.tree.units;
        let counts = units.counts();
        let most = (counts.total - counts.fixed).saturating_sub(units.reserve);
        Marks::new(self.sb.low_water, counts.total, u64::from(self.sb.unit_bytes), most)
    }

    /// Updates the space state and the calm range. Returns a notice if the state has changed (W1).
    pub(crate) fn survey(&mut self) -> Option<SpaceNotice> {
        let marks = self.marks();
        let free = self.tree.units.available();
        let state = next(self.space.0, free, &marks);
        let metadata_low = self.is_metadata_low(self.space.1);
        let (from, count) = marks.calm(state);
        // While nothing is free for data, metadata may still take units of the reserve. That does not change the state,
        // so the calm range includes the reserve.
        let reserve = self.tree.units.reserve;
        let (from, count) = if from == 0 { (0, count.saturating_add(reserve)) } else { (from + reserve, count) };
        self.tree.units.set_calm(from, count);
        let before = std::mem::replace(&mut self.space, (state, metadata_low));
        self.times_full += u64::from(state == SpaceState::Full && before.0 != SpaceState::Full);
        self.times_metadata_low += u64::from(metadata_low && !before.1);
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

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use SpaceState::{Full, Low, Ok};

    fn marks(low: LowWater, total: u64) -> Marks {
        Marks::new(low, total, 4096, total - 10)
    }

    /// Returns the states that these counts of free units lead through, beginning with `state`.
    fn states(state: SpaceState, marks: &Marks, free: impl IntoIterator<Item = u64>) -> Vec<SpaceState> {
        let step = |state: &mut SpaceState, free| {
            *state = next(*state, free, marks);
            Some(*state)
        };
        free.into_iter().scan(state, step).collect()
    }

    #[test]
    fn it_changes_at_the_marks_and_does_not_flap() {
        let marks = marks(LowWater::Percent(10), 1000);
        assert_eq!((marks.low, marks.ok_again, marks.not_full), (100, 125, 1));
        assert_eq!(
            states(Ok, &marks, [101, 100, 99, 100, 110, 124, 125, 124, 100]),
            [Ok, Ok, Low, Low, Low, Low, Ok, Ok, Ok]
        );
        assert_eq!(states(Low, &marks, [1, 0, 1, 0, 125, 0]), [Low, Full, Low, Full, Ok, Full]);
        let large = Marks::new(LowWater::Percent(10), 100_000, 4096, 99_000);
        assert_eq!(large.not_full, 156);
        assert_eq!(states(Low, &large, [0, 1, 155, 156, 155, 12_499, 12_500]), [Full, Full, Full, Low, Low, Low, Ok]);
    }

    #[test]
    fn marks_at_the_edges() {
        let off = marks(LowWater::Off, 1000);
        assert_eq!(states(Ok, &off, [990, 1, 0, 0, 1]), [Ok, Ok, Full, Full, Ok]);
        let bytes = marks(LowWater::Bytes(4097), 1000);
        assert_eq!((bytes.low, bytes.ok_again), (2, 3), "part of a unit is a unit");
        // The mark is above the free space of an empty pool: the state stays low.
        let beyond = marks(LowWater::Bytes(1 << 40), 1000);
        assert_eq!(states(Ok, &beyond, [990, 990]), [Low, Low]);
        // There is no room above the mark for the hysteresis: the state is ok when everything is free.
        let high = marks(LowWater::Percent(98), 1000);
        assert_eq!((high.low, high.ok_again), (980, 990));
        let tiny = Marks::new(LowWater::Percent(10), 3, 4096, 1);
        assert_eq!(states(Ok, &tiny, [1, 0, 1]), [Ok, Full, Ok]);
    }

    #[test]
    fn no_transition_inside_the_calm_range() {
        for low in [LowWater::Off, LowWater::Percent(3), LowWater::Percent(40), LowWater::Bytes(1 << 30)] {
            let marks = Marks::new(low, 1000, 4096, 900);
            for state in [Ok, Low, Full] {
                let (from, count) = marks.calm(state);
                for free in 0..=1000 {
                    let calm = free >= from && free - from < count;
                    let same = next(state, free, &marks) == state;
                    assert!(!calm || same, "{low} {state:?} {free}: a change would be missed");
                    // The state may be low without a mark, or ok below it, if it was reached under another mark. Such
                    // counts are not calm, so the state is updated.
                    assert!(calm || !same || state == Low, "{low} {state:?} {free}");
                }
            }
        }
    }
}
