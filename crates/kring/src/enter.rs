//! The one system call of the ring, and the reaping of what it brought.
//!
//! States of an operation: prepared (`pending`) -> taken by the kernel (`in_flight`) -> CQE reaped (gone).

use std::io::Read;
use std::os::fd::AsRawFd;
use std::thread;
use std::time::Duration;

use io_uring::cqueue;
use io_uring::types::{CancelBuilder, Timespec};

use super::KernelRing;
use super::error::KringError;
use super::rings::Completed;
use super::sys::{self, Patience};
use sheave_base::status::Errno;

/// How often `enter` tries again when the kernel has no memory for requests, before it says so.
const MAX_RETRIES: u32 = 64;
/// How long one such retry waits for memory to become free.
const RETRY_WAIT: Duration = Duration::from_millis(2);
/// How long a ring that is dropped sleeps at a time.
const DROP_ROUND: Duration = Duration::from_millis(100);

impl KernelRing {
    /// One `io_uring_enter`: submits all that is prepared, runs completions, and with `min_complete` above 0 waits
    /// until that many are in the completion queue (those not reaped yet count), `timeout` is over, or a signal came.
    /// Gives how many operations the kernel took. I4 and I5 say when it does not enter or not wait.
    ///
    /// Kernels before 5.11 have no timeout for this: there it takes a second system call, and returns when the first
    /// completion comes.
    ///
    /// # Errors
    ///
    /// What no retry helps. Operations that were not taken stay [`pending`](Self::pending).
    #[inline]
    pub fn enter(&mut self, min_complete: u32, timeout: Option<Duration>) -> Result<u32, KringError> {
        if timeout.is_some() {
            return self.enter_patiently(min_complete, Patience { timeout, gather_us: 0 });
        }
        let (before, min_complete, flags) = self.before_enter(min_complete);
        if before == 0 && !self.has_work(min_complete) {
            return Ok(0); // I4
        }
        let entered = self.call(before, min_complete, flags, Patience::default());
        self.settle();
        if entered.is_ok() && self.pending() == 0 { Ok(before) } else { self.after_enter(before, entered) }
    }

    /// What is to be sent, what can be waited for (I5), and the flags of an enter for these.
    #[inline(always)]
    fn before_enter(&self, min_complete: u32) -> (u32, u32, u32) {
        let before = self.pending();
        let min_complete = min_complete.min(self.in_flight + before);
        let mut flags = self.enter_flags | sys::ENTER_GETEVENTS;
        if min_complete > 0 && self.is_idle() && self.features.no_iowait {
            flags |= sys::ENTER_NO_IOWAIT;
        }
        (before, min_complete, flags)
    }

    /// What an enter came to, which has not just taken everything.
    #[cold]
    #[inline(never)]
    fn after_enter(&mut self, before: u32, entered: Result<u32, i32>) -> Result<u32, KringError> {
        match entered {
            Ok(_) if self.pending() == 0 => Ok(before),
            Err(libc::EINTR | libc::ETIME) => Ok(before - self.pending()),
            entered => self.enter_again(before, entered),
        }
    }

    /// As [`enter`](Self::enter), but waits for more than one completion for `gather` only, in whole microseconds;
    /// from then on one is enough. So a batch of completions costs one wake-up, and yet somebody who rings the
    /// eventfd is heard soon. Kernels before 6.12 cannot do that: there one completion is enough from the start.
    ///
    /// # Errors
    ///
    /// As [`enter`](Self::enter).
    #[inline]
    pub fn enter_gather(
        &mut self,
        min_complete: u32,
        gather: Duration,
        timeout: Option<Duration>,
    ) -> Result<u32, KringError> {
        let gather_us = u32::try_from(gather.as_micros()).unwrap_or(u32::MAX);
        if min_complete <= 1 || gather_us == 0 || !self.features.min_wait {
            return self.enter(min_complete.min(1), timeout);
        }
        self.enter_patiently(min_complete, Patience { timeout, gather_us })
    }

    #[inline(never)]
    fn enter_patiently(&mut self, min_complete: u32, mut patience: Patience) -> Result<u32, KringError> {
        let (before, min_complete, flags) = self.before_enter(min_complete);
        if before == 0 && !self.has_work(min_complete) {
            return Ok(0); // I4
        }
        if min_complete == 0 {
            patience = Patience::default();
        }
        let entered = if patience.timeout.is_none() || self.features.ext_arg {
            self.call(before, min_complete, flags, patience)
        } else {
            self.enter_then_poll(flags, min_complete, patience.timeout)
        };
        self.settle();
        self.after_enter(before, entered)
    }

