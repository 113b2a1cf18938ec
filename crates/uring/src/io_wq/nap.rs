//! Naps of a worker that has run out of work on the CPU of the thread that queues it.
//!
//! Such a worker can only take turns with its submitter, and to wake it for each batch costs two switches of threads a
//! batch. So it does not sleep until it is woken at first: it naps, and looks again by itself. While it naps, short
//! items wake nobody. Their client runs them before it waits ([`help`](super::help)), or else wakes the worker then;
//! and if the client neither waits nor calls, the worker finds them when it looks.
//!
//! Owns who naps, and for how long.
//!
//! Invariant I1: a wake-up is put off only for short items, only while a worker naps, and for [`NAP`] at most: a worker
//! says that it naps before it looks at the shards for the last time, and says that it does not any more before it
//! looks again. With a SeqCst fence on both sides, of a client that queues and a worker that looks one sees the other.

use std::time::Duration;

use sheave_base::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// A worker that naps looks for work after this time: so late a short item may be begun when its ring, on the same CPU,
/// neither waits nor calls. A sixth of what the scheduler lets a thread run before another has its turn.
pub(super) const NAP: Duration = Duration::from_micros(500);

/// A nap that a wake-up has ended, and in which no client took an item back, was of no use: the client queues what it
/// cannot run itself. After one, the next sleep goes without a nap, after the next such nap two do, then four, and so
/// on up to this number. (A power of two, so that a nap comes in turn to each of two sleeps that alternate.) For a nap
/// has its price: its timer is the next on its CPU to ring, so that the kernel sets the hardware's for it, twice a nap,
/// and in a virtual machine that costs more than a switch of threads.
pub(super) const MOST_NAPLESS: u32 = 64;

/// Nobody naps.
const NOBODY: u32 = u32::MAX;

/// Who naps in an account: one worker at most.
#[derive(Debug)]
pub(super) struct Nap {
    /// The worker that naps. Changes under the roster's lock.
    who: AtomicU32,
    /// A wake-up was put off since the nap began.
    relied_on: AtomicBool,
    /// Items that their clients have taken back.
    helped: AtomicU64,
}

impl Nap {
    pub(super) fn new() -> Nap {
        Nap { who: AtomicU32::new(NOBODY), relied_on: AtomicBool::new(false), helped: AtomicU64::new(0) }
    }

    /// A worker is about to sleep and naps, if nobody does. To be followed by a fence and a look at the shards.
    pub(super) fn begin(&self, worker: u32) -> bool {
        // Relaxed, all: under the roster's lock; the fences of I1 order it for those who read without.
        if self.who.load(Ordering::Relaxed) != NOBODY {
            return false;
        }
        self.relied_on.store(false, Ordering::Relaxed);
        self.who.store(worker, Ordering::Relaxed);
        true
    }

    /// A worker does not nap any more, if it did. To be followed by a fence and a look at the shards. Whether it is of
    /// use to begin another nap: somebody has relied on this one.
    pub(super) fn end(&self, worker: u32) -> bool {
        // Relaxed, all: as above.
        if self.who.load(Ordering::Relaxed) != worker {
            return false;
        }
        self.who.store(NOBODY, Ordering::Relaxed);
        self.relied_on.load(Ordering::Relaxed)
    }

    /// Whether a wake-up for short items can be put off. To be called after queueing and a fence
    /// (`Acct::wants_worker`).
    pub(super) fn rely(&self) -> bool {
        // Relaxed, both: after the fence; the mark is a hint.
        let naps = self.who.load(Ordering::Relaxed) != NOBODY;
        if naps {
            self.relied_on.store(true, Ordering::Relaxed);
        }
        naps
    }

    /// Whether some worker naps, for tests.
    #[cfg(all(test, not(shuttle)))]
    pub(super) fn is_somebody(&self) -> bool {
        self.who.load(Ordering::Relaxed) != NOBODY
    }

    /// Clients have taken so many items back.
    pub(super) fn note_helped(&self, items: usize) {
        // Relaxed: a count.
        self.helped.fetch_add(items as u64, Ordering::Relaxed);
    }

    /// Items that their clients have taken back so far.
    pub(super) fn helped(&self) -> u64 {
        // Relaxed: a count.
        self.helped.load(Ordering::Relaxed)
    }
}
