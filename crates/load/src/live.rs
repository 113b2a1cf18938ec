//! What a run counts while it goes on: one writer a thread, read by the reporter at any time.
//!
//! * I1. Every counter has one writer, which loads and stores it plainly (no read-modify-write); a reader may see
//!   counters of slightly different moments, which a progress display does not mind. Final figures are read after
//!   the writer's thread was joined, which orders everything.
//! * I2. A latency falls into a bucket whose bounds are at most 1/32 apart: linear to 64 ns, then 32 buckets an
//!   octave, up to about 36 minutes; what is longer counts in the last bucket.

use sheave::base::sync::atomic::{AtomicU64, Ordering::Relaxed};

use hdrhistogram::Histogram;

const LINEAR: usize = 64;
const PER_OCTAVE: usize = 32;
const OCTAVES: usize = 35;
const BUCKETS: usize = LINEAR + OCTAVES * PER_OCTAVE;

/// Latencies of one thread, in ns.
pub struct LiveHist {
    buckets: Box<[AtomicU64]>,
}

impl Default for LiveHist {
    /// All zero.
    fn default() -> Self {
        Self { buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect() }
    }
}

impl LiveHist {
    /// Counts `count` I/Os that took `ns` each.
    #[inline]
    pub fn record(&self, ns: u64, count: u64) {
        add(&self.buckets[bucket(ns)], count);
    }

    /// Forgets everything; only its writer may call this.
    pub fn reset(&self) {
        for bucket in &self.buckets {
            bucket.store(0, Relaxed);
        }
    }

    /// Adds what was recorded to `into`.
    pub fn merge_into(&self, into: &mut Histogram<u64>) {
        for (index, bucket) in self.buckets.iter().enumerate() {
            let count = bucket.load(Relaxed);
            if count > 0 {
                into.saturating_record_n(middle(index), count);
            }
        }
    }
}

/// An empty histogram for reports; three digits are finer than the buckets.
pub fn report_histogram() -> Histogram<u64> {
    let bounds = Histogram::new_with_bounds(1, middle(BUCKETS - 1), 3);
    bounds.expect("the bounds are apart and three digits are within what the histogram takes (1 to 5)")
}

/// The bucket of a latency (I2).
#[inline]
fn bucket(ns: u64) -> usize {
    if ns < LINEAR as u64 {
        return ns as usize;
    }
    // 64..127 is octave 0: its top bit is bit 6, and the five bits below it choose the bucket.
    let top = 63 - ns.leading_zeros() as usize;
    let within = (ns >> (top - 5)) as usize & (PER_OCTAVE - 1);
    (LINEAR + (top - 6) * PER_OCTAVE + within).min(BUCKETS - 1)
}

/// The middle of a bucket's bounds.
fn middle(index: usize) -> u64 {
    if index < LINEAR {
        return index as u64;
    }
    let (octave, within) = ((index - LINEAR) / PER_OCTAVE, (index - LINEAR) % PER_OCTAVE);
    let width = 1u64 << (octave + 1);
    (PER_OCTAVE + within) as u64 * width + width / 2
}

/// Counters of one thread.
#[derive(Default)]
pub struct Counters {
    /// I/Os done, failed ones too.
    pub ios: AtomicU64,
    /// Of these, writes.
    pub writes: AtomicU64,
    /// Calls that submitted something.
    pub submits: AtomicU64,
    /// Calls that found completions.
    pub reaps: AtomicU64,
    /// I/Os that failed.
    pub errors: AtomicU64,
}

/// A copy of counters, or a sum of copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// I/Os done, failed ones too.
    pub ios: u64,
    /// Of these, writes.
    pub writes: u64,
    /// Calls that submitted something.
    pub submits: u64,
    /// Calls that found completions.
    pub reaps: u64,
    /// I/Os that failed.
    pub errors: u64,
}

impl Counters {
    /// Shows the reporter the writer's own copy.
    #[inline]
    pub fn publish(&self, counts: &Counts) {
        self.ios.store(counts.ios, Relaxed);
        self.writes.store(counts.writes, Relaxed);
        self.submits.store(counts.submits, Relaxed);
        self.reaps.store(counts.reaps, Relaxed);
        self.errors.store(counts.errors, Relaxed);
    }

    /// What was published last.
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

/// Adds to a counter that only this thread writes (I1).
#[inline]
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Relaxed) + more, Relaxed);
}

#[cfg(test)]
mod tests;
