//! Arms in turns, with arms whose figures are known.

use std::sync::atomic::Ordering;

use super::*;
use crate::fake::{FAKE, lab};

const PACE: Pace = Pace { rounds: 3, turn: Duration::from_millis(10) };

#[test]
fn the_change_is_against_the_first_arm() {
    let mut time = Duration::ZERO;
    let mut tick = |more| time += more;
    let results = measure(&lab(), &FAKE, Metric::IOPS, &Point::default(), &[0, 1], PACE, &mut tick);
    let results = results.unwrap().expect("it was not stopped");
    let [Some(before), Some(after)] = &results[..] else { panic!("two arms: {results:?}") };
    assert_eq!((before.value, after.value, before.change), (1000.0, 1500.0, None));
    let change = after.change.expect("there is a first arm");
    assert!((change.percent - 50.0).abs() < 1e-6 && change.is_clear(), "{change:?}");
    assert_eq!((after.rounds, after.switches_per_io, after.counters["allocator_calls"]), (3, 1.0, 3.0));
    assert_eq!(after.gauges["workers"], 2.0);
    assert_eq!(time, PACE.of_an_arm() * 2);
    let latency = after.latency.as_ref().expect("it was recorded");
    let share: f64 = latency.shares.iter().map(|[_, share]| share).sum();
    assert!((share - 1.0).abs() < 1e-9 && latency.p50.abs_diff(666_666) < 20_000, "{latency:?}");
}

#[test]
fn an_arm_that_takes_no_part_leaves_its_place_empty() {
    let results = measure(&lab(), &FAKE, Metric::IOPS, &Point::default(), &[1], PACE, &mut |_| ());
    let results = results.unwrap().expect("it was not stopped");
    assert!(results[0].is_none());
    assert_eq!(results[1].as_ref().map(|arm| (arm.value, arm.change)), Some((1500.0, None)));
}

#[test]
fn a_metric_may_be_a_gauge_in_percent() {
    let metric = Metric { name: "workers", label: "workers", unit: "%", more_is_better: false };
    let results = measure(&lab(), &FAKE, metric, &Point::default(), &[0, 1], PACE, &mut |_| ()).unwrap().unwrap();
    let after = results[1].as_ref().unwrap();
    assert_eq!((after.value, after.change.map(|change| change.percent)), (2.0, Some(0.0)));
}

#[test]
fn a_stop_before_the_first_round_leaves_nothing() {
    let lab = lab();
    let point = Point::default().with("stop", "yes");
    assert!(measure(&lab, &FAKE, Metric::IOPS, &point, &[0, 1], PACE, &mut |_| ()).unwrap().is_none());
    assert!(lab.stop.load(Ordering::Relaxed));
}

#[test]
fn a_failure_says_where() {
    let point = Point::default().with("fail", "yes");
    let error = measure(&lab(), &FAKE, Metric::IOPS, &point, &[0, 1], PACE, &mut |_| ()).unwrap_err();
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
