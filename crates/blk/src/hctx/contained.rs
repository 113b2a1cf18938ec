//! Containment of driver panics: the ring goes on, and every request still ends.
//!
//! Owns the driver's [`HwQueue`] and makes all calls of it. After a call that panicked the driver gets no new request,
//! and the bit of its hardware context is set in [`Core::broken`]. The ring's next poll shuts the queue down as a
//! detach would, ends with an I/O error the requests that the driver does not give back, and from then on fails every
//! new one. Attaching the device again after the last detach opens a new queue.
//!
//! Invariants:
//! - P1: no panic of a driver leaves [`Contained::with_driver`] or [`Contained::next_event`]. A panic in
//!   [`Hctx::send_alone`](super::Hctx::send_alone) reaches the ring's caller, and has the same effect here.
//! - P2: after a panic the driver gets no request, only calls that end those it has (`kernel_done`, `ended_remotely`,
//!   `shutdown`). [`Contained::close`] drops it.
#![allow(unsafe_code)] // `Stopped` implements the unsafe trait `HwQueue`.

use std::any::Any;
use std::cell::Cell;

use sheave_base::panics::discard;
use sheave_base::status::Status;

use crate::driver::{HwEnv, HwQueue, KernelEvents, NextEvent, TimedOut};
use crate::request::{DoneList, Requests, RqList, RqTable};
use crate::ring_core::Core;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DriverState {
    /// No call of the driver has panicked.
    Runs,
    /// A call has panicked. The driver may still hold requests.
    Panicked,
    /// A call has panicked, and the driver holds no requests any more.
    Closed,
}

/// A driver's queue behind `catch_unwind`.
#[derive(Debug)]
pub(super) struct Contained {
    hw: Box<dyn HwQueue>,
    /// Number of the hardware context within its ring.
    index: u16,
    state: Cell<DriverState>,
    /// True if `hw` is a [`Stopped`], which wraps the driver's queue or replaces it.
    stopped: bool,
}

impl Contained {
    pub(super) fn new(hw: Box<dyn HwQueue>, index: u16) -> Contained {
        Contained { hw, index, state: Cell::new(DriverState::Runs), stopped: false }
    }

    /// Returns the number of the hardware context within its ring.
    #[inline(always)]
    pub(super) fn index(&self) -> u16 {
        self.index
    }

    /// Calls the driver, and lends it what it may use. Returns `None` if it panicked; the next poll then shuts the
    /// queue down.
    #[inline(always)]
    pub(super) fn with_driver<R>(
        &mut self,
        core: &mut Core,
        rqs: &mut Requests,
        done: &mut DoneList,
        call: impl FnOnce(&mut dyn HwQueue, &mut HwEnv<'_>, &mut RqTable<'_>, &mut DoneList) -> R,
    ) -> Option<R> {
        let mut env = HwEnv { kring: core.kring.ring.as_mut(), clock: &core.clock, hctx: self.index };
        let mut table = RqTable { rqs: rqs.all(), bios: &core.bios };
        match caught(|| call(&mut *self.hw, &mut env, &mut table, done)) {
            Ok(result) => Some(result),
            Err(panic) => {
                discard(panic);
                self.stop();
                core.broken |= 1 << self.index;
                None
            }
        }
    }

    /// Returns the driver's queue, for a caller that lets a panic pass and then calls [`stop`](Contained::stop).
    #[inline(always)]
    pub(super) fn queue_mut(&mut self) -> &mut dyn HwQueue {
        &mut *self.hw
    }

    /// Returns the event that the driver waits for. After a panic that is `Ready`, so that the ring polls and shuts the
    /// queue down.
    #[inline(always)]
    pub(super) fn next_event(&self) -> NextEvent {
        caught(|| self.hw.next_event()).unwrap_or_else(|panic| {
            discard(panic);
            self.state.set(DriverState::Panicked);
            NextEvent::Ready
        })
    }

