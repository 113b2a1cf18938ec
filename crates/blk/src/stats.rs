//! Statistics of one hardware context: one writer, read at any time from any thread.
//!
//! Owns the counters and a histogram of latencies for each operation. Does not read the clock: the completion batch
//! brings one time stamp for all its requests. Only who reads in the middle of a busy period reads it.
//!
//! Invariants:
//! - I1: only the owner of the hardware context writes, with a plain load and store: no read-modify-write, no lock.
//!   A reader may see one counter of a batch before another; each counter only grows.
//! - I2: requests of one batch that were issued together have the same latency, so that a batch costs a histogram
//!   update per distinct (operation, start), not per request.

mod busy;

use std::time::Duration;

use sheave_base::clock::{Clock, CoarseTs};
use sheave_base::histogram::{Histogram, cells};
use sheave_base::sync::atomic::{AtomicU64, Ordering};

use self::busy::BusyTime;
use crate::bio::{NR_OPS, Op, SECTOR_SHIFT};

pub(crate) use self::busy::BusyEdge;

/// Latencies in ns, by cells: eight to a power of two, up to 2^36 ns (69 s). What took longer counts in the last one.
pub type Latencies = Histogram<3, { cells(3, 36) }>;
/// The cells of [`Latencies`].
pub const LATENCY_CELLS: usize = cells(3, 36);

/// Counters of one operation; a line of their own is also found with fewer instructions.
#[derive(Debug)]
#[repr(align(64))]
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
    pub(crate) busy: BusyTime,
    /// The owner's, for readers.
    clock: Clock,
}

#[inline]
fn add(cell: &AtomicU64, n: u64) {
    // Relaxed: single writer (I1); readers want each number by itself.
    cell.store(cell.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

impl HctxStats {
    pub(crate) fn new(clock: Clock) -> HctxStats {
        HctxStats {
            ops: std::array::from_fn(|_| OpStats {
                ios: AtomicU64::new(0),
                sectors: AtomicU64::new(0),
                merges: AtomicU64::new(0),
                time_ns: AtomicU64::new(0),
                errors: AtomicU64::new(0),
                latency: Latencies::default(),
            }),
            busy: BusyTime::default(),
            clock,
        }
    }

    /// Counts completed requests that are alike in operation and start, none of which had neighbours in it.
    #[inline(always)]
    pub(crate) fn note(&self, op: Op, latency_ns: u64, ios: u64, bytes: u64) {
        let op = &self.ops[op as usize];
        add(&op.ios, ios);
        add(&op.sectors, bytes >> SECTOR_SHIFT);
        add(&op.time_ns, latency_ns * ios);
        op.latency.add(latency_ns, ios);
    }

    /// Adds what this hardware context has counted to `into`, a reading of its queue alone, in which it has this seat:
    /// no other context of the queue has it at the same time.
    pub fn read(&self, seat: usize, into: &mut Stats) {
        into.add_busy(0, seat, self.busy.read(&self.clock));
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
    /// Busy times by queue and by seat of a hardware context.
    busy_ns: Vec<Vec<u64>>,
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
            busy_ns: Vec::new(),
        }
    }
}

impl Stats {
    /// The counts of one operation.
    pub fn op(&self, op: Op) -> &OpCounts {
        &self.ops[op as usize]
    }

    /// Adds another reading to this one, of other queues.
    pub fn add(&mut self, other: &Stats) {
        self.busy_ns.extend_from_slice(&other.busy_ns);
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

    fn add_busy(&mut self, queue: usize, seat: usize, ns: u64) {
        if self.busy_ns.len() <= queue {
            self.busy_ns.resize(queue + 1, Vec::new());
        }
        let seats = &mut self.busy_ns[queue];
        if seats.len() <= seat {
            seats.resize(seat + 1, 0);
        }
        seats[seat] += ns;
    }

    /// The busy times of the device's hardware contexts, in ns: for how long each had at least one request of which the
    /// issue was counted and the end was not, now included. A context that a ring opens where another has gone goes on
    /// with its figure.
    ///
    /// The times of several contexts overlap, so that their sum may be more than the time that has passed.
    pub fn busy_ns(&self) -> impl Iterator<Item = u64> {
        self.busy_ns.iter().flatten().copied()
    }

    /// For how long the device was busy since an `earlier` reading of it, in ns: the busiest of its hardware contexts.
    /// With one ring that is exact; only an I/O that its driver ends within the call is seen when the call has ended.
    /// With several rings the device was busy for that long at least, and at most for the sum.
    pub fn busy_ns_since(&self, earlier: &Stats) -> u64 {
        let before = |queue: usize, seat: usize| earlier.busy_ns.get(queue).and_then(|seats| seats.get(seat));
        let seats = self.busy_ns.iter().enumerate().flat_map(|(queue, seats)| {
            let since = move |(seat, ns): (usize, &u64)| ns.saturating_sub(*before(queue, seat).unwrap_or(&0));
            seats.iter().enumerate().map(since)
        });
        seats.max().unwrap_or(0)
    }

    /// [`Stats::busy_ns_since`] as a share of the time between the two readings, 0 to 1: `%util` of iostat. Whoever
    /// measured that time read another clock than statistics do; what is over 1 for that reason counts as 1.
    pub fn utilization_since(&self, earlier: &Stats, elapsed: Duration) -> f64 {
        let elapsed_ns = elapsed.as_nanos().max(1) as f64;
        (self.busy_ns_since(earlier) as f64 / elapsed_ns).min(1.0)
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
