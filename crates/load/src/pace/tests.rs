//! Tests of pacing under a virtual clock.

use std::time::Duration;

use super::*;

#[test]
fn due_times_are_even_and_do_not_drift() {
    let (clock, hand) = Clock::virtual_clock();
    hand.set(1_000_000);
    let mut pace = Pace::rate(&clock, 30_000);
    hand.advance(Duration::from_secs(2));
    let now = clock.cycles();
    let mut dues = Vec::new();
    while let Some(due) = pace.due(now) {
        dues.push(due);
    }
    assert!(dues.len().abs_diff(60_001) <= 1, "{} in two seconds", dues.len());
    assert_eq!(dues[0], 1_000_000);
    assert!(dues.windows(2).all(|pair| (33_332..=33_334).contains(&(pair[1] - pair[0]))));
}

#[test]
fn nothing_is_due_early() {
    let (clock, hand) = Clock::virtual_clock();
    let mut pace = Pace::rate(&clock, 1000);
    assert_eq!(pace.due(clock.cycles()), Some(0));
    hand.advance(Duration::from_micros(999));
    assert_eq!(pace.due(clock.cycles()), None);
    hand.advance(Duration::from_micros(1));
    assert_eq!(pace.due(clock.cycles()), Some(1_000_000));
}
