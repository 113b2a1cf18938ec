//! Waiting, cancelling, and starting requests that depend on others: the calls of a ring outside its fast path.
//!
//! Owns the decision when a ring sleeps and for how long: until the kernel ring or another thread wakes it (both in
//! [`IoCtx::wait`](sheave_blk::ctx::IoCtx::wait)), the caller's timeout expires, or a timeout request is due.
//!
//! Invariants:
//! - I1: a sleeping ring has no request that could start: a reap repeats until none is ready, and has committed its
//!   work for workers when it returns.
//! - I2: a ring with nothing in flight and no handle on another thread does not sleep without a time limit.
//! - I4: the ring polls for a completion that a device has announced for a time that is near, and such polling never
//!   counts as useless. Only polling for ends of unknown time (workers, other threads) can be useless. So a ring that
//!   has stopped polling for workers still polls for devices.
//! - I3: a wake ends one wait: the running one, or else the next that would sleep.

use std::time::Duration;

use sheave_base::status::Errno;
use sheave_iomap::completion_plan::CompletionPlan;
use sheave_iomap::kiocb::{IOCB_DSYNC, IOCB_SUMMED};

use super::inner::Inner;
use crate::completion::Waited;
use crate::core::Core;
use crate::prep::Cancel;
use crate::req::{NO_SLOT, Req};
use crate::sqe::errno;

/// Retry delay of a waiting ring after a worker's thread could not be created.
const RETRY: Duration = Duration::from_millis(10);

impl Inner {
    pub(super) fn wait_slow(&mut self, wanted: u32, timeout: Option<Duration>) -> Waited {
        let waited = self.wait_for(wanted, timeout);
        if timeout.is_none() {
            self.task_work.is_done_counting();
        }
        waited
    }

    fn wait_for(&mut self, wanted: u32, timeout: Option<Duration>) -> Waited {
        let deadline = timeout.map(|timeout| self.io.clock().precise().after(timeout));
        let wanted = wanted.min(self.core.queues.cq_entries());
        let mut spin_from = None;
        loop {
            let ready = self.core.queues.cq_ready();
            if ready >= wanted {
                if spin_from.is_some() {
                    self.core.wq.note_spin(true);
                }
                return Waited::Ready(ready);
            }
            if self.task_work.take_wake() {
                return Waited::Woken;
            }
            if deadline.is_none() && !self.can_complete() {
                // The last handle may have sent a wake and been dropped since the look above.
                return if self.task_work.take_wake() { Waited::Woken } else { Waited::Idle };
            }
            let left = deadline.map(|deadline| deadline.left(self.io.clock().precise()));
            if left == Some(Duration::ZERO) {
                return Waited::TimedOut;
            }
            if self.io.waits_for_kernel() || self.has_spun(&mut spin_from) {
                self.sleep(wanted - ready, left);
                spin_from = None;
            } else {
                sheave_base::sync::hint::spin_loop();
            }
            self.reap();
        }
    }

    /// Sends the prepared I/O and waits once for any completion; see [`Ring::wait_any`](crate::Ring::wait_any).
    pub(crate) fn wait_any(&mut self, wanted: u32, timeout: Option<Duration>) {
        self.core.queues.cq_publish();
        if !(self.io.has_unsent() && self.core.is_settled()) {
            self.reap();
        }
        if self.core.queues.cq_ready() > 0 || self.io.has_socket_events() || self.task_work.take_wake() {
            return self.io.commit();
        }
        if timeout == Some(Duration::ZERO) && self.core.is_settled() {
            // A timer that expires at once costs more than the rest of the call.
            self.io.commit();
        } else {
            self.sleep(wanted, timeout);
        }
        self.reap();
    }

