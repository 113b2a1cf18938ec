//! When the next I/O is due: at once, or at a fixed rate.
//!
//! * I1. With a rate, I/O `i` is due at `start + i / rate`, however late the ones before it were: a slow device makes
//!   latencies long instead of making the load light.

use std::time::Duration;

use sheave_base::clock::Clock;

/// Decides when I/Os start.
pub enum Pace {
    /// At once: as fast as possible.
    Unlimited,
    /// At a fixed rate.
    Rate(Rate),
}

/// A fixed rate.
pub struct Rate {
    clock: Clock,
    start: u64,
    /// Since `start`, in cycles with [`FRACTION`] more bits.
    next: u64,
    interval: u64,
}

/// Bits after the point: at 3 GHz the counter lasts for 17 days and the rate is exact to 1e-7.
const FRACTION: u32 = 12;

impl Pace {
    /// `per_second` I/Os a second from now on.
    pub fn rate(clock: &Clock, per_second: u64) -> Self {
        let second = clock.ns_to_cycles(1_000_000_000) << FRACTION;
        let interval = (second / per_second.max(1)).max(1);
        Self::Rate(Rate { clock: clock.clone(), start: clock.cycles(), next: 0, interval })
    }

    /// The moment at which the next I/O was due, if it is due at `now` (both in cycles); it then counts as started.
    pub fn due(&mut self, now: u64) -> Option<u64> {
        match self {
            Self::Unlimited => Some(now),
            Self::Rate(rate) => rate.due(now),
        }
    }

    /// Nothing is due and nothing is in flight: passes time, at most until the next I/O is due.
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

    /// As [`Pace::due`].
    pub fn due(&mut self, now: u64) -> Option<u64> {
        let due = self.next_due();
        if due > now {
            return None;
        }
        self.next += self.interval;
        Some(due)
    }

    fn rest(&self, now: u64) {
        // A sleep ends late by some 50 us; the rest is spun. Short naps, so that Ctrl-C is not kept waiting.
        const SPIN: Duration = Duration::from_micros(100);
        const NAP: Duration = Duration::from_millis(10);
        let left = Duration::from_nanos(self.clock.cycles_to_ns(self.next_due().saturating_sub(now)));
        if left > SPIN {
            std::thread::sleep((left - SPIN).min(NAP));
        }
    }
}

#[cfg(test)]
mod tests;
