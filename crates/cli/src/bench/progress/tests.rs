//! Tests of what does not need a terminal.

use super::*;

#[test]
fn the_template_is_valid() {
    new_bar();
}

#[test]
fn eta_follows_the_pace() {
    let since = Instant::now() - Duration::from_secs(10);
    let stage = Stage { phase: Phase::Run, goal: Goal::Time(Duration::from_secs(40)), since, number: 1 };
    let sample = Sample { stage, counts: Counts::default(), at: Instant::now() };
    let eta = sample.eta(250).expect("some of it is done").as_secs_f64();
    assert!((29.9..31.0).contains(&eta), "{eta}");
    assert_eq!(sample.eta(0), None);
}