    /// Hands each completion that is there to `each(user_data, res, flags)`, oldest first, without a system call;
    /// gives how many.
    #[inline]
    pub fn reap(&mut self, mut each: impl FnMut(u64, i32, u32)) -> u32 {
        let mut reaped = 0;
        while let Some(&Completed { user_data, res, flags }) = self.rings.row().first() {
            // Before `each`, so that a panic in it leaves the count right (I2).
            self.took(1, self.that_end(flags));
            self.rang(user_data);
            each(user_data, res, flags);
            reaped += 1;
        }
        reaped
    }

    /// As [`reap`](Self::reap), but moves the completions to the end of a list, all that there are in one go. Those of
    /// the wake-up and of the alarm are told by the caller, with [`rang`](Self::rang).
    #[inline]
    pub fn reap_into(&mut self, list: &mut Vec<Completed>) {
        // Twice at most: up to the end of the queue's memory, then from its start on.
        loop {
            let row = self.rings.row();
            let many = row.len() as u32;
            if many == 0 {
                return;
            }
            list.extend_from_slice(row);
            let ends = if self.multishot { row.iter().map(|event| self.that_end(event.flags)).sum() } else { many };
            self.took(many, ends);
        }
    }

    /// The only completion that there is; `None`, and nothing has changed, when there are others, or none.
    #[inline(always)]
    pub fn reap_only(&mut self) -> Option<Completed> {
        let &[only] = self.rings.row() else { return None };
        self.took(1, self.that_end(only.flags));
        Some(only)
    }

    /// The completion with this `user_data` was reaped by [`reap_into`](Self::reap_into) or
    /// [`reap_only`](Self::reap_only): if it is that of the wake-up or of the alarm, another one may be armed.
    pub fn rang(&mut self, user_data: u64) {
        self.wake.take_if(|wake| *wake == user_data);
        self.alarm.take_if(|alarm| *alarm == user_data);
    }

    /// How many operations a completion with these flags ends: one, or none when more will come (I2).
    #[inline(always)]
    fn that_end(&self, flags: u32) -> u32 {
        u32::from(!self.multishot || !cqueue::more(flags))
    }

    /// Has taken so many completions, so many of which end their operations.
    #[inline(always)]
    fn took(&mut self, many: u32, ends: u32) {
        self.rings.took(many);
        self.in_flight = self.in_flight.saturating_sub(ends);
    }

    /// Completions that [`reap`](Self::reap) would find.
    #[inline]
    pub fn ready(&self) -> u32 {
        self.rings.ready()
    }

    /// Whether something has completed that nobody has taken, whether or not it takes an enter to see it.
    #[inline]
    pub fn has_completed(&self) -> bool {
        self.ready() != 0 || self.rings.has_kernel_work()
    }

    /// With nothing to submit: whether the kernel has something to run, or there is something to wait for.
    #[inline]
    fn has_work(&self, min_complete: u32) -> bool {
        self.rings.has_kernel_work() || (self.features.iopoll && self.in_flight > 0) || self.ready() < min_complete
    }

    /// Nothing is in flight or prepared but a wake-up or an alarm.
    #[inline]
    fn is_idle(&self) -> bool {
        self.watches() > 0 && self.in_flight + self.pending() == self.watches()
    }

    /// In flight without wake-up and alarm: what touches memory, and ends by itself.
    pub fn in_flight_io(&self) -> u32 {
        let wake = u32::from(self.wake.is_some() && self.wake_taken);
        let alarm = u32::from(self.alarm.is_some() && self.alarm_taken);
        self.in_flight.saturating_sub(wake + alarm)
    }

    /// A limit on waiting for what comes anyway, where the kernel knows one.
    fn at_most(&self, limit: Duration) -> Patience {
        Patience { timeout: self.features.ext_arg.then_some(limit), gather_us: 0 }
    }

    /// Takes over what the kernel has consumed of the submission queue.
    #[inline]
    fn settle(&mut self) {
        self.in_flight += self.rings.look();
        let took_all = self.pending() == 0;
        self.wake_taken |= took_all;
        self.alarm_taken |= took_all;
    }

