//! A worker: the loop that one pool thread runs from its creation to its end.
//!
//! Owns the loop, the batch in hand and the results not yet delivered. `acct` decides when a worker is needed; the
//! item's source decides how the item runs.
//!
//! ```text
//!          created or woken
//!                 |          no worker runs and none is in a section,
//!                 v          or those in sections are blocked
//!   IDLE <----- standby ------------------------------------------> running <---> in a section
//!     ^           (work gone, or a worker runs)                        |
//!     +----------------------------------------------------------------+  nothing left in any shard
//!     |
//!     +---> gone: idle for too long, above the limit, or the pool ends
//! ```
//!
//! Detecting a worker that blocks. User space gets no notification when a thread is scheduled out, so an item that may
//! block runs in a *section*: on entering, a worker with queued work behind it puts one other worker on standby. The
//! standby sleeps for [`WATCH_MIN`]. If no item ended meanwhile, and the kernel reports the worker that entered last as
//! asleep, the standby takes over. Items that have blocked are also detected when they end (`blocked`): if some of the
//! recent ones did, no standby watches, and another worker is called in advance for the time in which this one sleeps
//! (`Acct::wanted`). So items that are only marked as blocking cost one extra thread, which sleeps, and only items that
//! block raise the number of workers to the limit. Items that end, but take [`LONG_ITEM`] each (a copy of a mebibyte, a
//! checksum), are worth another CPU if one is free: their standby takes over as well.
//! Invariants:
//! - I1: results are delivered at the end of a batch and before a section is entered, so no result is delayed by a
//!   blocking item. All undelivered results belong to clients in this worker's copy of the table.
//! - I2: a claimed bucket is released before the worker takes other work, sleeps or ends.
//! - I3: a worker that has slept for [`KEEP`] holds no reference to a client, nor a device of one. One that has just
//!   fallen asleep does, for the next item is likely to be of the same client; [`Shared::let_go`] ends that sooner.

use std::time::Duration;

use sheave_base::clock::Clock;
use sheave_base::parker::{Parker, Wake};
use sheave_base::sync::atomic::{Ordering, fence};
use sheave_base::sync::{Arc, hint};
use sheave_iomap::completion_plan::MayBlock;

use super::acct::{Acct, IDLE, RUNNING, Roster, STANDBY, WORKER, WorkerRef};
use super::blocked::{Own, Seat};
use super::client::Client;
use super::item::Items;
use super::lock::Held;
use super::nap::{MOST_NAPLESS, NAP};
use super::shard::Batch;
use super::shared::{Shared, join};
use super::work::{CANCELLED, Ends, Section, Source, WorkEntry};
use crate::work_done::WorkDone;

/// Time that a worker may stay in one item, with work queued behind it, before the standby inspects it.
pub(super) const WATCH_MIN: Duration = Duration::from_micros(50);
/// Longest interval between two inspections by a standby; each doubles the one before.
const WATCH_MAX: Duration = Duration::from_millis(1);
/// Average time of an item above which the work is spread over all CPUs. Handing an item to a thread on another CPU and
/// back takes 1 to 3 us if that thread polls, about 15 us if it sleeps.
const LONG_ITEM: Duration = Duration::from_micros(25);
/// Time for which a sleeping worker keeps its context. To attach a device takes some 10 us and two system calls, and a
/// server with few connections puts its worker to sleep between any two requests.
const KEEP: Duration = Duration::from_millis(10);
/// Result of an item whose source panicked: `-EIO`.
const PANICKED: WorkDone = WorkDone::Result(-5);

/// Next state of a worker.
enum Place {
    Standby,
    Running,
    /// Goes to sleep; the value is the count (`RUNNING` or `STANDBY`) that the worker leaves.
    Leaving(u64),
    Gone,
}

/// Thread body of a worker.
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
    /// Undelivered results of the client `done_by`.
    done: Vec<(u32, WorkDone)>,
    done_by: u32,
    /// Short items in hand that were started, as entries and (in `slots`) as slot numbers.
    started: Vec<WorkEntry>,
    slots: Vec<u32>,
    context: S::Context,
    clock: Option<Clock>,
    /// Sleeps left that skip the nap.
    napless: u32,
    /// Value that `napless` gets after the next useless nap. Doubles with each useless nap (back-off), and is 1 again
    /// after a useful one.
    napless_next: u32,
    own: Own,
}

