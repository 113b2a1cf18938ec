//! A ring as a client of a pool.
//!
//! Owns the public handle of the pool that rings use ([`IoWq`]), and a ring's connection to it ([`RingWq`]). The work
//! that workers do for a ring is in [`ring_work`](super::ring_work).
//!
//! Invariants:
//! - I1: a slot of the ring has at most one item, whose result is delivered once unless a cancel took the item back.
//! - I2: when this is dropped, items that no worker has started are not run: they would only start an operation or a
//!   sync whose result no one reads. The ring has completed its writes before.

use std::time::Duration;

use sheave_base::sync::Arc;

#[cfg(sheave_lab)]
use super::LockStats;
use super::pool::{AcctCounts, Pool, Submitter};
use super::ring_work::{Kind, MakeIssuer, RingSource, Work};
use super::shared::PoolOptions;
use super::thread_state::forbidden_cpu;
use super::work::WorkFlags;
use super::{Account, Cancelled};
use crate::error::RingError;
use crate::task_work::DoneQueue;
use crate::work_done::WorkDone;

/// Builder of an [`IoWq`].
#[derive(Clone, Debug, Default)]
pub struct IoWqBuilder {
    options: PoolOptions,
}

impl IoWqBuilder {
    /// Sets the maximum number of workers for bound work (files: it ends by itself and soon), and for unbound work,
    /// which may take for ever; both 1 to 4,096. The defaults are four per CPU and 256.
    pub fn max_workers(mut self, bound: u32, unbound: u32) -> Self {
        self.options.max_workers = [bound, unbound];
        self
    }

    /// Sets the name of the threads, which a dash and a number follow; Linux shows 15 bytes of it. The default is
    /// `sheave-wq`.
    pub fn name(mut self, name: &str) -> Self {
        name.clone_into(&mut self.options.name);
        self
    }

    /// Sets the time after which an idle worker ends. The default is 5 s.
    pub fn idle_timeout(mut self, timeout: Duration) -> Self {
        self.options.idle_timeout = timeout;
        self
    }

    /// Sets the time that a worker without work polls before it sleeps. The default is 50 us, and 0 on one CPU.
    pub fn spin(mut self, spin: Duration) -> Self {
        self.options.spin = spin;
        self
    }

    /// Sets the CPUs that workers run on. The default is all that the process may use.
    pub fn cpus(mut self, cpus: &[usize]) -> Self {
        cpus.clone_into(&mut self.options.cpus);
        self
    }

    /// Measures how long locks are held and waited for, and how long items wait for their start, with a few clock reads
    /// per item.
    #[cfg(sheave_lab)]
    pub fn measure(mut self, measure: bool) -> Self {
        self.options.measure = measure;
        self
    }

    /// Sets whether a ring that is about to wait runs its own short items itself: if its workers use the same CPU,
    /// where a worker would only take turns with it, and on any CPU if it submits one item and waits for it in the same
    /// call. The default is true. [`AcctCounts::helped`] counts these items.
    pub fn help(mut self, help: bool) -> Self {
        self.options.help = help;
        self
    }

    /// Makes a pool without threads, for simulators: work runs in [`IoWq::step`], on the calling thread.
    #[doc(hidden)]
    pub fn stepped(mut self, stepped: bool) -> Self {
        self.options.stepped = stepped;
        self
    }

    /// Makes the pool. Threads are created when there is work.
    pub fn build(self) -> Result<IoWq, RingError> {
        for (what, value) in ["bound workers", "unbound workers"].into_iter().zip(self.options.max_workers) {
            check_limit(what, value)?;
        }
        check_cpus(&self.options.cpus)?;
        if self.options.name.contains('\0') {
            return Err(RingError::WorkerName);
        }
        Ok(IoWq { pool: Pool::new(self.options) })
    }
}

/// Fails if the process may not use one of `cpus`.
fn check_cpus(cpus: &[usize]) -> Result<(), RingError> {
    forbidden_cpu(cpus).map_or(Ok(()), |cpu| Err(RingError::Cpu(cpu)))
}

fn check_limit(what: &'static str, value: u32) -> Result<(), RingError> {
    let high = super::acct::MAX_WORKERS;
    if value == 0 || value > high {
        return Err(RingError::Setting { what, value: value.into(), low: 1, high: high.into() });
    }
    Ok(())
}