    /// Returns the number of operations of the driver in the kernel ring that may never end by themselves. 0 after a
    /// panic, because the driver's answer is not reliable then.
    pub(super) fn lasting_in_kernel(&self) -> u32 {
        if self.has_panicked() { 0 } else { caught(|| self.hw.lasting_in_kernel()).unwrap_or(0) }
    }

    pub(super) fn has_panicked(&self) -> bool {
        self.state.get() != DriverState::Runs
    }

    /// Returns true if a call has panicked and [`close`](Contained::close) was not called since.
    pub(super) fn wants_close(&self) -> bool {
        self.state.get() == DriverState::Panicked
    }

    /// Returns true after [`close`](Contained::close). Completions that other threads report from then on (among them
    /// dropped tokens of the queue) belong to requests that have ended.
    pub(super) fn is_closed(&self) -> bool {
        self.state.get() == DriverState::Closed
    }

    /// Keeps new requests from the driver (P2).
    #[cold]
    pub(super) fn stop(&mut self) {
        self.state.set(DriverState::Panicked);
        if !std::mem::replace(&mut self.stopped, true) {
            let hw = std::mem::replace(&mut self.hw, Box::new(Stopped { hw: None }));
            self.hw = Box::new(Stopped { hw: Some(hw) });
        }
    }

    /// Drops the driver's queue, which holds no requests any more. Every later request fails.
    #[cold]
    pub(super) fn close(&mut self) {
        (self.stopped, self.state) = (true, Cell::new(DriverState::Closed));
        let hw = std::mem::replace(&mut self.hw, Box::new(Stopped { hw: None }));
        if let Err(panic) = caught(|| drop(hw)) {
            discard(panic);
        }
    }
}

/// Returns the result of `call`, or the payload of its panic.
#[cfg(not(shuttle))]
#[inline(always)]
fn caught<R>(call: impl FnOnce() -> R) -> Result<R, Box<dyn Any + Send>> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(call))
}

/// The model checker reports failures through panics, so none is caught under it.
#[cfg(shuttle)]
fn caught<R>(call: impl FnOnce() -> R) -> Result<R, Box<dyn Any + Send>> {
    Ok(call())
}

/// Replacement for a queue whose driver has panicked.
#[derive(Debug)]
struct Stopped {
    /// The driver's queue until it has given all requests back.
    hw: Option<Box<dyn HwQueue>>,
}

// SAFETY: D1 to D3: without `hw` it ends each request that it receives at once, and changes none. D6: it accesses no
// memory itself. With `hw`, the author of that driver vouches for the calls passed on, as without `Stopped`.
unsafe impl HwQueue for Stopped {
    fn queue_rqs(&mut self, list: &mut RqList, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, done: &mut DoneList) {
        while self.hw.is_none()
            && let Some(rq) = list.pop()
        {
            done.push(rq, Status::IoErr);
        }
    }

    fn poll(&mut self, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) {}

    fn kernel_done(
        &mut self,
        events: KernelEvents<'_>,
        rqs: &mut RqTable<'_>,
        env: &mut HwEnv<'_>,
        done: &mut DoneList,
    ) {
        if let Some(hw) = &mut self.hw {
            hw.kernel_done(events, rqs, env, done);
        }
    }

    fn ended_remotely(&mut self, tag: u16, status: Status, rqs: &mut RqTable<'_>) -> Status {
        self.hw.as_mut().map_or(status, |hw| hw.ended_remotely(tag, status, rqs))
    }

    fn next_event(&self) -> NextEvent {
        if self.hw.is_some() { NextEvent::Ready } else { NextEvent::Idle }
    }

    fn timed_out(&mut self, _: u16, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) -> TimedOut {
        TimedOut::Waiting
    }

    fn shutdown(&mut self, rqs: &mut RqTable<'_>, env: &mut HwEnv<'_>, done: &mut DoneList) {
        if let Some(hw) = &mut self.hw {
            hw.shutdown(rqs, env, done);
        }
    }
}