    #[inline]
    fn call(&mut self, to_submit: u32, min_complete: u32, flags: u32, patience: Patience) -> Result<u32, i32> {
        #[cfg(test)]
        if let Some(simulated) = self.simulated.pop_front() {
            return simulated;
        }
        self.rings.publish();
        sys::enter(self.enter_fd, to_submit, min_complete, flags, patience)
    }

    /// Enters without waiting, then sleeps in `poll`, then runs what woke it.
    #[cold]
    fn enter_then_poll(&mut self, flags: u32, min_complete: u32, timeout: Option<Duration>) -> Result<u32, i32> {
        let taken = self.call(self.pending(), 0, flags, Patience::default())?;
        if self.ready() < min_complete {
            sys::poll_in(self.ring.as_raw_fd(), timeout)?;
            self.call(0, 0, flags, Patience::default())?;
        }
        Ok(taken)
    }

    /// The kernel took less than everything: it is short of memory, or has completions that nobody reaped. Goes on
    /// until it took the rest, or there are completions to reap, which the caller does and then enters again.
    fn enter_again(&mut self, before: u32, mut entered: Result<u32, i32>) -> Result<u32, KringError> {
        let flags = self.enter_flags | sys::ENTER_GETEVENTS;
        for _ in 0..MAX_RETRIES {
            match entered {
                Ok(_) | Err(libc::EAGAIN | libc::EBUSY | libc::ENOMEM | libc::EINTR | libc::ETIME) => {}
                Err(errno) => return Err(KringError::Enter { errno: Errno(errno) }),
            }
            if self.pending() == 0 || self.ready() > 0 {
                return Ok(before - self.pending());
            }
            if self.in_flight_io() == 0 {
                thread::sleep(RETRY_WAIT);
            } else {
                // Its own errors (timeout, signal) are of no interest: the next try tells.
                let _ = self.call(0, 1, flags, self.at_most(RETRY_WAIT));
            }
            entered = self.call(self.pending(), 0, flags, Patience::default());
            self.settle();
        }
        match entered {
            Ok(_) => Ok(before - self.pending()),
            Err(errno) => Err(KringError::Enter { errno: Errno(errno) }),
        }
    }

    /// Gives the ring up that `io_uring_enter` does not serve any more, and waits until the kernel touches no memory on
    /// its behalf. Nothing that it had completes. The kernel holds a pipe open for it: the end of its operations is the
    /// end of that pipe. Not bounded by us, as the end of a ring is not.
    ///
    /// # Errors
    ///
    /// The ring, when the kernel does not take the pipe: nobody can tell then when its operations end.
    pub fn give_up(mut self) -> Result<(), Box<KernelRing>> {
        if self.in_flight_io() == 0 {
            return Ok(());
        }
        let Ok((mut ended, held)) = std::io::pipe() else { return Err(Box::new(self)) };
        let submitter = self.ring.submitter();
        // Whatever has the first slot: operations in flight keep their file.
        if self.features.file_slots == 0 || submitter.register_files_update(0, &[held.as_raw_fd()]).is_err() {
            return Err(Box::new(self));
        }
        drop(held);
        // Receives reach these until they end, too (S1 of `sockets`).
        let recv = std::mem::take(&mut self.recv);
        self.in_flight = 0;
        drop(self);
        while ended.read(&mut [0]).is_err_and(|error| error.kind() == std::io::ErrorKind::Interrupted) {}
        drop(recv);
        Ok(())
    }

    /// Waits until the kernel touches no memory any more (I3). What is only prepared is never submitted. Not bounded
    /// by us: the kernel ends each operation, and to go earlier would leave freed memory to a device.
    pub(super) fn wait_out(&mut self) {
        if self.in_flight_io() == 0 {
            return;
        }
        // What has not started yet need not. Unknown before 6.0, and nothing to find is fine, too.
        let soon = Timespec::from(RETRY_WAIT);
        let _ = self.ring.submitter().register_sync_cancel(Some(soon), CancelBuilder::any());
        let round = self.at_most(DROP_ROUND);
        self.reap(|_, _, _| {});
        while self.in_flight_io() > 0 {
            let flags = self.enter_flags | sys::ENTER_GETEVENTS;
            match self.call(0, 1, flags, round) {
                Ok(_) | Err(libc::EINTR | libc::ETIME | libc::EAGAIN | libc::EBUSY) => {}
                Err(_) => break, // the ring itself is gone, and its operations with it
            }
            self.reap(|_, _, _| {});
        }
    }
}