/// Handle of the worker pool of one ring or of up to 4,096 rings; in further rings an operation that needs a worker
/// ends with `-EAGAIN`. Clones share the pool; dropping the last one ends it and joins its threads.
///
/// ```
/// use sheave_uring::{IoWq, Ring, prep};
///
/// let wq = IoWq::builder().max_workers(4, 16).name("db-wq").build()?;
/// let mut ring = Ring::builder().entries(8).io_wq(&wq).build()?;
/// ring.push(prep::nop().run_async().user_data(7)).map_err(|full| full.error)?;
/// ring.submit()?;
/// ring.drain();
/// assert_eq!(ring.completions().map(|c| c.user_data).collect::<Vec<_>>(), [7]);
/// assert_eq!(wq.counts()[0].created, 1);
/// # Ok::<(), sheave_uring::RingError>(())
/// ```
#[derive(Clone, Debug)]
pub struct IoWq {
    pool: Pool<RingSource>,
}

impl IoWq {
    /// Returns a builder with the default settings.
    #[must_use]
    pub fn builder() -> IoWqBuilder {
        IoWqBuilder::default()
    }

    /// Sets the maximum number of workers of both accounts; `None` keeps a limit. May be called at any time: workers
    /// above a lowered limit end after the work they are running. Returns the limits before.
    pub fn set_max_workers(&self, bound: Option<u32>, unbound: Option<u32>) -> Result<[u32; 2], RingError> {
        let before = self.pool.counts().map(|acct| acct.limit);
        for (what, value) in [("bound workers", bound), ("unbound workers", unbound)] {
            check_limit(what, value.unwrap_or(1))?;
        }
        self.pool.set_max_workers([bound.unwrap_or(before[0]), unbound.unwrap_or(before[1])]);
        Ok(before)
    }

    /// Moves the workers to `cpus`, also running ones; an empty list means all CPUs that the process may use.
    pub fn set_cpus(&self, cpus: &[usize]) -> Result<(), RingError> {
        check_cpus(cpus)?;
        self.pool.set_cpus(cpus);
        Ok(())
    }

    /// Returns the present counts of the bound and of the unbound account.
    #[must_use]
    pub fn counts(&self) -> [AcctCounts; 2] {
        self.pool.counts()
    }

    /// Runs one queued item on this thread, bound work first. Returns false if none is queued. Only for a
    /// [stepped](IoWqBuilder::stepped) pool. A ring that waits, drains or is dropped takes steps itself.
    ///
    /// ```
    /// use sheave_uring::{IoWq, Ring, prep};
    ///
    /// let wq = IoWq::builder().stepped(true).build()?;
    /// let mut ring = Ring::builder().entries(8).io_wq(&wq).build()?;
    /// ring.push(prep::nop().run_async().user_data(7)).map_err(|full| full.error)?;
    /// ring.submit()?;
    /// assert_eq!(ring.completions().count(), 0, "nobody has stepped");
    /// assert!(wq.step() && !wq.step());
    /// assert_eq!(ring.completions().map(|c| c.user_data).collect::<Vec<_>>(), [7]);
    /// # Ok::<(), sheave_uring::RingError>(())
    /// ```
    #[doc(hidden)]
    pub fn step(&self) -> bool {
        self.pool.step()
    }

    /// Runs one item of one account. Mappings and FALLOCATE on files are unbound work.
    #[doc(hidden)]
    pub fn step_account(&self, account: Account) -> bool {
        self.pool.step_account(account)
    }

    /// Returns the statistics of the pool's locks; times are 0 unless measured.
    #[cfg(sheave_lab)]
    #[must_use]
    pub fn lock_stats(&self) -> LockStats {
        self.pool.lock_stats()
    }

    /// Returns the histogram of the times from queue to start, if measured: upper bounds in ns, each with the number of
    /// items that waited up to it and longer than the bound before.
    #[cfg(sheave_lab)]
    #[must_use]
    pub fn starts(&self) -> Vec<(u64, u64)> {
        self.pool.starts()
    }
}

/// Number of useless polls in a row after which a ring sleeps without polling, except in one of `SPIN_AGAIN` waits.
const SPINS_IN_VAIN: u32 = 4;
const SPIN_AGAIN: u32 = 64;

/// A ring's connection to its pool.
#[derive(Debug)]
pub(crate) struct RingWq {
    // Declared before the pool, so that it is dropped first.
    submitter: Option<Submitter<RingSource>>,
    pool: IoWq,
    done: Arc<DoneQueue>,
    slots: u32,
    make: MakeIssuer,
    /// Slots whose work is with the workers or will be.
    outstanding: u32,
    /// Every outstanding slot ends with exactly one CQE, and no other request depends on it.
    all_alone: bool,
    /// Waits in a row that polled for results and found none.
    spins_lost: u32,
    /// Slots taken back, for this ring to run.
    helped: Vec<u32>,
}

impl RingWq {
    /// Connects a ring with `slots` slots, whose operations workers issue on what `make` makes.
    pub(crate) fn new(pool: IoWq, done: Arc<DoneQueue>, slots: u32, make: MakeIssuer) -> RingWq {
        RingWq {
            submitter: None,
            pool,
            done,
            slots,
            make,
            outstanding: 0,
            all_alone: true,
            spins_lost: 0,
            helped: Vec::new(),
        }
    }

