//! Short items without a wake-up: workers that nap, and clients that run their own items before they wait.
//!
//! A nap is a short timed sleep of a worker that has run out of work on the CPU of the thread that queues it. Such a
//! worker can only take turns with its submitter, and waking it for each batch costs two thread switches a batch. So
//! its first sleeps are naps, after which it looks for work by itself. While it naps, short items wake no worker. Their
//! client takes them back and runs them before it waits ([`Submitter::help`]), or else wakes the worker then
//! ([`Submitter::wake_deferred`]). If the client neither waits nor calls the ring, the worker finds the items after its
//! nap. A client that waits for one short item and nothing else takes it back too.
//!
//! Owns which worker naps, and for how long; taking a client's items back; and the wake-up that was put off meanwhile.
//! The client runs the items (`ring`).
//!
//! Invariants:
//! - I1: a wake-up is put off only for short items, only while a worker naps, and for [`NAP`] at most: a worker
//!   publishes its nap before its last look at the shards, and ends it before it looks again. A SeqCst fence on both
//!   sides ensures that either a client that queues sees the nap, or the worker sees the client's work.
//! - I2: items taken back are short, belong to the client, and come from the head of its row: no item overtakes one
//!   that may block, and no item of another client waits for this client.
//! - I3: a client takes nothing back while a worker runs or stands by: items that had to start at once have woken one.

use std::time::Duration;

use sheave_base::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::pool::Submitter;
use super::shard::Batch;
use super::work::Source;

/// Length of a nap: the longest delay of a short item whose ring, on the same CPU, neither waits nor is called. A sixth
/// of the scheduler's time slice.
pub(super) const NAP: Duration = Duration::from_micros(500);

/// Largest number of sleeps without a nap between two naps. A nap is useless if a wake-up ended it and no client took
/// an item back during it: the client queues items that it cannot run itself. The number of sleeps without a nap
/// doubles with each useless nap, from 1 up to this. (It is a power of two so that, if two kinds of sleep alternate,
/// naps fall on each of them in turn.) Naps are limited because each costs something: its timer is the next on its CPU
/// to expire, so the kernel programs the hardware timer twice a nap, which in a virtual machine costs more than a
/// thread switch.
pub(super) const MOST_NAPLESS: u32 = 64;

/// Value of `who` while no worker naps.
const NOBODY: u32 = u32::MAX;

/// Nap state of an account: at most one worker naps.
#[derive(Debug)]
pub(super) struct Nap {
    /// Id of the napping worker. Changes under the roster's lock.
    who: AtomicU32,
    /// A wake-up was put off since the nap began.
    relied_on: AtomicBool,
    /// Number of items that clients have taken back.
    helped: AtomicU64,
}

impl Nap {
    pub(super) fn new() -> Nap {
        Nap { who: AtomicU32::new(NOBODY), relied_on: AtomicBool::new(false), helped: AtomicU64::new(0) }
    }

    /// Begins a nap of `worker`, which is about to sleep. Returns false if another worker naps. The caller must issue a
    /// fence and look at the shards afterwards.
    pub(super) fn begin(&self, worker: u32) -> bool {
        // Relaxed, all: under the roster's lock; the fences of I1 order it for those who read without.
        if self.who.load(Ordering::Relaxed) != NOBODY {
            return false;
        }
        self.relied_on.store(false, Ordering::Relaxed);
        self.who.store(worker, Ordering::Relaxed);
        true
    }

    /// Ends the nap of `worker`, if it naps. Returns true if a wake-up was put off during it, so that another nap is
    /// useful. The caller must issue a fence and look at the shards afterwards.
    pub(super) fn end(&self, worker: u32) -> bool {
        // Relaxed, all: as above.
        if self.who.load(Ordering::Relaxed) != worker {
            return false;
        }
        self.who.store(NOBODY, Ordering::Relaxed);
        self.relied_on.load(Ordering::Relaxed)
    }

    /// Returns true if a worker naps, so that a wake-up for short items may be put off, and marks the nap as relied on.
    /// Call it after queueing and a fence (`Acct::wants_worker`).
    pub(super) fn rely(&self) -> bool {
        // Relaxed, both: after the fence; the mark is a hint.
        let naps = self.who.load(Ordering::Relaxed) != NOBODY;
        if naps {
            self.relied_on.store(true, Ordering::Relaxed);
        }
        naps
    }

    /// Returns true if a worker naps.
    #[cfg(all(test, not(shuttle)))]
    pub(super) fn is_somebody(&self) -> bool {
        self.who.load(Ordering::Relaxed) != NOBODY
    }

    /// Adds `items` to the number of items taken back.
    pub(super) fn note_helped(&self, items: usize) {
        // Relaxed: a count.
        self.helped.fetch_add(items as u64, Ordering::Relaxed);
    }

    pub(super) fn helped(&self) -> u64 {
        // Relaxed: a count.
        self.helped.load(Ordering::Relaxed)
    }
}

impl<S: Source> Submitter<S> {
    /// Called when the client is about to wait. Takes back up to 64 of its short items that no worker has started, if
    /// the workers would need this thread's CPU for them, and appends their slots to `back`. The client must run them;
    /// the pool delivers no result for them.
    pub fn help(&mut self, back: &mut Vec<u32>) {
        let mut batch = std::mem::replace(&mut self.own, Batch::empty());
        self.take_own(&mut batch, back);
        self.own = batch;
    }

    fn take_own(&self, batch: &mut Batch, back: &mut Vec<u32>) {
        let shared = self.pool().shared();
        let acct = &shared.accts[0];
        // I3 is the check of `nobody_looks`.
        if !shared.options.help || !acct.has_work() || !acct.counts().nobody_looks() || !acct.is_in_workers_way() {
            return;
        }
        acct.take_own(self.at(), batch);
        let before = back.len();
        for entry in batch.entries.drain(..) {
            // Fails only for a cancelled item: cancelling is done by this thread alone.
            if self.items().start(entry.slot(), entry.generation()) {
                self.items().end(entry.slot(), entry.generation());
                back.push(entry.slot());
            }
        }
        acct.nap.note_helped(back.len() - before);
    }

    /// Takes the one staged item back if it is short and nothing else is staged. Unlike [`help`](Self::help) it does
    /// not depend on the workers' CPU: no worker has seen the item.
    pub(crate) fn take_staged_alone(&mut self, back: &mut Vec<u32>) {
        let options = &self.pool().shared().options;
        if !options.help || options.stepped {
            return;
        }
        let Some(entry) = self.pop_staged_alone() else { return };
        if self.items().start(entry.slot(), entry.generation()) {
            self.items().end(entry.slot(), entry.generation());
            back.push(entry.slot());
            self.pool().shared().accts[0].nap.note_helped(1);
        }
    }

    /// Returns true if a wake-up was put off.
    #[inline]
    pub fn has_deferred(&self) -> bool {
        self.deferred
    }

    /// Called when the client is about to sleep: sends the wake-up that was put off.
    pub fn wake_deferred(&mut self) {
        if std::mem::take(&mut self.deferred) {
            let shared = self.pool().shared_arc();
            if shared.accts[0].wants_worker() {
                shared.wake(0);
            }
        }
    }
}
