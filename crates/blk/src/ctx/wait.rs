//! Waiting: called when a poll finds nothing and the caller has nothing else to do.
//!
//! Owns the decision how (parker or kernel ring) and how long to sleep. Keeps invariant I3 of the parent.

use std::time::Duration;

use sheave_base::clock::PreciseTs;
use sheave_base::parker::Wake;

use super::IoCtx;
use super::kernel::GATHER;
use crate::driver::NextEvent;
use crate::end_io::EndIo;
use crate::hctx::Hctx;
use crate::ring_core::{ALL_THE_TIME, Core};

/// Retry delay for a driver that refuses requests while it holds none.
const RETRY_REFUSED: Duration = Duration::from_millis(1);

/// Shortest sleep that can be requested. The kernel ends it within the thread's timer slack.
const AT_ONCE: Duration = Duration::from_nanos(1);

/// Events that the hardware contexts wait for, together.
#[derive(Default)]
struct Waits {
    /// True if a poll finds something, so that the ring must not sleep.
    ready: bool,
    remote: bool,
    /// Earliest time at which a driver has something to do.
    at: Option<PreciseTs>,
    /// True if a bio or request waits for the end of another request.
    next: bool,
    /// True if a driver refuses requests while it holds none.
    retry: bool,
    /// Earliest time of a timeout walk.
    walk: Option<PreciseTs>,
}

fn earlier(a: Option<PreciseTs>, b: PreciseTs) -> Option<PreciseTs> {
    Some(a.map_or(b, |a| a.min(b)))
}

impl IoCtx {
    /// Waits until a poll may find something, at most `timeout`. `wanted` is the number of completions that the caller
    /// needs before waking up is of use. Sends prepared kernel operations in the same system call.
    pub fn wait(&mut self, wanted: u32, timeout: Option<Duration>) {
        self.wait_for(wanted, wanted, timeout);
    }

    /// [`IoCtx::wait`] with a separate number, `remote`, of completions by other threads. `remote` is 1 if the caller
    /// must see each of them because other work may depend on it.
    pub fn wait_for(&mut self, wanted: u32, remote: u32, timeout: Option<Duration>) {
        let timeout = self.limit_by_trace(timeout);
        if let Some((outstanding, hctx)) = self.only_kernel() {
            let wanted = if wanted > 1 && !hctx.has_waiting() { wanted.min(outstanding) } else { 1 };
            self.core.plug.invalidate();
            return self.sleep_in_kernel(wanted, timeout);
        }
        self.wait_for_all(wanted, remote, timeout);
    }

    /// Waits for one request and ends it, if all requests are plain records in the kernel ring. For a caller that wants
    /// only one completion, as at queue depth 1. Returns false if several requests or something else has ended, or if
    /// other work is pending; the caller then polls and calls [`IoCtx::wait`].
    ///
    /// Neither polls the driver nor looks for completions by other threads: the driver waits only for the kernel ring,
    /// so neither could end a request.
    pub fn wait_for_one(&mut self, end: &mut impl EndIo) -> bool {
        if self.only_kernel().is_none() || self.core.trace.is_some() {
            return false;
        }
        let active = self.core.active.trailing_zeros() as usize;
        self.core.plug.invalidate();
        self.sleep_in_kernel(1, None);
        if !self.take_only() {
            return false;
        }
        let Some(Some(hctx)) = self.hctxs.get_mut(active) else { return false };
        let ended = hctx.end_only(&mut self.core, end);
        if ended {
            if hctx.live() == 0 {
                self.core.active = 0;
            }
            end.end_poll();
        }
        ended
    }

    /// Returns the largest time that the ring may sleep before entries of its trace must be written, at most `timeout`.
    /// Writes those that have waited long enough.
    #[inline]
    pub(super) fn limit_by_trace(&mut self, timeout: Option<Duration>) -> Option<Duration> {
        let Core { trace: Some(trace), clock, .. } = &mut self.core else { return timeout };
        let most = trace.before_sleep(clock.coarse().0);
        timeout.into_iter().chain(most).min()
    }

