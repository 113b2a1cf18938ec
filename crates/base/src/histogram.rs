//! Histograms that one thread writes while others read: counts of values, in cells that are wider for larger values.
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The histograms of the block layer, of the worker pool, of loads, and of powers of two.
    type Latencies = Histogram<3, { cells(3, 36) }>;
    type Waits = Histogram<3, { cells(3, 64) }>;
    type Fine = Histogram<5, { cells(5, 41) }>;
    type Powers = Histogram<0, { cells(0, 64) }>;

    /// Checks I1 for one value.
    fn lies_in_its_cell<const STEPS_LOG2: u32, const CELLS: usize>(_: &Histogram<STEPS_LOG2, CELLS>, value: u64) {
        let cell = Histogram::<STEPS_LOG2, CELLS>::cell(value);
        let values = Histogram::<STEPS_LOG2, CELLS>::values(cell);
        if value > *values.end() {
            assert_eq!(cell, CELLS - 1, "{value} in {values:?}");
            return;
        }
        assert!(values.contains(&value), "{value} in {values:?}");
        let width = values.end() - values.start();
        assert!(width <= value >> STEPS_LOG2, "{values:?} is wide for {value}");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_value_lies_in_its_cell(bits in any::<u64>(), shift in 0..64_u32) {
            let value = bits >> shift;
            lies_in_its_cell(&Latencies::default(), value);
            lies_in_its_cell(&Waits::default(), value);
            lies_in_its_cell(&Fine::default(), value);
            lies_in_its_cell(&Powers::default(), value);
        }
    }

    /// Checks I1 for all cells, which must end at `top` (0: with the last number).
    fn cells_follow_each_other<const STEPS_LOG2: u32, const CELLS: usize>(_: &Histogram<STEPS_LOG2, CELLS>, top: u64) {
        let mut next = 0_u64;
        for cell in 0..CELLS {
            let values = Histogram::<STEPS_LOG2, CELLS>::values(cell);
            assert_eq!(*values.start(), next, "cell {cell} leaves no gap");
            for value in [*values.start(), *values.end()] {
                assert_eq!(Histogram::<STEPS_LOG2, CELLS>::cell(value), cell);
            }
            next = values.end().wrapping_add(1);
        }
        assert_eq!(next, top);
        assert_eq!(Histogram::<STEPS_LOG2, CELLS>::cell(u64::MAX), CELLS - 1);
    }

    #[test]
    fn cells_cover_the_values_in_order() {
        cells_follow_each_other(&Latencies::default(), 1 << 36);
        cells_follow_each_other(&Waits::default(), 0);
        cells_follow_each_other(&Fine::default(), 1 << 41);
        cells_follow_each_other(&Powers::default(), 0);
    }

    #[test]
    fn counts_come_out_as_they_went_in() {
        let histogram = Latencies::default();
        histogram.add(5, 2);
        histogram.add(1000, 7);
        histogram.add_shared(1000);
        histogram.add(1 << 50, 1);
        let counted: Vec<_> = histogram.counted().collect();
        assert_eq!(counted, [(5..=5, 2), (960..=1023, 8), (15 << 32..=(1 << 36) - 1, 1)]);
        assert_eq!(histogram.counts().sum::<u64>(), 11);
        histogram.reset();
        assert_eq!(histogram.counted().count(), 0);
    }
}
