//! The adapter between a driver without unsafe code and the block layer: holds every request, and keeps D1 to D7.
//!
//! Owns the calls of the driver, whose panics it catches, and the ends of requests. A request is *held* from its start
//! to its end; its *verdict* is the status with which it ends, once it has no child and no operation of the kernel ring
//! (`table`).
//!
//! Invariants:
//! - Q1: a tag is held from the call that it arrived with until it is put into a `DoneList`, once (D1).
//! - Q2: a request with children, or held by operations, does not end, so their memory and its own stay valid (D2, D6).
//! - Q3: after a panic, or when the queue shuts down, the driver is not called any more, and each held request has a
//!   verdict.
//! - Q4: an id names a request of one queue and one use of its tag.
//! - Q5: the driver's queue is dropped after all its operations have ended: a queue that shuts down cancels them, and
//!   returns [`NextEvent::Kernel`] until the kernel has ended the last one.
#![allow(unsafe_code)] // Is a driver, and vouches for the memory of requests.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use sheave_base::identity;
use sheave_base::panics::discard;
use sheave_base::status::Status;
use sheave_blk::claim::{Claim, Sharing};
use sheave_blk::driver::{
    Capabilities, Driver, Extent, HctxOpen, HwEnv, HwQueue, KernelEvent, KernelEvents, NextEvent, TimedOut,
};
use sheave_blk::limits::Limits;
use sheave_blk::request::{DoneList, Rq, RqList, RqTable};
use sheave_blk::stack::Lower;
use sheave_blk::{Device, DeviceError};
use sheave_kring::KernelRing;

use super::kernel::{KernelUse, OpEnd};
use super::ops::{Came, Ops};
use super::request::{ChildEnd, Polled, Request, RequestId};
use super::table::{ChildOf, Children, Slot, settle};
use super::traits::{Open, SafeDriver, SafeQueue, Step, WaitsFor};

/// Device of a driver without unsafe code.
#[derive(Debug)]
pub(super) struct Adapter {
    driver: ManuallyDrop<Box<dyn SafeDriver>>,
    lower: Vec<Device>,
}

impl Adapter {
    pub(super) fn new(driver: Box<dyn SafeDriver>, lower: Vec<Device>) -> Adapter {
        Adapter { driver: ManuallyDrop::new(driver), lower }
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        // SAFETY: taken here only, and not used afterwards.
        let driver = unsafe { ManuallyDrop::take(&mut self.driver) };
        // The device may be dropped by a ring in the middle of a batch, which a panic of the driver must not end.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(driver))).map_err(discard);
    }
}

// SAFETY: D7: the queues take every request; those that the driver does not execute end with an error.
unsafe impl Driver for Adapter {
    /// Returns the driver's limits, tightened to the alignment and block size of the devices below.
    fn limits(&self) -> Limits {
        let mut limits = self.driver.limits();
        for below in self.lower.iter().map(Device::limits) {
            limits.dma_alignment = limits.dma_alignment.max(below.dma_alignment);
            limits.logical_block = limits.logical_block.max(below.logical_block);
        }
        limits
    }

    fn capabilities(&self) -> Capabilities {
        self.driver.capabilities()
    }

    fn size_bytes(&self) -> u64 {
        self.driver.size_bytes()
    }

    fn open_hctx(&self, open: &mut HctxOpen<'_>) -> Result<Box<dyn HwQueue>, DeviceError> {
        let (lower, key) = (open.lower.clone(), identity::unique());
        let ops = self.driver.kernel().map(|wants| open_ops(wants, key, open)).transpose()?;
        let opened =
            Open { depth: open.depth, lower: lower.as_ref().map_or(0, Lower::count), remote: open.remote.clone() };
        let queue = match catch_unwind(AssertUnwindSafe(|| self.driver.open_queue(&opened))) {
            Ok(Ok(queue)) => queue,
            failed => {
                close_ops(ops.as_ref(), open.kring.get(false).ok());
                failed.unwrap_or_else(|panic| resume_unwind(panic))?
            }
        };
        let depth = usize::from(open.depth);
        Ok(Box::new(AdapterQueue {
            queue: Some(queue),
            key,
            ops,
            slots: (0..=depth).map(|_| Slot::default()).collect(),
            children: Children::default(),
            settled: Vec::with_capacity(depth + 1),
            held: 0,
            uses: 0,
            lower,
            dead: Cell::new(None),
            ended: false,
            shut: false,
        }))
    }

