//! Share of an account's items that block.
//!
//! The scheduler does not notify a user-space pool when a worker goes to sleep. So after an item that took [`OVERDUE`]
//! or longer, the worker checks if its thread gave up its CPU during the item: one system call of 0.14 us for an item
//! of at least 10 us. A shorter item costs two reads of the cycle counter.
//!
//! Owns the share of items that block, and a worker's seat. The decision that follows from the share is made in `acct`.
//!
//! Invariants:
//! - I1: an item counts as blocked if its thread gave up its CPU, and never because it took long: neither computing nor
//!   preemption counts.
//! - I2: while no item blocks the share stays 0, and no shared word is written per item.

use std::time::Duration;

use sheave_base::clock::Clock;
use sheave_base::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::thread_state;

/// Shorter items count as not blocked: going to sleep and being woken alone takes about 5 us.
const OVERDUE: Duration = Duration::from_micros(10);
/// Fixed-point 1.0: a share of all items.
const ALL: u32 = 1 << 16;
/// Share of blocking items below which one worker is enough, with a standby that watches it.
const LEAST: u32 = ALL * 3 / 128;
/// Each item contributes 1/64 to the moving average. One blocking item among many that do not block stays below
/// [`LEAST`]; two do not.
const WEIGHT: u32 = 64;
/// Non-blocking items are added to the share in groups of this size, to write the shared word less often.
const TOLD: u32 = 8;

/// State of a worker that other threads read.
#[derive(Debug, Default)]
pub(super) struct Seat {
    /// Its thread's id; 0 until the thread has started.
    pub(super) tid: AtomicU32,
    /// The worker must run at once when it wakes, without standby. Changes under the roster's lock.
    pub(super) called: AtomicBool,
    /// The worker keeps references to clients although it is idle.
    pub(super) keeps: AtomicBool,
    /// Cycle counter at the entry of the current section; 0 outside sections.
    since: AtomicU64,
    /// Number of sections that the worker has left.
    left: AtomicU64,
}

impl Seat {
    /// Called by the worker when it enters a section, at cycle `now`.
    #[inline]
    pub(super) fn enter(&self, now: u64) {
        // Relaxed: a hint for readers on other threads.
        self.since.store(now.max(1), Ordering::Relaxed);
    }

    /// Called by the worker when it leaves its section.
    #[inline]
    pub(super) fn leave(&self) {
        // Relaxed, both: as above. Only the worker writes them, so load and store need not be one step.
        self.since.store(0, Ordering::Relaxed);
        self.left.store(self.left() + 1, Ordering::Relaxed);
    }

    pub(super) fn left(&self) -> u64 {
        // Relaxed: readers only compare it with an earlier value.
        self.left.load(Ordering::Relaxed)
    }

    /// Returns the cycle at which the worker entered its section; `None` outside sections.
    pub(super) fn since(&self) -> Option<u64> {
        // Relaxed: a hint.
        Some(self.since.load(Ordering::Relaxed)).filter(|&since| since != 0)
    }
}

/// Counters that a worker keeps about its own items.
#[derive(Debug, Default)]
pub(super) struct Own {
    /// Non-blocking items not yet added to the share.
    quick: u32,
    /// Voluntary context switches of the thread at the last look.
    switches: u64,
}

impl Own {
    /// Sets the baseline again, after a sleep that no item caused.
    pub(super) fn look(&mut self) {
        self.switches = thread_state::switches();
    }

    /// Returns true if the thread has given up its CPU since the last look.
    fn has_slept(&mut self) -> bool {
        let before = self.switches;
        self.look();
        // A model counts no switches: an item counts as slept if the number of unreported quick items is even.
        self.switches != before || cfg!(shuttle) && self.quick.is_multiple_of(2)
    }
}

/// Moving average of the share of an account's items that block.
#[derive(Debug)]
pub(super) struct Blocking {
    clock: Clock,
    overdue: u64,
    /// In units of 1/[`ALL`].
    share: AtomicU32,
}

impl Blocking {
    pub(super) fn new() -> Blocking {
        let clock = Clock::real();
        Blocking { overdue: clock.ns_to_cycles(OVERDUE.as_nanos() as u64), clock, share: AtomicU32::new(0) }
    }

