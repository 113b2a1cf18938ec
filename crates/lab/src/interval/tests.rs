//! Figures that were worked out by hand.

use super::*;

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() < 0.01
}

#[test]
fn the_median_is_in_the_middle() {
    assert_eq!((median(&[]), median(&[3.0, 1.0, 2.0]), median(&[4.0, 1.0])), (None, Some(2.0), Some(2.5)));
}

#[test]
fn a_drift_that_hits_both_arms_leaves_the_change_alone() {
    let change = change(&[100.0, 50.0, 25.0], &[110.0, 55.0, 27.5]).unwrap();
    assert!(near(change.percent, 10.0) && near(change.low, 10.0) && near(change.high, 10.0), "{change:?}");
}

#[test]
fn the_interval_is_that_of_the_paired_t_test() {
    // Logarithms 0.00, 0.10, 0.20: mean 0.1, standard deviation 0.1, half width 4.303 * 0.1 / sqrt(3) = 0.2484.
    let after = [0.0_f64, 0.1, 0.2].map(f64::exp);
    let change = change(&[1.0; 3], &after).unwrap();
    assert!(near(change.percent, 10.517), "{change:?}");
    assert!(near(change.low, -13.795) && near(change.high, 41.677), "{change:?}");
    assert!(!change.is_clear());
}

#[test]
fn shares_change_by_points() {
    let change = change_in_points(&[38.0, 39.0], &[36.0, 37.0]).unwrap();
    assert_eq!((change.percent, change.low, change.high), (-2.0, -2.0, -2.0));
    assert!(change.is_clear());
}

#[test]
fn nothing_comes_of_nothing() {
    assert_eq!(change(&[], &[]), None);
    assert_eq!(change(&[0.0], &[1.0]), None);
    assert_eq!(change(&[1.0], &[0.0]), None);
    assert_eq!(change(&[1.0], &[2.0]).map(|change| change.low), Some(100.0));
}
