//! The one system call of the ring, and the reaping of its completions.
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

/// Number of times that `enter` is retried while the kernel lacks memory, before the error is returned.
const MAX_RETRIES: u32 = 64;
/// Delay before each of these retries, so that memory can become free.
const RETRY_WAIT: Duration = Duration::from_millis(2);
/// Longest single wait while a ring is dropped.
const DROP_ROUND: Duration = Duration::from_millis(100);

impl KernelRing {
    /// Makes one `io_uring_enter`: submits all prepared operations and runs completions. If `min_complete` is above 0,
    /// it waits until the completion queue has that many completions (those not yet reaped count), until `timeout`
    /// passes, or until a signal arrives. Returns the number of operations that the kernel took. Makes no system call
    /// if there is nothing to do (I4), and does not wait for more completions than can come (I5).
    ///
    /// Kernels before 5.11 have no timeout for this: there a timeout costs a second system call, and the wait ends with
    /// the first completion.
    ///
    /// # Errors
    ///
    /// An error that no retry helps. Operations that were not taken stay [`pending`](Self::pending).
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

    /// Returns the number of operations to submit, the completions that can be waited for (I5), and the flags of the
    /// enter.
    #[inline(always)]
    fn before_enter(&self, min_complete: u32) -> (u32, u32, u32) {
        let before = self.pending();
        let min_complete = min_complete.min((self.in_flight + before).saturating_sub(self.signals));
        let mut flags = self.enter_flags | sys::ENTER_GETEVENTS;
        if min_complete > 0 && self.is_idle() && self.features.no_iowait {
            flags |= sys::ENTER_NO_IOWAIT;
        }
        (before, min_complete, flags)
    }

    /// Handles the result of an enter that may have taken less than everything.
    #[cold]
    #[inline(never)]
    fn after_enter(&mut self, before: u32, entered: Result<u32, i32>) -> Result<u32, KringError> {
        match entered {
            Ok(_) if self.pending() == 0 => Ok(before),
            Err(libc::EINTR | libc::ETIME) => Ok(before - self.pending()),
            entered => self.enter_again(before, entered),
        }
    }

    /// Does the same as [`enter`](Self::enter), but waits for `min_complete` completions for at most `gather` (in whole
    /// microseconds). After that time one completion is enough. So a batch of completions needs one wake-up, and a
    /// signal on the eventfd is still handled soon. Kernels before 6.12 cannot do that: there one completion is enough
    /// from the start.
    ///
    /// # Errors
    ///
    /// Those of [`enter`](Self::enter).
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

    /// Calls `each(user_data, res, flags)` for each available completion, oldest first, without a system call. Returns
    /// their number.
    #[inline]
    pub fn reap(&mut self, mut each: impl FnMut(u64, i32, u32)) -> u32 {
        let mut reaped = 0;
        while let Some(&Completed { user_data, res, flags }) = self.rings.row().first() {
            // Before `each`, so that the count is right even if it panics (I2).
            self.took(1, self.that_end(user_data, flags));
            self.rang(user_data);
            each(user_data, res, flags);
            reaped += 1;
        }
        reaped
    }

    /// Does the same as [`reap`](Self::reap), but appends all available completions to `list`. The caller must report
    /// the completions of the wake-up and of the alarm with [`rang`](Self::rang).
    #[inline]
    pub fn reap_into(&mut self, list: &mut Vec<Completed>) {
        // At most two turns: up to the end of the queue's memory, then from its start on.
        loop {
            let row = self.rings.row();
            let many = row.len() as u32;
            if many == 0 {
                return;
            }
            list.extend_from_slice(row);
            let ends = if self.multishot {
                row.iter().map(|event| self.that_end(event.user_data, event.flags)).sum()
            } else {
                many
            };
            self.took(many, ends);
        }
    }

    /// Takes the completion if there is exactly one. Returns `None`, and takes nothing, if there are more or none.
    #[inline(always)]
    pub fn reap_only(&mut self) -> Option<Completed> {
        let &[only] = self.rings.row() else { return None };
        self.took(1, self.that_end(only.user_data, only.flags));
        Some(only)
    }

    /// Called for each completion reaped by [`reap_into`](Self::reap_into) or [`reap_only`](Self::reap_only): if
    /// `user_data` is that of the wake-up or of the alarm, another one may be armed.
    pub fn rang(&mut self, user_data: u64) {
        self.wake.take_if(|wake| *wake == user_data);
        self.alarm.take_if(|alarm| *alarm == user_data);
    }

    /// Returns the number of counted operations that a completion ends: 1, or 0 if more will come (I2) or if it is that
    /// of a signal (E1).
    #[inline(always)]
    fn that_end(&self, user_data: u64, flags: u32) -> u32 {
        u32::from(!self.multishot || !(cqueue::more(flags) || self.signal == Some(user_data)))
    }

