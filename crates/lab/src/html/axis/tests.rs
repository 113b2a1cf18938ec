//! Places and ticks.

use super::*;

#[test]
fn values_lie_where_they_belong() {
    let even = Along::new(Lie::Even(0.0, 10.0), 100.0, 200.0);
    assert_eq!((even.place(0.0), even.place(5.0), even.place(10.0)), (100.0, 150.0, 200.0));
    let log = Along::new(Lie::Log { low: 1.0, high: 256.0, zero: false }, 0.0, 80.0);
    assert_eq!((log.place(1.0), log.place(16.0), log.place(256.0)), (0.0, 40.0, 80.0));
    let with_zero = Along::new(Lie::Log { low: 1.0, high: 1000.0, zero: true }, 0.0, 100.0);
    assert_eq!((with_zero.place(0.0), with_zero.place(1000.0)), (0.0, 100.0));
    assert!((with_zero.place(1.0) - 12.0).abs() < 1e-9);
    let slots = Along::new(Lie::Slots(4), 0.0, 80.0);
    assert_eq!((slots.place(0.0), slots.place(3.0), slots.slot()), (10.0, 70.0, 20.0));
    // A single value lies in the middle, not at infinity.
    assert_eq!(Along::new(Lie::Log { low: 1.0, high: 1.0, zero: false }, 0.0, 10.0).place(1.0), 5.0);
}

#[test]
fn ticks_are_round() {
    assert_eq!(round_ticks(0.0, 10.0, 5), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
    assert_eq!(round_ticks(-3.0, 7.0, 5), [-2.0, 0.0, 2.0, 4.0, 6.0]);
    assert_eq!(round_ticks(1.0, 1.0, 5), [1.0]);
    assert_eq!(log_ticks(100.0, 100_000.0), [100.0, 1000.0, 10_000.0, 100_000.0]);
    assert_eq!(log_ticks(30.0, 900.0), [50.0, 100.0, 200.0, 500.0]);
    assert!(log_ticks(0.0, 1.0).is_empty());
}

#[test]
fn an_axis_from_zero_holds_everything() {
    let (low, high, ticks) = from_zero([3.1, 17.2].into_iter());
    assert_eq!((low, high, ticks), (0.0, 20.0, vec![0.0, 5.0, 10.0, 15.0, 20.0]));
    let (low, high, _) = from_zero([-4.0, 11.0].into_iter());
    assert!(low <= -4.0 && high >= 11.0);
    assert_eq!(from_zero([f64::NAN].into_iter()).0, 0.0);
}

#[test]
fn times_have_their_unit() {
    assert_eq!([500.0, 1e3, 2.5e3, 1e6, 2e9].map(time), ["500 ns", "1 µs", "2.5 µs", "1 ms", "2 s"]);
}
