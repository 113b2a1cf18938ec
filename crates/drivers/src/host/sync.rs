//! Hardware queue of one ring for a file of the host without io_uring: by blocking system calls.
//!
//! Owns the choice of the thread that makes the calls. Requests that the page cache can serve without blocking are done
//! at once on the ring's thread. All others go to the file's threads (`workers`), and end like any remote completion. A
//! ring whose thread may block, such as a worker's ring, makes all calls itself. Results and rules are the same as with
//! a kernel ring: the calls are in `calls`, and `recover` judges them for both.
//!
//! Invariants:
//! - I1: a request has at most one call under way, and `vecs[tag]` changes only when there is none.
//! - I2: no call on a ring's thread waits for a disk, unless the thread may block: it has `RWF_NOWAIT`, and at most
//!   [`MOST_NOW`] bytes.
//! - I3: a request whose call does not return is not ended (its memory is the kernel's); a notice reports it.
#![allow(unsafe_code)] // being a driver's queue, whose calls name the memory of bios

use sheave_base::status::Status;
use sheave_base::sync::Arc;
use sheave_blk::bio::Op;
use sheave_blk::driver::{HctxOpen, HwEnv, HwQueue, NextEvent, TimedOut};
use sheave_blk::limits::Capacity;
use sheave_blk::request::{DoneList, RQ_FUA, Rq, RqList, RqTable};
use sheave_kring::IoVec;

use super::calls::Ask;
use super::queue::gather;
use super::recover::{Judge, Progress};
use super::shared::HostShared;
use super::workers::{Way, Workers};

/// Longest request that a ring's thread copies itself, from or into the page cache.
const MOST_NOW: u32 = 256 << 10;

/// Place where requests are executed.
#[derive(Debug)]
enum Where {
    /// On this thread, which may block.
    Here,
    /// By the file's threads.
    There(Way),
}

#[derive(Debug)]
pub(super) struct SyncQueue {
    shared: Arc<HostShared>,
    block: u32,
    capacity: Capacity,
    /// Vectors of requests, by tag; each allocated when first needed.
    vecs: Box<[Vec<IoVec>]>,
    at: Where,
    /// True while reads (writes) may be tried without blocking: the file is not direct, and its file system supports
    /// that.
    reads_now: bool,
    writes_now: bool,
}

impl SyncQueue {
    pub(super) fn new(shared: Arc<HostShared>, open: &HctxOpen<'_>, workers: Arc<Workers>) -> SyncQueue {
        let cached = !shared.file.is_direct();
        let here = open.kring.may_block();
        SyncQueue {
            block: open.limits.logical_block,
            capacity: open.capacity.clone(),
            vecs: (0..=open.depth).map(|_| Vec::new()).collect(),
            at: if here { Where::Here } else { Where::There(Way::new(workers, open)) },
            reads_now: cached,
            writes_now: cached,
            shared,
        }
    }

    /// Tries a request without blocking. Returns true if the page cache served all of it (I2).
    fn done_now(&mut self, tag: u16, rqs: &RqTable<'_>) -> bool {
        let rq = rqs.by_tag(tag);
        let may = match rq.op {
            Op::Read => &mut self.reads_now,
            Op::Write if rq.flags & RQ_FUA == 0 => &mut self.writes_now,
            _ => return false,
        };
        if !*may || rq.bytes > MOST_NOW {
            return false;
        }
        // SAFETY: I1.
        let done = unsafe { Ask::new(rq, &self.vecs[usize::from(tag)]) }.try_now(&self.shared);
        *may = done != -libc::EOPNOTSUPP;
        u32::try_from(done) == Ok(rq.bytes)
    }

    /// Ends one request, or adds it to the batch for the threads.
    fn take(&mut self, rq: Rq, rqs: &mut RqTable<'_>, done: &mut DoneList) {
        let tag = rq.tag();
        let request = rqs.get_mut(&rq);
        request.private = 0;
        if self.shared.refuses(request.op) {
            return done.push(rq, Status::ReadOnly);
        }
        if request.op == Op::WriteZeroes {
            request.private = Progress::zeroing_by(self.shared.zeroing()).to_bits();
        }
        let vecs = &mut self.vecs[usize::from(tag)];
        vecs.clear();
        if request.op.has_data() {
            gather(vecs, rqs.segments(tag), 0);
        }
        if self.done_now(tag, rqs) {
            return done.push(rq, Status::Ok);
        }
        let request = rqs.by_tag(tag);
        // SAFETY: I1.
        let mut ask = unsafe { Ask::new(request, &self.vecs[usize::from(tag)]) };
        match &mut self.at {
            Where::There(way) => {
                let one_at_a_time = request.op == Op::Write && !self.shared.file.is_direct();
                way.add(rq, ask, one_at_a_time);
            }
            Where::Here => {
                let (shared, capacity) = (&self.shared, &self.capacity);
                let status = ask.carry_out(&Judge { shared, capacity, block: self.block, ending: false });
                done.push(rq, status);
            }
        }
    }
}

// SAFETY: D1 to D6: I1 of this file, and W1, W2 of `workers`: a request is executed here or by one thread, once, and
// the shutdown of the queue waits for the threads.
unsafe impl HwQueue for SyncQueue {
    fn queue_rqs(&mut self, list: &mut RqList, rqs: &mut RqTable<'_>, _: &mut HwEnv<'_>, done: &mut DoneList) {
        while let Some(rq) = list.pop() {
            self.take(rq, rqs, done);
        }
        if let Where::There(way) = &mut self.at {
            way.send();
        }
    }

    fn ends_in_call(&self) -> bool {
        matches!(self.at, Where::Here)
    }

    fn poll(&mut self, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) {}

    fn ended_remotely(&mut self, _: u16, status: Status, _: &mut RqTable<'_>) -> Status {
        if let Where::There(way) = &mut self.at {
            way.seen();
        }
        status
    }

    fn next_event(&self) -> NextEvent {
        match &self.at {
            Where::There(way) if way.is_busy() => NextEvent::Remote,
            _ => NextEvent::Idle,
        }
    }

    fn timed_out(&mut self, tag: u16, rqs: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) -> TimedOut {
        if let Where::There(way) = &self.at
            && !way.take_back(Some(tag), Status::Timeout)
        {
            self.shared.still_waits(rqs.by_tag(tag)); // I3
        }
        TimedOut::Waiting
    }

    fn shutdown(&mut self, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) {
        if let Where::There(way) = &mut self.at {
            way.finish();
        }
    }
}
