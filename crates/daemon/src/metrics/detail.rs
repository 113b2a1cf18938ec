//! Metrics of the I/O of each export, as its rings count it: operations, bytes, errors, latencies and stages.
//!
//! H1. At most [`MOST_IN_DETAIL`] exports have values of their own, in the order in which they are served. The sum of
//! all others has the empty name. That limits the page to about 7,000 values.
//!
//! H2. The bucket bounds of latencies never change: each is a power of four nanoseconds, which is a bucket bound of the
//! counts as well. An I/O that took exactly as long as a bound is counted above it.

use sheave_blk::stats::{Latencies, Stage};
use sheave_iomap::io_stats::{IoCounts, IoKind};

use super::page::Page;

/// Number of exports whose I/O is listed by name (H1).
pub(super) const MOST_IN_DETAIL: usize = 100;
/// Binary logarithms of the bucket bounds: from 1 microsecond to 17 seconds (H2).
pub(super) const BOUNDS: [u32; 13] = [10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32, 34];

/// Writes all metrics of I/O.
pub(super) fn families<'a>(page: &mut Page, exports: impl Iterator<Item = (&'a str, IoCounts)>) {
    let (mut named, mut others) = (Vec::new(), None);
    for (at, (export, counts)) in exports.enumerate() {
        match at < MOST_IN_DETAIL {
            true => named.push((export, counts)),
            false => others.get_or_insert_with(IoCounts::default).add(&counts),
        }
    }
    named.extend(others.map(|counts| ("", counts)));
    page.head("sheave_export_io_bytes", "counter", "Bytes that I/O of an export moved.");
    each(&named, |export, kind, counts| {
        let labels = [("export", export), ("kind", kind.name())];
        page.value("sheave_export_io_bytes_total", &labels, counts.kind(kind).bytes);
    });
    page.head("sheave_export_io_errors", "counter", "I/O of an export that ended with an error.");
    for (export, counts) in &named {
        page.value("sheave_export_io_errors_total", &[("export", export)], counts.errors());
    }
    page.head("sheave_export_io_stage_seconds", "counter", "Time that I/O of an export spent in each stage.");
    each(&named, |export, kind, counts| {
        for stage in Stage::ALL {
            let labels = [("export", export), ("kind", kind.name()), ("stage", stage.name())];
            page.value("sheave_export_io_stage_seconds_total", &labels, seconds(counts.kind(kind).split.ns(stage)));
        }
    });
    page.head("sheave_export_io_latency_seconds", "histogram", "How long I/O of an export took.");
    each(&named, |export, kind, counts| latencies(page, export, kind, counts));
}

fn each(exports: &[(&str, IoCounts)], mut tell: impl FnMut(&str, IoKind, &IoCounts)) {
    for (export, counts) in exports {
        IoKind::ALL.into_iter().for_each(|kind| tell(export, kind, counts));
    }
}

fn latencies(page: &mut Page, export: &str, kind: IoKind, counts: &IoCounts) {
    let split = &counts.kind(kind).split;
    let (name, mut below, mut cell) = ("sheave_export_io_latency_seconds", 0, 0);
    for bound in BOUNDS {
        let end = Latencies::cell(1 << bound);
        below += split.latency[cell..end].iter().sum::<u64>();
        cell = end;
        let labels = [("export", export), ("kind", kind.name()), ("le", &seconds(1 << bound))];
        page.value(&format!("{name}_bucket"), &labels, below);
    }
    let labels = [("export", export), ("kind", kind.name()), ("le", "+Inf")];
    page.value(&format!("{name}_bucket"), &labels, split.ios());
    page.value(&format!("{name}_count"), &labels[..2], split.ios());
    page.value(&format!("{name}_sum"), &labels[..2], seconds(split.time_ns));
}

/// Formats nanoseconds as seconds, without rounding.
pub(super) fn seconds(ns: u64) -> String {
    let text = format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
    let short = text.trim_end_matches('0');
    if short.ends_with('.') { format!("{short}0") } else { short.to_owned() }
}
