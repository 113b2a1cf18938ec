//! Tests of turns, with arms whose figures are known.

use std::sync::atomic::Ordering;

use super::*;
use crate::fake::{FAKE, lab};

const PACE: Pace = Pace { rounds: 6, turn: Duration::from_millis(10) };

fn what<'a>(metric: Metric, point: &'a Point, arms: &'a [usize]) -> What<'a> {
    What { metric, point, arms, control: false }
}

#[test]
fn the_change_is_against_the_first_arm() {
    let mut time = Duration::ZERO;
    let mut tick = |more| time += more;
    let results = measure(&lab(), &FAKE, &what(Metric::IOPS, &Point::default(), &[0, 1]), PACE, &mut tick);
    let results = results.unwrap().expect("it was not stopped");
    assert!(results.control.is_empty(), "nobody asked for one");
    let [Some(before), Some(after)] = &results.arms[..] else { panic!("two arms: {results:?}") };
    assert_eq!((before.value, after.value, before.change), (1000.0, 1500.0, None));
    let change = after.change.expect("there is a first arm");
    assert!((change.percent - 50.0).abs() < 1e-6 && change.is_clear(), "{change:?}");
    assert_eq!((after.rounds, after.switches_per_io, after.counters["allocator_calls"]), (6, 1.0, 3.0));
    assert_eq!(after.gauges["workers"], 2.0);
    assert_eq!(time, PACE.of_arms(2));
    let latency = after.latency.as_ref().expect("it was recorded");
    let share: f64 = latency.shares.iter().map(|[_, share]| share).sum();
    assert!((share - 1.0).abs() < 1e-9 && latency.p50.abs_diff(666_666) < 20_000, "{latency:?}");
}

#[test]
fn an_arm_that_takes_no_part_leaves_its_place_empty() {
    let results = measure(&lab(), &FAKE, &what(Metric::IOPS, &Point::default(), &[1]), PACE, &mut |_| ());
    let results = results.unwrap().expect("it was not stopped");
    assert!(results.arms[0].is_none());
    assert_eq!(results.arms[1].as_ref().map(|arm| (arm.value, arm.change)), Some((1500.0, None)));
}

#[test]
fn a_metric_may_be_a_gauge_in_percent() {
    let metric = Metric { name: "workers", label: "workers", unit: "%", more_is_better: false };
    let results =
        measure(&lab(), &FAKE, &what(metric, &Point::default(), &[0, 1]), PACE, &mut |_| ()).unwrap().unwrap();
    let after = results.arms[1].as_ref().unwrap();
    assert_eq!((after.value, after.change.map(|change| change.percent)), (2.0, Some(0.0)));
}

#[test]
fn a_stop_before_the_first_round_leaves_nothing() {
    let lab = lab();
    let point = Point::default().with("stop", "yes");
    assert!(measure(&lab, &FAKE, &what(Metric::IOPS, &point, &[0, 1]), PACE, &mut |_| ()).unwrap().is_none());
    assert!(lab.stop.load(Ordering::Relaxed));
}

#[test]
fn a_failure_says_where() {
    let point = Point::default().with("fail", "yes");
    let error = measure(&lab(), &FAKE, &what(Metric::IOPS, &point, &[0, 1]), PACE, &mut |_| ()).unwrap_err();
    assert!(error.cause.starts_with("fake, arm before, at bs=512"), "{error}");
    assert_eq!(error.fix.as_deref(), Some("make one"));
}

#[test]
fn the_way_of_the_experiment_is_not_in_the_figures() {
    let turn = || Turn { ios: 1000, wall_ns: 60_000, cpu_ns: 50_000, ..Turn::default() };
    let (mut net, mut hidden) = (Samples::default(), Samples::default());
    net.add(turn(), Metric::IOPS, [20.0, 15.0]);
    hidden.add(turn(), Metric::IOPS, [60.0, 15.0]);
    let result = net.result(Metric::IOPS, None);
    assert_eq!((result.value, result.cpu_ns_per_io), (25e6, 35.0), "40 ns of 60 are its own");
    assert!((result.iops - 1e9 / 60.0).abs() < 1.0, "as it ran");
    assert!(hidden.result(Metric::IOPS, None).value.is_nan(), "all of it is way: nothing to tell");
}

#[test]
fn the_same_arm_twice_is_a_control() {
    let point = Point::default();
    let what = What { control: true, ..what(Metric::IOPS, &point, &[0, 1]) };
    let measured = measure(&lab(), &FAKE, &what, PACE, &mut |_| ()).unwrap().expect("it was not stopped");
    assert_eq!(measured.arms.len(), 2, "it is no arm of the table");
    // Three arms in turns, with the control: two squares of three rounds.
    assert_eq!(measured.control, [1.0; 6]);
}

/// Counts how often each arm has each place, and directly follows each other one, in the rounds of a point.
fn balance(arms: usize, rounds: u32) -> (Vec<u32>, Vec<u32>) {
    let (mut places, mut follows) = (vec![0; arms * arms], vec![0; arms * arms]);
    for round in 0..rounds as usize {
        let order = order(arms, round);
        order.iter().enumerate().for_each(|(place, arm)| places[arm * arms + place] += 1);
        order.windows(2).for_each(|pair| follows[pair[0] * arms + pair[1]] += 1);
    }
    (places, follows)
}

#[test]
fn orders_are_balanced_for_places_and_for_what_comes_before() {
    for arms in 1..=9 {
        let rounds = Pace { rounds: 10, ..PACE }.rounds_of(arms);
        assert!(rounds >= 10, "{arms} arms");
        let (places, follows) = balance(arms, rounds);
        assert!(places.iter().all(|&count| count == places[0]), "{arms} arms: {places:?}");
        let pairs = follows.iter().enumerate().filter(|(at, _)| at / arms != at % arms).map(|(_, &count)| count);
        let pairs: Vec<u32> = pairs.collect();
        assert!(pairs.iter().all(|&count| count == pairs[0]), "{arms} arms: {follows:?}");
    }
    assert_eq!((0..4).map(|round| order(4, round)).collect::<Vec<_>>()[1], [1, 2, 0, 3]);
    assert_eq!(Pace { rounds: 3, ..PACE }.rounds_of(5), 3, "a quick run stays quick");
}
