//! Waiting from outside: an event loop that is not the ring's own waits for a descriptor, and then calls the ring.
//!
//! Owns the order of the steps; the descriptor is of [`outside`](crate::outside).
//!
//! The protocol is the parker's event count (`sheave_base::parker`): announce the sleep, look once more, then wait.
//! The announcement stays until the next [`IoCtx::prepare_wait`] or until the ring itself sleeps, each of which takes
//! the rings that came meanwhile: so the descriptor is readable from the first ring on until then.
//!
//! Invariants:
//! - O1: between an announcement and the next call of the ring, whatever may give the ring something to do makes the
//!   descriptor readable, or has a time that the announcement told.
//! - O2: where the descriptor cannot have all of them (no memory, too many open files, a kernel ring that polls its
//!   device and so tells nobody), that time is [`DEAF_ROUND`]: slower, and never for ever.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::IoCtx;
use crate::ring_core::ALL_THE_TIME;

/// How long to wait at a time where the descriptor does not tell of everything (O2).
const DEAF_ROUND: Duration = Duration::from_millis(1);

impl IoCtx {
    /// A descriptor that is readable when the ring may have something to do, after [`IoCtx::prepare_wait`] said that
    /// it has nothing now. For polling only; it stays the same.
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        let bell = self.parker.fd();
        self.outside.set(bell).unwrap_or(bell)
    }

    /// Sends on what is prepared and announces a wait for [`IoCtx::wait_fd`]. `None`: there is something to do now, a
    /// poll finds it. Otherwise how long the wait may last: `Some(None)` for as long as nothing happens.
    pub fn prepare_wait(&mut self) -> Option<Option<Duration>> {
        // Takes the rings since the last announcement; the look for what they told of is below, behind the next one.
        let _ = self.parker.cancel_sleep();
        let deaf = !self.watches_kernel();
        self.outside.silence();
        // What has rung until here was completed before, so the look finds it.
        if self.core.kring.ring.is_some() {
            self.poll_kernel();
        }
        let (ready, limit) = self.ready_or_limit();
        if ready || !self.parker.prepare_sleep() {
            return None;
        }
        // Once more: what came before the announcement rang nobody.
        if self.ready_or_limit().0 {
            let _ = self.parker.cancel_sleep();
            return None;
        }
        self.core.looked = ALL_THE_TIME;
        let limit = self.limit_by_trace(limit);
        Some(if deaf { Some(limit.map_or(DEAF_ROUND, |limit| limit.min(DEAF_ROUND))) } else { limit })
    }

    /// Takes the announcement back: the owner of the ring has found something to do.
    pub fn cancel_wait(&mut self) {
        let _ = self.parker.cancel_sleep();
    }

    /// Whether the descriptor tells of all that the kernel ring completes.
    fn watches_kernel(&mut self) -> bool {
        let bell = self.parker.fd();
        if self.outside.set(bell).is_none() {
            return false;
        }
        let Some(kring) = &self.core.kring.ring else { return true };
        if kring.features().iopoll {
            return kring.outstanding() == 0;
        }
        self.outside.watch(bell, kring) || kring.outstanding() == 0
    }
}
