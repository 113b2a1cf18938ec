//! Statistics of the last hour, kept so that the charts of the status page do not begin only when somebody opens it.
//!
//! Owns up to [`MOST_POINTS`] samples, one every [`EVERY`]. A sample is the difference between counters that others
//! maintain.
//!
//! * H1. At most [`MOST_NAMED`] exports and as many pools have lines of their own, in the order in which they are
//!   served. That bounds the memory: 720 samples of 8 bytes for each line, 3 MiB in all.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;
use sheave_blk::stats::quantile_ns;
use sheave_iomap::io_stats::{IoCounts, IoKind};
use sheave_serve::ExportStatus;

/// Interval between samples.
const EVERY: Duration = Duration::from_secs(5);
/// Maximum number of samples: those of an hour.
const MOST_POINTS: usize = 720;
/// Maximum number of exports, and of pools, with lines of their own (H1).
const MOST_NAMED: usize = 256;

/// A sample: averages over one interval, of all exports together.
#[derive(Clone, Copy, Debug, Serialize)]
struct Point {
    /// Milliseconds since 1970.
    at_ms: u64,
    requests_per_second: f64,
    bytes_per_second: f64,
    p99_ns: u64,
    /// Average number of I/Os in flight.
    depth: f64,
}

/// Counters at the time of the last sample.
#[derive(Debug)]
struct Last {
    when: Instant,
    /// Requests and bytes by export.
    requests: BTreeMap<String, (u64, u64)>,
    ios: IoCounts,
}

/// Values by name, the newest last. A line is shorter than the list of points if its name is newer.
type Lines = BTreeMap<String, VecDeque<f64>>;

#[derive(Debug, Default)]
pub(crate) struct History {
    last: Option<Last>,
    points: VecDeque<Point>,
    exports: Lines,
    pools: Lines,
}

/// The history as JSON.
#[derive(Debug, Serialize)]
pub(crate) struct Told<'a> {
    every_seconds: u64,
    points: &'a VecDeque<Point>,
    /// Requests per second of each export.
    exports: &'a Lines,
    /// Free bytes of each pool.
    pools: &'a Lines,
}

fn put<T>(line: &mut VecDeque<T>, value: T) {
    line.push_back(value);
    if line.len() > MOST_POINTS {
        line.pop_front();
    }
}

/// Appends a value to the line of each name, and removes the lines of names that are gone.
fn grow(lines: &mut Lines, values: &BTreeMap<String, f64>) {
    lines.retain(|name, _| values.contains_key(name));
    for (name, &value) in values {
        put(lines.entry(name.clone()).or_default(), value);
    }
}

impl History {
    /// Returns true if a sample is due.
    pub(crate) fn is_due(&self) -> bool {
        self.last.as_ref().is_none_or(|last| last.when.elapsed() >= EVERY)
    }

    /// Takes a sample from the counters of all exports, the I/O of all rings, and the free bytes of pools.
    pub(crate) fn take(&mut self, exports: &[ExportStatus], ios: IoCounts, pools: &[(String, u64)]) {
        let now = Instant::now();
        let requests: BTreeMap<String, (u64, u64)> = exports
            .iter()
            .take(MOST_NAMED)
            .map(|export| {
                let counts = &export.counts;
                (export.name.clone(), (counts.answered(), counts.read_bytes + counts.written_bytes))
            })
            .collect();
        let last = self.last.replace(Last { when: now, requests, ios });
        let (Some(before), Some(last)) = (last, &self.last) else { return };
        let seconds = now.duration_since(before.when).as_secs_f64();
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        // A new export starts at a rate of zero: its earlier requests do not belong to this interval.
        let of = |name: &String, (now, bytes): &(u64, u64)| {
            let (was, had) = before.requests.get(name).copied().unwrap_or((*now, *bytes));
            (rate(*now, was), rate(*bytes, had))
        };
        let rates: BTreeMap<String, (f64, f64)> =
            last.requests.iter().map(|(name, counts)| (name.clone(), of(name, counts))).collect();
        let (p99_ns, depth) = between(&before.ios, &last.ios, seconds);
        let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let point = Point {
            at_ms: u64::try_from(at.as_millis()).unwrap_or(u64::MAX),
            requests_per_second: rates.values().map(|(requests, _)| requests).sum(),
            bytes_per_second: rates.values().map(|(_, bytes)| bytes).sum(),
            p99_ns,
            depth,
        };
        put(&mut self.points, point);
        grow(&mut self.exports, &rates.into_iter().map(|(name, (requests, _))| (name, requests)).collect());
        let free = pools.iter().take(MOST_NAMED).map(|(name, free)| (name.clone(), *free as f64));
        grow(&mut self.pools, &free.collect());
    }

    /// Returns the history for output.
    pub(crate) fn told(&self) -> Told<'_> {
        Told { every_seconds: EVERY.as_secs(), points: &self.points, exports: &self.exports, pools: &self.pools }
    }
}

/// Returns the 99th percentile of the latency of I/Os that completed between two samples, and the average number in
/// flight.
fn between(before: &IoCounts, now: &IoCounts, seconds: f64) -> (u64, f64) {
    let (mut cells, mut time_ns) = (Vec::new(), 0_u64);
    for kind in IoKind::ALL {
        let (now, before) = (&now.kind(kind).split, &before.kind(kind).split);
        time_ns += now.time_ns.saturating_sub(before.time_ns);
        cells.resize(cells.len().max(now.latency.len()), 0);
        let cells = cells.iter_mut().zip(now.latency.iter().zip(before.latency.iter()));
        cells.for_each(|(sum, (now, before))| *sum += now.saturating_sub(*before));
    }
    (quantile_ns(&cells, 0.99), time_ns as f64 / 1e9 / seconds)
}
