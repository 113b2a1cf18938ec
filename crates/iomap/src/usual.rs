//! Usual latency of the I/O of one ring on one file: the 99.9th percentile of each kind over the last ten seconds, and
//! the latency above which an I/O counts as slow.
//!
//! Owns the earlier readings that the counts of the last ten seconds are computed from. Does not own the counts, nor a
//! clock: the ring calls `look` about once a second, off its fast path, and passes the time.
//!
//! Invariants:
//! - U1: an I/O is slow if it takes longer than the ring's limit, or than [`TIMES_USUAL`] times the usual latency. With
//!   fewer than [`ENOUGH`] I/Os in ten seconds the usual latency keeps its value; at first there is none.

use sheave_base::clock::CoarseTs;
use sheave_blk::stats::{LATENCY_CELLS, quantile_ns};

use crate::io_stats::{IoCell, IoKind, NR_IO_KINDS};

/// Multiple of the usual latency above which an I/O is slow.
pub const TIMES_USUAL: u64 = 4;
/// I/Os in ten seconds that are enough to determine the usual latency.
pub const ENOUGH: u64 = 100;

/// Number of earlier readings, [`SPAN_NS`] apart. The oldest is three to four spans old: the I/Os counted since then
/// are those of "the last ten seconds".
const READINGS: usize = 4;
const SPAN_NS: u64 = 2_500_000_000;

/// Latency counts at one moment, modulo 2^32: a difference of two readings counts the I/Os between them.
type Reading = [u32; LATENCY_CELLS];

#[derive(Debug)]
struct Window {
    readings: Box<[Reading; READINGS]>,
    /// Index of the oldest reading.
    oldest: usize,
    /// Time of the newest reading.
    taken: Option<CoarseTs>,
    p999_ns: u64,
}

impl Default for Window {
    fn default() -> Self {
        Window { readings: Box::new([[0; LATENCY_CELLS]; READINGS]), oldest: 0, taken: None, p999_ns: 0 }
    }
}

impl Window {
    fn look(&mut self, counts: impl Iterator<Item = u64>, now: CoarseTs) -> u64 {
        let mut current: Reading = [0; LATENCY_CELLS];
        current.iter_mut().zip(counts).for_each(|(cell, count)| *cell = count as u32);
        let since = self.readings[self.oldest];
        let mut between = [0; LATENCY_CELLS];
        for (between, (now, then)) in between.iter_mut().zip(current.iter().zip(since)) {
            *between = u64::from(now.wrapping_sub(then));
        }
        if between.iter().sum::<u64>() >= ENOUGH {
            self.p999_ns = quantile_ns(&between, 0.999);
        }
        if self.taken.is_none_or(|taken| now.ns_since(taken) >= SPAN_NS) {
            self.taken = Some(now);
            self.readings[self.oldest] = current;
            self.oldest = (self.oldest + 1) % READINGS;
        }
        self.p999_ns
    }
}

/// Usual latencies of a ring's I/O on one file.
#[derive(Debug, Default)]
pub(crate) struct Usual {
    kinds: [Window; NR_IO_KINDS],
}

impl Usual {
    /// Reads the counts in `cell`, and sets in it the latency above which I/O is slow (U1).
    pub(crate) fn look(&mut self, cell: &IoCell, limit_ns: u64, now: CoarseTs) {
        for (window, kind) in self.kinds.iter_mut().zip(IoKind::ALL) {
            let p999_ns = window.look(cell.latencies(kind), now);
            let unusual_ns = if p999_ns == 0 { u64::MAX } else { p999_ns.saturating_mul(TIMES_USUAL) };
            cell.set_slow_above(kind, limit_ns.min(unusual_ns));
        }
    }

    /// Returns the 99.9th percentile of the latencies of `kind`, 0 until it is known.
    pub(crate) fn p999_ns(&self, kind: IoKind) -> u64 {
        self.kinds[kind as usize].p999_ns
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
