//! A ring as a client of a pool.
//!
//! Owns the public handle of the pool that rings use ([`IoWq`]), and a ring's way into it ([`RingWq`]). What workers do
//! for a ring is in [`ring_work`](super::ring_work).
//!
//! Invariants:
//! - I1: a slot of the ring has at most one item, and its result comes back once, unless a cancel took it back.
//! - I2: when this is dropped, what no worker has begun is not run: it would only start an operation or a sync that
//!   nobody waits for. The ring has seen to the ends of writes before.

use std::time::Duration;

use sheave_base::sync::Arc;

use super::pool::{AcctCounts, Pool, Submitter};
use super::ring_work::{Kind, MakeIssuer, RingSource, Work};
use super::shared::PoolOptions;
use super::thread_state::forbidden_cpu;
use super::work::WorkFlags;
use super::{Account, Cancelled, LockStats};
use crate::error::RingError;
use crate::task_work::DoneQueue;
use crate::work_done::WorkDone;

/// Makes an [`IoWq`].
#[derive(Clone, Debug, Default)]
pub struct IoWqBuilder {
    options: PoolOptions,
}

impl IoWqBuilder {
    /// Most workers for work that ends by itself and soon (files), and for work that may take for ever; both 1 to
    /// 4,096. Four a CPU and 256 unless set.
    pub fn max_workers(mut self, bound: u32, unbound: u32) -> Self {
        self.options.max_workers = [bound, unbound];
        self
    }

    /// Name of the threads, which a dash and a number follow; Linux shows 15 bytes of it. `sheave-wq` unless set.
    pub fn name(mut self, name: &str) -> Self {
        name.clone_into(&mut self.options.name);
        self
    }

    /// A worker that nobody needs ends after this time; 5 s unless set.
    pub fn idle_timeout(mut self, timeout: Duration) -> Self {
        self.options.idle_timeout = timeout;
        self
    }

    /// How long a worker without work looks for more before it sleeps; 50 us unless set, and 0 on one CPU.
    pub fn spin(mut self, spin: Duration) -> Self {
        self.options.spin = spin;
        self
    }

    /// CPUs that workers run on; all that the process may use unless set.
    pub fn cpus(mut self, cpus: &[usize]) -> Self {
        cpus.clone_into(&mut self.options.cpus);
        self
    }

    /// Measure how long locks are held and waited for, and how long items wait for their start: some clock reads an
    /// item.
    #[doc(hidden)]
    pub fn measure(mut self, measure: bool) -> Self {
        self.options.measure = measure;
        self
    }

    /// Whether a ring that is about to wait runs its own short items itself: on the CPU of its workers, instead of
    /// letting a worker take turns with it there, and anywhere the one item that it submits and waits for in the same
    /// call. It does unless this says no. [`AcctCounts::helped`] counts them.
    pub fn help(mut self, help: bool) -> Self {
        self.options.help = help;
        self
    }

    /// A pool without threads, for simulators: work runs in [`IoWq::step`], on the thread that calls it.
    #[doc(hidden)]
    pub fn stepped(mut self, stepped: bool) -> Self {
        self.options.stepped = stepped;
        self
    }

    /// Makes the pool, which has no thread until there is work.
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

/// Refuses CPUs that the process may not use.
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

/// The worker pool of one ring or of several, 4,096 at most: what needs a worker ends with `-EAGAIN` in a ring beyond
/// that. A clone is the same pool; the last one to go ends it and joins its threads.
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
    /// Settings of a new pool.
    #[must_use]
    pub fn builder() -> IoWqBuilder {
        IoWqBuilder::default()
    }

    /// Sets the most workers of both accounts, also while they work: those above a lowered limit end as soon as they
    /// have finished what they are at. `None` leaves a limit as it is. Returns the limits before.
    pub fn set_max_workers(&self, bound: Option<u32>, unbound: Option<u32>) -> Result<[u32; 2], RingError> {
        let before = self.pool.counts().map(|acct| acct.limit);
        for (what, value) in [("bound workers", bound), ("unbound workers", unbound)] {
            check_limit(what, value.unwrap_or(1))?;
        }
        self.pool.set_max_workers([bound.unwrap_or(before[0]), unbound.unwrap_or(before[1])]);
        Ok(before)
    }

