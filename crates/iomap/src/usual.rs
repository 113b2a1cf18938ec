//! What is usual of the I/O of one ring on one file: the latency that 99.9 % of each kind did not exceed over the last
//! ten seconds, and from which latency on an I/O counts as slow.
//!
//! Owns the older readings that the last ten seconds are told by. Does not own the counts, nor any clock: the ring
//! looks once a second or so, off its fast path, and says when that is.
//!
//! Invariants:
//! - U1: what counts as slow is what takes longer than the ring's limit, or than [`TIMES_USUAL`] times what is usual.
//!   Until [`ENOUGH`] I/Os were seen in ten seconds, what is usual stays what it was, and at first nothing is.

use sheave_base::clock::CoarseTs;
use sheave_blk::stats::{LATENCY_CELLS, quantile_ns};

use crate::io_stats::{IoCell, IoKind, NR_IO_KINDS};

/// So many times what is usual is slow.
pub const TIMES_USUAL: u64 = 4;
/// I/Os in ten seconds from which something is usual.
pub const ENOUGH: u64 = 100;

/// Older readings: the last ten seconds are told by the oldest, which is three to four of these spans old.
const READINGS: usize = 4;
const SPAN_NS: u64 = 2_500_000_000;

/// The counts of latencies at some moment, modulo 2^32: a difference of two counts what came between.
type Reading = [u32; LATENCY_CELLS];

#[derive(Debug)]
struct Window {
    readings: Box<[Reading; READINGS]>,
    /// The oldest of them.
    oldest: usize,
    /// When the newest was taken.
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

/// What is usual of a ring's I/O on one file.
#[derive(Debug, Default)]
pub(crate) struct Usual {
    kinds: [Window; NR_IO_KINDS],
}

impl Usual {
    /// Looks at what was counted until now, and sets from when on I/O counts as slow (U1).
    pub(crate) fn look(&mut self, cell: &IoCell, limit_ns: u64, now: CoarseTs) {
        for (window, kind) in self.kinds.iter_mut().zip(IoKind::ALL) {
            let p999_ns = window.look(cell.latencies(kind), now);
            let unusual_ns = if p999_ns == 0 { u64::MAX } else { p999_ns.saturating_mul(TIMES_USUAL) };
            cell.set_slow_above(kind, limit_ns.min(unusual_ns));
        }
    }

    /// What 99.9 % of the I/Os of a kind took at most, 0 until that is known.
    pub(crate) fn p999_ns(&self, kind: IoKind) -> u64 {
        self.kinds[kind as usize].p999_ns
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
