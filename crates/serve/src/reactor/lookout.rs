//! Whether, and how long, a reactor looks at the rings of guests before it asks them for kicks and sleeps.
//!
//! A guest that shares its processor with the reactor runs when it is interrupted, and has its next requests ready when
//! the reactor runs again. So the reactor sends interrupts with a call of their own and looks once more, as long as
//! that finds requests: neither a kick nor a wake-up is then needed.
//!
//! A kick costs the guest a system call and the reactor a wake-up, which between two processors takes longer than most
//! requests. A guest that has just been interrupted often has its next requests ready soon, so the reactor looks for
//! the time that the guest usually takes. It does so as long as that succeeds, and seldom after failures, so that a
//! guest that shares its processor with the reactor, or that takes its time, costs next to nothing.

use std::time::{Duration, Instant};

/// Longest time that is spent looking.
const LONGEST: Duration = Duration::from_micros(50);
/// Number of failures in a row after which a try is made only now and then.
const PATIENCE: u8 = 8;
/// Least and most opportunities between two such tries.
const PAUSES: (u16, u16) = (16, 4096);

/// Tells whether tries have been worth their cost.
#[derive(Debug)]
struct Luck {
    /// Failures that are left before tries become seldom.
    credit: u8,
    /// Opportunities to let pass before the next try, once they are seldom.
    pause: u16,
    passed: u16,
}

impl Luck {
    const fn new() -> Luck {
        Luck { credit: PATIENCE, pause: PAUSES.0, passed: 0 }
    }

    /// Returns true if a try is to be made.
    #[inline]
    fn tries(&mut self) -> bool {
        if self.credit > 0 {
            return true;
        }
        self.passed += 1;
        if self.passed < self.pause {
            return false;
        }
        self.passed = 0;
        true
    }

    #[inline]
    fn tried(&mut self, found: bool) {
        if found {
            (self.credit, self.pause) = (PATIENCE, PAUSES.0);
        } else if self.credit > 0 {
            self.credit -= 1;
        } else {
            self.pause = self.pause.saturating_mul(2).min(PAUSES.1);
        }
    }
}

/// The state of a reactor's looking.
#[derive(Debug)]
pub(super) struct Lookout {
    /// Luck of looking once after the guests were told of their results.
    at_once: Luck,
    /// Luck of looking for a while.
    luck: Luck,
    /// Time that the guests usually take from their last results to their next request: a moving average. Zero before
    /// the first measurement.
    usual: Duration,
    /// When the reactor last slept without a request to work on.
    slept_at: Option<Instant>,
}

impl Lookout {
    pub(super) fn new() -> Lookout {
        Lookout { at_once: Luck::new(), luck: Luck::new(), usual: Duration::ZERO, slept_at: None }
    }

    /// Returns true if the guests are to be told of their results, and their rings looked at, before the reactor asks
    /// for kicks.
    #[inline]
    pub(super) fn tells_first(&mut self) -> bool {
        self.at_once.tries()
    }

    /// Called after such a look.
    #[inline]
    pub(super) fn told_first(&mut self, found: bool) {
        self.at_once.tried(found);
    }

    /// Returns the time for which the rings are to be looked at before the reactor sleeps.
    #[inline]
    pub(super) fn looks_for(&mut self) -> Option<Duration> {
        let worth = self.usual > Duration::ZERO && self.usual <= LONGEST;
        (worth && self.luck.tries()).then(|| (2 * self.usual).min(LONGEST))
    }

    /// Called after looking for a while. `took` is the time until a request was found.
    #[inline]
    pub(super) fn looked(&mut self, took: Option<Duration>) {
        self.luck.tried(took.is_some());
        if let Some(took) = took {
            self.measured(took);
        }
    }

    /// Called before the reactor sleeps, when the guests were asked for kicks.
    #[inline]
    pub(super) fn sleeps(&mut self, now: Instant) {
        self.slept_at = Some(now);
    }

    /// Called when a guest has kicked.
    #[inline]
    pub(super) fn kicked(&mut self) {
        if let Some(slept_at) = self.slept_at.take() {
            self.measured(slept_at.elapsed());
        }
    }

    fn measured(&mut self, took: Duration) {
        // The time of an idle guest has no bound. A cap lets a few kicks outweigh such a time.
        let took = took.clamp(Duration::from_nanos(1), 4 * LONGEST);
        self.usual = if self.usual.is_zero() { took } else { (7 * self.usual + took) / 8 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_make_tries_seldom_and_one_success_makes_them_common() {
        let mut luck = Luck::new();
        let mut tries = |found: bool| {
            let mut many = 0;
            for _ in 0..100_000 {
                if luck.tries() {
                    luck.tried(found);
                    many += 1;
                }
            }
            many
        };
        assert!(tries(false) < 100, "nothing was ever found");
        assert!(tries(true) > 90_000);
    }

    #[test]
    fn guests_that_answer_soon_are_looked_for_and_others_are_not() {
        let mut lookout = Lookout::new();
        assert_eq!(lookout.looks_for(), None, "nothing was measured");
        (0..50).for_each(|_| lookout.measured(Duration::from_micros(5)));
        let time = lookout.looks_for().expect("they answer soon");
        assert!(time > Duration::from_micros(5) && time < Duration::from_micros(20), "{time:?}");
        (0..50).for_each(|_| lookout.measured(Duration::from_millis(5)));
        assert_eq!(lookout.looks_for(), None);
        (0..50).for_each(|_| lookout.measured(Duration::from_micros(5)));
        assert!(lookout.looks_for().is_some(), "an idle time is forgotten");
    }
}
