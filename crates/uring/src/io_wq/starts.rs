//! How long items wait from queue to start.
//!
//! Owns a histogram of powers of two with eight steps each (12 % apart). It is empty and free of charge unless starts
//! are measured.

use sheave_base::sync::atomic::{AtomicU64, Ordering};

/// Steps of a power of two.
const STEPS_LOG2: u32 = 3;
const CELLS: usize = (64 - STEPS_LOG2 as usize + 1) << STEPS_LOG2;

#[derive(Debug)]
pub(super) struct Starts {
    cells: Box<[AtomicU64]>,
}

impl Starts {
    pub(super) fn new(measure: bool) -> Starts {
        Starts { cells: (0..if measure { CELLS } else { 0 }).map(|_| AtomicU64::new(0)).collect() }
    }

    pub(super) fn note(&self, ns: u64) {
        if let Some(cell) = self.cells.get(cell_of(ns)) {
            // Relaxed: a count by itself.
            cell.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Upper bounds in ns and how many items waited up to that (and longer than the bound before).
    pub(super) fn snapshot(&self) -> Vec<(u64, u64)> {
        // Relaxed: counts by themselves.
        let counts = self.cells.iter().enumerate().map(|(at, cell)| (upper(at), cell.load(Ordering::Relaxed)));
        counts.filter(|&(_, count)| count > 0).collect()
    }
}

fn cell_of(ns: u64) -> usize {
    if ns < 1 << STEPS_LOG2 {
        return ns as usize;
    }
    let power = ns.ilog2();
    let step = (ns >> (power - STEPS_LOG2)) & ((1 << STEPS_LOG2) - 1);
    (((power - STEPS_LOG2 + 1) as u64) << STEPS_LOG2 | step) as usize
}

/// The largest value of a cell.
fn upper(at: usize) -> u64 {
    let (power, step) = (at >> STEPS_LOG2, at as u64 & ((1 << STEPS_LOG2) - 1));
    if power == 0 {
        return step;
    }
    let lowest = ((1 << STEPS_LOG2) + step) << (power - 1);
    lowest + ((1 << (power - 1)) - 1)
}

#[cfg(all(test, not(shuttle)))]
mod tests;