    /// Announces that an event loop outside the ring will wait for its descriptor. Returns the longest time that it may
    /// wait (`None` within: unlimited), or `None` if there is something to read or to do now.
    pub(super) fn prepare_wait(&mut self) -> Option<Option<Duration>> {
        self.reap();
        let steps = self.core.wq.wants_steps() && self.core.wq.pool().step();
        if steps || self.core.queues.cq_ready() > 0 || !self.core.overflow.is_empty() {
            return None;
        }
        self.core.wq.wake_deferred();
        let most = self.retry_worker(None);
        let limit = self.io.prepare_wait()?;
        // Events before the announcement have not made the descriptor readable.
        if !self.task_work.is_empty() || self.task_work.take_wake() || self.io.has_socket_events() {
            self.io.cancel_wait();
            return None;
        }
        Some(self.sleep_limit([limit, most].into_iter().flatten().min()))
    }

    /// Returns true if the ring has polled long enough since `from`, or should sleep without polling. Sets `from` if it
    /// is `None`.
    fn has_spun(&mut self, from: &mut Option<u64>) -> bool {
        // A worker that shares this CPU runs only when this thread sleeps.
        let wq = &mut self.core.wq;
        if wq.is_in_the_way() || wq.has_deferred() || wq.wants_steps() {
            return true;
        }
        let now = self.io.clock().cycles();
        if self.io.is_due_within(self.near) {
            // I4: the polling time for workers and other threads begins after this.
            *from = Some(now);
            return false;
        }
        let spun = now.wrapping_sub(*from.get_or_insert(now)) >= self.spin_cycles;
        if spun || wq.spins_in_vain() {
            wq.note_spin(false);
            return true;
        }
        false
    }

    /// Sleeps until there may be something to reap, or runs a worker's item itself if no worker will. The assertions
    /// check I1: nothing would wake the ring for requests that it could start itself.
    fn sleep(&mut self, wanted: u32, left: Option<Duration>) {
        if self.core.wq.before_sleep() {
            return self.run_helped();
        }
        let Core { wq, ready, retry, tasks, deferred, nr_deferred, .. } = &self.core;
        debug_assert!(!wq.has_staged(), "I1: work that no worker knows of");
        debug_assert!(ready.is_empty() && tasks.is_empty(), "I1: {ready:?} could start, {tasks:?} complete");
        debug_assert!(deferred.is_empty() || self.core.live() != *nr_deferred, "I1: a drain waits for nothing");
        let bios = self.io.bios();
        debug_assert!(retry.is_empty() || bios.live() + bios.promised() > 0, "I1: {retry:?} wait for no bio");
        if self.core.wq.wants_steps() && self.core.wq.pool().step() {
            return;
        }
        let limit = self.retry_worker(self.sleep_limit(left));
        let results = self.results_to_wait_for(wanted);
        // Dependants of a completion start when the ring wakes, so it must wake at the first.
        let wanted = if wanted > 1 && self.more_depends() { 1 } else { wanted };
        // A request in a slot (a chain, a drain, a timeout, work after the data) may start others when it ends, so the
        // ring must wake for each. Each end of a plain record is just one CQE.
        let remote = if self.core.reqs.live() > 0 { 1 } else { wanted };
        if results <= 1 {
            return self.io.wait_for(wanted, remote, limit);
        }
        if self.task_work.sleep_until(results) {
            self.io.wait_for(wanted, remote, limit);
        }
        self.task_work.is_awake();
    }

    /// Returns true if the end of an I/O may do more than post its CQE: a chain, a drain or a timeout depends on it, a
    /// request waits for its bio, or it has a further step.
    fn more_depends(&self) -> bool {
        let Core { reqs, deferred, retry, timers, .. } = &self.core;
        let goes_on = |req: &Req| {
            let steps = req.kiocb.plan != CompletionPlan::Inline || req.kiocb.flags & (IOCB_DSYNC | IOCB_SUMMED) != 0;
            req.link != NO_SLOT || steps
        };
        let others = !(deferred.is_empty() && retry.is_empty()) || timers.is_counting();
        others || (reqs.live() > 0 && reqs.iter_live().any(|(_, req)| goes_on(req)))
    }

