//! Histograms that one thread writes while others read: counts of values in cells that grow with the value.
//!
//! Owns the scale (HdrHistogram's: linear up to `2^STEPS_LOG2`, then that many cells to each power of two) and the
//! cells. The crate of that name makes the reports; it has no histogram that can be read while it is written without a
//! lock, and the hot path takes none. Values are whatever the caller counts, mostly nanoseconds.
//!
//! Invariants:
//! - I1: the cells cover the values from 0 on without a gap, in order. A cell is one value wide, or at most
//!   `1 / 2^STEPS_LOG2` of the values in it. What is larger than the last cell's values counts there.
//! - I2: a count is written with a plain load and store ([`Histogram::add`], one writer) or with a read-modify-write
//!   ([`Histogram::add_shared`]). A reader sees each cell by itself.
//!
//! Called by the statistics of `sheave-blk`, by the worker pool of `sheave-uring`, and by `sheave-load`.

use std::ops::RangeInclusive;

use crate::sync::atomic::Ordering;
use crate::sync::count::AtomicU64;

/// Counts of values: `2^STEPS_LOG2` cells to each power of two.
#[derive(Debug)]
pub struct Histogram<const STEPS_LOG2: u32, const CELLS: usize> {
    // Boxed: a model checker's stacks are small.
    cells: Box<[AtomicU64; CELLS]>,
}

/// The cells of a histogram that reaches up to `2^top_log2`.
pub const fn cells(steps_log2: u32, top_log2: u32) -> usize {
    ((top_log2 - steps_log2 + 1) as usize) << steps_log2
}

impl<const STEPS_LOG2: u32, const CELLS: usize> Default for Histogram<STEPS_LOG2, CELLS> {
    /// All zero.
    fn default() -> Self {
        const { assert!(CELLS > 0 && CELLS.is_multiple_of(1 << STEPS_LOG2), "all cells of each power of two") }
        let cells: Box<[AtomicU64]> = (0..CELLS).map(|_| AtomicU64::new(0)).collect();
        Histogram { cells: cells.try_into().expect("as many as were collected") }
    }
}

impl<const STEPS_LOG2: u32, const CELLS: usize> Histogram<STEPS_LOG2, CELLS> {
    const STEPS: usize = 1 << STEPS_LOG2;

    /// The cell of a value.
    #[inline]
    #[must_use]
    pub fn cell(value: u64) -> usize {
        // What is below the first power of two that has several values to a cell is not shifted at all. What is above
        // has its highest bit left in the shifted value, which counts for the cells below that power.
        let shift = (value | Self::STEPS as u64).ilog2() - STEPS_LOG2;
        (((shift as usize) << STEPS_LOG2) + (value >> shift) as usize).min(CELLS - 1)
    }

    /// The values of a cell. The last one counts what is larger, too.
    #[must_use]
    pub fn values(cell: usize) -> RangeInclusive<u64> {
        debug_assert!(cell < CELLS, "a cell of this histogram");
        if cell < Self::STEPS {
            return cell as u64..=cell as u64;
        }
        let shift = (cell >> STEPS_LOG2) - 1;
        let first = ((Self::STEPS + (cell & (Self::STEPS - 1))) as u64) << shift;
        first..=first + ((1 << shift) - 1)
    }

    /// Counts a value so often. Only one thread may do so: another's counts would be lost (I2).
    #[inline]
    pub fn add(&self, value: u64, count: u64) {
        let cell = &self.cells[Self::cell(value)];
        // Relaxed: a count by itself, and one writer.
        cell.store(cell.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }

    /// Counts a value once; any thread may.
    #[inline]
    pub fn add_shared(&self, value: u64) {
        // Relaxed: a count by itself.
        self.cells[Self::cell(value)].fetch_add(1, Ordering::Relaxed);
    }

    /// The counts of all cells, in order.
    pub fn counts(&self) -> impl Iterator<Item = u64> {
        // Relaxed: counts by themselves.
        self.cells.iter().map(|cell| cell.load(Ordering::Relaxed))
    }

    /// The values of each cell that has counted something, and how many there were.
    pub fn counted(&self) -> impl Iterator<Item = (RangeInclusive<u64>, u64)> {
        let all = self.counts().enumerate().filter(|&(_, count)| count > 0);
        all.map(|(cell, count)| (Self::values(cell), count))
    }

    /// Forgets everything; only the writer may call this.
    pub fn reset(&self) {
        // Relaxed: counts by themselves.
        self.cells.iter().for_each(|cell| cell.store(0, Ordering::Relaxed));
    }
}

#[cfg(all(test, not(any(shuttle, loom))))]
mod tests;
