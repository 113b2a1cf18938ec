//! Tests of the latency buckets.

use super::*;

#[test]
fn buckets_are_monotonic_and_fine() {
    let mut last = 0;
    for ns in (0..20_000).chain((20_000..4_000_000_000).step_by(99_991)) {
        let index = bucket(ns);
        assert!(index >= last, "{ns} ns falls before a shorter time");
        last = index;
        let error = middle(index).abs_diff(ns);
        assert!(error * 32 <= ns.max(32), "{ns} ns is shown as {}", middle(index));
    }
}

#[test]
fn ends_do_not_overflow() {
    assert_eq!(bucket(0), 0);
    assert_eq!(bucket(63), 63);
    assert_eq!(bucket(64), 64);
    assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    assert!(middle(BUCKETS - 1) > 1 << 40);
}

#[test]
fn percentiles_come_out() {
    let live = LiveHist::default();
    live.record(100, 989);
    live.record(10_000, 10);
    live.record(1_000_000, 1);
    let mut report = report_histogram();
    live.merge_into(&mut report);
    assert_eq!(report.len(), 1000);
    assert!(report.value_at_quantile(0.5).abs_diff(100) < 4);
    assert!(report.value_at_quantile(0.99).abs_diff(10_000) < 320);
    assert!(report.value_at_quantile(0.9999).abs_diff(1_000_000) < 32_000);
}