    /// Returns the number of workers' results until which the ring may sleep. A timeout that counts CQEs, or a drain,
    /// must be updated at each result: then it is 0.
    fn results_to_wait_for(&self, wanted: u32) -> u32 {
        let Core { wq, timers, deferred, .. } = &self.core;
        if timers.is_armed() || !deferred.is_empty() { 0 } else { wq.results_to_wait_for(wanted) }
    }

    /// Issues the requests that were taken back from the workers, as if they had not been queued there.
    #[cold]
    pub(super) fn run_helped(&mut self) {
        self.core.quiet.stir();
        // Results of workers were queued earlier, so they are taken first.
        self.take_done();
        while let Some((slot, how)) = self.core.wq.pop_helped() {
            self.worker_done(slot, how);
        }
    }

    /// Tries again to create a worker if its thread could not be created. Returns how long the ring may sleep: `left`,
    /// or less if another retry will be due.
    fn retry_worker(&self, left: Option<Duration>) -> Option<Duration> {
        if !self.core.wq.is_starved() {
            return left;
        }
        self.core.wq.retry();
        // The retry is delayed because the missing resource is likely to stay missing for a while.
        Some(left.map_or(RETRY, |left| left.min(RETRY)))
    }

    /// Returns the time that the ring may sleep: `left`, or until the next timeout is due.
    fn sleep_limit(&self, left: Option<Duration>) -> Option<Duration> {
        if !self.core.timers.is_armed() {
            return left;
        }
        [left, self.core.timers.wait_limit(self.io.clock())].into_iter().flatten().min()
    }

    /// Returns true if a CQE could still be posted: by a request, or by another thread that has a handle of this ring.
    /// In the latter case the ring is woken when the handle is dropped.
    fn can_complete(&self) -> bool {
        if self.core.live() > 0 {
            return true;
        }
        self.task_work.count_handles();
        let handle = self.task_work.handle();
        // The mailbox is read last: a handle may have sent something before it was dropped.
        self.task_work.is_shared(self.core.files.handles_of(handle)) || self.task_work.has_mail()
    }

    /// Ends the timeouts that are due or have counted enough CQEs, and starts the requests that waited for them.
    #[cold]
    pub(super) fn run_timeouts(&mut self) {
        self.core.run_timers(self.io.clock());
        loop {
            self.start_waiting();
            self.core.flush_overflow();
            if !(self.core.timers.is_counting() && self.core.run_counted()) {
                return;
            }
        }
    }

    /// Starts requests that waited behind a drain or in a chain, until no more can start.
    pub(super) fn start_waiting(&mut self) {
        while !(self.core.ready.is_empty() && self.core.deferred.is_empty()) {
            self.run_deferred();
            if self.core.ready.is_empty() {
                return;
            }
            self.io.start_plug(self.core.ready.len() as u32);
            self.run_ready();
            self.core.files.leave();
            self.io.finish_plug();
        }
    }

    /// Waits until every submitted request has completed. CQEs stay to be read; those that do not fit into the CQ go to
    /// the overflow list.
    pub(super) fn drain(&mut self) {
        while self.core.live() > 0 {
            self.reap();
            if self.core.live() > 0 {
                self.sleep(1, None);
            }
        }
        self.reap();
    }

    /// Cancels waiting operations without an SQE: the first that matches, or all for a target of many. Returns the
    /// number cancelled.
    pub(super) fn cancel(&mut self, what: Cancel) -> Result<u32, Errno> {
        let target = what.target(self.core.files.ring_number());
        if !target.is_valid() {
            return Err(Errno(errno::EINVAL));
        }
        let res = self.core.cancel(target);
        self.reap();
        match u32::try_from(res) {
            Ok(count) if target.is_many() => Ok(count),
            Ok(_) => Ok(1),
            Err(_) => Err(Errno(-res)),
        }
    }
}