    #[inline]
    pub(super) fn now(&self) -> u64 {
        self.clock.cycles()
    }

    /// Returns true if so many items block that a further worker should be ready for the next one that does.
    #[inline]
    pub(super) fn is_likely(&self) -> bool {
        self.share() >= LEAST
    }

    /// Returns true if at least half of the items block.
    pub(super) fn is_the_rule(&self) -> bool {
        self.share() >= ALL / 2
    }

    #[inline]
    fn share(&self) -> u32 {
        // Relaxed: a guess.
        self.share.load(Ordering::Relaxed)
    }

    /// Called when an item has ended that began at cycle `since`: measures if it blocked, and updates the share.
    #[inline]
    pub(super) fn note(&self, own: &mut Own, since: u64) {
        let slept = thread_state::may_have_slept(self.now().wrapping_sub(since), self.overdue) && own.has_slept();
        if slept {
            self.add(own.quick, true);
            own.quick = 0;
        } else {
            own.quick += 1;
            if own.quick == TOLD {
                self.add(own.quick, false);
                own.quick = 0;
            }
        }
    }

    /// Adds `quick` non-blocking items to the share, and then a blocking one if `slept`.
    fn add(&self, quick: u32, slept: bool) {
        let share = self.share();
        let rest = share - share * quick.min(WEIGHT) / WEIGHT;
        let now = if slept { rest + (ALL - rest) / WEIGHT } else { rest };
        if now != share {
            // Relaxed: if two workers add at once one of the updates is lost, which an average can bear.
            self.share.store(now, Ordering::Relaxed);
        }
    }

    /// Raises the share to one half. Called by a standby that found all workers in sections asleep, with no item ended
    /// while it watched.
    pub(super) fn found_blocked(&self) {
        // Relaxed: as above.
        self.share.store(self.share().max(ALL / 2), Ordering::Relaxed);
    }
}

#[cfg(all(test, not(shuttle)))]
impl Blocking {
    /// Lowers the share a little, for tests.
    pub(super) fn forget_some(&self) {
        self.add(TOLD, false);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn one_that_blocks_among_many_changes_nothing_and_two_do() {
        let blocking = Blocking::new();
        blocking.add(0, true);
        assert!(!blocking.is_likely() && !blocking.is_the_rule());
        blocking.add(0, true);
        assert!(blocking.is_likely() && !blocking.is_the_rule());
        (0..100).for_each(|_| blocking.add(0, true));
        assert!(blocking.is_the_rule());
    }

    #[test]
    fn one_of_eight_is_enough_for_ever_and_is_forgotten_when_it_ends() {
        let blocking = Blocking::new();
        for item in 0..1000 {
            blocking.add(7, true);
            assert!(item < 8 || blocking.is_likely(), "after {item} times eight items");
            assert!(!blocking.is_the_rule());
        }
        let quick = (0..).take_while(|_| {
            blocking.add(TOLD, false);
            blocking.is_likely()
        });
        assert!(quick.count() < 20, "some 160 items");
        (0..200).for_each(|_| blocking.add(TOLD, false));
        assert_eq!(blocking.share(), blocking.share() % WEIGHT, "as good as nothing");
    }

    #[test]
    fn an_item_that_computes_or_ends_soon_has_not_blocked_and_one_that_sleeps_has() {
        let (blocking, mut own) = (Blocking::new(), Own::default());
        // Retried: the loop may sleep on a page fault while another test holds the process's memory lock.
        let computes = |_| {
            own = Own::default();
            own.look();
            let since = blocking.now();
            while blocking.now() - since < 2 * blocking.overdue {
                std::hint::spin_loop();
            }
            blocking.note(&mut own, since);
            own.quick == 1
        };
        assert!((0..20).any(computes));
        blocking.share.store(0, Ordering::Relaxed);
        own.look();
        let since = blocking.now();
        std::thread::sleep(Duration::from_micros(100));
        blocking.note(&mut own, since);
        assert_eq!((blocking.share(), own.quick), (ALL / WEIGHT, 0));
        // Sleeps before the look, so it does not count.
        std::thread::sleep(Duration::from_micros(100));
        own.look();
        blocking.note(&mut own, since);
        assert_eq!(own.quick, 1);
    }
}
