//! Free units whose space the device below still keeps: what a background discard gives back.
//!
//! Owns the list. A unit is listed when it becomes free; whether it still is free when its turn comes is looked at
//! then, so that nobody who takes a unit looks here.
//!
//! - D1: the list has [`MOST_RUNS`] runs at most. What it forgets is free as all else, and waits for a trim of the
//!   pool.
//!
//! Called by [`Units`](super::Units), under the pool's lock.

use std::collections::VecDeque;

/// Runs that are remembered, 1 MiB of memory.
pub(super) const MOST_RUNS: usize = 65_536;

/// Runs of units: the first, and how many.
#[derive(Debug, Default)]
pub(super) struct Stale {
    runs: VecDeque<(u64, u64)>,
    units: u64,
}

impl Stale {
    /// A unit became free.
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

    /// The unit that became free first, and is no longer listed.
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

    /// Units that are listed; one that was taken and freed again counts twice.
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