    pub(crate) fn pool(&self) -> &IoWq {
        &self.pool
    }

    /// Queues work for a slot; [`RingWq::commit`] makes it visible to workers. Returns false if the pool has no place
    /// for this ring, or the slot has work already.
    #[inline]
    pub(crate) fn queue(&mut self, slot: u32, work: Work) -> bool {
        let queued = self.hand_over(slot, work);
        self.count(queued, false);
        queued
    }

    #[inline]
    fn count(&mut self, queued: bool, alone: bool) {
        self.all_alone = alone && (self.all_alone || self.outstanding == 0);
        self.outstanding += u32::from(queued);
    }

    /// Queues a whole operation. In a stepped pool the operation comes back to the ring, which issues it. `alone` means
    /// that it ends with one CQE and no other request depends on it.
    #[inline]
    pub(crate) fn offload(&mut self, slot: u32, work: Work, kind: Kind, alone: bool) -> bool {
        let stepped = self.pool.pool.is_stepped();
        let Some(submitter) = self.submitter() else { return false };
        let mut flags = WorkFlags::from(kind);
        if stepped {
            submitter.source().put(slot, Work::Issue);
            flags = WorkFlags::SHORT;
        } else if !matches!(work, Work::Nothing) {
            submitter.source().put(slot, work);
        }
        let queued = submitter.queue(slot, flags);
        self.count(queued, alone);
        queued
    }

    #[inline]
    fn hand_over(&mut self, slot: u32, work: Work) -> bool {
        let Some(submitter) = self.submitter() else { return false };
        let flags = match work {
            Work::Issue | Work::Nothing | Work::Known(_) | Work::Run(..) => WorkFlags::SHORT,
            // May block, but need no hash: at most one batch of each kind runs per file (I1 of `file_work`).
            Work::Complete(..) | Work::Sync(..) | Work::Sum(..) => WorkFlags::BOUND,
            // May wait for a grace period, for space or for other writes (I4 of `blocking`).
            Work::Map(..) | Work::Fallocate(..) => WorkFlags::UNBOUND,
        };
        submitter.source().put(slot, work);
        submitter.queue(slot, flags)
    }

    #[inline]
    fn submitter(&mut self) -> Option<&mut Submitter<RingSource>> {
        if self.submitter.is_none() {
            self.register();
        }
        self.submitter.as_mut()
    }

    #[cold]
    fn register(&mut self) {
        self.helped.reserve_exact(super::shard::BATCH);
        let source = RingSource::new(Arc::clone(&self.done), self.slots, self.make);
        self.submitter = self.pool.pool.submitter(source, self.slots);
    }

    /// Makes the queued work visible to workers.
    #[inline]
    pub(crate) fn commit(&mut self) {
        if let Some(submitter) = &mut self.submitter {
            submitter.commit();
        }
    }

    /// Called when the ring has submitted and is about to wait. If the wait is for one short item only, which is not
    /// committed, takes it back for [`RingWq::pop_helped`] and returns true: no other thread would run it sooner, and
    /// this thread has nothing else to do.
    #[inline]
    pub(crate) fn keep_alone(&mut self) -> bool {
        if self.outstanding != 1 {
            return false;
        }
        let Some(submitter) = &mut self.submitter else { return false };
        submitter.take_staged_alone(&mut self.helped);
        !self.helped.is_empty()
    }

    /// Called when the ring is about to wait. Takes back items that the ring can run, for [`RingWq::pop_helped`], and
    /// returns true if there are some; otherwise sends the wake-up that was put off.
    #[inline]
    pub(crate) fn before_sleep(&mut self) -> bool {
        if self.outstanding == 0 {
            return false;
        }
        let Some(submitter) = &mut self.submitter else { return false };
        submitter.help(&mut self.helped);
        // Reversed so that `pop_helped` returns them in queueing order.
        self.helped.reverse();
        if self.helped.is_empty() {
            submitter.wake_deferred();
        }
        !self.helped.is_empty()
    }

    /// Number of workers' results until which a ring that waits for `wanted` CQEs may sleep; 0 if each result must wake
    /// it.
    #[inline]
    pub(crate) fn results_to_wait_for(&self, wanted: u32) -> u32 {
        if self.all_alone { wanted.min(self.outstanding) } else { 0 }
    }

    /// Records if a wait that polled found a result (`came`).
    pub(crate) fn note_spin(&mut self, came: bool) {
        self.spins_lost = if came { 0 } else { self.spins_lost.wrapping_add(1) };
    }