    /// Removes `many` completions; `ends` of them end their operations.
    #[inline(always)]
    fn took(&mut self, many: u32, ends: u32) {
        self.rings.took(many);
        self.in_flight = self.in_flight.saturating_sub(ends);
    }

    /// Returns the number of completions that [`reap`](Self::reap) would find.
    #[inline]
    pub fn ready(&self) -> u32 {
        self.rings.ready()
    }

    /// Returns true if a completion can be reaped now, or will appear with the next enter.
    #[inline]
    pub fn has_completed(&self) -> bool {
        self.ready() != 0 || self.rings.has_kernel_work()
    }

    /// Returns true if an enter without submissions is needed: the kernel has completions to run or to poll for, or
    /// fewer than `min_complete` are ready.
    #[inline]
    fn has_work(&self, min_complete: u32) -> bool {
        self.rings.has_kernel_work() || (self.features.iopoll && self.in_flight > 0) || self.ready() < min_complete
    }

    /// Returns true if only the wake-up or the alarm is in flight or prepared.
    #[inline]
    fn is_idle(&self) -> bool {
        self.watches() > 0 && self.in_flight + self.pending() == self.watches()
    }

    /// Returns the number of operations in flight, without the wake-up and the alarm: those that touch memory and end
    /// without a request.
    pub fn in_flight_io(&self) -> u32 {
        let wake = u32::from(self.wake.is_some() && self.wake_taken);
        let alarm = u32::from(self.alarm.is_some() && self.alarm_taken);
        self.in_flight.saturating_sub(wake + alarm)
    }

    /// Returns a wait of at most `limit`, or without a limit if the kernel has no timeouts. Only for completions that
    /// are certain to come.
    fn at_most(&self, limit: Duration) -> Patience {
        Patience { timeout: self.features.ext_arg.then_some(limit), gather_us: 0 }
    }

    /// Updates the state from the kernel's progress in the submission queue.
    #[inline]
    fn settle(&mut self) {
        self.in_flight += self.rings.look();
        let took_all = self.pending() == 0;
        if took_all {
            // E1. Until all are taken, signals that were taken count as well.
            self.in_flight = self.in_flight.saturating_sub(std::mem::take(&mut self.signals));
        }
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

    /// Enters without waiting, then sleeps in `poll`, then runs the completions that ended the sleep.
    #[cold]
    fn enter_then_poll(&mut self, flags: u32, min_complete: u32, timeout: Option<Duration>) -> Result<u32, i32> {
        let taken = self.call(self.pending(), 0, flags, Patience::default())?;
        if self.ready() < min_complete {
            sys::poll_in(self.ring.as_raw_fd(), timeout)?;
            self.call(0, 0, flags, Patience::default())?;
        }
        Ok(taken)
    }

    /// Retries after the kernel took less than everything: it is short of memory, or has completions that are not
    /// reaped. Ends when it has taken the rest, or when there are completions, which the caller must reap before it
    /// enters again.
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
                // The errors of this call (timeout, signal) do not matter: the next try shows the state.
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

    /// Gives up a ring that `io_uring_enter` no longer serves, and waits until the kernel touches none of its memory.
    /// Its operations give no completion. To detect their end, this puts the writing end of a pipe into the ring's file
    /// table: the kernel drops the table when it has ended all operations, and the pipe ends. The wait has no limit,
    /// because the kernel sets none for the end of a ring.
    ///
    /// # Errors
    ///
    /// Returns the ring if the kernel does not take the pipe: then the end of its operations cannot be detected.
    pub fn give_up(mut self) -> Result<(), Box<KernelRing>> {
        if self.in_flight_io() == 0 {
            return Ok(());
        }
        let Ok((mut ended, held)) = std::io::pipe() else { return Err(Box::new(self)) };
        let submitter = self.ring.submitter();
        // Replaces the file in the first slot: operations in flight keep theirs.
        if self.features.file_slots == 0 || submitter.register_files_update(0, &[held.as_raw_fd()]).is_err() {
            return Err(Box::new(self));
        }
        drop(held);
        // Receives write to these until they end (S1 of `sockets`).
        let recv = std::mem::take(&mut self.recv);
        self.in_flight = 0;
        drop(self);
        while ended.read(&mut [0]).is_err_and(|error| error.kind() == std::io::ErrorKind::Interrupted) {}
        drop(recv);
        Ok(())
    }

    /// Waits until the kernel touches no memory any more (I3). Operations that are only prepared are never submitted.
    /// The wait has no limit: the kernel ends each operation, and an earlier return would leave freed memory to a
    /// device.
    pub(super) fn wait_out(&mut self) {
        if self.in_flight_io() == 0 {
            return;
        }
        // Cancels operations that have not started. Fails before 6.0, or if there are none; both are harmless.
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
