//! A worker: what one thread of the pool does from its first item to its end.
//!
//! Owns the loop, the batch in hand and the results not yet handed over. Does not own the decision that it is needed
//! (`acct`), nor what an item does (its source).
//!
//! ```text
//!            made or woken
//!                 |          nobody runs and nobody is in a section,
//!                 v          or those in sections are blocked
//!   IDLE <----- standby ------------------------------------------> running <---> in a section
//!     ^           (work gone, or somebody runs)                        |
//!     +----------------------------------------------------------------+  nothing left in any shard
//!     |
//!     +---> gone: idle for too long, above the limit, or the pool ends
//! ```
//!
//! How a worker that blocks is noticed. A thread in user space is not told when it is scheduled out, so an item that
//! may block runs in a *section*: on entering, a worker with work behind it puts one other on standby. The standby
//! sleeps for [`WATCH_MIN`]; if no item ended meanwhile, and the kernel says that the worker which entered last is
//! asleep and not computing, it takes over. Having been right, the next [`TRUST`] need not watch, so that many blocking
//! items are in flight at once; any progress seen by a watcher ends that trust. So items that are merely marked as
//! blocking bring one more thread, which sleeps, and only items that block bring the limit.
//!
//! Invariants:
//! - I1: results are handed over at the end of a batch and before a section is entered: nobody waits long for a
//!   result that lies here, and all results in hand are of clients in the copy of the table.
//! - I2: a claimed bucket is released before the worker takes other work, sleeps or ends.
//! - I3: a sleeping worker holds no client.

use std::time::Duration;

use sheave_base::clock::Clock;
use sheave_base::parker::{Parker, Wake};
use sheave_base::sync::atomic::{Ordering, fence};
use sheave_base::sync::{Arc, hint};
use sheave_iomap::completion_plan::MayBlock;

use super::acct::{Acct, IDLE, RUNNING, Roster, STANDBY, WORKER, WorkerRef};
use super::client::Client;
use super::lock::Held;
use super::shard::Batch;
use super::shared::Shared;
use super::work::{CANCELLED, Entry, Section, Source};
use crate::work_done::WorkDone;

/// A worker in the same item for so long, with work behind it, is looked at.
pub(super) const WATCH_MIN: Duration = Duration::from_micros(50);
/// A standby looks again at most so late.
const WATCH_MAX: Duration = Duration::from_millis(1);
/// Workers that follow a right guess without watching.
const TRUST: u32 = 16;
/// Result of an item whose source panicked: `-EIO`.
const PANICKED: WorkDone = WorkDone::Result(-5);

/// What a worker does next.
enum Place {
    Standby,
    Running,
    /// Goes to sleep from the place with these counts.
    Leaving(u64),
    Gone,
}

/// The life of a worker, from its first standby to its end.
pub(super) fn live<S: Source>(shared: Arc<Shared<S>>, acct: usize, me: WorkerRef, parker: Parker) {
    Worker::new(shared, acct, me, parker).live();
}

struct Worker<S: Source> {
    shared: Arc<Shared<S>>,
    acct: usize,
    me: WorkerRef,
    parker: Parker,
    batch: Batch,
    clients: Vec<Option<Arc<Client<S>>>>,
    version: u32,
    /// Results of `done_by`'s items.
    done: Vec<(u32, WorkDone)>,
    done_by: u32,
    clock: Option<Clock>,
}

impl<S: Source> Worker<S> {
    fn new(shared: Arc<Shared<S>>, acct: usize, me: WorkerRef, parker: Parker) -> Worker<S> {
        let clock = (!shared.options.spin.is_zero() || shared.options.measure).then(Clock::real);
        Worker {
            shared,
            acct,
            me,
            parker,
            batch: Batch::new(),
            clients: Vec::new(),
            version: 0,
            done: Vec::with_capacity(super::shard::BATCH),
            done_by: 0,
            clock,
        }
    }

    fn acct(&self) -> &Acct {
        &self.shared.accts[self.acct]
    }

    /// From standby to its end.
    fn live(mut self) {
        // In this order: whoever places workers meanwhile finds this one here, or has changed the list before.
        let tid = super::thread_state::me();
        self.acct().roster.lock().tids.push((self.me.id, tid));
        super::thread_state::settle(None, &self.shared.cpus());
        let mut place = Place::Standby;
        loop {
            place = match place {
                Place::Standby => self.stand_by(),
                Place::Running => self.work(),
                Place::Leaving(from) => self.sleep(from),
                Place::Gone => return,
            };
        }
    }

