//! What is done beside I/O that may make it slow: commits, copies, a frozen queue. Who does it says so, and whoever has
//! a slow I/O at hand asks what ran while it was on its way.
//!
//! Owns how many of each kind are under way and when the last one ended. Nobody's fast path writes here: what is
//! announced takes locks and I/O of its own. Who asks has a slow I/O already.
//!
//! Invariants:
//! - A1: an activity that had begun when it was asked for, and had not ended before `since`, is told of.
//!
//! Called by the queues of `sheave-blk` and the pools of `sheave-vol`; asked by the flight recorder.

use crate::clock::{Clock, CoarseTs};
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// What may run beside I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum Activity {
    /// A pool makes durable what was done.
    Commit = 0,
    /// A pool writes its changed pages.
    Checkpoint = 1,
    /// A pool reads all of its data and compares checksums.
    Scrub = 2,
    /// A write copies what a snapshot shares.
    Copy = 3,
    /// A write waits for space in a full pool.
    FullPool = 4,
    /// A queue lets nothing in, or nothing to its driver.
    FrozenQueue = 5,
}

const NR_ACTIVITIES: usize = 6;

impl Activity {
    /// Every activity, in the order of its value.
    pub const ALL: [Activity; NR_ACTIVITIES] = [
        Activity::Commit,
        Activity::Checkpoint,
        Activity::Scrub,
        Activity::Copy,
        Activity::FullPool,
        Activity::FrozenQueue,
    ];

    /// Lower-case name for reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Activity::Commit => "commit",
            Activity::Checkpoint => "checkpoint",
            Activity::Scrub => "scrub",
            Activity::Copy => "copy",
            Activity::FullPool => "full-pool",
            Activity::FrozenQueue => "frozen-queue",
        }
    }

    /// In a sentence: "... ran".
    #[must_use]
    pub fn in_words(self) -> &'static str {
        match self {
            Activity::Commit => "a commit",
            Activity::Checkpoint => "a checkpoint",
            Activity::Scrub => "a scrub",
            Activity::Copy => "a copy on write",
            Activity::FullPool => "a wait for space in the full pool",
            Activity::FrozenQueue => "a freeze of the queue",
        }
    }
}

/// Activities, as a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Beside(u8);

impl Beside {
    /// From the bits that [`Beside::bits`] gave.
    #[must_use]
    pub fn from_bits(bits: u8) -> Beside {
        Beside(bits & ((1 << NR_ACTIVITIES) - 1))
    }

    /// The set as bits, for who keeps it in a word.
    #[must_use]
    pub fn bits(self) -> u8 {
        self.0
    }

    /// Those of both.
    #[must_use]
    pub fn and(self, other: Beside) -> Beside {
        Beside(self.0 | other.0)
    }

    /// Whether it is in the set.
    #[must_use]
    pub fn has(self, activity: Activity) -> bool {
        self.0 & 1 << activity as u8 != 0
    }

    /// Those in the set, in order.
    pub fn activities(self) -> impl Iterator<Item = Activity> {
        Activity::ALL.into_iter().filter(move |&activity| self.has(activity))
    }
}

impl FromIterator<Activity> for Beside {
    fn from_iter<I: IntoIterator<Item = Activity>>(activities: I) -> Beside {
        Beside(activities.into_iter().fold(0, |bits, activity| bits | 1 << activity as u8))
    }
}

#[derive(Debug, Default)]
struct Kind {
    running: AtomicU32,
    /// When the last one ended, in ns of the clock.
    ended: AtomicU64,
}

/// The activities of one pool or queue.
#[derive(Debug)]
pub struct Activities {
    clock: Clock,
    kinds: [Kind; NR_ACTIVITIES],
}

impl Default for Activities {
    /// By the real clock.
    fn default() -> Self {
        Activities::new(Clock::real())
    }
}

impl Activities {
    /// By this clock, which the rings must share whose I/O is asked for.
    #[must_use]
    #[doc(hidden)]
    pub fn new(clock: Clock) -> Activities {
        Activities { clock, kinds: Default::default() }
    }

    /// The activity is under way until the guard is dropped.
    pub fn begin(&self, activity: Activity) -> Running<'_> {
        self.start(activity);
        Running { activities: self, activity }
    }

    /// As [`Activities::begin`], until [`Activities::end`].
    pub fn start(&self, activity: Activity) {
        // Relaxed: a hint for reports; what waits for the activity is ordered behind it by that wait.
        self.kinds[activity as usize].running.fetch_add(1, Ordering::Relaxed);
    }

    /// One that was [started](Activities::start) is over.
    pub fn end(&self, activity: Activity) {
        let kind = &self.kinds[activity as usize];
        kind.ended.fetch_max(self.clock.coarse().0, Ordering::Relaxed);
        // Release pairs with the load in `since`: who sees none running sees when the last one ended (A1).
        kind.running.fetch_sub(1, Ordering::Release);
    }

    /// What is under way, or was at some moment since then.
    #[must_use]
    pub fn since(&self, since: CoarseTs) -> Beside {
        let ran = |activity: &Activity| {
            let kind = &self.kinds[*activity as usize];
            // Acquire pairs with the decrement in `end`. The other Relaxed: behind it.
            kind.running.load(Ordering::Acquire) != 0 || {
                let ended = kind.ended.load(Ordering::Relaxed);
                ended != 0 && ended >= since.0
            }
        };
        Activity::ALL.into_iter().filter(ran).collect()
    }
}

/// An activity that is under way; it ends with the guard.
#[derive(Debug)]
pub struct Running<'a> {
    activities: &'a Activities,
    activity: Activity,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.activities.end(self.activity);
    }
}

#[cfg(all(test, not(any(shuttle, loom))))]
mod tests;