impl<S: Source> Worker<S> {
    fn new(shared: Arc<Shared<S>>, acct: usize, me: WorkerRef, parker: Parker) -> Worker<S> {
        let clock = (!shared.options.spin.is_zero()).then(Clock::real);
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

    fn live(mut self) {
        // The thread id is published before the CPU list is read: `Acct::place` either finds the id, or has changed the
        // list before this thread reads it.
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

    /// Watches the workers in sections until this worker must run, or until it is not needed.
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
                // Each computing worker has a CPU. Another worker helps only while a CPU is left.
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

    /// Runs batches until no work is left or the worker is above the limit.
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
        // Keeps the allocation of the list.
        self.batch.entries = entries;
        self.flush();
    }

    /// Makes `client` the one that the next items belong to: delivers the results of the client before.
    fn serve(&mut self, client: u32) {
        if client != self.done_by {
            self.flush();
            S::rest(&mut self.context);
            self.done_by = client;
        }
    }

    /// Runs short items of the current client (`done_by`).
    fn run_short(&mut self, entries: &[WorkEntry]) {
        let Worker { shared, acct, me, clients, started, slots, context, done, own, .. } = self;
        let Some(Some(client)) = clients.get(self.done_by as usize) else { return };
        started.clear();
        slots.clear();
        for &entry in entries {
            // False if the item was cancelled, or the entry belongs to an earlier client with this number.
            if shared.start(client, entry) {
                started.push(entry);
                slots.push(entry.slot());
            }
        }
        let left = full(started.len());
        let mut ends = InHand { shared, acct: *acct, seat: &me.seat, client, started, done, left, waited: false };
        let whole = guarded(|| client.source.run_short(context, slots, &mut ends));
        if whole.is_none() {
            // Discards whatever state the panic left, before the other items end: dropping the context makes devices
            // release the items' memory.
            *context = S::Context::default();
        }
        // Only a panic leaves items that have not ended.
        ends.end_rest(PANICKED);
        if ends.waited {
            own.look();
        }
    }

    fn run_in_section(&mut self, entry: WorkEntry) {
        // I1: the item may block, so results are delivered first.
        self.flush();
        let Worker { shared, acct, me, clients, context, done, own, .. } = self;
        let Some(Some(client)) = clients.get(self.done_by as usize) else { return };
        if !shared.start(client, entry) {
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

    /// Delivers the results in hand (I1).
    fn flush(&mut self) {
        if self.done.is_empty() {
            return;
        }
        if let Some(Some(client)) = self.clients.get(self.done_by as usize) {
            client.finish(&self.done);
        }
        self.done.clear();
    }

    /// Polls for work before the worker sleeps, for about the time that a wake-up takes. At most one worker polls.
    /// Returns whether there is work.
    fn spin(&self) -> bool {
        let acct = self.acct();
        let Some(clock) = &self.clock else { return acct.has_work() };
        // If most items block, workers that wake from their sleep need the CPU.
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

    /// Goes to the idle stack and sleeps, or ends. `from` is the state that it leaves: `RUNNING` or `STANDBY`.
    fn sleep(&mut self, from: u64) -> Place {
        let shared = Arc::clone(&self.shared);
        let acct = &shared.accts[self.acct];
        // Relaxed: under the roster's lock for those that look at an idle worker's.
        self.me.seat.keeps.store(!self.clients.is_empty(), Ordering::Relaxed);
        let mut roster = acct.roster.lock();
        if roster.closed && acct.has_work() && acct.counts().without(from).nobody_looks() {
            // At shutdown the last worker that looks runs all work that is still queued.
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
        // SeqCst pairs with the fence in `wants_worker` of a thread that queues (I1 of `acct`).
        fence(Ordering::SeqCst);
        if acct.counts().nobody_looks() && acct.has_work() {
            roster.idle.pop();
            acct.nap.end(self.me.id);
            acct.move_counts(STANDBY, IDLE);
            return Place::Standby;
        }
        drop(roster);
        self.sleep_idle(&shared, naps)
    }

    /// Drops the references to clients and what the context keeps of them (I3).
    fn let_go(&mut self) {
        S::rest(&mut self.context);
        self.clients.clear();
        self.version = 0;
        // Release pairs with the Acquire of `Shared::let_go`: devices were detached before.
        self.me.seat.keeps.store(false, Ordering::Release);
    }

    /// Sleeps on the idle stack; `naps` makes the first sleep a nap.
    fn sleep_idle(&mut self, shared: &Shared<S>, mut naps: bool) -> Place {
        let acct = &shared.accts[self.acct];
        let helped = acct.nap.helped();
        loop {
            let keeps = !self.clients.is_empty();
            let idle_timeout = shared.options.idle_timeout;
            let woken = if naps {
                watch_for(&mut self.parker, NAP)
            } else {
                self.parker.park(Some(if keeps { KEEP.min(idle_timeout) } else { idle_timeout }))
            };
            let mut roster = acct.roster.lock();
            // Not on the idle stack any more: a waker removed this worker and has already moved its count.
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
                // Short items whose wake-up was put off because this worker napped.
                roster.idle.remove(at);
                acct.move_counts(STANDBY, IDLE);
                return Place::Standby;
            }
            let slept = woken == Wake::TimedOut && !naps;
            if (slept && !keeps) || self.is_surplus() || roster.closed {
                acct.nap.end(self.me.id);
                roster.idle.remove(at);
                return self.quit(roster, IDLE);
            }
            if nap_is_over {
                naps = relied && acct.begin_nap(self.me.id);
            }
            drop(roster);
            if keeps && (slept || shared.version() != self.version) {
                self.let_go();
            }
        }
    }

    /// Ends the worker. Work that was queued in the last moment gets another worker.
    fn quit(&mut self, roster: Held<'_, Roster>, from: u64) -> Place {
        let acct = &self.shared.accts[self.acct];
        acct.move_counts(0, WORKER + from);
        drop(roster);
        self.let_go();
        let acct = self.acct();
        if acct.wants_worker() {
            self.shared.wake(self.acct);
        }
        // Registers as ended in the last step, because the next worker that ends joins every thread in `ended` and must
        // not wait for a thread that still has work to do. Takes the list before adding itself, so it does not join
        // itself.
        let mut roster = acct.roster.lock();
        roster.workers.retain(|worker| worker.id != self.me.id);
        let ended = self.shared.ended(&mut roster);
        roster.ended.push(self.me.id);
        drop(roster);
        join(ended);
        Place::Gone
    }
}

/// Returns true if the `ended` items took at least `LONG_ITEM` each on average within `time`, or if none ended.
pub(super) fn are_long(ended: u64, time: Duration) -> bool {
    u128::from(ended) * LONG_ITEM.as_nanos() <= time.as_nanos()
}

#[cfg(not(shuttle))]
fn watch_for(parker: &mut Parker, time: Duration) -> Wake {
    parker.park(Some(time))
}

/// Always times out, unlike the modelled parker, whose timeout may never come so that lost wake-ups show.
#[cfg(shuttle)]
fn watch_for(_: &mut Parker, _: Duration) -> Wake {
    sheave_base::sync::thread::yield_now();
    Wake::TimedOut
}

/// Counts the worker as in a section until dropped.
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

/// The `Ends` of a batch of short items.
struct InHand<'a, S: Source> {
    shared: &'a Arc<Shared<S>>,
    acct: usize,
    seat: &'a Seat,
    client: &'a Client<S>,
    started: &'a [WorkEntry],
    done: &'a mut Vec<(u32, WorkDone)>,
    /// One bit per item of `started` that has not ended.
    left: u64,
    /// Set once the thread may have slept in `Ends::blocking`.
    waited: bool,
}

/// Returns a mask of the lowest `bits` bits.
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

#[cfg(not(shuttle))]
type List = std::cell::RefCell<Vec<(Arc<Items>, u32)>>;

#[cfg(not(shuttle))]
std::thread_local! {
    /// Items that run on this thread, the innermost last.
    static NESTED: List = const { List::new(Vec::new()) };
}

/// Registers an item as running on this thread until dropped. Items nest: a worker issues a ring's operation on a ring
/// of its own, whose blocking work runs on the same thread as items of a stepped pool. A request to end the outer item
/// early applies to the inner ones too.
struct Running<'a> {
    /// Read only in a model and when the thread-local is gone. (In a model, where threads share thread-locals, items do
    /// not nest.)
    #[cfg_attr(not(shuttle), allow(dead_code))]
    items: &'a Arc<Items>,
    #[cfg_attr(not(shuttle), allow(dead_code))]
    slot: u32,
}

impl<'a> Running<'a> {
    fn begin(items: &'a Arc<Items>, slot: u32) -> Running<'a> {
        #[cfg(not(shuttle))]
        // The thread-local may be gone when the thread ends; then items do not nest.
        let _ = NESTED.try_with(|running| running.borrow_mut().push((Arc::clone(items), slot)));
        Running { items, slot }
    }

    /// Returns true if this item, or one that it runs within, was requested to end early.
    #[cfg(not(shuttle))]
    fn is_cancelled(&self) -> bool {
        let any = |running: &List| running.borrow().iter().any(|(items, slot)| items.is_cancelled(*slot));
        NESTED.try_with(any).unwrap_or_else(|_| self.items.is_cancelled(self.slot))
    }

    #[cfg(shuttle)]
    fn is_cancelled(&self) -> bool {
        self.items.is_cancelled(self.slot)
    }
}

#[cfg(not(shuttle))]
impl Drop for Running<'_> {
    fn drop(&mut self) {
        let _ = NESTED.try_with(|running| running.borrow_mut().pop());
    }
}

/// Runs an item that may block. Replaces `context` if the item panics.
pub(super) fn run_guarded<S: Source>(client: &Client<S>, context: &mut S::Context, slot: u32) -> WorkDone {
    let running = Running::begin(&client.items, slot);
    let asked = || running.is_cancelled();
    let token = MayBlock::until(&asked);
    guarded(|| client.source.run(context, slot, &Section { token: &token })).unwrap_or_else(|| {
        *context = S::Context::default();
        PANICKED
    })
}

/// Runs a source's code. Returns `None` if it panicked: a panic ends the item, not the worker.
#[cfg(not(shuttle))]
fn guarded<R>(run: impl FnOnce() -> R) -> Option<R> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).map_err(sheave_base::panics::discard).ok()
}

/// Lets panics through: the model checker reports failures by them.
#[cfg(shuttle)]
fn guarded<R>(run: impl FnOnce() -> R) -> Option<R> {
    Some(run())
}
