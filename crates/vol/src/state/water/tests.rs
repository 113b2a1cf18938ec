//! The rule of the space state: both directions, no flapping, all kinds of marks; and the calm range of an allocation.

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
fn the_window_of_an_allocation_is_where_nothing_changes() {
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
