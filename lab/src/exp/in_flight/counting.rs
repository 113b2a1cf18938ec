//! A driver in front of another one. It counts each request at its start and its end, with the counters of its arm.
//!
//! Owns a queue of its own, with requests, tags and statistics. The lower device does the work. Every arm has this
//! driver, even the one that counts nothing, so that the arms differ only in the counting.
//!
//! * D1. A request counts once the lower queue has taken it, and not if the queue refuses it.
//! * D2. The thread that ends a request counts the end. For ends in a call of the lower queue that is this driver; if
//!   the lower device completes on another thread, it is the lower device.

use std::sync::Arc;

use sheave::{Capabilities, Device, DeviceError};
use sheave_base::status::Status;
use sheave_blk::bio::Op;
use sheave_blk::driver::{Driver, HctxOpen, HwEnv, HwQueue, KernelEvents, NextEvent, TimedOut};
use sheave_blk::limits::Limits;
use sheave_blk::request::{DoneList, PLUG_MAX, RqList, RqTable};

use crate::counters::{Counters, Seat};

#[derive(Debug)]
struct Counting {
    lower: Device,
    counters: Arc<Counters>,
    ends_here: bool,
}

/// Wraps `lower` with counters. `ends_here` is false if the lower device counts the ends itself (D2). `lower` must have
/// a single queue driver.
pub fn over(lower: &Device, counters: &Arc<Counters>, ends_here: bool) -> Device {
    let counting = Counting { lower: lower.clone(), counters: counters.clone(), ends_here };
    Device::from_driver("counted", Box::new(counting))
}

#[allow(unsafe_code)] // An unsafe trait: its implementer vouches for the memory of the requests.
// SAFETY: D7: its queues accept all requests that its limits allow.
unsafe impl Driver for Counting {
    fn limits(&self) -> Limits {
        self.lower.limits().clone()
    }

    fn capabilities(&self) -> Capabilities {
        self.lower.capabilities()
    }

    fn size_bytes(&self) -> u64 {
        self.lower.size_bytes()
    }

    fn open_hctx(&self, open: &mut HctxOpen<'_>) -> Result<Box<dyn HwQueue>, DeviceError> {
        let Some(queue) = self.lower.whole_queue() else {
            return Err(DeviceError::spec(self.lower.name(), "a device of several legs has no one driver"));
        };
        let lower = queue.driver().open_hctx(open)?;
        Ok(Box::new(CountingQueue { lower, seat: self.counters.seat(), ends_here: self.ends_here }))
    }
}

#[derive(Debug)]
struct CountingQueue {
    lower: Box<dyn HwQueue>,
    seat: Seat,
    ends_here: bool,
}

impl CountingQueue {
    /// Counts the ends of the last call of the lower queue: the entries of `done` after the first `before`.
    #[inline]
    fn count_ends(&mut self, before: usize, rqs: &RqTable<'_>, done: &DoneList) {
        if self.ends_here {
            for (tag, _) in done.iter().skip(before) {
                self.seat.end(rqs.by_tag(tag).op);
            }
        }
    }
}

#[allow(unsafe_code)] // An unsafe trait: its implementer vouches for the memory of the requests.
// SAFETY: D1 to D6: each request ends once, where it came, and its memory is not touched afterwards.
unsafe impl HwQueue for CountingQueue {
    fn queue_rqs(&mut self, list: &mut RqList, rqs: &mut RqTable<'_>, env: &mut HwEnv<'_>, done: &mut DoneList) {
        let before = done.len();
        // Counted before the call, because afterwards another thread may have ended the requests already.
        let mut ops = [Op::Read; PLUG_MAX];
        let offered = list.len();
        for (op, &tag) in ops.iter_mut().zip(list.tags()) {
            *op = rqs.by_tag(tag).op;
            self.seat.start(*op);
        }
        self.lower.queue_rqs(list, rqs, env, done);
        // D1: the lower queue has not taken the requests that are still in the list, so their starts are undone.
        for &op in &ops[offered - list.len()..offered] {
            self.seat.end(op);
        }
        self.count_ends(before, rqs, done);
    }

    fn works_alone(&self) -> bool {
        self.lower.works_alone()
    }

    fn poll(&mut self, rqs: &mut RqTable<'_>, env: &mut HwEnv<'_>, done: &mut DoneList) {
        let before = done.len();
        self.lower.poll(rqs, env, done);
        self.count_ends(before, rqs, done);
    }

    fn kernel_done(
        &mut self,
        events: KernelEvents<'_>,
        rqs: &mut RqTable<'_>,
        env: &mut HwEnv<'_>,
        done: &mut DoneList,
    ) {
        let before = done.len();
        self.lower.kernel_done(events, rqs, env, done);
        self.count_ends(before, rqs, done);
    }

    fn ended_remotely(&mut self, tag: u16, status: Status, rqs: &mut RqTable<'_>) -> Status {
        if self.ends_here {
            self.seat.end(rqs.by_tag(tag).op);
        }
        self.lower.ended_remotely(tag, status, rqs)
    }

    fn next_event(&self) -> NextEvent {
        self.lower.next_event()
    }

    fn lasting_in_kernel(&self) -> u32 {
        self.lower.lasting_in_kernel()
    }

    fn timed_out(&mut self, tag: u16, rqs: &mut RqTable<'_>, env: &mut HwEnv<'_>, done: &mut DoneList) -> TimedOut {
        let before = done.len();
        let answer = self.lower.timed_out(tag, rqs, env, done);
        self.count_ends(before, rqs, done);
        answer
    }

    fn shutdown(&mut self, rqs: &mut RqTable<'_>, env: &mut HwEnv<'_>, done: &mut DoneList) {
        let before = done.len();
        self.lower.shutdown(rqs, env, done);
        self.count_ends(before, rqs, done);
    }
}
