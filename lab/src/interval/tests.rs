//! Compares with figures that were computed by hand, or are in published tables.

use super::*;
use sheave_base::rng::Rng;

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-6
}

#[test]
fn the_median_is_in_the_middle() {
    assert_eq!((median(&[]), median(&[3.0, 1.0, 2.0]), median(&[4.0, 1.0])), (None, Some(2.0), Some(2.5)));
}

#[test]
fn ranks_are_those_of_the_tables() {
    let at = |confidence: f64| [5, 6, 8, 9, 10, 12, 16, 20, 100].map(|count| rank(count, confidence));
    assert_eq!(at(0.95), [None, Some(1), Some(1), Some(2), Some(2), Some(3), Some(4), Some(6), Some(40)]);
    assert_eq!(at(0.99), [None, None, Some(1), Some(1), Some(1), Some(2), Some(3), Some(4), Some(37)]);
}

#[test]
fn a_drift_that_hits_both_arms_leaves_the_change_alone() {
    let before = [100.0, 50.0, 25.0, 80.0, 60.0, 10.0];
    let change = change(&before, &before.map(|value| value * 1.1)).unwrap();
    assert!(near(change.percent, 10.0) && near(change.low, 10.0) && near(change.high, 10.0), "{change:?}");
}

#[test]
fn one_turn_that_was_disturbed_moves_nothing() {
    let mut after = [1.10, 1.11, 1.12, 1.13, 1.14, 1.15, 1.16, 1.17, 1.18];
    let quiet = change(&[1.0; 9], &after).unwrap();
    assert!(near(quiet.percent, 14.0) && near(quiet.low, 11.0) && near(quiet.high, 17.0), "{quiet:?}");
    after[8] = 1000.0;
    assert_eq!(change(&[1.0; 9], &after), Some(quiet));
}

#[test]
fn what_cannot_be_measured_is_called_so() {
    let few = change(&[1.0; 5], &[1.2; 5]).unwrap();
    assert!(near(few.percent, 20.0) && !few.is_measurable() && !few.is_clear(), "{few:?}");
    let wild = change(&[1.0; 6], &[0.001, 900.0, 1.0, 2.0, 0.5, 3.0]).unwrap();
    assert!(!wild.is_measurable(), "{wild:?}");
    let large = change(&[1.0; 6], &[2.0, 9.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
    assert!(large.is_clear(), "wide, and all on one side: {large:?}");
    let points = change_in_points(&[38.0; 6], &[36.0; 6]).unwrap();
    assert_eq!((points.percent, points.low, points.high), (-2.0, -2.0, -2.0));
    assert!(!change_in_points(&[38.0; 3], &[36.0; 3]).unwrap().is_measurable());
}

#[test]
fn nothing_comes_of_nothing() {
    assert_eq!(change(&[], &[]), None);
    assert_eq!(change(&[0.0], &[1.0]), None);
    assert_eq!(change(&[1.0], &[0.0]), None);
}

/// With skewed noise, as machines have it, the interval of no effect excludes 0 as rarely as its confidence promises.
#[test]
fn the_interval_holds_the_truth_as_often_as_it_says() {
    let mut rng = Rng::new(11);
    let mut noise = || 1.0 + (rng.draw() % 1000) as f64 / 1000.0 * ((rng.draw() % 1000) as f64 / 300.0);
    for (rounds, confidence) in [(10, 0.95), (12, 0.95), (10, 0.99), (16, 0.99)] {
        let missed = (0..4000).filter(|_| {
            let pair = [0, 1].map(|_| (0..rounds).map(|_| noise()).collect::<Vec<f64>>());
            let ratios = ratios(&pair[0], &pair[1]).expect("above 0");
            let [low, high] = around_median(&ratios, confidence).expect("enough rounds");
            low > 1.0 || high < 1.0
        });
        let share = missed.count() as f64 / 4000.0;
        assert!(share <= (1.0 - confidence) * 1.25, "{rounds} rounds at {confidence}: {share}");
    }
}
