//! Every value has a cell, cells are narrow and in order, and counts are returned as they were made.

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
