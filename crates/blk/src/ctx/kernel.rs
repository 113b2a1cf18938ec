//! The ring's use of its kernel ring: sends the operations that drivers prepared, sleeps in it, and passes on its
//! completions. Also ends hardware contexts, which may have to wait for the kernel.
//!
//! Owns the order of these steps, not the kernel ring itself ([`KringSlot`](crate::kring_slot::KringSlot)).
//!
//! Invariants:
//! - K1: one system call per batch: `commit` or the wait sends the prepared operations. A poll enters the kernel only
//!   if it has completions to run, or if prepared operations were left unsent through a whole poll.
//! - K2: during any wait, each completion goes to the hardware context that it names, so that ending one context loses
//!   no completion of the others.
//! - K3: a hardware context is dropped only after the kernel has given back all its memory.
//! - K4: a kernel ring that refuses an enter permanently has failed. The hardware contexts that use it are shut down
//!   like those of a driver that has panicked: their I/O ends with an error once the kernel accesses none of its memory
//!   (K3), and later I/O fails. A shortage of memory counts as failure only after it has lasted for
//!   [`LONGEST_SHORTAGE`].

use std::os::fd::AsRawFd;
use std::time::Duration;

use sheave_base::clock::PreciseTs;

use super::IoCtx;
use crate::driver::{
    GENERATION_BITS, KIND_IGNORED, KIND_RING, KIND_SIGNAL, KIND_SOCKET, KernelEvents, kernel_user_data,
};
use crate::end_io::EndIo;
use crate::ring_core::ALL_THE_TIME;
use sheave_kring::{Completed, KernelRing, KringError};

/// Length of one sleep while a hardware context is being ended.
const SHUTDOWN_ROUND: Duration = Duration::from_millis(100);
/// Length of one sleep when other threads cannot wake the ring, because its wake-up is not armed.
const DEAF_ROUND: Duration = Duration::from_millis(1);
/// Time after which a wait for several completions is content with one. Bounds the delay of a wake-up by another
/// thread. If it were shorter than the scheduler's tick, its timer would cost more than the wake-ups that it saves.
pub(super) const GATHER: Duration = Duration::from_millis(10);

/// Time for which the kernel may refuse requests for lack of memory before the ring fails (K4).
const LONGEST_SHORTAGE: Duration = Duration::from_secs(30);
/// Refusals further apart than this belong to two shortages: the kernel accepted something between them.
const SHORTAGE_GAP: Duration = Duration::from_secs(1);

/// User data of the ring's own operations on the kernel ring.
const BELL: u64 = kernel_user_data(0, 0, KIND_RING);
const ALARM: u64 = kernel_user_data(0, 1, KIND_RING);

impl IoCtx {
    /// Sends the operations that drivers prepared on the kernel ring, without waiting. At most one system call.
    #[inline]
    pub fn commit(&mut self) {
        self.forgotten = false;
        if let Some(kring) = &mut self.core.kring.ring
            && kring.pending() > 0
            && let Err(error) = kring.enter(0, None)
        {
            self.enter_failed(error);
        }
    }

    /// Handles a refused enter. The operations stay prepared and the next enter retries them, unless the failure is
    /// permanent (K4); the next poll then ends everything.
    #[cold]
    #[inline(never)]
    fn enter_failed(&mut self, error: KringError) {
        if self.core.kring.failed.is_some() {
            return;
        }
        if error.is_shortage() {
            let now = self.core.clock.precise();
            let is_new = self.shortage.is_none_or(|(_, last)| last.after(SHORTAGE_GAP) < now);
            let since = self.shortage.filter(|_| !is_new).map_or(now, |(since, _)| since);
            self.shortage = Some((since, now));
            if now < since.after(LONGEST_SHORTAGE) {
                return;
            }
        }
        self.kernel_failed(error);
    }

    /// Marks the kernel ring as failed and stops all contexts that use it (K4).
    #[cold]
    fn kernel_failed(&mut self, error: KringError) {
        self.core.kring.failed.get_or_insert(error);
        for (index, hctx) in self.hctxs.iter_mut().enumerate() {
            if let Some(hctx) = hctx.as_mut().filter(|_| self.kernel_users & 1 << index != 0) {
                hctx.stop();
                self.core.broken |= 1 << index;
            }
        }
    }

    /// Returns the error with which the kernel ring has failed, if it has (K4).
    #[inline]
    pub fn kernel_failure(&self) -> Option<&KringError> {
        self.core.kring.failed.as_ref()
    }

    /// Closes a failed kernel ring once the kernel accesses no memory for it any more (K3). Passes on its completions
    /// before. Returns false if it cannot be known that the kernel is done; the caller then has to wait.
    #[cold]
    fn give_up_kernel(&mut self) -> bool {
        self.poll_many();
        let Some(kring) = self.core.kring.ring.take() else { return true };
        if let Err(kring) = kring.give_up() {
            self.core.kring.ring = Some(*kring);
            return false;
        }
        (self.bell_armed, self.alarm_at, self.socket_ops) = (false, None, 0);
        true
    }

