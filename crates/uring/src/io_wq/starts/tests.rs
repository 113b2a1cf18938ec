//! A wait is reported by the upper bound of its cell, and only if measured.

use super::*;

#[test]
fn nothing_is_kept_unless_it_is_measured() {
    let starts = Starts::new(false);
    starts.note(7);
    assert!(starts.snapshot().is_empty());
    let starts = Starts::new(true);
    starts.note(7);
    starts.note(7);
    starts.note(1000);
    assert_eq!(starts.snapshot(), [(7, 2), (1023, 1)]);
}
