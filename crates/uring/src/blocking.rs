//! What requests need a worker for: mappings that block, completion work of files, syncs.
//!
//! Owns the way of a slot to a worker and back. The worker's half is in [`io_wq`](crate::io_wq); what is done there is
//! the engine's ([`sheave_iomap::dio`]).
//!
//! Invariants:
//! - I1: a slot that is with a worker has no bio in flight, and comes back through the task-work queue.
//! - I2: the flush that ends a sync is sent once, after the worker's part: [`REQ_FLUSHES`] says so while the slot waits
//!   for a bio.

use sheave_base::status::Status;
use sheave_base::sync::Arc;
use sheave_iomap::File;
use sheave_iomap::dio::{self, Finished, Issued};
use sheave_iomap::mapping::Intent;

use crate::io_wq::{ISSUE_NOW, NO_THREAD, Work};
use crate::req::{NO_FILE, REQ_CANCELED, REQ_FLUSHES, REQ_HAS_GUARD, State};
use crate::ring::Ring;
use crate::sqe::{errno, opcode};

/// The result of work after which the ring is to flush the device. No CQE has it.
pub(crate) const FLUSH_NOW: i32 = i32::MIN + 1;

/// What a worker's completion says to the ring.
pub(crate) fn result_of(finished: Finished) -> i32 {
    match finished {
        Finished::Done(res) => res,
        Finished::Flush => FLUSH_NOW,
    }
}

/// What a worker's mapping says to the ring: the request is issued again, or has failed.
pub(crate) fn result_of_map(result: Result<(), Status>) -> i32 {
    match result {
        Ok(()) => ISSUE_NOW,
        Err(status) => -status.errno(),
    }
}

impl Ring {
    /// Completes I/O whose plan is not inline.
    #[cold]
    pub(crate) fn run_tasks(&mut self) {
        while let Some(slot) = self.core.tasks.pop_front() {
            let req = &self.core.reqs[slot];
            if dio::wants_worker(&req.kiocb) {
                self.complete_in_worker(slot);
            } else {
                let res = dio::finish_in_task(&req.kiocb);
                self.core.finish(slot, res);
            }
        }
    }

    /// Sends the completion to a worker.
    pub(crate) fn complete_in_worker(&mut self, slot: u32) {
        let kiocb = self.core.reqs[slot].kiocb;
        self.send_to_worker(slot, |file| Work::Complete(file, kiocb));
    }

    /// Lets a worker map what a read or write needs; it is issued again afterwards. False when it has ended instead.
    #[cold]
    pub(crate) fn map_in_worker(&mut self, slot: u32) -> bool {
        let kiocb = self.core.reqs[slot].kiocb;
        let intent = if kiocb.is_write() { Intent::Write } else { Intent::Read };
        self.send_to_worker(slot, |file| Work::Map(file, kiocb.pos, kiocb.len.into(), intent))
    }

    /// False when the request has ended with an error instead.
    fn send_to_worker(&mut self, slot: u32, work: impl FnOnce(Arc<dyn File>) -> Work) -> bool {
        let Some(file) = self.core.files.get(self.core.reqs[slot].file as usize) else {
            self.core.finish(slot, -errno::EBADF);
            return false;
        };
        let work = work(file.file.clone());
        let sent = self.core.wq.queue(slot, work);
        if !sent {
            self.core.finish(slot, -errno::EAGAIN);
        }
        sent
    }

    /// A worker has given the slot back.
    pub(crate) fn worker_done(&mut self, slot: u32, res: i32) {
        match res {
            ISSUE_NOW => self.issue_after_worker(slot),
            // Issued on this thread: slower for the caller, and right. What must not run here fails.
            NO_THREAD if self.core.reqs[slot].state == State::Queued && self.core.reqs[slot].file == NO_FILE => {
                self.core.ready.push_back(slot);
            }
            NO_THREAD => self.worker_done(slot, -errno::EAGAIN),
            FLUSH_NOW => {
                self.core.reqs[slot].rflags |= REQ_FLUSHES;
                self.core.ready.push_back(slot);
            }
            res => {
                let mut res = res;
                if self.core.reqs[slot].state == State::Queued {
                    // A mapping that failed, after a cancel or not.
                    self.core.nr_queued -= 1;
                    if self.core.reqs[slot].rflags & REQ_CANCELED != 0 {
                        res = -errno::ECANCELED;
                    }
                }
                self.core.finish(slot, res);
            }
        }
    }

    /// Issues what a worker gave back: at once when nothing but its result is left to do.
    #[inline]
    fn issue_after_worker(&mut self, slot: u32) {
        let req = &self.core.reqs[slot];
        if req.opcode == opcode::NOP && req.rflags & (REQ_CANCELED | REQ_HAS_GUARD) == 0 {
            let res = req.res;
            self.core.nr_queued -= 1;
            self.core.finish(slot, res);
        } else {
            self.core.ready.push_back(slot);
        }
    }

    /// Sends the flush that ends a sync.
    #[cold]
    pub(crate) fn issue_flush(&mut self, slot: u32) {
        let req = &mut self.core.reqs[slot];
        let Some(file) = self.core.files.get(req.file as usize) else {
            return self.core.finish(slot, -errno::EBADF);
        };
        match dio::issue_flush(&mut self.io, file, &mut req.kiocb, slot) {
            Issued::Done(res) => self.core.finish(slot, res),
            Issued::Again => self.core.retry.push_back(slot),
            Issued::Queued | Issued::Blocks => {}
        }
    }
}