    fn claim(&self, sharing: Sharing) -> Result<Claim, DeviceError> {
        let mut claims = vec![self.driver.claim(sharing)?];
        for device in &self.lower {
            claims.push(device.claim(sharing)?);
        }
        Ok(Claim::all(claims))
    }

    fn still_owns(&self) -> Result<(), Status> {
        self.lower.iter().try_for_each(Device::still_owns)
    }

    fn extents(&self, from: u64) -> Result<Vec<Extent>, DeviceError> {
        self.driver.extents(from)
    }

    fn notices(&self) -> Vec<String> {
        let below = self.lower.iter().flat_map(Device::notices);
        self.driver.notices().into_iter().chain(below).collect()
    }
}

#[derive(Debug)]
struct AdapterQueue {
    /// The driver's queue; `None` while it is called, and after its end.
    queue: Option<Box<dyn SafeQueue>>,
    key: u64,
    slots: Box<[Slot]>,
    children: Children,
    /// Tag and status of each request that has ended and is not in the `DoneList` yet.
    settled: Vec<(u16, Status)>,
    held: u32,
    /// Number of requests that have arrived so far (Q4).
    uses: u64,
    lower: Option<Lower>,
    /// Operations on the kernel ring, if the driver requested it.
    ops: Option<Ops>,
    /// Once set, the driver is not called any more, and requests end with this status (Q3).
    dead: Cell<Option<Status>>,
    /// True if all requests that were held when `dead` was set have a verdict.
    ended: bool,
    shut: bool,
}

impl AdapterQueue {
    /// Calls the driver. Returns `None` if it is not called any more, or panics (Q3).
    fn call<T>(&mut self, call: impl FnOnce(&mut dyn SafeQueue, &mut AdapterQueue) -> T) -> Option<T> {
        if self.dead.get().is_some() {
            return None;
        }
        let mut queue = self.queue.take()?;
        let result = catch_unwind(AssertUnwindSafe(|| call(&mut *queue, self)));
        self.queue = Some(queue);
        result
            .map_err(|panic| {
                discard(panic);
                self.die(Status::IoErr);
            })
            .ok()
    }

    /// Stops calling the driver; held requests end with `status`, or with the verdict that they have already.
    fn die(&mut self, status: Status) {
        if self.dead.get().is_none() {
            self.dead.set(Some(status));
        }
        self.ended = true;
        for (tag, slot) in (0..).zip(&mut self.slots) {
            settle(slot, tag, Some(status), &mut self.settled);
        }
    }