    /// Waits until it is needed or not.
    fn stand_by(&mut self) -> Place {
        let mut watch = WATCH_MIN;
        loop {
            let acct = &self.shared.accts[self.acct];
            let counts = acct.counts();
            if !acct.has_work() || counts.running() > 0 {
                return Place::Leaving(STANDBY);
            }
            if counts.in_section() == 0 || take_trust(acct) {
                break;
            }
            // Relaxed: a change is all that counts.
            let before = acct.progress.load(Ordering::Relaxed);
            let woken = watch_for(&mut self.parker, watch);
            // Relaxed: as above.
            if acct.progress.load(Ordering::Relaxed) != before {
                acct.trust.store(0, Ordering::Relaxed);
                watch = (watch * 2).min(WATCH_MAX);
                continue;
            }
            // Relaxed: whoever it was, it is looked at only.
            let last = acct.last_section.load(Ordering::Relaxed);
            if woken == Wake::TimedOut && !super::thread_state::computes(last) {
                // Relaxed: a hint for the next standby.
                acct.trust.store(TRUST, Ordering::Relaxed);
                break;
            }
            watch = (watch * 2).min(WATCH_MAX);
        }
        self.acct().move_counts(RUNNING, STANDBY);
        Place::Running
    }

    /// Runs batches until there is nothing, or the worker is one too many.
    fn work(&mut self) -> Place {
        loop {
            if self.is_surplus() {
                self.release();
                break;
            }
            let home = self.me.id as usize;
            if self.shared.accts[self.acct].take(home, &mut self.batch) {
                self.run_batch();
                continue;
            }
            if !self.spin() {
                break;
            }
        }
        Place::Leaving(RUNNING)
    }

    fn is_surplus(&self) -> bool {
        let acct = self.acct();
        acct.counts().all() > acct.limit()
    }

    /// Releases the claimed bucket (I2).
    fn release(&mut self) {
        if let Some(claim) = self.batch.claim.take() {
            self.shared.accts[self.acct].release(claim);
        }
    }

    fn run_batch(&mut self) {
        self.acct().note_taken();
        self.shared.refresh(&mut self.version, &mut self.clients);
        let entries = std::mem::take(&mut self.batch.entries);
        for &entry in &entries {
            if entry.client() != self.done_by {
                self.flush();
                self.done_by = entry.client();
            }
            if entry.may_block() {
                self.run_in_section(entry);
            } else {
                self.run_short(entry);
            }
        }
        // Its room is kept.
        self.batch.entries = entries;
        self.flush();
    }

    /// Takes an item from its queue to this worker; `None` when it was cancelled meanwhile, or its client is gone.
    #[inline]
    fn start(&self, entry: Entry) -> Option<(&Client<S>, u32)> {
        let client = self.clients.get(entry.client() as usize)?.as_deref()?;
        let slot = entry.slot();
        if !client.items.start(slot, entry.generation()) {
            return None;
        }
        if let Some(clock) = &self.shared.clock {
            self.shared.starts.note(clock.cycles_to_ns(clock.cycles().wrapping_sub(client.stamp_of(slot))));
        }
        Some((client, slot))
    }

    #[inline]
    fn run_short(&mut self, entry: Entry) {
        let Some((client, slot)) = self.start(entry) else { return };
        let res = client.source.run_short(slot);
        client.items.end(slot, entry.generation());
        self.done.push((slot, res));
    }

    fn run_in_section(&mut self, entry: Entry) {
        // I1.
        self.flush();
        let Some((client, slot)) = self.start(entry) else { return };
        // Acquire pairs with the Release of `shutdown`.
        let res = if entry.is_unbound() && self.shared.closed.load(Ordering::Acquire) {
            CANCELLED
        } else {
            let acct = self.acct();
            // Relaxed: a hint for a standby.
            acct.last_section.store(super::thread_state::me(), Ordering::Relaxed);
            acct.move_counts(0, RUNNING);
            if acct.wants_worker() {
                self.shared.wake(self.acct);
            }
            let res = run_guarded(client, slot);
            // Relaxed: a change is all that counts.
            acct.progress.fetch_add(1, Ordering::Relaxed);
            acct.move_counts(RUNNING, 0);
            res
        };
        client.items.end(slot, entry.generation());
        self.done.push((slot, res));
    }

