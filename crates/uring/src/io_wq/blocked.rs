//! How often the items of an account block.
//!
//! The scheduler says nothing to a pool in user space when a worker goes to sleep. So a worker asks afterwards, where
//! its item took [`OVERDUE`] or longer, whether its thread has given up its CPU meanwhile: one system call of 0.14 us
//! for an item of 10 us at least. An item that ends sooner costs two reads of the cycle counter.
//!
//! Owns the share of items that block, and a worker's seat. Does not own the decision that follows (`acct`).
//!
//! Invariants:
//! - I1: an item counts as blocked when its thread gave up its CPU, and never because it took long: neither computing
//!   nor being preempted does.
//! - I2: where no item blocks the share stays 0, and no shared word is written for an item.

use std::time::Duration;

use sheave_base::clock::Clock;
use sheave_base::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::thread_state;

/// An item that ends sooner has not blocked, as far as that matters: to sleep and to be woken takes some 5 us.
const OVERDUE: Duration = Duration::from_micros(10);
/// All items, as a share.
const ALL: u32 = 1 << 16;
/// Share of blocking items below which one worker is enough, and a standby watches that worker.
const LEAST: u32 = ALL * 3 / 128;
/// Each item has one part in so many of the share: the last 64 items count most. One that blocks among many that do not
/// is below [`LEAST`], two are not.
const WEIGHT: u32 = 64;
/// Items that did not block are told of together.
const TOLD: u32 = 8;

/// A worker's place in its account, for those who look at it.
#[derive(Debug, Default)]
pub(super) struct Seat {
    /// Its thread's id; 0 until it has begun.
    pub(super) tid: AtomicU32,
    /// It is to run at once when it wakes. Changes under the roster's lock.
    pub(super) called: AtomicBool,
    /// The cycle in which it entered the section that it is in; 0 outside.
    since: AtomicU64,
    /// Sections that it has left.
    left: AtomicU64,
}

impl Seat {
    /// The worker enters a section.
    #[inline]
    pub(super) fn enter(&self, now: u64) {
        // Relaxed: a hint for those who look.
        self.since.store(now.max(1), Ordering::Relaxed);
    }

    /// The worker leaves its section.
    #[inline]
    pub(super) fn leave(&self) {
        // Relaxed, both: as above. The worker alone writes them.
        self.since.store(0, Ordering::Relaxed);
        self.left.store(self.left() + 1, Ordering::Relaxed);
    }

    /// Sections left so far.
    pub(super) fn left(&self) -> u64 {
        // Relaxed: a change is all that counts.
        self.left.load(Ordering::Relaxed)
    }

    /// The cycle in which the worker entered its section; `None` outside.
    pub(super) fn since(&self) -> Option<u64> {
        // Relaxed: a hint.
        Some(self.since.load(Ordering::Relaxed)).filter(|&since| since != 0)
    }
}

/// What one worker knows of its own items.
#[derive(Debug, Default)]
pub(super) struct Own {
    /// Items that did not block and were not told of.
    quick: u32,
    /// Times that the thread had given up its CPU when it last looked.
    switches: u64,
}

impl Own {
    /// The thread may have slept for reasons of the pool's.
    pub(super) fn look(&mut self) {
        self.switches = thread_state::switches();
    }

    /// Whether the thread has given up its CPU since it last looked.
    fn has_slept(&mut self) -> bool {
        let before = self.switches;
        self.look();
        // In a model an item has slept if its worker has told of all that did not, or of all but an even number.
        self.switches != before || cfg!(shuttle) && self.quick.is_multiple_of(2)
    }
}

/// The share of an account's items that block.
#[derive(Debug)]
pub(super) struct Blocking {
    clock: Clock,
    overdue: u64,
    /// Of [`ALL`], the last items counting most.
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

    /// Whether so many items block that another worker is to be ready for the next that does.
    #[inline]
    pub(super) fn is_likely(&self) -> bool {
        self.share() >= LEAST
    }

    /// Whether most items block.
    pub(super) fn is_the_rule(&self) -> bool {
        self.share() >= ALL / 2
    }

    #[inline]
    fn share(&self) -> u32 {
        // Relaxed: a guess.
        self.share.load(Ordering::Relaxed)
    }

    /// An item has ended that a worker began then.
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

    /// So many items did not block, and then perhaps one did.
    fn add(&self, quick: u32, slept: bool) {
        let share = self.share();
        let rest = share - share * quick.min(WEIGHT) / WEIGHT;
        let now = if slept { rest + (ALL - rest) / WEIGHT } else { rest };
        if now != share {
            // Relaxed: of two who tell at once one is forgotten.
            self.share.store(now, Ordering::Relaxed);
        }
    }

    /// A standby has found all workers in sections blocked, and no item has ended since it began to watch.
    pub(super) fn found_blocked(&self) {
        // Relaxed: as above.
        self.share.store(self.share().max(ALL / 2), Ordering::Relaxed);
    }
}

#[cfg(all(test, not(shuttle)))]
impl Blocking {
    /// Has a share that is below one half and not small.
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
        // A test beside this one may have made it wait for the memory of the process.
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
        // It slept before.
        std::thread::sleep(Duration::from_micros(100));
        own.look();
        blocking.note(&mut own, since);
        assert_eq!(own.quick, 1);
    }
}
