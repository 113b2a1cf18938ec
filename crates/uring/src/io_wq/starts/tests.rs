//! Cells cover everything, and no cell is wider than an eighth.

use super::*;

#[test]
fn every_time_has_a_cell_whose_bound_is_near() {
    let times =
        (0..4096).chain((0..64).flat_map(|bit| [1_u64 << bit, (1 << bit) - 1, (1 << bit) + 1])).chain([u64::MAX]);
    for ns in times {
        let at = cell_of(ns);
        assert!(at < CELLS, "{ns}");
        assert!(upper(at) >= ns && upper(at) - ns <= ns / 8, "{ns} in the cell up to {}", upper(at));
        assert!(at == 0 || upper(at - 1) < ns, "{ns} belongs to the cell before");
    }
}

#[test]
fn nothing_is_kept_unless_it_is_measured() {
    let starts = Starts::new(false);
    starts.note(7);
    assert!(starts.snapshot().is_empty());
    let starts = Starts::new(true);
    starts.note(7);
    starts.note(7);
    assert_eq!(starts.snapshot(), [(7, 2)]);
}
