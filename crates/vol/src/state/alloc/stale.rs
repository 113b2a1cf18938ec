//! List of freed units whose space the device below still keeps, for background discard.
//!
//! Owns the list. A unit is listed when it becomes free. Allocation does not update the list: the discard checks that a
//! unit is still free when its turn comes.
//!
//! - D1: the list has at most [`MOST_RUNS`] runs. Units dropped from it remain free, and are discarded by a trim of the
//!   pool.
//!
//! Called by [`Units`](super::Units), under the pool's lock.

use std::collections::VecDeque;

/// Largest number of runs in the list: 1 MiB of memory.
pub(super) const MOST_RUNS: usize = 65_536;

/// Freed units as runs (first, count), oldest first.
#[derive(Debug, Default)]
pub(super) struct Stale {
    runs: VecDeque<(u64, u64)>,
    units: u64,
}

impl Stale {
    /// Lists a freed unit. A unit next to the last run extends it at either end.
    pub(super) fn push(&mut self, unit: u64) {
        self.units += 1;
        if let Some((first, count)) = self.runs.back_mut() {
            if *first + *count == unit {
                *count += 1;
                return;
            }
            if unit + 1 == *first {
                (*first, *count) = (unit, *count + 1);
                return;
            }
        }
        if self.runs.len() == MOST_RUNS
            && let Some((_, count)) = self.runs.pop_front()
        {
            self.units -= count; // D1
        }
        self.runs.push_back((unit, 1));
    }

    /// Removes and returns the first unit of the oldest run.
    pub(super) fn pop(&mut self) -> Option<u64> {
        let (first, count) = self.runs.front_mut()?;
        let unit = *first;
        (*first, *count) = (*first + 1, *count - 1);
        if *count == 0 {
            self.runs.pop_front();
        }
        self.units -= 1;
        Some(unit)
    }

    /// Returns the number of listed units. A unit that was allocated and freed again counts twice.
    pub(super) fn units(&self) -> u64 {
        self.units
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn runs_in_both_directions_and_no_more_than_there_may_be() {
        let mut stale = Stale::default();
        [5, 6, 7, 3, 2, 9].into_iter().for_each(|unit| stale.push(unit));
        assert_eq!((stale.runs.len(), stale.units()), (3, 6));
        let all: Vec<u64> = std::iter::from_fn(|| stale.pop()).collect();
        assert_eq!((all, stale.units()), (vec![5, 6, 7, 2, 3, 9], 0));
        stale.push(1);
        stale.push(2);
        (0..MOST_RUNS as u64).for_each(|at| stale.push(100 + 2 * at));
        assert_eq!((stale.runs.len(), stale.units()), (MOST_RUNS, MOST_RUNS as u64), "the oldest are forgotten");
        assert_eq!(stale.pop(), Some(100));
    }
}
