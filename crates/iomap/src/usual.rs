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
/// Number of I/Os in ten seconds that is enough to determine the usual latency.
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
mod tests {
    use sheave_blk::stats::Split;

    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const LIMIT: u64 = 10 * SECOND;

    fn reads(cell: &IoCell, ios: u64, ns: u64) {
        (0..ios).for_each(|_| {
            cell.note(IoKind::Read, &Split { driver_ns: ns, ..Split::default() }, 512);
        });
    }

    /// Counts an I/O of this latency. Returns true if it was slow.
    fn is_slow(cell: &IoCell, ns: u64) -> bool {
        cell.note(IoKind::Read, &Split { driver_ns: ns, ..Split::default() }, 512)
    }

    #[test]
    fn slow_is_what_takes_four_times_as_long_as_usual_or_longer_than_the_limit() {
        let (cell, mut usual) = (IoCell::alone(), Usual::default());
        let mut look = |cell: &IoCell, second: u64| {
            usual.look(cell, LIMIT, CoarseTs(second * SECOND));
            usual.p999_ns(IoKind::Read)
        };
        assert!(is_slow(&cell, LIMIT + 1) || look(&cell, 0) == 0);
        // With the one above 99: 100 are enough.
        reads(&cell, 98, 1024);
        assert_eq!(look(&cell, 0), 0, "too few to tell");
        assert!(!is_slow(&cell, LIMIT) && is_slow(&cell, LIMIT + 1), "the limit holds from the start");
        reads(&cell, 10_000, 1024);
        assert_eq!(look(&cell, 1), 1024);
        assert!(!is_slow(&cell, 4096) && is_slow(&cell, 4097));
        // Writes are measured separately.
        assert!(!cell.note(IoKind::Write, &Split { driver_ns: 1 << 20, ..Split::default() }, 512));
        for second in 2..=20 {
            reads(&cell, 1000, 8192);
            look(&cell, second);
        }
        assert_eq!(look(&cell, 21), 8192, "what was ten seconds ago is forgotten");
        assert!(!is_slow(&cell, 32_768) && is_slow(&cell, 32_769));
        for second in 22..100 {
            look(&cell, second);
        }
        assert_eq!(look(&cell, 100), 8192, "without I/O it stays what it was");
        for second in 101..=120 {
            reads(&cell, 1000, 2048);
            look(&cell, second);
        }
        assert_eq!(look(&cell, 121), 2048, "and what was slower is forgotten, too");
    }

    #[test]
    fn counts_may_wrap() {
        let mut window = Window::default();
        let at = |counts: u64| (0..LATENCY_CELLS as u64).map(move |cell| if cell == 100 { counts } else { 0 });
        for (n, counts) in [(1 << 32) - 50, (1 << 32) + 60, (1 << 32) + 1000].into_iter().enumerate() {
            window.look(at(counts), CoarseTs(n as u64 * 3 * SECOND));
        }
        assert_ne!(window.p999_ns, 0);
    }
}
