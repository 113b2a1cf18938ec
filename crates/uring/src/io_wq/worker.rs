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
//! asleep and not computing, it takes over. Items that have blocked are noticed when they end (`blocked`): where some
//! of the last ones did, nobody watches, and another worker is called for the moment in which this one sleeps
//! (`Acct::wanted`). So items that are merely marked as blocking bring one more thread, which sleeps, and only items
//! that block bring the limit. Items that do end, but take [`LONG_ITEM`] each (a copy of a mebibyte, a sum), are worth
//! another CPU, if there is one: whoever watches them takes over as well.
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
use super::blocked::{Own, Seat};
use super::client::Client;
use super::lock::Held;
use super::nap::{MOST_NAPLESS, NAP};
use super::shard::Batch;
use super::shared::{Shared, join};
use super::within;
use super::work::{CANCELLED, Ends, Section, Source, WorkEntry};
use crate::work_done::WorkDone;

/// A worker in the same item for so long, with work behind it, is looked at.
pub(super) const WATCH_MIN: Duration = Duration::from_micros(50);
/// A standby looks again at most so late.
const WATCH_MAX: Duration = Duration::from_millis(1);
/// Items that take so long, one with the other, are done by as many workers as there are CPUs for them. To give an item
/// to a thread on another CPU, and have it back, takes 1 to 3 us where that polls, and some 15 where it sleeps.
const LONG_ITEM: Duration = Duration::from_micros(25);
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
    /// The short items in hand that were started, as entries and as slots.
    started: Vec<WorkEntry>,
    slots: Vec<u32>,
    context: S::Context,
    clock: Option<Clock>,
    /// Sleeps to come that do not begin with a nap.
    napless: u32,
    /// As many as will follow the next nap that is of no use.
    napless_next: u32,
    /// What it knows of items that block.
    own: Own,
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
            started: Vec::with_capacity(super::shard::BATCH),
            slots: Vec::with_capacity(super::shard::BATCH),
            context: S::Context::default(),
            clock,
            napless: 0,
            napless_next: 1,
            own: Own::default(),
        }
    }

    fn acct(&self) -> &Acct {
        &self.shared.accts[self.acct]
    }

    /// From standby to its end.
    fn live(mut self) {
        // In this order: whoever places workers meanwhile finds this one here, or has changed the list before.
        let tid = super::thread_state::me();
        let roster = self.acct().roster.lock();
        // Relaxed: under the lock.
        self.me.seat.tid.store(tid, Ordering::Relaxed);
        drop(roster);
        super::thread_state::settle(None, &self.shared.cpus());
        // Relaxed: it was set before this thread was made.
        let mut place =
            if self.me.seat.called.swap(false, Ordering::Relaxed) { Place::Running } else { Place::Standby };
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
            if counts.in_section() == 0 || acct.wanted() > 0 {
                break;
            }
            let before = acct.left();
            let woken = watch_for(&mut self.parker, watch);
            let ended = acct.left().wrapping_sub(before);
            if woken == Wake::TimedOut && are_long(ended, watch) {
                // Those that compute have a CPU each. Another worker is of use while there is one more.
                let cpus = self.shared.cpu_count();
                let computing = acct.computing(cpus);
                if computing == 0 && ended == 0 {
                    acct.blocking.found_blocked();
                }
                if computing < cpus {
                    break;
                }
            }
            watch = (watch * 2).min(WATCH_MAX);
        }
        self.acct().move_counts(RUNNING, STANDBY);
        Place::Running
    }

    /// Runs batches until there is nothing, or the worker is one too many.
    fn work(&mut self) -> Place {
        self.own.look();
        loop {
            if self.is_surplus() {
                self.release();
                break;
            }
            if self.shared.accts[self.acct].take(&mut self.batch) {
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
        let mut rest = &entries[..];
        while let Some(&first) = rest.first() {
            self.serve(first.client());
            let alike = |entry: &&WorkEntry| entry.client() == first.client() && !entry.may_block();
            let short = rest.iter().take_while(alike).count();
            if short == 0 {
                self.run_in_section(first);
            } else {
                self.run_short(&rest[..short]);
            }
            rest = &rest[short.max(1)..];
        }
        // Its room is kept.
        self.batch.entries = entries;
        self.flush();
    }

    /// What follows is for this client.
    fn serve(&mut self, client: u32) {
        if client != self.done_by {
            self.flush();
            S::rest(&mut self.context);
            self.done_by = client;
        }
    }

    /// Runs short items of the client that is served.
    fn run_short(&mut self, entries: &[WorkEntry]) {
        let Worker { shared, acct, me, clients, started, slots, context, done, own, .. } = self;
        let Some(Some(client)) = clients.get(self.done_by as usize) else { return };
        started.clear();
        slots.clear();
        for &entry in entries {
            // Cancelled meanwhile, or of a client that was in this place before.
            if start(shared, client, entry) {
                started.push(entry);
                slots.push(entry.slot());
            }
        }
        let left = full(started.len());
        let mut ends = InHand { shared, acct: *acct, seat: &me.seat, client, started, done, left, waited: false };
        let whole = guarded(|| client.source.run_short(context, slots, &mut ends));
        if whole.is_none() {
            // Whatever the panic has left of it. Before the rest ends: devices let go of the memory first.
            *context = S::Context::default();
        }
        // After a panic some are left.
        ends.end_rest(PANICKED);
        if ends.waited {
            own.look();
        }
    }

    fn run_in_section(&mut self, entry: WorkEntry) {
        // I1.
        self.flush();
        let Worker { shared, acct, me, clients, context, done, own, .. } = self;
        let Some(Some(client)) = clients.get(self.done_by as usize) else { return };
        if !start(shared, client, entry) {
            return;
        }
        // Acquire pairs with the Release of `shutdown`.
        let res = if entry.is_unbound() && shared.closed.load(Ordering::Acquire) {
            client.source.not_run(entry.slot());
            CANCELLED
        } else {
            let in_section = InSection::enter(shared, *acct, &me.seat);
            let since = in_section.since;
            let res = run_guarded(client, context, entry.slot());
            drop(in_section);
            shared.accts[*acct].blocking.note(own, since);
            res
        };
        client.items.end(entry.slot(), entry.generation());
        done.push((entry.slot(), res));
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
        // Where most items block, those that wake from their sleep want the CPU.
        if acct.counts().running() > 1 || acct.is_in_submitters_way() || acct.blocking.is_the_rule() {
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
        S::rest(&mut self.context);
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
        let naps = self.shared.options.help && self.napless == 0 && acct.begin_nap(self.me.id);
        self.napless = self.napless.saturating_sub(1);
        acct.move_counts(IDLE, from);
        // SeqCst pairs with the fence in `wants_worker` of whoever queues (I1 of `acct`).
        fence(Ordering::SeqCst);
        if acct.counts().nobody_looks() && acct.has_work() {
            roster.idle.pop();
            acct.nap.end(self.me.id);
            acct.move_counts(STANDBY, IDLE);
            return Place::Standby;
        }
        drop(roster);
        self.sleep_idle(naps)
    }

    /// Sleeps on the idle stack, at first in naps where it may.
    fn sleep_idle(&mut self, mut naps: bool) -> Place {
        let acct = &self.shared.accts[self.acct];
        let helped = acct.nap.helped();
        loop {
            let woken = if naps {
                watch_for(&mut self.parker, NAP)
            } else {
                self.parker.park(Some(self.shared.options.idle_timeout))
            };
            let mut roster = acct.roster.lock();
            let Some(at) = roster.idle.iter().position(|worker| worker.id == self.me.id) else {
                if naps {
                    let was_of_use = acct.nap.helped() != helped;
                    (self.napless, self.napless_next) = if was_of_use {
                        (0, 1)
                    } else {
                        (self.napless_next, (2 * self.napless_next).min(MOST_NAPLESS))
                    };
                }
                // Relaxed: under the roster's lock.
                let called = self.me.seat.called.swap(false, Ordering::Relaxed);
                return if called { Place::Running } else { Place::Standby };
            };
            let nap_is_over = naps && woken == Wake::TimedOut;
            let relied = if nap_is_over || roster.closed { acct.end_nap(self.me.id) } else { false };
            if (nap_is_over || roster.closed) && acct.counts().nobody_looks() && acct.has_work() {
                // What nobody was woken for.
                roster.idle.remove(at);
                acct.move_counts(STANDBY, IDLE);
                return Place::Standby;
            }
            if (woken == Wake::TimedOut && !naps) || self.is_surplus() || roster.closed {
                acct.nap.end(self.me.id);
                roster.idle.remove(at);
                return self.quit(roster, IDLE);
            }
            if nap_is_over {
                naps = relied && acct.begin_nap(self.me.id);
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
        // Last of all: the next worker that ends finds it here and joins this thread, and must not have to wait; least
        // of all itself.
        let mut roster = acct.roster.lock();
        roster.workers.retain(|worker| worker.id != self.me.id);
        let ended = self.shared.ended(&mut roster);
        roster.ended.push(self.me.id);
        drop(roster);
        join(ended);
        Place::Gone
    }
}

/// Whether items of which so many have ended in this time are long, or none has ended.
pub(super) fn are_long(ended: u64, time: Duration) -> bool {
    u128::from(ended) * LONG_ITEM.as_nanos() <= time.as_nanos()
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

/// Takes an item from its queue to this worker; false when it was cancelled meanwhile.
#[inline]
fn start<S: Source>(shared: &Shared<S>, client: &Client<S>, entry: WorkEntry) -> bool {
    let started = client.items.start(entry.slot(), entry.generation());
    if started && let Some(clock) = &shared.clock {
        shared.starts.note(clock.cycles_to_ns(clock.cycles().wrapping_sub(client.stamp_of(entry.slot()))));
    }
    started
}

/// A worker that is in a section, until this is dropped.
struct InSection<'a> {
    acct: &'a Acct,
    seat: &'a Seat,
    since: u64,
}

impl<'a> InSection<'a> {
    fn enter<S: Source>(shared: &'a Arc<Shared<S>>, at: usize, seat: &'a Seat) -> InSection<'a> {
        let acct = &shared.accts[at];
        let since = acct.blocking.now();
        acct.enter(seat, since);
        let wanted = acct.wanted();
        if wanted > 0 {
            shared.call(at, wanted);
        }
        if acct.wants_worker() {
            shared.wake(at);
        }
        InSection { acct, seat, since }
    }
}

impl Drop for InSection<'_> {
    fn drop(&mut self) {
        self.acct.leave(self.seat);
    }
}

/// The short items that a source runs.
struct InHand<'a, S: Source> {
    shared: &'a Arc<Shared<S>>,
    acct: usize,
    seat: &'a Seat,
    client: &'a Client<S>,
    started: &'a [WorkEntry],
    done: &'a mut Vec<(u32, WorkDone)>,
    /// A bit for each that has not ended.
    left: u64,
    /// The thread may have slept.
    waited: bool,
}

/// The lowest so many bits.
fn full(bits: usize) -> u64 {
    debug_assert!(bits <= super::shard::BATCH, "a batch has a bit for each item");
    if bits >= 64 { u64::MAX } else { (1 << bits) - 1 }
}

impl<S: Source> Ends for InHand<'_, S> {
    #[inline]
    fn end(&mut self, at: usize, how: WorkDone) {
        let bit = 1u64 << at;
        debug_assert!(self.left & bit != 0, "an item ends once");
        if self.left & bit == 0 {
            return;
        }
        self.left &= !bit;
        let entry = self.started[at];
        self.client.items.end(entry.slot(), entry.generation());
        self.done.push((entry.slot(), how));
    }

    fn end_rest(&mut self, how: WorkDone) {
        while self.left != 0 {
            let at = self.left.trailing_zeros() as usize;
            self.client.source.not_run(self.started[at].slot());
            self.end(at, how);
        }
    }

    fn blocking(&mut self, wait: impl FnOnce()) {
        if !self.done.is_empty() {
            self.client.finish(self.done);
            self.done.clear();
        }
        self.waited = true;
        let _in_section = InSection::enter(self.shared, self.acct, self.seat);
        wait();
    }
}

/// Runs an item that may block. A context that saw a panic is not used again.
pub(super) fn run_guarded<S: Source>(client: &Client<S>, context: &mut S::Context, slot: u32) -> WorkDone {
    let running = within::Running::begin(&client.items, slot);
    let asked = || running.is_cancelled();
    let token = MayBlock::until(&asked);
    guarded(|| client.source.run(context, slot, &Section { token: &token })).unwrap_or_else(|| {
        *context = S::Context::default();
        PANICKED
    })
}

/// Runs foreign code; a panic is its item's end, and not the worker's.
#[cfg(not(shuttle))]
fn guarded<R>(run: impl FnOnce() -> R) -> Option<R> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).map_err(sheave_base::panics::discard).ok()
}

/// The model checker speaks through panics.
#[cfg(shuttle)]
fn guarded<R>(run: impl FnOnce() -> R) -> Option<R> {
    Some(run())
}
