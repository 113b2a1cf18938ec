//! Size of the page, and its histograms.

use std::sync::Arc;

use sheave_blk::stats::Split;
use sheave_iomap::io_stats::{IoCounts, IoGroup, IoKind, IoSeat};
use sheave_serve::ExportStatus;

use super::detail::{self, BOUNDS, MOST_IN_DETAIL};
use super::families::requests;
use super::page::{MOST_NAMED, Page};

/// Counts of reads with these latencies, spent in the driver.
fn reads(latencies: &[u64]) -> IoCounts {
    let group = Arc::new(IoGroup::default());
    let seat = IoSeat::new(None, None, [group.clone()]);
    for &driver_ns in latencies {
        seat.cell().note(IoKind::Read, &Split { driver_ns, ..Split::default() }, 4096);
    }
    group.counts()
}

/// Returns the value of a series.
fn value(page: &Page, series: &str) -> Option<f64> {
    let line = page.text.lines().find(|line| line.strip_prefix(series).is_some_and(|rest| rest.starts_with(' ')))?;
    line.rsplit_once(' ')?.1.parse().ok()
}

#[test]
fn ten_thousand_exports_make_no_larger_page_than_a_thousand() {
    let of = |exports: usize| {
        let names: Vec<_> = (0..exports).map(|n| format!("e{n}")).collect();
        let mut page = Page { text: String::new(), is_open: true };
        let status = |name: &String| ExportStatus {
            name: name.clone(),
            description: String::new(),
            size_bytes: 1,
            read_only: false,
            clients: 0,
            counts: sheave_serve::IoCounts { reads: 1, ..Default::default() },
            limit: None,
            allow: sheave_serve::Allow::All,
            refused: 0,
        };
        requests(&mut page, &names.iter().map(status).collect::<Vec<_>>());
        let counts = reads(&[1000]);
        detail::families(&mut page, names.iter().map(|name| (name.as_str(), counts.clone())));
        page
    };
    let page = of(10_000);
    let others =
        |series: &str, named: usize| assert_eq!(value(&page, series), Some((10_000 - named) as f64), "{series}");
    others("sheave_export_reads_total{export=\"\"}", MOST_NAMED);
    others("sheave_export_io_latency_seconds_count{export=\"\",kind=\"read\"}", MOST_IN_DETAIL);
    assert_eq!(value(&page, "sheave_export_reads_total{export=\"e999\"}"), Some(1.0));
    assert_eq!(value(&page, "sheave_export_reads_total{export=\"e1000\"}"), None);
    assert_eq!(page.text.lines().count(), of(MOST_NAMED + 1).text.lines().count());
    assert!(page.text.lines().count() < 20_000, "{}", page.text.lines().count());
}

#[test]
fn a_latency_counts_below_the_bounds_that_are_longer() {
    // Just below each bound, exactly at it, and beyond the last.
    let times: Vec<u64> =
        BOUNDS.iter().flat_map(|bound| [(1 << bound) - 1, 1 << bound]).chain([60_000_000_000]).collect();
    let mut page = Page { text: String::new(), is_open: true };
    detail::families(&mut page, [("x", reads(&times))].into_iter());
    for (at, bound) in BOUNDS.iter().enumerate() {
        let le = format!("{}", (1_u64 << bound) as f64 / 1e9);
        let series = format!("sheave_export_io_latency_seconds_bucket{{export=\"x\",kind=\"read\",le=\"{le}\"}}");
        assert_eq!(value(&page, &series), Some(2.0 * at as f64 + 1.0), "{series}\n{}", page.text);
    }
    let labels = "{export=\"x\",kind=\"read\"}";
    assert_eq!(value(&page, &format!("sheave_export_io_latency_seconds_count{labels}")), Some(times.len() as f64));
    let sum = times.iter().sum::<u64>() as f64 / 1e9;
    let told = value(&page, &format!("sheave_export_io_latency_seconds_sum{labels}")).expect("it is told");
    assert!((told - sum).abs() < 1e-6, "{told} {sum}");
    let stage = value(&page, "sheave_export_io_stage_seconds_total{export=\"x\",kind=\"read\",stage=\"driver\"}");
    assert_eq!(stage, Some(told));
}