    /// Returns true if polling before a sleep is useless, as in the last waits. Every `SPIN_AGAIN`th wait polls anyway,
    /// to notice a change.
    #[inline]
    pub(crate) fn spins_in_vain(&self) -> bool {
        self.spins_lost >= SPINS_IN_VAIN && !self.spins_lost.is_multiple_of(SPIN_AGAIN)
    }

    /// Returns true if items were taken back and not run yet.
    #[inline]
    pub(crate) fn has_helped(&self) -> bool {
        !self.helped.is_empty()
    }

    /// Returns the next slot that was taken back, and how to continue with it.
    pub(crate) fn pop_helped(&mut self) -> Option<(u32, WorkDone)> {
        let slot = self.helped.pop()?;
        self.outstanding -= 1;
        let how = self.submitter.as_ref().map_or(WorkDone::Reissue, |submitter| submitter.source().take_back(slot));
        Some((slot, how))
    }

    /// Returns true if a wake-up for this ring's work was put off.
    #[inline]
    pub(crate) fn has_deferred(&self) -> bool {
        self.outstanding > 0 && self.submitter.as_ref().is_some_and(Submitter::has_deferred)
    }

    /// Sends the wake-up that was put off. Called before an outside event loop waits for the ring.
    pub(crate) fn wake_deferred(&mut self) {
        if let Some(submitter) = &mut self.submitter {
            submitter.wake_deferred();
        }
    }

    /// Stepped pool: runs one item of bound work. Returns false if there is none, or the pool has threads.
    pub(crate) fn step_bound(&self) -> bool {
        self.pool.pool.is_stepped() && self.pool.step_account(Account::Bound)
    }

    /// Waits until a worker has ended the work of a slot. Called when the ring is dropped. The result is delivered at
    /// once or very soon after.
    pub(crate) fn wait_for(&self, slot: u32) {
        if let Some(submitter) = &self.submitter {
            submitter.wait_for(slot);
            // The worker delivers the result after it has ended the item.
            sheave_base::sync::thread::yield_now();
        }
    }

    /// Returns true if a worker for this ring's work could not be created: the ring must try again soon.
    #[inline]
    pub(crate) fn is_starved(&self) -> bool {
        self.outstanding > 0 && self.submitter.as_ref().is_some_and(Submitter::is_starved)
    }

    /// Tries again to create a worker.
    pub(crate) fn retry(&self) {
        if let Some(submitter) = &self.submitter {
            submitter.retry();
        }
    }

    /// Returns true if work was queued and not committed.
    pub(crate) fn has_staged(&self) -> bool {
        self.submitter.as_ref().is_some_and(Submitter::has_staged)
    }

    /// Adds `more` slots that the work of one slot will end, each with its own result.
    pub(crate) fn expect(&mut self, more: usize) {
        self.outstanding += more as u32;
    }

    /// Removes expected slots whose work was not done (refused, or the file panicked).
    pub(crate) fn expect_no_more(&mut self, slots: usize) {
        self.outstanding -= slots as u32;
    }

    /// Called when a slot's result was taken from the task-work queue.
    #[inline]
    pub(crate) fn took(&mut self) {
        self.outstanding -= 1;
    }

    /// Returns true if polling keeps a worker that has work of this ring from this CPU.
    #[inline]
    pub(crate) fn is_in_the_way(&self) -> bool {
        self.outstanding > 0 && self.submitter.as_ref().is_some_and(Submitter::is_in_the_way)
    }

    /// Returns true if this ring's work is done only in steps.
    #[inline]
    pub(crate) fn wants_steps(&self) -> bool {
        self.outstanding > 0 && self.pool.pool.is_stepped()
    }

    /// Called when the ring is being dropped: workers abandon the operations that they have started for it.
    pub(crate) fn go(&self) {
        if let Some(submitter) = &self.submitter {
            submitter.source().go();
        }
    }

    /// Has sleeping workers detach the devices that they keep for this ring: one of them goes.
    pub(crate) fn let_go(&self) {
        if let Some(submitter) = &self.submitter {
            submitter.let_go();
        }
    }

    /// Cancels the work of a slot.
    pub(crate) fn cancel(&mut self, slot: u32) -> Cancelled {
        let Some(submitter) = &mut self.submitter else { return Cancelled::NotFound };
        let outcome = submitter.cancel(slot);
        if outcome == Cancelled::Queued {
            submitter.source().forget(slot);
            self.outstanding -= 1;
        }
        outcome
    }
}

impl Drop for RingWq {
    fn drop(&mut self) {
        if let Some(submitter) = &mut self.submitter {
            // I2. Running items are requested to end early.
            submitter.close(|_| true);
            // Work that was not started holds files, which a worker's copy of this client would keep open.
            for slot in 0..self.slots {
                submitter.source().forget(slot);
            }
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
