//! Busy time of a device as a counter, for readers that can take the difference of two numbers and nothing more.
//!
//! Busy times of several contexts overlap, so that the busy time between two moments follows from two whole readings
//! ([`Stats::busy_ns_since`]) and not from two numbers. A counter therefore keeps the part of an earlier reading that
//! such a difference needs, and adds up the differences.
//!
//! Invariants:
//! - K1: the counter never decreases, in whatever order concurrent readers bring their readings.
//! - K2: the earlier reading is replaced at most every [`SHORTEST_NS`], so that readers that come often do not add up
//!   the rounding of ticks. Its owner brings a reading at least every 17 s, the length of a calendar of ticks, or the
//!   time before is taken to have been alike.

use super::{BusyOf, CoarseTs, Stats};

/// Shortest time between two readings whose difference is added to the counter for good.
const SHORTEST_NS: u64 = 100_000_000;

/// Sum of the busy time of one device.
#[derive(Clone, Debug, Default)]
pub struct BusyCounter {
    /// Busy times and time of the earlier reading.
    busy: Vec<BusyOf>,
    at: CoarseTs,
    /// Busy time up to the earlier reading, in ns.
    sum_ns: u64,
    /// Largest value returned (K1).
    told_ns: u64,
}

impl BusyCounter {
    /// Returns the busy time in ns up to the reading `now`, which is of the same device as all readings before it.
    pub fn advance(&mut self, now: &Stats) -> u64 {
        self.told_ns = self.told_ns.max(self.sum_ns + now.busy_ns_from(&self.busy, self.at));
        // No time passes between two readings of a device whose contexts are all closed.
        if now.at.ns_since(self.at) >= SHORTEST_NS {
            (self.sum_ns, self.at) = (self.told_ns, now.at);
            self.busy.clone_from(&now.busy);
        }
        self.told_ns
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Returns a reading at `at_ms`: each of two contexts was busy for `busy_ms` so far, in the calendar from the
    /// second `from_ms` on.
    fn reading(at_ms: u64, busy_ms: [u64; 2], periods_ms: &[[u64; 2]]) -> Stats {
        let mut stats = Stats { at: CoarseTs(at_ms * MS), ..Stats::default() };
        for (seat, ms) in busy_ms.into_iter().enumerate() {
            stats.add_busy(BusyOf { queue: 0, seat, part: 0, ns: ms * MS });
        }
        for [from, to] in periods_ms {
            stats.calendar.mark(CoarseTs(from * MS), CoarseTs(to * MS));
        }
        stats
    }

    #[test]
    fn contexts_that_overlap_count_once_and_those_in_turns_add_up() {
        let mut counter = BusyCounter::default();
        let start = counter.advance(&reading(1000, [0, 0], &[]));
        assert_eq!(start, 0);
        // Both at the same time for 200 ms of a second, then in turns for 400 ms.
        let together = counter.advance(&reading(2000, [200, 200], &[[1500, 1700]]));
        assert!((200 * MS..202 * MS).contains(&together), "{together}");
        let turns = reading(3000, [400, 400], &[[1500, 1700], [2100, 2500]]);
        let both = counter.advance(&turns) - together;
        assert!((400 * MS..402 * MS).contains(&both), "{both}");
    }

    #[test]
    fn frequent_readers_get_the_sum_that_a_rare_reader_gets() {
        let periods: Vec<[u64; 2]> = (0..1000).map(|n| [1000 + n, 1000 + n]).collect();
        let at = |ms: u64| reading(1000 + ms, [ms / 4, ms / 4], &periods[..ms as usize]);
        let (mut often, mut rarely) = (BusyCounter::default(), BusyCounter::default());
        let before = [often.advance(&at(0)), rarely.advance(&at(0))];
        for ms in 1..=1000 {
            often.advance(&at(ms));
        }
        let (often, rarely) = (often.advance(&at(1000)) - before[0], rarely.advance(&at(1000)) - before[1]);
        assert!(often.abs_diff(rarely) < 10 * MS, "{often} {rarely}");
    }

    #[test]
    fn an_older_reading_that_comes_late_changes_nothing() {
        let mut counter = BusyCounter::default();
        counter.advance(&reading(1000, [0, 0], &[]));
        let (old, new) = (reading(1500, [100, 0], &[]), reading(2000, [300, 0], &[]));
        assert_eq!(counter.advance(&new), 300 * MS);
        assert_eq!(counter.advance(&old), 300 * MS);
        assert_eq!(counter.advance(&reading(2050, [310, 0], &[])), 310 * MS);
        assert_eq!(counter.advance(&reading(2020, [305, 0], &[])), 310 * MS, "read before, brought after");
        assert_eq!(counter.advance(&reading(3000, [400, 0], &[])), 400 * MS);
    }
}
