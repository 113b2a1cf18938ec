//! Medians at their edges.

use super::*;

#[test]
fn the_median_is_the_middle() {
    assert_eq!(
        [median(vec![]), median(vec![3.0]), median(vec![9.0, 1.0]), median(vec![5.0, 1.0, 2.0])],
        [None, Some(3.0), Some(5.0), Some(2.0)]
    );
}
