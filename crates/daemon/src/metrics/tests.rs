//! Size of the page, and its histograms.

use std::sync::Arc;

use sheave_blk::stats::Split;
use sheave_iomap::io_stats::{IoCounts, IoGroup, IoKind, IoSeat};
use sheave_serve::{ExportStatus, VhostUserStatus};

use super::detail::{self, BOUNDS, MOST_IN_DETAIL};
use super::devices;
use super::families::{requests, vhost_user};
use super::page::{MOST_NAMED, Page};
use crate::api::types as t;

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
            vhost_user: None,
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
fn vhost_user_devices_are_told_and_their_number_of_series_is_bounded() {
    let status = |number: usize, device: Option<VhostUserStatus>| ExportStatus {
        name: format!("e{number}"),
        description: String::new(),
        size_bytes: 1,
        read_only: false,
        clients: 0,
        counts: sheave_serve::IoCounts::default(),
        limit: None,
        allow: sheave_serve::Allow::All,
        refused: 0,
        vhost_user: device,
    };
    let queue = |index| sheave_serve::VhostQueueStatus { index, reactor: 0, size: 128, in_flight: 5 };
    let device = |client: Option<u64>| VhostUserStatus {
        address: sheave_serve::Address::Unix("/s".into()),
        queues: 4,
        client,
        running: client.map_or(Vec::new(), |_| vec![queue(0), queue(1)]),
    };
    let mut page = Page { text: String::new(), is_open: true };
    vhost_user(&mut page, &[status(0, None), status(1, Some(device(Some(7)))), status(2, Some(device(None)))]);
    for (series, expected) in [
        ("sheave_vhost_attached{export=\"e0\"}", None),
        ("sheave_vhost_attached{export=\"e1\"}", Some(1.0)),
        ("sheave_vhost_attached{export=\"e2\"}", Some(0.0)),
        ("sheave_vhost_running_queues{export=\"e1\"}", Some(2.0)),
        ("sheave_vhost_in_flight{export=\"e1\"}", Some(10.0)),
        ("sheave_vhost_in_flight{export=\"e2\"}", Some(0.0)),
    ] {
        assert_eq!(value(&page, series), expected, "{series}");
    }
    let mut page = Page { text: String::new(), is_open: true };
    vhost_user(&mut page, &(0..3 * MOST_NAMED).map(|at| status(at, Some(device(Some(1))))).collect::<Vec<_>>());
    assert_eq!(value(&page, "sheave_vhost_attached{export=\"\"}"), Some(2.0 * MOST_NAMED as f64));
    assert_eq!(page.text.lines().count(), 3 * (MOST_NAMED + 1 + 2));
}

#[test]
fn devices_beyond_the_first_hundred_are_one_sum_with_an_empty_name() {
    let operation = |name: &str, ios| t::DeviceOperation {
        operation: name.into(),
        ios,
        bytes: ios * 4096,
        time_ns: 1_500_000_000,
        ..t::DeviceOperation::default()
    };
    let device = |n: u32| t::DeviceStatistics {
        name: format!("file:/d\"{n}"),
        export: Some(format!("e{n}")),
        kept: n.is_multiple_of(2),
        operations: vec![operation("read", 1), operation("write", 2)],
        busy_ns: 2_000_000_000,
        in_flight_writes: 3,
        ..t::DeviceStatistics::default()
    };
    let mut page = Page { text: String::new(), is_open: false };
    devices::families(&mut page, (0..1000).map(device));
    let others = 1000 - MOST_IN_DETAIL;
    for (series, expected) in [
        ("sheave_device_ios_total{device=\"file:/d\\\"7\",export=\"e7\",operation=\"write\"}", 2),
        ("sheave_device_statistics{device=\"file:/d\\\"7\",export=\"e7\"}", 0),
        ("sheave_device_bytes_total{device=\"\",operation=\"read\"}", others * 4096),
        ("sheave_device_busy_seconds_total{device=\"\"}", others * 2),
        ("sheave_device_in_flight{device=\"\",kind=\"write\"}", others * 3),
        ("sheave_device_statistics{device=\"\"}", others / 2),
    ] {
        assert_eq!(value(&page, series), Some(expected as f64), "{series}");
    }
    let seconds = value(&page, "sheave_device_io_seconds_total{device=\"\",operation=\"write\"}");
    assert_eq!(seconds, Some(others as f64 * 1.5));
    assert!(page.text.contains("# TYPE sheave_device_busy_seconds_total counter\n"), "{}", page.text);
    assert!(page.text.lines().count() < 2500, "{}", page.text.lines().count());
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