    /// Moves the workers to these CPUs, also while they work; none for all that the process may use.
    pub fn set_cpus(&self, cpus: &[usize]) -> Result<(), RingError> {
        check_cpus(cpus)?;
        self.pool.set_cpus(cpus);
        Ok(())
    }

    /// The workers of the bound and of the unbound account, now.
    #[must_use]
    pub fn counts(&self) -> [AcctCounts; 2] {
        self.pool.counts()
    }

    /// Runs one queued item on this thread, bound work first; false when none is queued. Only for a
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

    /// Runs one item of one account; mappings and FALLOCATE on files are unbound work.
    #[doc(hidden)]
    pub fn step_account(&self, account: Account) -> bool {
        self.pool.step_account(account)
    }

    /// What the pool's locks have seen; times are 0 unless measured.
    #[doc(hidden)]
    #[must_use]
    pub fn lock_stats(&self) -> LockStats {
        self.pool.lock_stats()
    }

    /// How long items waited for their start, when that is measured: upper bounds in ns, and how many items waited so
    /// long and longer than the bound before.
    #[doc(hidden)]
    #[must_use]
    pub fn starts(&self) -> Vec<(u64, u64)> {
        self.pool.starts()
    }
}

/// After so many waits that polled in vain a ring sleeps at once, and polls in one wait of so many.
const SPINS_IN_VAIN: u32 = 4;
const SPIN_AGAIN: u32 = 64;

/// A ring's way into its pool.
#[derive(Debug)]
pub(crate) struct RingWq {
    // Before the pool: dropped first.
    submitter: Option<Submitter<RingSource>>,
    pool: IoWq,
    done: Arc<DoneQueue>,
    slots: u32,
    make: MakeIssuer,
    /// Slots that workers have or will have.
    outstanding: u32,
    /// All of these slots end with one CQE each, whatever comes of them, and nothing follows them.
    all_alone: bool,
    /// Waits in a row that polled for results in vain.
    spins_lost: u32,
    /// Slots taken back, for this ring to run.
    helped: Vec<u32>,
}

impl RingWq {
    /// A way for a ring with so many slots, whose operations workers issue on what `make` makes.
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

    /// Queues work for a slot; [`RingWq::commit`] hands it over. False when the pool has no place for this ring, or the
    /// slot has work already.
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

    /// Queues a whole operation. Where workers have no threads the ring gets it back, and issues it. `alone`: it ends
    /// with one CQE, and nothing follows it.
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
            // One at a time of each kind by itself (I1 of `file_work`).
            Work::Complete(..) | Work::Sync(..) | Work::Sum(..) => WorkFlags::BOUND,
            // I4 of `blocking`.
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

    /// Hands over what was queued.
    #[inline]
    pub(crate) fn commit(&mut self) {
        if let Some(submitter) = &mut self.submitter {
            submitter.commit();
        }
    }

    /// The ring has submitted and is about to wait. If one short item, which was not handed over, is all that it will
    /// wait for, takes that back, for [`RingWq::pop_helped`]: no other thread would do it sooner, and nothing would be
    /// done meanwhile.
    #[inline]
    pub(crate) fn keep_alone(&mut self) -> bool {
        if self.outstanding != 1 {
            return false;
        }
        let Some(submitter) = &mut self.submitter else { return false };
        submitter.take_staged_alone(&mut self.helped);
        !self.helped.is_empty()
    }

    /// The ring is about to wait: takes back what it can do itself, for [`RingWq::pop_helped`]; wakes a worker when
    /// there is none of it and one was not woken before.
    #[inline]
    pub(crate) fn before_sleep(&mut self) -> bool {
        if self.outstanding == 0 {
            return false;
        }
        let Some(submitter) = &mut self.submitter else { return false };
        submitter.help(&mut self.helped);
        // In the order in which they were queued.
        self.helped.reverse();
        if self.helped.is_empty() {
            submitter.wake_deferred();
        }
        !self.helped.is_empty()
    }

    /// For how many results of workers a ring that wants so many may sleep; 0 when it must hear of each.
    #[inline]
    pub(crate) fn results_to_wait_for(&self, wanted: u32) -> u32 {
        if self.all_alone { wanted.min(self.outstanding) } else { 0 }
    }