    /// Returns the number of operations in the kernel ring, and the hardware context that has sent them, if the ring
    /// waits for nothing else: this context has sent all its requests, the wake-up poll is armed, and the timer expires
    /// in time for the timeout walk. [`IoCtx::wait_for_all`] would then only sleep.
    #[inline(always)]
    fn only_kernel(&self) -> Option<(u32, &Hctx)> {
        let Core { kring, active, starved, ended, plug, .. } = &self.core;
        let outstanding = kring.ring.as_ref().map_or(0, |kring| kring.outstanding());
        let hctx = self.hctxs.get(active.trailing_zeros() as usize)?.as_deref()?;
        let one = active.is_power_of_two() && plug.dirty == 0 && starved.is_empty() && ended.is_empty();
        let alarmed = self.alarm_at.is_some_and(|at| hctx.next_walk() >= at);
        (outstanding > 0 && self.bell_armed && one && alarmed && hctx.waits_for_kernel()).then_some((outstanding, hctx))
    }

    /// Ends timed sleeps early by `rest` from now on. The caller polls for the remaining time.
    pub fn set_polled_rest(&mut self, rest: Duration) {
        self.wake_early = super::timer_slack() + rest;
    }

    /// Returns true if a driver has something to do within `time`.
    pub fn is_due_within(&self, time: Duration) -> bool {
        let mut now = None;
        self.hctxs.iter().flatten().filter(|hctx| hctx.live() != 0).any(|hctx| match hctx.next_event() {
            NextEvent::At(at) => at.left(*now.get_or_insert_with(|| self.core.clock.precise())) <= time,
            _ => false,
        })
    }

    /// General case of the wait: sends all that can go, collects the events to wait for, and sleeps.
    #[inline(never)]
    fn wait_for_all(&mut self, wanted: u32, remote: u32, timeout: Option<Duration>) {
        self.send_off();
        let outstanding = self.core.kring.ring.as_ref().map_or(0, |kring| kring.outstanding());
        let mut waits = self.what_for();
        // If the timer is armed and expires in time for the walk, this wait needs neither a timer nor a clock read.
        let alarmed = outstanding > 0 && self.alarm_at.is_some_and(|at| waits.walk.is_none_or(|walk| walk >= at));
        let mut now = PreciseTs::default();
        if !alarmed || waits.at.is_some() {
            now = self.core.clock.precise();
        }
        if !alarmed {
            self.walk_timeouts(now);
            waits = self.what_for();
        }
        if waits.ready || !self.core.ended.is_empty() || self.core.broken != 0 {
            return self.commit();
        }
        let mut until = waits.at;
        if let Some(walk) = waits.walk
            && !alarmed
            && !(outstanding > 0 && self.arm_alarm(walk, now))
        {
            until = earlier(until, walk);
        }
        let limits = [until.map(|at| at.left(now)), timeout, waits.retry.then_some(RETRY_REFUSED)];
        let timeout = limits.into_iter().flatten().min();
        if outstanding == 0 {
            self.park(remote, timeout);
        } else {
            let each = waits.remote || waits.next || !self.core.starved.is_empty();
            self.wait_kernel(if each { 1 } else { wanted.clamp(1, outstanding) }, timeout);
        }
    }

    /// Sleeps until another thread wakes the ring. If other threads have all of the ring's I/O, they wake it when
    /// `wanted` I/Os may have ended, or, once [`GATHER`] has passed, at the first completion.
    fn park(&mut self, wanted: u32, mut timeout: Option<Duration>) {
        if !self.has_remote() {
            self.core.looked = ALL_THE_TIME;
        }
        let requests = if wanted > 1 { self.remote_ends(wanted) } else { 1 };
        if requests > 1 {
            self.wanted.sleep_until(requests);
            let patience = timeout.map_or(GATHER, |timeout| timeout.min(GATHER));
            let woken =
                if self.has_remote() { self.take_wake() } else { self.parker.park(Some(patience)) == Wake::Notified };
            // Before `has_remote` is read again: a completion that came earlier woke nobody.
            self.wanted.sleep_until(1);
            if woken || self.has_remote() {
                return self.wanted.awake();
            }
            timeout = timeout.map(|timeout| timeout.saturating_sub(GATHER));
        }
        self.parker.park(timeout.map(|timeout| self.time_to_ask_for(timeout)));
        self.wanted.awake();
    }

