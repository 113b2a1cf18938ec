//! A driver's queue whose panics end here: the ring goes on, and no request waits for ever.
//!
//! Owns the driver's [`HwQueue`] and every call of it. A call that panics is the last one that brings the driver
//! anything new: its hardware context says so to the ring ([`Core::broken`](crate::ring_core::Core)), whose next poll
//! shuts the queue down as a detach would, ends with an I/O error what the driver does not give back, and from then on
//! fails every request that comes. Attaching the device again, after the last detach, opens another queue.
//!
//! Invariants:
//! - P1: no panic of a driver leaves [`Contained::call`] or [`Contained::next_event`]. One of
//!   [`Hctx::send_alone`](super::Hctx::send_alone) passes on to the ring's caller, and has the same effect here.
//! - P2: after a panic the driver gets no request, only what ends those that it has (`kernel_done`, `ended_remotely`,
//!   `shutdown`); after [`Contained::close`] it is gone.
#![allow(unsafe_code)] // What stands in for a driver's queue is one.

use std::any::Any;
use std::cell::Cell;

use sheave_base::panics::discard;
use sheave_base::status::Status;

use crate::driver::{HwEnv, HwQueue, KernelEvents, NextEvent, TimedOut};
use crate::request::{DoneList, RqList, RqTable};

/// What became of a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DriverState {
    /// No call of it has panicked.
    Runs,
    /// A call has panicked; it may still have requests.
    Panicked,
    /// A call has panicked, and it has no requests any more.
    Closed,
}

/// A driver's queue whose panics end here.
#[derive(Debug)]
pub(super) struct Contained {
    hw: Box<dyn HwQueue>,
    state: Cell<DriverState>,
    /// A [`Stopped`] stands before the driver's queue, or in its place.
    stopped: bool,
}

impl Contained {
    pub(super) fn new(hw: Box<dyn HwQueue>) -> Contained {
        Contained { hw, state: Cell::new(DriverState::Runs), stopped: false }
    }

    /// Calls the driver; `None` when it panicked.
    #[inline(always)]
    pub(super) fn call<R>(&mut self, call: impl FnOnce(&mut dyn HwQueue) -> R) -> Option<R> {
        match caught(|| call(&mut *self.hw)) {
            Ok(result) => Some(result),
            Err(panic) => {
                discard(panic);
                self.stop();
                None
            }
        }
    }

    /// The driver's queue, for one call by who lets its panic pass and [stops](Contained::stop) it then.
    #[inline(always)]
    pub(super) fn queue_mut(&mut self) -> &mut dyn HwQueue {
        &mut *self.hw
    }

    /// What the driver waits for; after a panic the ring has something to do.
    #[inline(always)]
    pub(super) fn next_event(&self) -> NextEvent {
        caught(|| self.hw.next_event()).unwrap_or_else(|panic| {
            discard(panic);
            self.state.set(DriverState::Panicked);
            NextEvent::Ready
        })
    }

    /// What the driver has in the kernel ring that need not end by itself; one that has panicked is not believed.
    pub(super) fn lasting_in_kernel(&self) -> u32 {
        if self.has_panicked() { 0 } else { caught(|| self.hw.lasting_in_kernel()).unwrap_or(0) }
    }

    /// Whether a call of the driver has panicked.
    pub(super) fn has_panicked(&self) -> bool {
        self.state.get() != DriverState::Runs
    }

    /// Whether it has, and the queue was not [closed](Contained::close) since.
    pub(super) fn wants_close(&self) -> bool {
        self.state.get() == DriverState::Panicked
    }

    /// Whether the queue was [closed](Contained::close). What other threads end from then on, tokens that the queue had
    /// dropped among it, is of requests that have ended.
    pub(super) fn is_closed(&self) -> bool {
        self.state.get() == DriverState::Closed
    }

    /// From now on the driver gets nothing new (P2).
    #[cold]
    pub(super) fn stop(&mut self) {
        self.state.set(DriverState::Panicked);
        if !std::mem::replace(&mut self.stopped, true) {
            let hw = std::mem::replace(&mut self.hw, Box::new(Stopped { hw: None }));
            self.hw = Box::new(Stopped { hw: Some(hw) });
        }
    }

    /// Drops the driver's queue, which has nothing any more; every request fails from now on.
    #[cold]
    pub(super) fn close(&mut self) {
        (self.stopped, self.state) = (true, Cell::new(DriverState::Closed));
        let hw = std::mem::replace(&mut self.hw, Box::new(Stopped { hw: None }));
        if let Err(panic) = caught(|| drop(hw)) {
            discard(panic);
        }
    }
}

/// What a call gives, or what its panic carries.
#[cfg(not(shuttle))]
#[inline(always)]
fn caught<R>(call: impl FnOnce() -> R) -> Result<R, Box<dyn Any + Send>> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(call))
}

/// The model checker speaks through panics.
#[cfg(shuttle)]
fn caught<R>(call: impl FnOnce() -> R) -> Result<R, Box<dyn Any + Send>> {
    Ok(call())
}

/// What stands in the place of a queue whose driver has panicked.
#[derive(Debug)]
struct Stopped {
    /// The driver's queue, until all that it has is back.
    hw: Option<Box<dyn HwQueue>>,
}

// SAFETY: D1 to D3: of itself it ends requests that came to it, at once, and changes none. D6: nothing of it touches
// memory; for the driver that it stands for its author vouches, as for a queue without it.
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
