//! Statistics of one hardware context: one writer, read at any time from any thread.
//!
//! Owns the counters and the latency histogram by operation. Does not read the clock: the completion batch brings one
//! time stamp for all its requests.
//!
//! Invariants:
//! - I1: only the owner of the hardware context writes, with a plain load and store: no read-modify-write, no lock.
//!   A reader may see one counter of a batch before another; each counter only grows.
//! - I2: requests of one batch that were issued together have the same latency, so that a batch costs a histogram
//!   update per distinct (operation, start), not per request.

use sheave_base::clock::CoarseTs;
use sheave_base::sync::atomic::{AtomicU64, Ordering};

use crate::bio::{NR_OPS, Op, SECTOR_SHIFT};

/// Sub-buckets per power of two, as a shift: 8, so a bucket is at most 12.5 % wide.
const SUB_SHIFT: u32 = 3;
/// Latencies from 2^36 ns (69 s) on share the last bucket.
const TOP_SHIFT: u32 = 36;
/// Buckets of a latency histogram.
pub const LATENCY_BUCKETS: usize = (((TOP_SHIFT - SUB_SHIFT) as usize) << SUB_SHIFT) + (1 << SUB_SHIFT);

/// The bucket of a latency: linear below 8 ns, then eight buckets per power of two (HdrHistogram's scheme).
#[inline]
pub fn latency_bucket(ns: u64) -> usize {
    if ns < 1 << SUB_SHIFT {
        return ns as usize;
    }
    let exponent = 63 - ns.leading_zeros();
    if exponent >= TOP_SHIFT {
        return LATENCY_BUCKETS - 1;
    }
    let shift = exponent - SUB_SHIFT;
    (((shift + 1) as usize) << SUB_SHIFT) + ((ns >> shift) as usize & ((1 << SUB_SHIFT) - 1))
}

/// The smallest latency that falls into the bucket, in ns.
pub fn bucket_floor_ns(bucket: usize) -> u64 {
    let sub = 1usize << SUB_SHIFT;
    if bucket < sub {
        return bucket as u64;
    }
    let shift = (bucket >> SUB_SHIFT) - 1;
    ((sub + (bucket & (sub - 1))) as u64) << shift
}

/// Counters of one operation.
#[derive(Debug)]
struct OpStats {
    ios: AtomicU64,
    sectors: AtomicU64,
    merges: AtomicU64,
    time_ns: AtomicU64,
    errors: AtomicU64,
    latency: [AtomicU64; LATENCY_BUCKETS],
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
                latency: [const { AtomicU64::new(0) }; LATENCY_BUCKETS],
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
        add(&op.latency[latency_bucket(latency_ns)], ios);
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
            for (cell, n) in op.latency.iter().zip(&mut sum.latency) {
                *n += cell.load(Ordering::Relaxed);
            }
        }
    }
}

/// What was counted of one operation.
#[derive(Clone, Debug)]
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
    /// Requests by latency; see [`bucket_floor_ns`].
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
                latency: vec![0; LATENCY_BUCKETS],
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
    /// The latency in ns below which the fraction `q` (0 to 1) of the requests lies: the floor of its bucket.
    pub fn quantile_ns(&self, q: f64) -> u64 {
        let total: u64 = self.latency.iter().sum();
        let rank = ((total as f64 * q).ceil() as u64).clamp(1, total.max(1));
        let mut seen = 0;
        for (bucket, n) in self.latency.iter().enumerate() {
            seen += n;
            if seen >= rank {
                return bucket_floor_ns(bucket);
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

#[cfg(test)]
mod tests;
