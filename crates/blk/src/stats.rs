//! Statistics of one hardware context: one writer, read at any time from any thread.
//!
//! Owns the counters and a histogram of latencies for each operation. Does not read the clock: the completion batch
//! brings one time stamp for all its requests.
//!
//! Invariants:
//! - I1: only the owner of the hardware context writes, with a plain load and store: no read-modify-write, no lock.
//!   A reader may see one counter of a batch before another; each counter only grows.
//! - I2: requests of one batch that were issued together have the same latency, so that a batch costs a histogram
//!   update per distinct (operation, start), not per request.

use sheave_base::clock::CoarseTs;
use sheave_base::histogram::{Histogram, cells};
use sheave_base::sync::atomic::{AtomicU64, Ordering};

use crate::bio::{NR_OPS, Op, SECTOR_SHIFT};

/// Latencies in ns, by cells: eight to a power of two, up to 2^36 ns (69 s). What took longer counts in the last one.
pub type Latencies = Histogram<3, { cells(3, 36) }>;
/// The cells of [`Latencies`].
pub const LATENCY_CELLS: usize = cells(3, 36);

/// Counters of one operation.
#[derive(Debug)]
struct OpStats {
    ios: AtomicU64,
    sectors: AtomicU64,
    merges: AtomicU64,
    time_ns: AtomicU64,
    errors: AtomicU64,
    latency: Latencies,
}

/// Statistics of one hardware context.
#[derive(Debug)]
pub struct HctxStats {
    ops: [OpStats; NR_OPS],
}

#[inline]
fn add(cell: &AtomicU64, n: u64) {
    // Relaxed: single writer (I1); readers want each number by itself.
    cell.store(cell.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

impl Default for HctxStats {
    fn default() -> Self {
        HctxStats {
            ops: std::array::from_fn(|_| OpStats {
                ios: AtomicU64::new(0),
                sectors: AtomicU64::new(0),
                merges: AtomicU64::new(0),
                time_ns: AtomicU64::new(0),
                errors: AtomicU64::new(0),
                latency: Latencies::default(),
            }),
        }
    }
}

impl HctxStats {
    /// Counts completed requests that are alike in operation and start, none of which had neighbours in it.
    #[inline(always)]
    pub(crate) fn note(&self, op: Op, latency_ns: u64, ios: u64, bytes: u64) {
        let op = &self.ops[op as usize];
        add(&op.ios, ios);
        add(&op.sectors, bytes >> SECTOR_SHIFT);
        add(&op.time_ns, latency_ns * ios);
        op.latency.add(latency_ns, ios);
    }

    /// Adds what this hardware context has counted to `into`.
    pub fn read(&self, into: &mut Stats) {
        for (op, sum) in self.ops.iter().zip(&mut into.ops) {
            // Relaxed: see `add`.
            sum.ios += op.ios.load(Ordering::Relaxed);
            sum.sectors += op.sectors.load(Ordering::Relaxed);
            sum.merges += op.merges.load(Ordering::Relaxed);
            sum.time_ns += op.time_ns.load(Ordering::Relaxed);
            sum.errors += op.errors.load(Ordering::Relaxed);
            for (count, n) in op.latency.counts().zip(&mut sum.latency) {
                *n += count;
            }
        }
    }
}

/// What was counted of one operation.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OpCounts {
    /// Requests completed.
    pub ios: u64,
    /// Sectors (512 B) moved.
    pub sectors: u64,
    /// Bios that rode along in another bio's request.
    pub merges: u64,
    /// Time spent between issue and completion, summed over the requests.
    pub time_ns: u64,
    /// Requests that ended with an error.
    pub errors: u64,
    /// Requests by latency, in ns, by the cells of [`Latencies`].
    pub latency: Vec<u64>,
}

/// A reading of the statistics of a device or of one hardware context.
#[derive(Clone, Debug)]
pub struct Stats {
    ops: [OpCounts; NR_OPS],
}

impl Default for Stats {
    fn default() -> Self {
        Stats {
            ops: std::array::from_fn(|_| OpCounts {
                ios: 0,
                sectors: 0,
                merges: 0,
                time_ns: 0,
                errors: 0,
                latency: vec![0; LATENCY_CELLS],
            }),
        }
    }
}

impl Stats {
    /// The counts of one operation.
    pub fn op(&self, op: Op) -> &OpCounts {
        &self.ops[op as usize]
    }

    /// Adds another reading to this one.
    pub fn add(&mut self, other: &Stats) {
        for (sum, op) in self.ops.iter_mut().zip(&other.ops) {
            sum.ios += op.ios;
            sum.sectors += op.sectors;
            sum.merges += op.merges;
            sum.time_ns += op.time_ns;
            sum.errors += op.errors;
            for (n, m) in sum.latency.iter_mut().zip(&op.latency) {
                *n += m;
            }
        }
    }

    /// Requests completed, all operations.
    pub fn ios(&self) -> u64 {
        self.ops.iter().map(|op| op.ios).sum()
    }
}

impl OpCounts {
    /// The latency in ns below which the fraction `q` (0 to 1) of the requests lies: the smallest of its cell.
    pub fn quantile_ns(&self, q: f64) -> u64 {
        let total: u64 = self.latency.iter().sum();
        let rank = ((total as f64 * q).ceil() as u64).clamp(1, total.max(1));
        let mut seen = 0;
        for (cell, n) in self.latency.iter().enumerate() {
            seen += n;
            if seen >= rank {
                return *Latencies::values(cell).start();
            }
        }
        0
    }
}

/// Gathers the requests of one completion batch and writes them down with few stores (I2).
#[derive(Debug)]
pub(crate) struct BatchAccount<'a> {
    stats: &'a HctxStats,
    now: CoarseTs,
    op: Op,
    start: CoarseTs,
    ios: u64,
    bytes: u64,
    merges: u64,
}

impl<'a> BatchAccount<'a> {
    #[inline]
    pub(crate) fn new(stats: &'a HctxStats, now: CoarseTs) -> Self {
        BatchAccount { stats, now, op: Op::Read, start: now, ios: 0, bytes: 0, merges: 0 }
    }

    /// Counts one completed request.
    #[inline(always)]
    pub(crate) fn request(&mut self, op: Op, start: CoarseTs, bytes: u32, merged: u16) {
        if op != self.op || start != self.start {
            if self.ios != 0 {
                self.write();
            }
            self.op = op;
            self.start = start;
        }
        self.ios += 1;
        self.bytes += u64::from(bytes);
        self.merges += u64::from(merged);
    }

    #[cold]
    pub(crate) fn error(&mut self, op: Op) {
        add(&self.stats.ops[op as usize].errors, 1);
    }

    /// Writes down what was gathered since the last change of operation or start.
    #[inline(never)]
    pub(crate) fn write(&mut self) {
        if self.ios == 0 {
            return;
        }
        self.stats.note(self.op, self.now.ns_since(self.start), self.ios, self.bytes);
        if self.merges != 0 {
            add(&self.stats.ops[self.op as usize].merges, self.merges);
        }
        self.ios = 0;
        self.bytes = 0;
        self.merges = 0;
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
