//! Counters of a run in progress. Each thread writes its own counters, and the progress thread reads them at any time.
//!
//! * I1. Every counter has one writer, which loads and stores it plainly (no read-modify-write). A reader may see
//!   counters of slightly different moments, which does no harm in a progress display. Final figures are read after the
//!   writer's thread was joined, which orders everything.
//! * I2. A latency is counted in a cell whose bounds are at most 1/32 apart: linear up to 64 ns, then 32 cells for each
//!   power of two, up to about 36 minutes; longer ones are counted in the last cell.

use std::ops::RangeInclusive;

use sheave_base::sync::atomic::{AtomicU64, Ordering::Relaxed};

use sheave_base::histogram::{Histogram, cells};

/// Latencies of a whole run, for its report.
pub type Report = hdrhistogram::Histogram<u64>;

const STEPS_LOG2: u32 = 5;
const CELLS: usize = cells(STEPS_LOG2, 41);

/// Latencies of one thread, in ns (I2).
pub type LiveHist = Histogram<STEPS_LOG2, CELLS>;

/// Adds the recorded latencies to `into`.
pub fn merge(latency: &LiveHist, into: &mut Report) {
    for (values, count) in latency.counted() {
        into.saturating_record_n(middle(values), count);
    }
}

/// Returns an empty histogram for reports. Its three digits are finer than the cells.
pub fn report_histogram() -> Report {
    let bounds = Report::new_with_bounds(1, middle(LiveHist::values(CELLS - 1)), 3);
    bounds.expect("the bounds are apart and three digits are within what the histogram takes (1 to 5)")
}

/// Returns the middle of a cell's values.
fn middle(values: RangeInclusive<u64>) -> u64 {
    values.start() + (values.end() - values.start()).div_ceil(2)
}

/// Counters of one thread.
#[derive(Default)]
pub struct Counters {
    /// Number of I/Os done, failed ones included.
    pub ios: AtomicU64,
    /// Number of writes among them.
    pub writes: AtomicU64,
    /// Number of calls that submitted at least one I/O.
    pub submits: AtomicU64,
    /// Number of calls that found at least one completion.
    pub reaps: AtomicU64,
    /// Number of I/Os that failed.
    pub errors: AtomicU64,
}

/// A copy of counters, or a sum of copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of I/Os done, failed ones included.
    pub ios: u64,
    /// Number of writes among them.
    pub writes: u64,
    /// Number of calls that submitted at least one I/O.
    pub submits: u64,
    /// Number of calls that found at least one completion.
    pub reaps: u64,
    /// Number of I/Os that failed.
    pub errors: u64,
}

impl Counts {
    /// Returns the number of I/Os that succeeded.
    pub fn good(&self) -> u64 {
        self.ios.saturating_sub(self.errors)
    }
}

impl Counters {
    /// Makes the writer's own copy visible to the reporter.
    #[inline]
    pub fn publish(&self, counts: &Counts) {
        self.ios.store(counts.ios, Relaxed);
        self.writes.store(counts.writes, Relaxed);
        self.submits.store(counts.submits, Relaxed);
        self.reaps.store(counts.reaps, Relaxed);
        self.errors.store(counts.errors, Relaxed);
    }

    /// Returns the counts that were published last.
    pub fn snapshot(&self) -> Counts {
        Counts {
            ios: self.ios.load(Relaxed),
            writes: self.writes.load(Relaxed),
            submits: self.submits.load(Relaxed),
            reaps: self.reaps.load(Relaxed),
            errors: self.errors.load(Relaxed),
        }
    }
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.ios += other.ios;
        self.writes += other.writes;
        self.submits += other.submits;
        self.reaps += other.reaps;
        self.errors += other.errors;
    }
}

#[cfg(test)]
mod tests {
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
}