    /// Returns true if drivers have prepared operations on the kernel ring that are not sent yet. A wait sends them.
    #[inline]
    pub fn has_unsent(&self) -> bool {
        self.core.kring.ring.as_ref().is_some_and(|kring| kring.pending() > 0)
    }

    /// Returns true if the next wait sleeps in the kernel ring, so that spinning before it gains nothing.
    #[inline]
    pub fn waits_for_kernel(&self) -> bool {
        self.core.kring.ring.as_ref().is_some_and(|kring| kring.outstanding() > 0)
    }

    /// Returns true if the kernel ring has completions, or will have some with the next enter.
    #[inline]
    pub fn has_kernel_events(&self) -> bool {
        self.core.kring.ring.as_ref().is_some_and(KernelRing::has_completed)
    }

    /// Arms the kernel ring's timer for `at`. Returns false if that is not possible, or it is armed already.
    pub(super) fn arm_alarm(&mut self, at: PreciseTs, now: PreciseTs) -> bool {
        let Some(kring) = &mut self.core.kring.ring else { return false };
        if self.alarm_at.is_some() || kring.features().iopoll {
            return false;
        }
        make_room(kring);
        let armed = kring.prep_alarm(at.left(now), ALARM).is_ok();
        self.alarm_at = armed.then_some(at);
        armed
    }

    /// Waits in the kernel ring for I/O and for the parker's descriptor.
    pub(super) fn wait_kernel(&mut self, wanted: u32, timeout: Option<Duration>) {
        let Some(kring) = &mut self.core.kring.ring else { return };
        // A ring with IOPOLL cannot poll a descriptor. It does not sleep either, but returns soon.
        if !self.bell_armed && !kring.features().iopoll {
            make_room(kring);
            self.bell_armed = kring.prep_poll_fd(self.parker.fd().as_raw_fd(), BELL).is_ok();
        }
        let timeout = if self.bell_armed { timeout } else { Some(DEAF_ROUND) };
        self.sleep_in_kernel(wanted, timeout);
    }

    /// Sends prepared operations and sleeps in the kernel ring until `wanted` operations have ended, or another thread
    /// wakes the ring.
    #[inline]
    pub(super) fn sleep_in_kernel(&mut self, wanted: u32, timeout: Option<Duration>) {
        let Some(kring) = &mut self.core.kring.ring else { return };
        self.forgotten = false;
        let sleeps = self.parker.prepare_sleep();
        if sleeps && !kring.has_completed() {
            self.core.looked = ALL_THE_TIME;
        }
        let entered = if !sleeps {
            kring.enter(0, None)
        } else if wanted == 1 && timeout.is_none() {
            kring.enter(1, None)
        } else {
            kring.enter_gather(wanted, GATHER, timeout)
        };
        // The result is not needed: the poll that follows looks everywhere, woken by another thread or not.
        let _ = self.parker.cancel_sleep();
        if let Err(error) = entered {
            self.enter_failed(error);
        }
    }

    /// Passes completions of the kernel ring to the hardware contexts, and runs pending kernel work.
    pub(super) fn poll_kernel(&mut self) {
        let Some(kring) = &mut self.core.kring.ring else { return };
        // No system call unless there is something to run (K1).
        let idle = kring.pending() == 0 && kring.ready() == 0;
        if idle && let Err(error) = kring.enter(0, None) {
            return self.enter_failed(error);
        }
        if let Some(only) = kring.reap_only() {
            return self.hand_out_row(&[only]);
        }
        self.poll_many();
    }

    /// Passes the only completion of the kernel ring to its hardware context. Returns false, without any effect, if
    /// there are several or none.
    #[inline(always)]
    pub(super) fn take_only(&mut self) -> bool {
        let only = self.core.kring.ring.as_mut().and_then(KernelRing::reap_only);
        only.inspect(|only| self.hand_out_row(&[*only])).is_some()
    }

    /// Passes any number of completions of the kernel ring to the hardware contexts.
    #[inline(never)]
    fn poll_many(&mut self) {
        let Some(kring) = &mut self.core.kring.ring else { return };
        let mut events = std::mem::take(&mut self.events);
        kring.reap_into(&mut events);
        self.hand_out(&events);
        events.clear();
        self.events = events;
    }

    /// Passes completions to the hardware contexts (K2), in one call for consecutive ones of one context.
    #[inline]
    fn hand_out(&mut self, events: &[Completed]) {
        let mut rest = events;
        while let [first, ..] = rest {
            let first = first.user_data;
            // Nearly always all belong to one context. The fold finds that out without a branch for each.
            let others = rest.iter().fold(0, |others, event| others | (event.user_data ^ first));
            let many = if whose(others) == 0 {
                rest.len()
            } else {
                rest.iter().take_while(|event| whose(event.user_data ^ first) == 0).count()
            };
            let row;
            (row, rest) = rest.split_at(many);
            self.hand_out_row(row);
        }
    }