    /// Hands results over (I1).
    fn flush(&mut self) {
        if self.done.is_empty() {
            return;
        }
        if let Some(Some(client)) = self.clients.get(self.done_by as usize) {
            client.finish(&self.done);
        }
        self.done.clear();
    }

    /// Looks for work a while before it sleeps: for as long as waking it would take. One worker at most does.
    fn spin(&self) -> bool {
        let acct = self.acct();
        let Some(clock) = &self.clock else { return acct.has_work() };
        if acct.counts().running() > 1 || acct.is_in_submitters_way() {
            return acct.has_work();
        }
        let (from, cycles) = (clock.cycles(), clock.ns_to_cycles(self.shared.options.spin.as_nanos() as u64));
        while !acct.has_work() {
            if clock.cycles().wrapping_sub(from) >= cycles {
                return false;
            }
            hint::spin_loop();
        }
        true
    }

    /// Sleeps until it is needed, or ends.
    fn sleep(&mut self, from: u64) -> Place {
        // I3.
        self.clients.clear();
        self.version = 0;
        let acct = &self.shared.accts[self.acct];
        let mut roster = acct.roster.lock();
        if roster.closed && acct.has_work() && acct.counts().without(from).nobody_looks() {
            // The last one to look runs what was queued before the end.
            acct.move_counts(STANDBY, from);
            return Place::Standby;
        }
        if roster.closed || self.is_surplus() {
            return self.quit(roster, from);
        }
        roster.idle.push(self.me.clone());
        acct.move_counts(IDLE, from);
        // SeqCst pairs with the fence in `wants_worker` of whoever queues (I1 of `acct`).
        fence(Ordering::SeqCst);
        if acct.counts().nobody_looks() && acct.has_work() {
            roster.idle.pop();
            acct.move_counts(STANDBY, IDLE);
            return Place::Standby;
        }
        drop(roster);
        loop {
            let woken = self.parker.park(Some(self.shared.options.idle_timeout));
            let mut roster = acct.roster.lock();
            let Some(at) = roster.idle.iter().position(|worker| worker.id == self.me.id) else {
                return Place::Standby;
            };
            if woken == Wake::TimedOut || self.is_surplus() || roster.closed {
                roster.idle.remove(at);
                return self.quit(roster, IDLE);
            }
        }
    }

    /// Ends. What came in the last moment is for somebody else.
    fn quit(&self, roster: Held<'_, Roster>, from: u64) -> Place {
        let acct = self.acct();
        acct.move_counts(0, WORKER + from);
        drop(roster);
        if acct.wants_worker() {
            self.shared.wake(self.acct);
        }
        // Last of all: whoever finds it here joins this thread, and must not have to wait; least of all itself.
        let mut roster = acct.roster.lock();
        roster.tids.retain(|&(id, _)| id != self.me.id);
        roster.ended.push(self.me.id);
        Place::Gone
    }
}

/// Whether a standby may take over without watching.
fn take_trust(acct: &Acct) -> bool {
    // Relaxed: a hint; one standby at a time takes it.
    let trust = acct.trust.load(Ordering::Relaxed);
    acct.trust.store(trust.saturating_sub(1), Ordering::Relaxed);
    trust > 0
}

#[cfg(not(shuttle))]
fn watch_for(parker: &mut Parker, time: Duration) -> Wake {
    parker.park(Some(time))
}

/// A parker's timeout may never come in a model, so that lost wake-ups show; this one always does.
#[cfg(shuttle)]
fn watch_for(_: &mut Parker, _: Duration) -> Wake {
    sheave_base::sync::thread::yield_now();
    Wake::TimedOut
}

/// Runs an item that may block.
pub(super) fn run_guarded<S: Source>(client: &Client<S>, slot: u32) -> WorkDone {
    let asked = || client.items.is_cancelled(slot);
    let token = MayBlock::until(&asked);
    guarded(|| client.source.run(slot, &Section { token: &token }))
}

/// Runs foreign code; a panic is its item's end, and not the worker's.
#[cfg(not(shuttle))]
fn guarded(run: impl FnOnce() -> WorkDone) -> WorkDone {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).unwrap_or(PANICKED)
}

/// The model checker speaks through panics.
#[cfg(shuttle)]
fn guarded(run: impl FnOnce() -> WorkDone) -> WorkDone {
    let _ = PANICKED;
    run()
}
