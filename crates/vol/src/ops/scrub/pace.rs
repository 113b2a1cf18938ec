//! The rate of a scrub, and the clock it is kept by.
//!
//! Owns when the next piece may be read: when all before it has been paid for, in time. Time that was not used is not
//! saved up beyond a tenth of a second, so that a pause is not followed by a burst.
//!
//! - P1: over any span from the start, no more was read than the rate times the span, and one piece.
//! - P2: nobody sleeps longer than [`NAP`] at once: a cancel is heard in between.

use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest sleep at once.
const NAP: Duration = Duration::from_millis(100);
/// What may be saved up.
const SAVED: Duration = Duration::from_millis(100);

/// Where a scrub reads the time, and how it waits. Tests bring their own.
pub trait ScrubClock: Send + Sync + std::fmt::Debug {
    /// Time since some moment that stays the same.
    fn now(&self) -> Duration;
    /// Waits.
    fn sleep(&self, span: Duration);
}

/// The clock of the machine.
#[derive(Debug)]
pub struct RealClock(Instant);

impl Default for RealClock {
    fn default() -> RealClock {
        RealClock(Instant::now())
    }
}

impl ScrubClock for RealClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep(&self, span: Duration) {
        std::thread::sleep(span);
    }
}

/// When the next bytes may be read.
#[derive(Debug)]
pub(super) struct Pace {
    rate: Option<u64>,
    clock: Arc<dyn ScrubClock>,
    /// When all that was spent has been paid for.
    paid: Duration,
}

impl Pace {
    pub(super) fn new(rate: Option<u64>, clock: Arc<dyn ScrubClock>) -> Pace {
        let paid = clock.now();
        Pace { rate, clock, paid }
    }

    /// How long to sleep before asking again; `None`: all that was read is paid for, so a piece may be read.
    pub(super) fn wait(&self) -> Option<Duration> {
        self.rate?;
        let now = self.clock.now();
        (self.paid > now).then(|| (self.paid - now).min(NAP))
    }

    /// So many bytes are read.
    pub(super) fn pay(&mut self, bytes: u64) {
        let Some(rate) = self.rate else { return };
        let from = self.paid.max(self.clock.now().saturating_sub(SAVED));
        self.paid = from.saturating_add(Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64));
    }

    /// Bytes to read at once, `most` at most: a quarter of a second's.
    pub(super) fn piece(&self, most: u64, least: u64) -> u64 {
        self.rate.map_or(most, |rate| (rate / 4).clamp(least, most))
    }
}