    /// Returns the time to request for a sleep of `timeout`. Zero stays zero: any real sleep would still take the timer
    /// slack.
    fn time_to_ask_for(&self, timeout: Duration) -> Duration {
        if timeout.is_zero() { timeout } else { timeout.saturating_sub(self.wake_early).max(AT_ONCE) }
    }

    /// Returns the smallest number of completions by other threads with which `wanted` I/Os may have ended. Returns 1
    /// if I/O that other threads do not complete is in flight, or a bio waits for the end of a request.
    fn remote_ends(&self, wanted: u32) -> u32 {
        if !self.core.starved.is_empty() || self.core.stacked != 0 {
            return 1;
        }
        let (mut live, mut most) = (0, 1);
        for hctx in self.hctxs.iter().flatten().filter(|hctx| hctx.has_work()) {
            let Some(ios) = hctx.ends_remotely() else { return 1 };
            (live, most) = (live + hctx.live(), most.max(ios));
        }
        wanted.div_ceil(most).min(live)
    }

    /// Consumes a wake-up that has come, so that it does not end the next sleep.
    fn take_wake(&mut self) -> bool {
        if self.parker.prepare_sleep() {
            self.parker.cancel_sleep();
        }
        true
    }

    fn has_remote(&self) -> bool {
        self.hctxs.iter().flatten().any(|hctx| hctx.has_remote())
    }

    /// Sends all that can go. Returns true if a poll would find something now, and the longest time that the ring may
    /// sleep before it must act without a wake-up.
    pub(super) fn ready_or_limit(&mut self) -> (bool, Option<Duration>) {
        self.send_off();
        self.commit();
        let now = self.core.clock.precise();
        self.walk_timeouts(now);
        let waits = self.what_for();
        let ready = waits.ready || !self.core.ended.is_empty() || self.core.broken != 0;
        let limits = [waits.at, waits.walk].map(|at| at.map(|at| at.left(now)));
        let retry = waits.retry.then_some(RETRY_REFUSED);
        (ready, limits.into_iter().chain([retry]).flatten().min())
    }

    fn what_for(&mut self) -> Waits {
        let mut waits = Waits::default();
        for (index, hctx) in self.hctxs.iter().enumerate() {
            let Some(hctx) = hctx else { continue };
            if hctx.live() != 0 {
                waits.walk = earlier(waits.walk, hctx.next_walk());
            }
            waits.next |= hctx.has_waiting();
            waits.retry |= hctx.must_retry();
            // One completion of the kernel ring may end all requests of such a driver.
            waits.remote |= hctx.works_alone() && hctx.live() != 0;
            match hctx.next_event() {
                NextEvent::Ready => waits.ready = true,
                NextEvent::At(time) => waits.at = earlier(waits.at, time),
                NextEvent::Remote | NextEvent::Stuck => waits.remote = true,
                NextEvent::Kernel | NextEvent::Lower | NextEvent::Idle => {}
            }
            // A panic of the driver in `next_event` is reported nowhere else.
            if hctx.wants_close() {
                self.core.broken |= 1 << index;
            }
        }
        waits
    }

    /// Runs the timeout walks that are due. Called by a ring that polls and does not sleep.
    #[cold]
    pub(super) fn look_for_overdue(&mut self) {
        let now = self.core.clock.precise();
        self.walk_timeouts(now);
        self.next_look.restart(&self.core.clock);
    }

    /// Runs the timeout walks of all hardware contexts with requests.
    fn walk_timeouts(&mut self, now: PreciseTs) {
        for hctx in self.hctxs.iter_mut().flatten().filter(|hctx| hctx.live() != 0) {
            hctx.walk_timeouts(&mut self.core, now);
        }
    }

    /// Called before the ring sleeps: sends the plug's batch to the drivers (I3), and retries waiting bios once more,
    /// because the bios or tags that they need may have come back where this ring's polls do not look.
    fn send_off(&mut self) {
        if !self.core.starved.is_empty() {
            self.retry_starved();
        }
        for hctx in self.hctxs.iter_mut().flatten() {
            hctx.send_off(&mut self.core);
        }
        if self.core.stacked != 0 {
            self.send_off_lower();
        }
        self.core.plug.invalidate();
    }
}
