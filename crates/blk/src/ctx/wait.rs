//! Waiting: what a ring does when a poll finds nothing and the caller has nothing else to do.
//!
//! Owns the decision how to sleep (parker, kernel ring) and for how long. Invariant I3 of the parent is kept here.

use std::time::Duration;

use sheave_base::clock::PreciseTs;

use super::IoCtx;
use crate::driver::{KIND_RING, NextEvent, kernel_user_data};

/// How long a ring sleeps before it asks a driver again that refuses requests though it holds none.
const RETRY_REFUSED: Duration = Duration::from_millis(1);

impl IoCtx {
    /// Waits until a poll may find something, at most `timeout`; `wanted` is how many completions the caller needs
    /// before it has use for waking up. Sends prepared kernel operations in the same system call.
    pub fn wait(&mut self, wanted: u32, timeout: Option<Duration>) {
        self.send_off();
        let mut kernel = 0;
        let mut other = false;
        let mut at = None::<PreciseTs>;
        let now = self.core.clock.precise();
        for index in 0..self.hctxs.len() {
            let Some(hctx) = &mut self.hctxs[index] else { continue };
            if hctx.live() != 0 {
                hctx.walk_timeouts(&mut self.core);
                let walk = hctx.next_walk();
                at = Some(at.map_or(walk, |at| at.min(walk)));
            }
            if hctx.must_retry() {
                let retry = now.after(RETRY_REFUSED);
                at = Some(at.map_or(retry, |at| at.min(retry)));
            }
            match hctx.next_event() {
                NextEvent::Ready => return self.commit(),
                NextEvent::At(time) => at = Some(at.map_or(time, |at| at.min(time))),
                NextEvent::Kernel => kernel += hctx.live(),
                NextEvent::Remote | NextEvent::Stuck => other = true,
                NextEvent::Idle => {}
            }
        }
        if !self.core.ended.is_empty() {
            return;
        }
        let until = at.map(|at| at.left(now));
        let timeout = match (until, timeout) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        if kernel > 0 || self.core.kring.ring.as_ref().is_some_and(|ring| ring.pending() > 0) {
            self.wait_kernel(if other { 1 } else { wanted.clamp(1, kernel.max(1)) }, timeout);
        } else {
            self.parker.park(timeout);
        }
    }

    /// Before sleeping: the plug's batch goes to the drivers (I3), and what waits is tried once more, for what it waits
    /// for (bios, tags) may have come back where this ring's polls do not look.
    fn send_off(&mut self) {
        if !self.core.starved.is_empty() {
            self.retry_starved();
        }
        for hctx in self.hctxs.iter_mut().flatten() {
            hctx.send_off(&mut self.core);
        }
        self.core.plug.invalidate();
    }

    /// Waits in the kernel ring for I/O and for the parker's descriptor.
    fn wait_kernel(&mut self, wanted: u32, timeout: Option<Duration>) {
        let Some(kring) = &mut self.core.kring.ring else { return };
        if !self.bell_armed {
            use std::os::fd::AsRawFd;
            let user_data = kernel_user_data(0, 0, KIND_RING);
            self.bell_armed = kring.prep_poll_fd(self.parker.fd().as_raw_fd(), user_data).is_ok();
        }
        let timeout = if self.bell_armed { timeout } else { Some(Duration::from_millis(1)) };
        if self.parker.prepare_sleep() {
            let _ = kring.enter(wanted, timeout);
        } else {
            let _ = kring.enter(0, None);
        }
        // Woken by another thread or not: the poll below looks everywhere anyway.
        let _ = self.parker.cancel_sleep();
    }
}
