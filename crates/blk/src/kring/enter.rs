//! The one system call of the ring, and the reaping of what it brought.
//!
//! States of an operation: prepared (`pending`) -> taken by the kernel (`in_flight`) -> CQE reaped (gone).

use std::os::fd::AsRawFd;
use std::time::Duration;

use super::error::KringError;
use super::{KernelRing, sys};

/// How often `enter` tries again when the kernel has no memory for requests, before it says so.
const MAX_RETRIES: u32 = 64;
/// How long one such retry waits for a completion to free some.
const RETRY_WAIT: Duration = Duration::from_millis(2);

impl KernelRing {
    /// One `io_uring_enter`: submits all that is prepared, runs completions, and with `min_complete` above 0 waits
    /// until that many are in the completion queue (those not reaped yet count), `timeout` is over, or a signal came.
    /// Gives how many operations the kernel took. I4 and I5 say when it does not enter or not wait.
    ///
    /// # Errors
    ///
    /// What no retry helps. Operations that were not taken stay [`pending`](Self::pending).
    #[inline]
    pub fn enter(&mut self, min_complete: u32, timeout: Option<Duration>) -> Result<u32, KringError> {
        let before = self.pending;
        let min_complete = min_complete.min(self.in_flight + before); // I5
        if before == 0 && !self.must_enter(min_complete) {
            return Ok(0); // I4
        }
        let mut flags = self.enter_flags;
        if min_complete > 0 || self.in_flight + before > 0 || self.overflowed() {
            flags |= sys::ENTER_GETEVENTS;
        }
        if min_complete > 0 && self.is_idle() && self.features.no_iowait {
            flags |= sys::ENTER_NO_IOWAIT;
        }
        let entered = if timeout.is_none() || min_complete == 0 || self.features.ext_arg {
            sys::enter(self.enter_fd, before, min_complete, flags, timeout.filter(|_| min_complete > 0))
        } else {
            self.enter_then_poll(flags, min_complete, timeout)
        };
        self.settle();
        match entered {
            Ok(_) if self.pending == 0 => Ok(before),
            Err(libc::EINTR | libc::ETIME) => Ok(before - self.pending),
            entered => self.enter_again(before, entered),
        }
    }

    /// Hands each completion that is there to `each(user_data, res, flags)`, oldest first, without a system call;
    /// gives how many.
    #[inline]
    pub fn reap(&mut self, mut each: impl FnMut(u64, i32, u32)) -> u32 {
        let mut reaped = 0;
        for cqe in self.ring.completion() {
            let user_data = cqe.user_data();
            // Before `each`, so that a panic in it leaves the count right (I2).
            self.in_flight = self.in_flight.saturating_sub(1);
            if self.wake == Some(user_data) {
                self.wake = None;
            }
            each(user_data, cqe.result(), cqe.flags());
            reaped += 1;
        }
        reaped
    }

    /// Takes one completion that is there: its user data, result and flags.
    #[inline]
    pub fn pop(&mut self) -> Option<(u64, i32, u32)> {
        let cqe = self.ring.completion().next()?;
        self.in_flight = self.in_flight.saturating_sub(1);
        if self.wake == Some(cqe.user_data()) {
            self.wake = None;
        }
        Some((cqe.user_data(), cqe.result(), cqe.flags()))
    }

    /// Completions that [`reap`](Self::reap) would find.
    #[inline]
    pub fn ready(&mut self) -> u32 {
        self.ring.completion().len() as u32
    }

    /// With nothing to submit: whether there is something to run, or to wait for and not there yet.
    fn must_enter(&mut self, min_complete: u32) -> bool {
        let sq = self.ring.submission();
        let work = sq.taskrun() || sq.cq_overflow();
        drop(sq);
        work || (self.features.iopoll && self.in_flight > 0) || self.ready() < min_complete
    }

    fn overflowed(&mut self) -> bool {
        self.ring.submission().cq_overflow()
    }

    /// Nothing is in flight or prepared but a wake-up.
    fn is_idle(&self) -> bool {
        self.wake.is_some() && self.in_flight + self.pending == 1
    }

    /// Takes over what the kernel has consumed of the submission queue.
    #[inline]
    fn settle(&mut self) {
        let left = self.ring.submission().len() as u32;
        self.in_flight += self.pending.saturating_sub(left);
        self.pending = left;
    }

    /// For kernels before 5.11, whose enter takes no timeout: enter without waiting, then poll the ring.
    #[cold]
    fn enter_then_poll(&mut self, flags: u32, min_complete: u32, timeout: Option<Duration>) -> Result<u32, i32> {
        let taken = sys::enter(self.enter_fd, self.pending, 0, flags, None)?;
        if self.ready() < min_complete {
            sys::poll_in(self.ring.as_raw_fd(), timeout)?;
        }
        Ok(taken)
    }

    /// The kernel took less than everything: it is short of memory, or has completions that nobody reaped. Goes on
    /// until it took the rest, or there are completions to reap, which the caller does and then enters again.
    #[cold]
    #[inline(never)]
    fn enter_again(&mut self, before: u32, mut entered: Result<u32, i32>) -> Result<u32, KringError> {
        for _ in 0..MAX_RETRIES {
            match entered {
                Ok(_) | Err(libc::EAGAIN | libc::EBUSY | libc::ENOMEM | libc::EINTR | libc::ETIME) => {}
                Err(errno) => return Err(KringError::Enter { errno }),
            }
            if self.pending == 0 || self.ready() > 0 {
                return Ok(before - self.pending);
            }
            let wait = self.in_flight.min(1);
            let timeout = (wait > 0 && self.features.ext_arg).then_some(RETRY_WAIT);
            let flags = self.enter_flags | sys::ENTER_GETEVENTS;
            let flushed = sys::enter(self.enter_fd, 0, wait, flags, timeout);
            if matches!(flushed, Err(errno) if !matches!(errno, libc::EINTR | libc::ETIME)) {
                entered = flushed;
                continue;
            }
            entered = sys::enter(self.enter_fd, self.pending, 0, flags, None);
            self.settle();
        }
        match entered {
            Err(errno) => Err(KringError::Enter { errno }),
            Ok(_) => Ok(before - self.pending),
        }
    }
}
