//! The times at which I/Os are due: at once, or at a fixed rate.
//!
//! * I1. With a rate, I/O `i` is due at `start + i / rate`, however late the earlier ones were. So a slow device shows
//!   long latencies, not a lighter load.

use std::time::Duration;

use sheave_base::clock::Clock;

/// Schedule of the I/Os.
pub enum Pace {
    /// I/Os are due at once: as fast as possible.
    Unlimited,
    /// I/Os are due at a fixed rate.
    Rate(Rate),
}

/// A fixed rate.
pub struct Rate {
    clock: Clock,
    start: u64,
    /// Time from `start` to the next I/O, in cycles with [`FRACTION`] more bits.
    next: u64,
    interval: u64,
}

/// Number of fraction bits. At 3 GHz the counter lasts for 17 days and the rate is exact to 1e-7.
const FRACTION: u32 = 12;

impl Pace {
    /// Schedules `per_second` I/Os per second from now on.
    pub fn rate(clock: &Clock, per_second: u64) -> Self {
        let second = clock.ns_to_cycles(1_000_000_000) << FRACTION;
        let interval = (second / per_second.max(1)).max(1);
        Self::Rate(Rate { clock: clock.clone(), start: clock.cycles(), next: 0, interval })
    }

    /// Counts the next I/O as started and returns the time at which it was due, if that time is not after `now`. Both
    /// times are in cycles.
    pub fn due(&mut self, now: u64) -> Option<u64> {
        match self {
            Self::Unlimited => Some(now),
            Self::Rate(rate) => rate.due(now),
        }
    }

    /// Waits, at most until the next I/O is due. Called when no I/O is due or in flight.
    pub fn rest(&self, now: u64) {
        if let Self::Rate(rate) = self {
            rate.rest(now);
        }
    }
}

impl Rate {
    fn next_due(&self) -> u64 {
        self.start + (self.next >> FRACTION)
    }

    /// Same as [`Pace::due`].
    pub fn due(&mut self, now: u64) -> Option<u64> {
        let due = self.next_due();
        if due > now {
            return None;
        }
        self.next += self.interval;
        Some(due)
    }

    fn rest(&self, now: u64) {
        // A sleep ends about 50 us late, so the last part is spun. Sleeps are short, so that Ctrl-C is handled soon.
        const SPIN: Duration = Duration::from_micros(100);
        const NAP: Duration = Duration::from_millis(10);
        let left = Duration::from_nanos(self.clock.cycles_to_ns(self.next_due().saturating_sub(now)));
        if left > SPIN {
            std::thread::sleep((left - SPIN).min(NAP));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn due_times_are_even_and_do_not_drift() {
        let (clock, hand) = Clock::virtual_clock();
        hand.set(1_000_000);
        let mut pace = Pace::rate(&clock, 30_000);
        hand.advance(Duration::from_secs(2));
        let now = clock.cycles();
        let mut dues = Vec::new();
        while let Some(due) = pace.due(now) {
            dues.push(due);
        }
        assert!(dues.len().abs_diff(60_001) <= 1, "{} in two seconds", dues.len());
        assert_eq!(dues[0], 1_000_000);
        assert!(dues.windows(2).all(|pair| (33_332..=33_334).contains(&(pair[1] - pair[0]))));
    }

    #[test]
    fn nothing_is_due_early() {
        let (clock, hand) = Clock::virtual_clock();
        let mut pace = Pace::rate(&clock, 1000);
        assert_eq!(pace.due(clock.cycles()), Some(0));
        hand.advance(Duration::from_micros(999));
        assert_eq!(pace.due(clock.cycles()), None);
        hand.advance(Duration::from_micros(1));
        assert_eq!(pace.due(clock.cycles()), Some(1_000_000));
    }
}
