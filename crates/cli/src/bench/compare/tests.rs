//! Tests of the calculations of comparisons.

use super::*;

fn turn(ios: u64, wall_ns: u64, cpu_ns: u64) -> Turn {
    Turn { ios, spent: Spent { wall_ns, cpu_ns } }
}

#[test]
fn medians() {
    assert_eq!(median(vec![]), None);
    assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
    assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
}

#[test]
fn ratios_are_ours_by_theirs_and_medians_of_pairs() {
    let theirs = turn(1000, 1_000_000, 1_000_000);
    let pairs = [
        (turn(3000, 1_000_000, 1_500_000), theirs),
        // A disturbed turn, which must not affect the result.
        (turn(100, 1_000_000, 9_000_000), theirs),
        (turn(2000, 1_000_000, 1_000_000), theirs),
    ];
    let comparison = Comparison::of("peer".into(), &pairs).expect("three pairs");
    assert!((comparison.ratio_iops - 2.0).abs() < 1e-9);
    assert!((comparison.ratio_cpu - 0.5).abs() < 1e-9);
    assert!((comparison.iops - 1e6).abs() < 1e-3);
    assert!((comparison.ratio_iops_range[0] - 0.1).abs() < 1e-9);
    assert!((comparison.ratio_iops_range[1] - 3.0).abs() < 1e-9);
    assert_eq!((comparison.ratio_iops_95, comparison.ratio_cpu_95, comparison.interval_coverage), (None, None, None));
    assert!(Comparison::of("peer".into(), &[]).is_none());
}

/// Returns the probability that at most `k` of `count` fair coins show heads, by counting all outcomes.
fn at_most(k: u32, count: u32) -> f64 {
    (0..1_u32 << count).filter(|coins| coins.count_ones() <= k).count() as f64 / f64::from(1_u32 << count)
}

#[test]
fn the_interval_covers_the_median_with_the_probability_it_says() {
    for count in 0..=20 {
        let values: Vec<f64> = (0..count).map(|at| f64::from((at * 7) % count)).collect();
        // This is the largest `k` for which the interval between the `k`-th values from both ends has sufficient
        // probability.
        let k = (0..count / 2).rev().find(|k| 1.0 - 2.0 * at_most(*k, count) >= 0.95);
        let ranks = Ranks::of(count as usize);
        assert_eq!(ranks.is_some(), k.is_some(), "{count} pairs");
        let (Some(ranks), Some(k)) = (ranks, k) else { continue };
        assert!((ranks.coverage - (1.0 - 2.0 * at_most(k, count))).abs() < 1e-12, "{count} pairs");
        if count % 7 != 0 {
            assert_eq!(ranks.bounds(values), [f64::from(k), f64::from(count - 1 - k)], "{count} pairs");
        }
    }
    // The values are from tables of the sign test.
    assert_eq!((Ranks::of(5), Ranks::of(6).map(|ranks| ranks.coverage)), (None, Some(0.96875)));
    assert_eq!(Ranks::of(15).map(|ranks| ranks.bounds((1..=15).map(f64::from).collect())), Some([4.0, 12.0]));
    assert!(Ranks::of(1000).is_some_and(|ranks| ranks.coverage >= 0.95), "many pairs");
}

#[test]
fn both_ratios_have_their_intervals() {
    let theirs = turn(1000, 1_000_000, 1_000_000);
    // IOPS are 0.91 to 1.06 times theirs; the ratios of CPU time per I/O have the reverse order.
    let pair = |at: u64| (turn(900 + 10 * at, 1_000_000, (900 + 10 * at) * (1200 - 10 * at)), theirs);
    let pairs: Vec<(Turn, Turn)> = (1..=15).map(pair).collect();
    let comparison = Comparison::of("peer".into(), &pairs).expect("pairs");
    let close = |interval: Option<[f64; 2]>, expected: [f64; 2]| {
        let [low, high] = interval.expect("fifteen pairs");
        assert!((low - expected[0]).abs() < 1e-9 && (high - expected[1]).abs() < 1e-9, "{low} to {high}");
    };
    close(comparison.ratio_iops_95, [0.94, 1.02]);
    close(comparison.ratio_cpu_95, [1.08, 1.16]);
    let [low, high] = comparison.ratio_iops_range;
    assert!(low < 0.94 && high > 1.02, "the range is wider");
    assert!(comparison.interval_coverage.is_some_and(|coverage| (0.95..0.97).contains(&coverage)));
}

#[test]
fn the_kernel_does_nops_here() {
    let setup = Setup { file: None, depth: 8, batch: 4, bs: 512, poll: false, workers: None };
    let Ok(ring) = KernelRing::new(setup) else {
        sheave_testkit::skip("the kernel forbids io_uring here: `sheave doctor` tells why");
        return;
    };
    let mut looper = Looper::new(ring, 8, 4, 0, std::sync::Arc::new(Lane::default()));
    let until = Until {
        runtime: None,
        ios: 1001,
        stop: std::sync::Arc::new(sheave_base::sync::atomic::AtomicBool::new(false)),
    };
    let mut pattern = Pattern::new(sheave_load::Rw::Randread, 50, 0, 512, 100, 1);
    looper.run(&mut pattern, &until, &mut Pace::Unlimited).expect("NOPs do not fail");
    assert_eq!((looper.counts().ios, looper.counts().errors), (1001, 0));
}
