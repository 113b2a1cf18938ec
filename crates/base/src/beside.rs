//! Activities beside I/O that may make it slow: commits, copies, a frozen queue. The code that runs one registers it
//! here, and the recorder of a slow I/O reads which ones ran meanwhile.
//!
//! Owns the number of activities of each kind under way, and the time at which the last one of each kind ended. No fast
//! path writes here: a registered activity takes locks and does I/O of its own, and only the recorder of a slow I/O
//! reads.
//!
//! Invariants:
//! - A1: [`Activities::since`] returns each activity that has begun before the call and did not end before `since`.
//!
//! Called by the queues of `sheave-blk` and the pools of `sheave-vol`; read by the flight recorder.

use crate::clock::{Clock, CoarseTs};
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Kind of activity beside I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum Activity {
    /// A pool makes its changes durable.
    Commit = 0,
    /// A pool writes its changed pages.
    Checkpoint = 1,
    /// A pool reads all of its data and compares checksums.
    Scrub = 2,
    /// A write copies what a snapshot shares.
    Copy = 3,
    /// A write waits for space in a full pool.
    FullPool = 4,
    /// A queue admits no requests, or passes none to its driver.
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

    /// Returns the lower-case name for reports.
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

    /// Returns the subject of the sentence "... ran".
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

/// A set of activities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Beside(u8);

impl Beside {
    /// Returns the set that [`Beside::bits`] has encoded.
    #[must_use]
    pub fn from_bits(bits: u8) -> Beside {
        Beside(bits & ((1 << NR_ACTIVITIES) - 1))
    }

    /// Returns the set as bits.
    #[must_use]
    pub fn bits(self) -> u8 {
        self.0
    }

    /// Returns the union of `self` and `other`.
    #[must_use]
    pub fn and(self, other: Beside) -> Beside {
        Beside(self.0 | other.0)
    }

    /// Returns true if the set has `activity`.
    #[must_use]
    pub fn has(self, activity: Activity) -> bool {
        self.0 & 1 << activity as u8 != 0
    }

    /// Returns the members of the set, in order.
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
    /// Time at which the last activity of this kind ended, in ns of the clock.
    ended: AtomicU64,
}

/// The activities of one pool or queue.
#[derive(Debug)]
pub struct Activities {
    clock: Clock,
    kinds: [Kind; NR_ACTIVITIES],
}

impl Default for Activities {
    /// Uses the real clock.
    fn default() -> Self {
        Activities::new(Clock::real())
    }
}

impl Activities {
    /// Uses `clock`, which must also be the clock of the rings whose slow I/O is explained.
    #[must_use]
    #[doc(hidden)]
    pub fn new(clock: Clock) -> Activities {
        Activities { clock, kinds: Default::default() }
    }

    /// Registers an activity, until the guard is dropped.
    pub fn begin(&self, activity: Activity) -> Running<'_> {
        self.start(activity);
        Running { activities: self, activity }
    }

    /// Registers an activity, until [`Activities::end`].
    pub fn start(&self, activity: Activity) {
        // Relaxed: a hint for reports; code that waits for the activity is ordered after it by that wait.
        self.kinds[activity as usize].running.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends an activity that [`Activities::start`] registered.
    pub fn end(&self, activity: Activity) {
        let kind = &self.kinds[activity as usize];
        kind.ended.fetch_max(self.clock.coarse().0, Ordering::Relaxed);
        // Release pairs with the load in `since`: a reader that sees none running sees the time at which the last one
        // ended (A1).
        kind.running.fetch_sub(1, Ordering::Release);
    }

    /// Returns the activities that are under way, or were at any moment after `since`.
    #[must_use]
    pub fn since(&self, since: CoarseTs) -> Beside {
        let ran = |activity: &Activity| {
            let kind = &self.kinds[*activity as usize];
            // Acquire pairs with the decrement in `end`. The load of `ended` is Relaxed, because it follows.
            kind.running.load(Ordering::Acquire) != 0 || {
                let ended = kind.ended.load(Ordering::Relaxed);
                ended != 0 && ended >= since.0
            }
        };
        Activity::ALL.into_iter().filter(ran).collect()
    }
}

/// Guard of an activity that is under way.
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
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn since_returns_exactly_the_activities_that_overlap() {
        let (clock, time) = Clock::virtual_clock();
        time.advance(Duration::from_micros(1));
        let activities = Activities::new(clock.clone());
        let start = clock.coarse();
        assert_eq!(activities.since(start), Beside::default());
        let commit = activities.begin(Activity::Commit);
        let copies = [activities.begin(Activity::Copy), activities.begin(Activity::Copy)];
        let both: Beside = [Activity::Commit, Activity::Copy].into_iter().collect();
        assert_eq!(activities.since(start), both);
        time.advance(Duration::from_micros(5));
        drop(copies);
        let later = CoarseTs(clock.coarse().0 + 1);
        assert_eq!(activities.since(start), both, "over, but since then");
        assert_eq!(activities.since(later).activities().collect::<Vec<_>>(), [Activity::Commit], "still under way");
        time.advance(Duration::from_micros(5));
        drop(commit);
        assert!(activities.since(later).has(Activity::Commit));
        assert_eq!(activities.since(CoarseTs(u64::MAX)), Beside::default());
        assert_eq!(Beside::from_bits(both.bits()), both);
        assert_eq!(both.and([Activity::Scrub].into_iter().collect()).activities().count(), 3);
    }
}
