//! Rate of a scrub, and the clock that measures it.
//!
//! Owns the time at which the next piece may be read: at the given rate, all earlier pieces must have been paid for by
//! then. Unused time is saved up for at most a tenth of a second, so that no burst follows a pause.
//!
//! - P1: in any span that begins with the scrub, at most the rate times the span is read, plus one piece.
//! - P2: no sleep is longer than [`NAP`], so that a cancel is noticed in between.

use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest single sleep.
const NAP: Duration = Duration::from_millis(100);
/// Longest unused time that is saved up.
const SAVED: Duration = Duration::from_millis(100);

/// Source of time for a scrub, and its means of waiting. Tests supply their own.
pub trait ScrubClock: Send + Sync + std::fmt::Debug {
    /// Returns the time since a fixed moment.
    fn now(&self) -> Duration;
    /// Waits for `span`.
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

/// Decides when the next bytes may be read.
#[derive(Debug)]
pub(super) struct Pace {
    rate: Option<u64>,
    clock: Arc<dyn ScrubClock>,
    /// Time at which the rate has paid for everything read so far.
    paid: Duration,
}

impl Pace {
    pub(super) fn new(rate: Option<u64>, clock: Arc<dyn ScrubClock>) -> Pace {
        let paid = clock.now();
        Pace { rate, clock, paid }
    }

    /// Returns the time to sleep before the next call. Returns `None` if all that was read is paid for, so that a piece
    /// may be read.
    pub(super) fn wait(&self) -> Option<Duration> {
        self.rate?;
        let now = self.clock.now();
        (self.paid > now).then(|| (self.paid - now).min(NAP))
    }

    /// Charges for `bytes` that are read.
    pub(super) fn pay(&mut self, bytes: u64) {
        let Some(rate) = self.rate else { return };
        // Unused time beyond `SAVED` expires.
        let from = self.paid.max(self.clock.now().saturating_sub(SAVED));
        self.paid = from.saturating_add(Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64));
    }

    /// Returns the number of bytes to read at once: those of a quarter of a second, between `least` and `most`.
    pub(super) fn piece(&self, most: u64, least: u64) -> u64 {
        self.rate.map_or(most, |rate| (rate / 4).clamp(least, most))
    }
}
