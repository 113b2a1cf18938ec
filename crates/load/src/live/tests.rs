//! Tests of a report on a thread's latencies.

use super::*;

#[test]
fn a_latency_is_told_within_a_thirty_second() {
    for ns in (0..20_000).chain((20_000..4_000_000_000).step_by(99_991)) {
        let told = middle(LiveHist::values(LiveHist::cell(ns)));
        assert!(told.abs_diff(ns) * 32 <= ns, "{ns} ns is shown as {told}");
    }
    assert!(report_histogram().high() > 1 << 40);
}

#[test]
fn percentiles_come_out() {
    let live = LiveHist::default();
    live.add(100, 989);
    live.add(10_000, 10);
    live.add(1_000_000, 1);
    let mut report = report_histogram();
    merge(&live, &mut report);
    assert_eq!(report.len(), 1000);
    assert!(report.value_at_quantile(0.5).abs_diff(100) < 4);
    assert!(report.value_at_quantile(0.99).abs_diff(10_000) < 320);
    assert!(report.value_at_quantile(0.9999).abs_diff(1_000_000) < 32_000);
}
