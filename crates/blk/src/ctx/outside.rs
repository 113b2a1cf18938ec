//! Waiting from outside: an event loop that is not the ring's own polls a descriptor and then calls the ring.
//!
//! Owns the order of the steps, and the descriptor: an epoll instance over two eventfds, the parker's, which other
//! threads signal, and one that the kernel ring signals. The latter is needed because a poll of the kernel ring's own
//! descriptor does not show completions that need an enter. Everything is made on first use: a ring that nobody waits
//! for from outside has no such descriptors and makes no system calls for them.
//!
//! The protocol is the parker's event count (`sheave_base::parker`): announce the sleep, check once more, then wait.
//! The announcement stays until the next [`IoCtx::prepare_wait`], or until the ring itself sleeps. Both consume the
//! wake-ups that came meanwhile, so the descriptor is readable from the first wake-up until then.
//!
//! Invariants:
//! - O1: between an announcement and the next call of the ring, every event that may give the ring something to do
//!   makes the descriptor readable, or has a time within the limit that the announcement returned.
//! - O2: if the descriptor cannot cover all events (no memory, too many open files, a kernel ring with IOPOLL, which
//!   signals nothing), the limit is [`DEAF_ROUND`]: slower, but no event is lost for good.

use std::cell::OnceCell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, epoll, eventfd};
use sheave_kring::KernelRing;

use super::IoCtx;
use crate::ring_core::ALL_THE_TIME;

/// Length of one wait if the descriptor does not cover all events (O2).
const DEAF_ROUND: Duration = Duration::from_millis(1);

impl IoCtx {
    /// Returns a descriptor that becomes readable when the ring may have something to do, after [`IoCtx::prepare_wait`]
    /// returned that it has nothing now. For polling only. Always the same descriptor.
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        let bell = self.parker.fd();
        self.outside.set(bell).unwrap_or(bell)
    }

    /// Sends prepared operations and announces a wait for [`IoCtx::wait_fd`]. Returns `None` if a poll finds something
    /// to do now, else the longest time that the wait may last: `Some(None)` without a limit.
    pub fn prepare_wait(&mut self) -> Option<Option<Duration>> {
        // Consumes the wake-ups since the last announcement. Their events are found by the checks below.
        let _ = self.parker.cancel_sleep();
        let deaf = !self.watches_kernel();
        self.outside.silence();
        // Every event that made the descriptor readable so far completed before, so this poll finds it.
        if self.core.kring.ring.is_some() {
            self.poll_kernel();
        }
        let (ready, limit) = self.ready_or_limit();
        if ready || !self.parker.prepare_sleep() {
            return None;
        }
        // Check again: an event before the announcement woke nobody.
        if self.ready_or_limit().0 {
            let _ = self.parker.cancel_sleep();
            return None;
        }
        self.core.looked = ALL_THE_TIME;
        let limit = self.limit_by_trace(limit);
        Some(if deaf { Some(limit.map_or(DEAF_ROUND, |limit| limit.min(DEAF_ROUND))) } else { limit })
    }

    /// Withdraws the announcement. Called if the owner of the ring has found something to do.
    pub fn cancel_wait(&mut self) {
        let _ = self.parker.cancel_sleep();
    }

    /// Returns true if the descriptor becomes readable at every completion of the kernel ring.
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

/// Descriptors for waiting from outside.
#[derive(Debug, Default)]
pub(super) struct Outside {
    set: OnceCell<Option<OwnedFd>>,
    /// Eventfd that the kernel ring signals, once registered.
    kernel: Option<OwnedFd>,
}

impl Outside {
    /// Returns the epoll instance with `bell`, the parker's eventfd, in it; `None` if it cannot be made.
    pub(super) fn set(&self, bell: BorrowedFd<'_>) -> Option<BorrowedFd<'_>> {
        let make = || {
            let set = epoll::create(epoll::CreateFlags::CLOEXEC).ok()?;
            add(set.as_fd(), bell).then_some(set)
        };
        self.set.get_or_init(make).as_ref().map(AsFd::as_fd)
    }

    /// Makes the kernel ring signal the epoll instance, if it does not yet. Returns true if it does.
    pub(super) fn watch(&mut self, bell: BorrowedFd<'_>, kring: &KernelRing) -> bool {
        if self.kernel.is_none()
            && let Some(set) = self.set(bell)
        {
            let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok();
            let tells = |bell: &OwnedFd| add(set, bell.as_fd()) && kring.register_eventfd(bell.as_fd()).is_ok();
            let kernel = bell.filter(tells);
            self.kernel = kernel;
        }
        self.kernel.is_some()
    }

    /// Consumes the kernel ring's signals so far.
    pub(super) fn silence(&self) {
        if let Some(kernel) = &self.kernel {
            // An error is fine: it means that the kernel ring has not signalled.
            let _ = rustix::io::read(kernel, &mut [0; 8]);
        }
    }
}

fn add(set: BorrowedFd<'_>, fd: BorrowedFd<'_>) -> bool {
    epoll::add(set, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN).is_ok()
}
