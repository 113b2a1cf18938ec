//! Histograms that one thread writes while others read: counts of values in cells that widen with the value.
//!
//! Owns the scale (HdrHistogram's: linear up to `2^STEPS_LOG2`, then that many cells for each power of two) and the
//! cells. The crate `hdrhistogram` makes the reports, but none of its histograms can be read without a lock while it is
//! written, and the hot path takes no lock. Values have the unit of the caller, mostly nanoseconds.
//!
//! Invariants:
//! - I1: the cells cover the values from 0 on without a gap, in order. A cell is one value wide, or at most `1 /
//!   2^STEPS_LOG2` of its values. Larger values than those of the last cell are counted in it.
//! - I2: a count is written with a plain load and store ([`Histogram::add`], one writer) or with a read-modify-write
//!   ([`Histogram::add_shared`]). Readers see each cell by itself, not a consistent set.
//!
//! Called by the statistics of `sheave-blk`, by the worker pool of `sheave-uring`, and by `sheave-load`.

use std::ops::RangeInclusive;

use crate::sync::atomic::Ordering;
use crate::sync::count::AtomicU64;

/// Counts of values, with `2^STEPS_LOG2` cells for each power of two.
#[derive(Debug)]
pub struct Histogram<const STEPS_LOG2: u32, const CELLS: usize> {
    // Boxed because a model checker's stacks are small.
    cells: Box<[AtomicU64; CELLS]>,
}

/// Returns the number of cells of a histogram that reaches up to `2^top_log2`.
pub const fn cells(steps_log2: u32, top_log2: u32) -> usize {
    ((top_log2 - steps_log2 + 1) as usize) << steps_log2
}

impl<const STEPS_LOG2: u32, const CELLS: usize> Default for Histogram<STEPS_LOG2, CELLS> {
    /// Returns a histogram with all counts 0.
    fn default() -> Self {
        const { assert!(CELLS > 0 && CELLS.is_multiple_of(1 << STEPS_LOG2), "all cells of each power of two") }
        let cells: Box<[AtomicU64]> = (0..CELLS).map(|_| AtomicU64::new(0)).collect();
        Histogram { cells: cells.try_into().expect("as many as were collected") }
    }
}

impl<const STEPS_LOG2: u32, const CELLS: usize> Histogram<STEPS_LOG2, CELLS> {
    const STEPS: usize = 1 << STEPS_LOG2;

    /// Returns the cell of a value.
    #[inline]
    #[must_use]
    pub fn cell(value: u64) -> usize {
        // Small values are not shifted. Larger ones keep their highest bit after the shift; that bit adds the number of
        // cells below their power of two.
        let shift = (value | Self::STEPS as u64).ilog2() - STEPS_LOG2;
        (((shift as usize) << STEPS_LOG2) + (value >> shift) as usize).min(CELLS - 1)
    }

    /// Returns the values of a cell. The last cell also counts all larger values.
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

    /// Counts `value` `count` times. Only one thread may call this: the counts of another would be lost (I2).
    #[inline]
    pub fn add(&self, value: u64, count: u64) {
        let cell = &self.cells[Self::cell(value)];
        // Relaxed: a count by itself, and one writer.
        cell.store(cell.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }

    /// Counts `value` once. Callable from any thread.
    #[inline]
    pub fn add_shared(&self, value: u64) {
        // Relaxed: a count by itself.
        self.cells[Self::cell(value)].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the counts of all cells, in order.
    pub fn counts(&self) -> impl Iterator<Item = u64> {
        // Relaxed: counts by themselves.
        self.cells.iter().map(|cell| cell.load(Ordering::Relaxed))
    }

    /// Returns the values and the count of each cell whose count is not 0.
    pub fn counted(&self) -> impl Iterator<Item = (RangeInclusive<u64>, u64)> {
        let all = self.counts().enumerate().filter(|&(_, count)| count > 0);
        all.map(|(cell, count)| (Self::values(cell), count))
    }

    /// Sets all counts to 0; only the writer may call this.
    pub fn reset(&self) {
        // Relaxed: counts by themselves.
        self.cells.iter().for_each(|cell| cell.store(0, Ordering::Relaxed));
    }
}

#[cfg(all(test, not(any(shuttle, loom))))]
mod tests;