    /// A wait has polled: in vain, or something came.
    pub(crate) fn note_spin(&mut self, came: bool) {
        self.spins_lost = if came { 0 } else { self.spins_lost.wrapping_add(1) };
    }

    /// Whether it is no use to poll before a sleep: the last waits did so in vain. Now and then one tries again.
    #[inline]
    pub(crate) fn spins_in_vain(&self) -> bool {
        self.spins_lost >= SPINS_IN_VAIN && !self.spins_lost.is_multiple_of(SPIN_AGAIN)
    }

    /// Whether something was taken back and not run yet.
    #[inline]
    pub(crate) fn has_helped(&self) -> bool {
        !self.helped.is_empty()
    }

    /// A slot that was taken back, and what is to be done with it.
    pub(crate) fn pop_helped(&mut self) -> Option<(u32, WorkDone)> {
        let slot = self.helped.pop()?;
        self.outstanding -= 1;
        let how = self.submitter.as_ref().map_or(WorkDone::Reissue, |submitter| submitter.source().take_back(slot));
        Some((slot, how))
    }

    /// Whether a worker was not woken for this ring's work.
    #[inline]
    pub(crate) fn has_deferred(&self) -> bool {
        self.outstanding > 0 && self.submitter.as_ref().is_some_and(Submitter::has_deferred)
    }

    /// Wakes the worker that was not woken: the ring is about to be waited for from outside.
    pub(crate) fn wake_deferred(&mut self) {
        if let Some(submitter) = &mut self.submitter {
            submitter.wake_deferred();
        }
    }

    /// Does a piece of bound work of the pool, where nobody else does; false when there is none, or there are workers.
    pub(crate) fn step_bound(&self) -> bool {
        self.pool.pool.is_stepped() && self.pool.step_account(Account::Bound)
    }

    /// Waits until a worker has ended the work of a slot, when the ring goes. Its result comes at once, or very soon.
    pub(crate) fn wait_for(&self, slot: u32) {
        if let Some(submitter) = &self.submitter {
            submitter.wait_for(slot);
            // The worker hands its results over after that.
            sheave_base::sync::thread::yield_now();
        }
    }

    /// Whether a worker for this ring's work could not be made: the ring tries again soon.
    #[inline]
    pub(crate) fn is_starved(&self) -> bool {
        self.outstanding > 0 && self.submitter.as_ref().is_some_and(Submitter::is_starved)
    }

    /// Tries again to make a worker.
    pub(crate) fn retry(&self) {
        if let Some(submitter) = &self.submitter {
            submitter.retry();
        }
    }

    /// Whether something was queued and not handed over.
    pub(crate) fn has_staged(&self) -> bool {
        self.submitter.as_ref().is_some_and(Submitter::has_staged)
    }

    /// The work of a slot will end these many slots more, each by itself.
    pub(crate) fn expect(&mut self, more: usize) {
        self.outstanding += more as u32;
    }

    /// That many of the expected slots will not come: their work was not done.
    pub(crate) fn expect_no_more(&mut self, slots: usize) {
        self.outstanding -= slots as u32;
    }

    /// A slot's result was taken from the task-work queue.
    #[inline]
    pub(crate) fn took(&mut self) {
        self.outstanding -= 1;
    }

    /// Whether workers have something of this ring, and wait for the CPU that polls for it.
    #[inline]
    pub(crate) fn is_in_the_way(&self) -> bool {
        self.outstanding > 0 && self.submitter.as_ref().is_some_and(Submitter::is_in_the_way)
    }

    /// Whether somebody must step for this ring's work to be done.
    #[inline]
    pub(crate) fn wants_steps(&self) -> bool {
        self.outstanding > 0 && self.pool.pool.is_stepped()
    }

    /// The ring is being dropped: what workers have begun of its operations is given up.
    pub(crate) fn go(&self) {
        if let Some(submitter) = &self.submitter {
            submitter.source().go();
        }
    }

    /// Takes a slot's work back.
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
            // I2. What runs is asked to end early.
            submitter.close(|_| true);
            // What was not begun has files, which a worker's copy of this client would keep open.
            for slot in 0..self.slots {
                submitter.source().forget(slot);
            }
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