    /// Calls the driver for one held request.
    fn call_for(
        &mut self,
        tag: u16,
        rqs: &RqTable<'_>,
        env: &HwEnv<'_>,
        call: impl FnOnce(&mut dyn SafeQueue, &mut Request<'_>) -> Step,
    ) {
        let now = env.clock.precise();
        let step = self.call(|queue, this| {
            let AdapterQueue { slots, children, lower, key, .. } = this;
            let slot = &mut slots[usize::from(tag)];
            let id = RequestId { queue: *key, generation: slot.generation, tag };
            call(queue, &mut Request { id, slot, children, rqs, lower: lower.as_ref(), now })
        });
        let verdict = match step {
            Some(Step::End(status)) => Some(status),
            Some(Step::Wait) => None,
            None => self.dead.get(),
        };
        settle(&mut self.slots[usize::from(tag)], tag, verdict, &mut self.settled);
    }

    /// Calls the driver with access to all its requests.
    fn call_polled(
        &mut self,
        rqs: &RqTable<'_>,
        env: &mut HwEnv<'_>,
        call: impl FnOnce(&mut dyn SafeQueue, &mut Polled<'_>),
    ) {
        let now = env.clock.precise();
        let kring = env.kring.as_deref_mut();
        self.call(|queue, this| {
            let AdapterQueue { slots, children, settled, lower, key, ops, .. } = this;
            let (lower, ops) = (lower.as_ref(), ops.as_mut());
            call(queue, &mut Polled { slots, children, settled, rqs, lower, key: *key, now, ops, kring });
        });
    }

    /// Polls the driver, and watches the descriptors again whose events it was polled for.
    fn poll_queue(&mut self, rqs: &RqTable<'_>, env: &mut HwEnv<'_>) {
        self.call_polled(rqs, env, |queue, rqs| queue.poll(rqs));
        if let (Some(ops), Some(kring), None) = (&mut self.ops, &mut env.kring, self.dead.get()) {
            ops.watch_again(kring);
        }
    }

    /// Reports a result of an operation. If it has ended, it no longer holds its requests when the driver is called.
    fn op_came(&mut self, slot: u16, end: OpEnd<'_>, rqs: &RqTable<'_>, env: &mut HwEnv<'_>) {
        let AdapterQueue { ops: Some(ops), slots, settled, .. } = self else { return };
        if !end.more {
            ops.release(slot, |tag| {
                let held = &mut slots[usize::from(tag)];
                held.ops -= 1;
                settle(held, tag, None, settled);
            });
        }
        self.call_polled(rqs, env, |queue, rqs| queue.op_ended(rqs, end));
    }

    /// Assigns a completion of the kernel ring to its operation. Returns true if the driver must be polled for it.
    fn kernel_event(&mut self, event: &KernelEvent, rqs: &RqTable<'_>, env: &mut HwEnv<'_>) -> bool {
        let AdapterQueue { ops: Some(ops), .. } = self else { return false };
        let mut buffer = None;
        if let (Some(group), Some(kring)) = (ops.group, &mut env.kring) {
            // SAFETY: receives of this group are this queue's, and each of their completions is passed here once.
            buffer = unsafe { kring.received(group, event.res, event.flags) }
                .map(|(number, data)| (group, number, data.as_ptr(), data.len()));
        }
        let came = ops.came(event);
        if let Some(Came::Result { slot, more }) = came {
            let token = ops.token(slot);
            let data = match buffer {
                // SAFETY: the buffer is not with the kernel until it is recycled below, and its group is registered
                // until the queue shuts down.
                Some((_, _, start, len)) => unsafe { std::slice::from_raw_parts(start, len) },
                None => &[],
            };
            self.op_came(slot, OpEnd { token, res: event.res, more, data }, rqs, env);
        }
        // Recycled even if the operation is unknown, or the kernel would run out of buffers.
        if let (Some((group, number, ..)), Some(kring)) = (buffer, &mut env.kring) {
            kring.recycle(group, number);
        }
        came == Some(Came::Fired)
    }

    /// Last step of each call: reports operations that ended before the kernel had them, sends those that found no
    /// room, and moves ended requests to the list. Cancels the operations of a driver that is not called any more (Q5).
    fn finish(&mut self, rqs: &RqTable<'_>, env: &mut HwEnv<'_>, done: &mut DoneList) {
        let dead = self.dead.get().is_some();
        if let (Some(ops), Some(kring), true) = (&mut self.ops, &mut env.kring, dead) {
            ops.cancel_all(kring);
        }
        // Bounded by the number at the start: operations that the driver cancels in these calls are reported with the
        // next poll.
        for _ in 0..self.ops.as_ref().map_or(0, Ops::aborted) {
            let Some(ops) = &mut self.ops else { break };
            let Some(slot) = ops.take_aborted() else { break };
            let token = ops.token(slot);
            self.op_came(slot, OpEnd { token, res: -ECANCELED, more: false, data: &[] }, rqs, env);
        }
        if let (Some(ops), Some(kring)) = (&mut self.ops, &mut env.kring) {
            ops.send(kring);
        }
        self.hand_over(done);
    }

    fn in_kernel(&self) -> u32 {
        self.ops.as_ref().map_or(0, Ops::in_kernel)
    }

    /// Handles the end of a child.
    fn child_ended(&mut self, token: u64, status: Status, rqs: &RqTable<'_>, env: &HwEnv<'_>) {
        let Some(ChildOf { tag, number, buf, .. }) = self.children.take(token) else {
            debug_assert!(false, "a child ends once");
            return;
        };
        let slot = &mut self.slots[usize::from(tag)];
        slot.children -= 1;
        if slot.joined.is_ok() {
            slot.joined = status;
        }
        if slot.verdict.is_some() {
            return settle(slot, tag, None, &mut self.settled);
        }
        self.call_for(tag, rqs, env, |queue, rq| queue.child_ended(rq, ChildEnd { number, status, buf }));
    }

    /// Handles the children that have ended since the last call.
    fn take_children(&mut self, rqs: &RqTable<'_>, env: &HwEnv<'_>) {
        // Children that the driver sends in these calls and that end at once wait for the next poll, so that the loop
        // ends.
        let rejected = std::mem::take(&mut self.children.rejected);
        rejected.into_iter().for_each(|token| self.child_ended(token, Status::Invalid, rqs, env));
        let unfinished = self.lower.as_ref().map_or(0, Lower::unfinished);
        for _ in 0..unfinished {
            let Some((token, status)) = self.lower.as_ref().and_then(Lower::take_ended) else { break };
            self.child_ended(token, status, rqs, env);
        }
    }

    /// Moves ended requests to the list (Q1).
    fn hand_over(&mut self, done: &mut DoneList) {
        for (tag, status) in self.settled.drain(..) {
            self.held -= 1;
            // SAFETY: Q1: the tag was held, and its token was given up when it arrived.
            done.push(unsafe { Rq::from_tag(tag) }, status);
        }
    }
}

// SAFETY: D1 by Q1, D2 and D6 by Q2; requests are not changed (D3).
unsafe impl HwQueue for AdapterQueue {
    fn queue_rqs(&mut self, list: &mut RqList, rqs: &mut RqTable<'_>, env: &mut HwEnv<'_>, done: &mut DoneList) {
        while let Some(rq) = list.pop() {
            let tag = rq.into_tag();
            self.uses += 1;
            self.held += 1;
            self.slots[usize::from(tag)] = Slot { held: true, generation: self.uses, ..Slot::default() };
            self.call_for(tag, rqs, env, |queue, rq| queue.start(rq));
        }
        self.call_polled(rqs, env, |queue, rqs| queue.commit(rqs));
        self.finish(rqs, env, done);
    }

    fn works_alone(&self) -> bool {
        self.ops.is_some()
    }

    fn poll(&mut self, rqs: &mut RqTable<'_>, env: &mut HwEnv<'_>, done: &mut DoneList) {
        if let Some(status) = self.dead.get() {
            self.die(status); // After a panic in `waits_for`, held requests have no verdict yet.
        }
        self.take_children(rqs, env);
        self.poll_queue(rqs, env);
        self.finish(rqs, env, done);
    }

    fn kernel_done(
        &mut self,
        events: KernelEvents<'_>,
        rqs: &mut RqTable<'_>,
        env: &mut HwEnv<'_>,
        done: &mut DoneList,
    ) {
        let mut fired = false;
        for event in events.iter() {
            fired |= self.kernel_event(&event, rqs, env);
        }
        if fired {
            self.poll_queue(rqs, env);
        }
        self.finish(rqs, env, done);
    }

    fn next_event(&self) -> NextEvent {
        if self.held == 0 && self.ops.is_none() {
            return NextEvent::Idle;
        }
        if self.shut {
            return match (self.in_kernel(), self.held) {
                (1.., _) => NextEvent::Kernel, // Q5
                (0, 1..) => NextEvent::Lower,
                (0, 0) => NextEvent::Idle,
            };
        }
        if self.ops.as_ref().is_some_and(Ops::has_unsent) {
            return NextEvent::Ready;
        }
        let has_ended = self.lower.as_ref().is_some_and(Lower::has_ended);
        if has_ended || !self.children.rejected.is_empty() || !self.settled.is_empty() {
            return NextEvent::Ready;
        }
        let below = self.lower.as_ref().is_some_and(|lower| lower.unfinished() > 0);
        let (None, Some(queue)) = (self.dead.get(), &self.queue) else {
            // If the driver has panicked in `waits_for`, the next poll handles that.
            return match self.ended {
                false => NextEvent::Ready,
                true if self.in_kernel() > 0 => NextEvent::Kernel,
                true if self.held > 0 => NextEvent::Lower,
                true => NextEvent::Idle,
            };
        };
        match catch_unwind(AssertUnwindSafe(|| queue.waits_for())) {
            Ok(WaitsFor::Now) => NextEvent::Ready,
            Ok(WaitsFor::At(at)) => NextEvent::At(at),
            Ok(WaitsFor::Waker) => NextEvent::Remote,
            Ok(WaitsFor::Nothing) if self.held == 0 => NextEvent::Idle,
            Ok(WaitsFor::Nothing) if self.in_kernel() > 0 => NextEvent::Kernel,
            Ok(WaitsFor::Nothing) if below => NextEvent::Lower,
            Ok(WaitsFor::Nothing) => NextEvent::Stuck,
            Err(panic) => {
                discard(panic);
                self.dead.set(Some(Status::IoErr));
                NextEvent::Ready
            }
        }
    }

    fn lasting_in_kernel(&self) -> u32 {
        self.in_kernel()
    }

    fn timed_out(&mut self, tag: u16, rqs: &mut RqTable<'_>, env: &mut HwEnv<'_>, done: &mut DoneList) -> TimedOut {
        let slot = &self.slots[usize::from(tag)];
        if !slot.held || slot.children > 0 {
            return TimedOut::Waiting;
        }
        // A request with a verdict waits only for an operation, which the peer of a socket may leave unfinished for
        // ever.
        if slot.verdict.is_none() {
            self.call_for(tag, rqs, env, |queue, rq| queue.timed_out(rq));
        }
        let slot = &self.slots[usize::from(tag)];
        if let (Some(ops), Some(kring), true, true) =
            (&mut self.ops, &mut env.kring, slot.held && slot.verdict.is_some(), slot.ops > 0)
        {
            ops.cancel_holding(kring, tag);
        }
        self.finish(rqs, env, done);
        let ended = !self.slots[usize::from(tag)].held;
        if ended { TimedOut::Ended } else { TimedOut::Waiting }
    }

    fn shutdown(&mut self, rqs: &mut RqTable<'_>, env: &mut HwEnv<'_>, done: &mut DoneList) {
        self.shut = true;
        self.die(Status::Canceled);
        if let Some(lower) = &self.lower {
            lower.cancel_unsent();
        }
        self.take_children(rqs, env);
        if let (Some(ops), None) = (&mut self.ops, &env.kring) {
            ops.lost();
        }
        self.finish(rqs, env, done);
        if let (0, Some(kring)) = (self.in_kernel(), &mut env.kring) {
            close_ops(self.ops.as_ref(), Some(kring));
        }
    }
}

/// `ECANCELED`.
const ECANCELED: i32 = 125;

/// Makes the table of operations, and registers receive buffers if the driver requested them.
fn open_ops(wants: KernelUse, key: u64, open: &mut HctxOpen<'_>) -> Result<Ops, DeviceError> {
    let failed = |error| DeviceError::Kring {
        what: "attaching a device whose driver uses the ring's kernel ring".into(),
        source: Box::new(error),
    };
    let kring = open.kring.get(false).map_err(failed)?;
    let mut group = None;
    if let Some((count, bytes)) = wants.buffers {
        let number = open.hctx + 1; // Group 0 belongs to the ring's owner.
        kring.register_recv_buffers(number, count, bytes).map_err(failed)?;
        group = Some(number);
    }
    Ok(Ops::new(key, open.hctx, wants.operations, group))
}

/// Unregisters the receive buffers, once no operation uses them.
fn close_ops(ops: Option<&Ops>, kring: Option<&mut KernelRing>) {
    if let (Some(group), Some(kring)) = (ops.and_then(|ops| ops.group), kring) {
        kring.unregister_recv_buffers(group);
    }
}

impl Drop for AdapterQueue {
    fn drop(&mut self) {
        debug_assert!(self.in_kernel() == 0 || std::thread::panicking(), "Q5: the kernel may use the driver's memory");
        let queue = self.queue.take();
        // A panic of the driver here is ignored: nothing waits for it any more.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(queue))).map_err(discard);
    }
}
