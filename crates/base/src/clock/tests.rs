//! Clocks: the virtual one exactly, the real one by its promises, the conversion by arithmetic.

use proptest::prelude::*;

use super::*;

#[test]
fn a_virtual_clock_moves_only_by_hand_and_counts_reads() {
    let (clock, hand) = Clock::virtual_clock();
    let other = clock.clone();
    assert_eq!((clock.coarse(), other.precise()), (CoarseTs(0), PreciseTs(0)));
    hand.advance(Duration::from_micros(3));
    assert_eq!((clock.precise(), other.coarse()), (PreciseTs(3000), CoarseTs(3000)));
    hand.set(10);
    assert_eq!(clock.coarse(), CoarseTs(10));
    assert_eq!(hand.reads(), 5);
    assert_eq!((clock.cycles(), clock.cycles_to_ns(7), clock.ns_to_cycles(9)), (10, 7, 9));
    assert_eq!(hand.reads(), 5, "cycles are not stamps");
    assert!(!clock.is_cycle_counter());
}

#[test]
fn spans_are_never_negative() {
    assert_eq!(CoarseTs(5).ns_since(CoarseTs(9)), 0);
    assert_eq!(CoarseTs(9).ns_since(CoarseTs(5)), 4);
    assert_eq!(PreciseTs(5).ns_since(PreciseTs(9)), 0);
    assert_eq!(PreciseTs(9).left(PreciseTs(5)), Duration::from_nanos(4));
    assert_eq!(PreciseTs(5).left(PreciseTs(9)), Duration::ZERO);
    assert_eq!(PreciseTs(5).after(Duration::from_nanos(4)), PreciseTs(9));
    assert_eq!(PreciseTs(5).after(Duration::MAX), PreciseTs(u64::MAX));
}

#[test]
fn the_real_clock_goes_forward_at_the_rate_of_the_system() {
    let clock = Clock::real();
    println!("coarse stamps from the cycle counter: {}", clock.is_cycle_counter());
    // The test may be interrupted between two readings. Precise readings before and after each pair of the others bound
    // the time between the pairs.
    let readings = || {
        let before = clock.precise();
        let (coarse, cycles) = (clock.coarse(), clock.cycles());
        (before, coarse, cycles, clock.precise())
    };
    let first = readings();
    std::thread::sleep(Duration::from_millis(20));
    let last = readings();
    let (least, most) = (last.0.ns_since(first.3), last.3.ns_since(first.0));
    assert!(least >= 20_000_000);
    for ns in [last.1.ns_since(first.1), clock.cycles_to_ns(last.2 - first.2)] {
        assert!((least - 10_000_000..most + 10_000_000).contains(&ns), "{ns} against {least} to {most}");
    }
}

#[test]
fn a_real_stamp_never_goes_back_on_one_thread() {
    let clock = Clock::real();
    let (mut coarse, mut precise) = (clock.coarse(), clock.precise());
    for _ in 0..100_000 {
        let now = (clock.coarse(), clock.precise());
        assert!(now.0 >= coarse && now.1 >= precise);
        (coarse, precise) = now;
    }
}

#[test]
fn an_implausible_counter_is_refused() {
    assert!(Tsc::between((0, 0), (26_000_000, 10_000_000)).is_some());
    assert!(Tsc::between((0, 0), (26_000_000, 0)).is_none(), "no time passed");
    assert!(Tsc::between((9, 0), (8, 10_000_000)).is_none(), "the counter went back");
    assert!(Tsc::between((0, 0), (1000, 10_000_000)).is_none(), "too slow");
    assert!(Tsc::between((0, 0), (10_000_000, 10_000_000)).is_none(), "a cycle is as long as a ns");
    assert!(Tsc::between((0, 0), (10_000_001, 10_000_000)).is_some(), "a cycle is shorter");
    assert!(Tsc::between((0, 0), (u64::MAX, 10_000_000)).is_none(), "too fast");
}

proptest! {
    #[test]
    fn conversion_is_exact_to_the_fraction_and_never_goes_back(
        mhz in 1_001_u64..10_000, a in 0_u64..1 << 50, b in 0_u64..1 << 50,
    ) {
        let base = 1_u64 << 40;
        let tsc = Tsc::between((0, base - 10_000_000), (mhz * 10_000, base)).expect("plausible");
        let (low, high) = (a.min(b), a.max(b));
        prop_assert!(tsc.ns(low) <= tsc.ns(high));
        let exact = u128::from(a) * 1000 / u128::from(mhz);
        let got = u128::from(tsc.span_ns(a));
        prop_assert!(got <= exact && exact - got <= 1, "{got} against {exact}");
    }

    #[test]
    fn cycles_and_ns_convert_both_ways(mhz in 1_001_u64..10_000, ns in 0_u64..1 << 50) {
        let tsc = Tsc::between((0, 0), (mhz * 10_000, 10_000_000)).expect("plausible");
        let back = tsc.span_ns(tsc.span_cycles(ns));
        prop_assert!(back <= ns && ns - back <= 1, "{back} against {ns}");
    }
}