    /// Passes completions that all name the same hardware context to it.
    #[inline(always)]
    fn hand_out_row(&mut self, row: &[Completed]) {
        let [first, ..] = row else { return };
        let whose = whose(first.user_data);
        let (index, kind) = (whose as u16, (whose >> 16) as u8);
        match kind {
            KIND_RING => self.own_events(row),
            KIND_SOCKET => self.keep_socket_events(row),
            KIND_IGNORED | KIND_SIGNAL => {}
            _ => {
                if let Some(Some(hctx)) = self.hctxs.get_mut(usize::from(index)) {
                    self.core.active |= 1 << index;
                    hctx.kernel_done(&mut self.core, KernelEvents(row));
                }
            }
        }
    }

    /// Handles a completion of the ring's own wake-up poll or timer.
    #[cold]
    fn own_events(&mut self, events: &[Completed]) {
        for event in events {
            if let Some(kring) = &mut self.core.kring.ring {
                kring.rang(event.user_data);
            }
            match event.user_data {
                ALARM => self.alarm_at = None,
                _ => self.bell_armed = false,
            }
        }
    }

    /// Sends operations that were left prepared by two polls in a row (K1).
    #[inline]
    pub(super) fn send_forgotten(&mut self) {
        let Some(kring) = &self.core.kring.ring else { return };
        if kring.pending() == 0 {
            self.forgotten = false;
        } else if std::mem::replace(&mut self.forgotten, true) {
            self.commit();
        }
    }

    /// Ends a hardware context: cancels requests that the driver never got, and waits for those whose memory the device
    /// may still access.
    pub(super) fn end_hctx(&mut self, index: usize, end: &mut impl EndIo) {
        loop {
            let of_others = self.lasting_beside(index);
            let Some(hctx) = &mut self.hctxs[index] else { break };
            if hctx.shut_down_step(&mut self.core, of_others, end) {
                break;
            }
            self.wait_ended(index, end);
        }
        self.core.active &= !(1 << index);
        if let Some(trace) = &mut self.core.trace {
            trace.forget(index as u8);
        }
        if let Some(mut hctx) = self.hctxs[index].take() {
            hctx.retire();
            self.forget_lower(index, hctx.lower.take(), end);
        }
    }

    /// Returns the number of operations on the kernel ring that may never end by themselves and belong to other
    /// hardware contexts or to sockets. All their completions were passed on before, so the kernel ring counts the same
    /// operations.
    fn lasting_beside(&self, index: usize) -> u32 {
        let others = self.hctxs.iter().enumerate().filter(|(other, _)| *other != index);
        let lasting = others.filter_map(|(_, hctx)| hctx.as_ref()).map(|hctx| hctx.lasting_in_kernel());
        self.socket_ops + lasting.sum::<u32>()
    }

    /// Waits until I/O of an ending hardware context, on the devices below or in the kernel, has made progress.
    fn wait_ended(&mut self, index: usize, end: &mut impl EndIo) {
        if self.core.stacked & 1 << index != 0 {
            self.end_lower_io(index, end);
        } else {
            self.wait_shutdown();
        }
    }

    /// Shuts down the queues of drivers that have panicked, and fails all their requests. Waits for their operations on
    /// the kernel ring. The hardware contexts stay, and fail later requests.
    #[cold]
    #[inline(never)]
    pub(super) fn close_broken(&mut self, end: &mut impl EndIo) {
        if self.core.kring.failed.is_some() && self.core.kring.ring.is_some() {
            self.give_up_kernel();
        }
        let mut broken = std::mem::take(&mut self.core.broken);
        while broken != 0 {
            let index = broken.trailing_zeros() as usize;
            broken &= broken - 1;
            loop {
                let of_others = self.lasting_beside(index);
                let Some(hctx) = &mut self.hctxs[index] else { break };
                if hctx.shut_down_step(&mut self.core, of_others, end) {
                    hctx.close();
                    break;
                }
                self.wait_ended(index, end);
            }
        }
    }

    pub(super) fn wait_shutdown(&mut self) {
        match &mut self.core.kring.ring {
            Some(kring) if kring.outstanding() > 0 => {
                let entered = kring.enter(1, Some(SHUTDOWN_ROUND));
                let has_nothing = kring.in_flight_io() == 0;
                self.poll_kernel();
                if let Err(error) = entered {
                    // Without I/O in the kernel there is nothing to wait for, so the failure counts as permanent at
                    // once.
                    if has_nothing {
                        self.kernel_failed(error)
                    } else {
                        self.enter_failed(error)
                    }
                    if self.core.kring.failed.is_some() && !self.give_up_kernel() {
                        sheave_base::sync::thread::sleep(SHUTDOWN_ROUND);
                    }
                }
            }
            _ => sheave_base::sync::thread::yield_now(),
        }
    }
}

/// Returns the hardware context and the kind in a completion's user data, without tag and generation.
#[inline(always)]
const fn whose(user_data: u64) -> u64 {
    user_data << GENERATION_BITS >> (GENERATION_BITS + 16)
}

/// Makes room in the submission queue for one of the ring's own operations, since a batch may have filled it.
pub(super) fn make_room(kring: &mut KernelRing) {
    if kring.space() == 0 {
        // A refused enter leaves the queue full. The caller then gets an error when it prepares its operation.
        let _ = kring.enter(0, None);
    }
}
