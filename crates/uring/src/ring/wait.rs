//! Waiting, cancelling, and what starts when something ended: the calls of a ring that are not its fast path.
//!
//! Owns when a ring sleeps and for how long: until the kernel ring or another thread wakes it (both in
//! [`IoCtx::wait`](sheave_blk::ctx::IoCtx::wait)), the caller's time is over, or a timeout is due.
//!
//! Invariants:
//! - I1: a ring that sleeps has nothing that could start: a reap goes on until nothing is ready, and what it gives to
//!   workers it has handed over when it returns.
//! - I2: a ring with nothing in flight that nobody else can reach does not sleep without a time limit.
//! - I4: a device that says when it has something is polled for at that time, and never in vain: polls in vain are
//!   those that nothing known would end (workers, other threads). So what workers take makes no ring late for devices.
//! - I3: a wake ends one wait: the one that runs, or else the next that would sleep.

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

/// How soon a ring that waits tries again to make a worker for which there was no thread.
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
                // The last handle may have been used, and have gone, since the look above.
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

    /// Sends what is prepared and waits for anything, once; see [`Ring::wait_any`](crate::Ring::wait_any).
    pub(crate) fn wait_any(&mut self, wanted: u32, timeout: Option<Duration>) {
        self.core.queues.cq_publish();
        if !(self.io.has_unsent() && self.core.is_settled()) {
            self.reap();
        }
        if self.core.queues.cq_ready() > 0 || self.io.has_socket_events() || self.task_work.take_wake() {
            return self.io.commit();
        }
        self.sleep(wanted, timeout);
        self.reap();
    }

    /// Announces a wait from outside, unless there is something to read or to do now. How long it may last.
    pub(super) fn prepare_wait(&mut self) -> Option<Option<Duration>> {
        self.reap();
        let steps = self.core.wq.wants_steps() && self.core.wq.pool().step();
        if steps || self.core.queues.cq_ready() > 0 || !self.core.overflow.is_empty() {
            return None;
        }
        self.core.wq.wake_deferred();
        let most = self.retry_worker(None);
        let limit = self.io.prepare_wait()?;
        // What came before the announcement has rung nobody.
        if !self.task_work.is_empty() || self.task_work.take_wake() || self.io.has_socket_events() {
            self.io.cancel_wait();
            return None;
        }
        Some(self.sleep_limit([limit, most].into_iter().flatten().min()))
    }

    /// Whether the ring has looked for completions long enough since `from`, which this sets when it is `None`, or has
    /// a reason to sleep at once.
    fn has_spun(&mut self, from: &mut Option<u64>) -> bool {
        // A worker on this CPU runs when this thread sleeps.
        let wq = &mut self.core.wq;
        if wq.is_in_the_way() || wq.has_deferred() || wq.wants_steps() {
            return true;
        }
        let now = self.io.clock().cycles();
        if self.io.is_due_within(self.near) {
            // I4: what it polls for after that, it has not polled for yet.
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

    /// Sleeps until there may be something to reap, or does a worker's work where nobody else does. Nobody else wakes
    /// the ring for what I1 says.
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
        // A ring that hears late of an end makes late what depends on it.
        let wanted = if wanted > 1 && self.more_depends() { 1 } else { wanted };
        // With a slot in use (a chain, a drain, a timeout, work after the data), more than its own CQE may depend on
        // the end of an I/O; of plain records each end is one CQE.
        let remote = if self.core.reqs.live() > 0 { 1 } else { wanted };
        if results <= 1 {
            return self.io.wait_for(wanted, remote, limit);
        }
        if self.task_work.sleep_until(results) {
            self.io.wait_for(wanted, remote, limit);
        }
        self.task_work.is_awake();
    }

    /// Whether more than its own CQE depends on the end of an I/O: a chain, a drain or a timeout goes on with it,
    /// another waits for its bio, or it has a step to come.
    fn more_depends(&self) -> bool {
        let Core { reqs, deferred, retry, timers, .. } = &self.core;
        let goes_on = |req: &Req| {
            let steps = req.kiocb.plan != CompletionPlan::Inline || req.kiocb.flags & (IOCB_DSYNC | IOCB_SUMMED) != 0;
            req.link != NO_SLOT || steps
        };
        let others = !(deferred.is_empty() && retry.is_empty()) || timers.is_counting();
        others || (reqs.live() > 0 && reqs.iter_live().any(|(_, req)| goes_on(req)))
    }

    /// For how many results of workers the ring need not be woken, and one more. What counts CQEs, or waits for the end
    /// of others, hears of each.
    fn results_to_wait_for(&self, wanted: u32) -> u32 {
        let Core { wq, timers, deferred, .. } = &self.core;
        if timers.is_armed() || !deferred.is_empty() { 0 } else { wq.results_to_wait_for(wanted) }
    }

    /// Runs what was taken back from the workers: operations are issued as if they had never been theirs.
    #[cold]
    pub(super) fn run_helped(&mut self) {
        self.core.quiet.stir();
        // What workers have ended was queued before.
        self.take_done();
        while let Some((slot, how)) = self.core.wq.pop_helped() {
            self.worker_done(slot, how);
        }
    }

    /// Tries again to make a worker for which there was no thread. How long the ring may sleep, which it otherwise may
    /// for the time `left`.
    fn retry_worker(&self, left: Option<Duration>) -> Option<Duration> {
        if !self.core.wq.is_starved() {
            return left;
        }
        self.core.wq.retry();
        // The next try is not at once: what the last one lacked it may lack for a while.
        Some(left.map_or(RETRY, |left| left.min(RETRY)))
    }

    /// How long the ring may sleep.
    fn sleep_limit(&self, left: Option<Duration>) -> Option<Duration> {
        if !self.core.timers.is_armed() {
            return left;
        }
        [left, self.core.timers.wait_limit(self.io.clock())].into_iter().flatten().min()
    }

    /// Whether anything could still post a CQE: a request, or another thread with a handle of this ring. In the latter
    /// case the ring hears of the handle's end.
    fn can_complete(&self) -> bool {
        if self.core.live() > 0 {
            return true;
        }
        self.task_work.count_handles();
        let handle = self.task_work.handle();
        // The mailbox last: a handle that has gone may have sent something before.
        self.task_work.is_shared(self.core.files.handles_of(handle)) || self.task_work.has_mail()
    }

    /// Ends the timeouts that are due or have seen enough CQEs, and starts what waited for them.
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

    /// Starts what waited behind a drain or in a chain, until nothing more may start.
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

    /// Waits until everything submitted has completed. Completions stay to be read; those that find the CQ full are
    /// kept behind it.
    pub(super) fn drain(&mut self) {
        while self.core.live() > 0 {
            self.reap();
            if self.core.live() > 0 {
                self.sleep(1, None);
            }
        }
        self.reap();
    }

    /// Cancels operations that wait, without an SQE: the first that matches, or all ([`Cancel::all`],
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
