//! Work of requests that needs a worker: mappings that block, completion work of files, syncs, FALLOCATE on files.
//!
//! Owns the path of a slot to a worker and back. The worker's half is in [`io_wq`](crate::io_wq), the work itself in
//! the engine ([`sheave_iomap::dio`]), and the members of a batch in [`file_work`](crate::file_work).
//!
//! Invariants:
//! - I1: a slot that is with a worker has no bio in flight, and comes back through the task-work queue.
//! - I2: the flush that ends a sync is sent once, after the worker's part: the slot is at [`Step::WantsFlush`] while it
//!   waits for a bio.
//! - I3: a write is uncounted in its file's grace after its completion work and before its sync. The sync may wait for
//!   that grace, which a counted write would delay.
//! - I4: work that may wait for a grace, for space or for other writes (mappings, FALLOCATE) is unbound and unhashed:
//!   no completion and no sync ever queues behind it.
//! - I5: the completion work of a file's writes runs for every write that needs it, for one after the other, also when
//!   no thread is available and when the ring is dropped. The ring leaves its graces only after the last of it.

use sheave_base::sync::Arc;
use sheave_blk::bio::BVec;
use sheave_iomap::File;
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::dio::{self, Issued, Next};
use sheave_iomap::mapping::Intent;

use crate::core::{Cold, Core};
use crate::file_work::lock;
use crate::io_wq::{Cancelled, Sum, Work};
use crate::req::{REQ_CANCELED, REQ_VECTORED, Req, State, Step};
use crate::ring::inner::Inner;
use crate::sqe::{IOSQE_ASYNC, errno, opcode};
use crate::user_memory::sqe_memory;
use crate::work_done::WorkDone;

impl Inner {
    #[cold]
    pub(crate) fn run_tasks(&mut self) {
        while let Some(slot) = self.core.tasks.pop_front() {
            self.run_task(slot);
        }
        self.start_batches();
    }

    /// Completes one I/O whose plan is not inline, as far as this thread can. Must be followed by
    /// [`Inner::start_batches`].
    fn run_task(&mut self, slot: u32) {
        let req = &self.core.reqs[slot];
        if req.step == Step::LeadsSync {
            let res = req.kiocb.result();
            self.synced(slot, res);
        } else {
            #[cfg(sheave_lab)]
            self.core.late.count(req.kiocb.plan);
            let next = dio::next(&req.kiocb);
            self.go_on(slot, next);
        }
    }

    /// Takes an I/O whose bios have ended to its next step: the only place where an I/O goes from its data to its
    /// checksums, to its completion work and to its sync, also when the ring is dropped. Must be followed by
    /// [`Inner::start_batches`].
    fn go_on(&mut self, slot: u32, mut next: Next) {
        // An IOSQE_ASYNC request that its own ring issues still computes on a worker (I6 of `offload`).
        if next == Next::Sum && self.core.reqs[slot].flags & IOSQE_ASYNC != 0 {
            return self.sum_in_worker(slot);
        }
        if next == Next::Sum {
            let Core { files, reqs, cold, .. } = &mut self.core;
            let (req, cold) = (&mut reqs[slot], &cold[slot as usize]);
            let Some(file) = files.get(req.file as usize) else { return };
            let pieces = cold.pieces.as_slice();
            match with_memory(req, cold, |vecs| dio::end_summed(&*file.file, &req.kiocb, pieces, vecs)) {
                Some(res) => next = dio::summed(&mut req.kiocb, res),
                None => return self.sum_in_worker(slot),
            }
        }
        if next == Next::Work {
            return self.core.gather(slot, true);
        }
        let Core { files, reqs, .. } = &mut self.core;
        let req = &mut reqs[slot];
        // I3: uncounted before a sync is queued.
        files.uncount(req.file, &mut req.kiocb);
        match next {
            Next::Done(res) => self.core.finish(slot, res),
            _ => self.want_sync(slot),
        }
    }

    /// Queues the checksums of an I/O to a worker.
    #[cold]
    fn sum_in_worker(&mut self, slot: u32) {
        let Some((file, sum)) = self.core.sum(slot) else { return };
        self.core.reqs[slot].step = Step::Sums;
        if !self.core.wq.queue(slot, Work::Sum(file, Box::new(sum))) {
            self.sum_here(slot);
        }
    }

    /// Computes the checksums on this thread because no worker is available: the file's part of a write must run (I5).
    fn sum_here(&mut self, slot: u32) {
        let Some((file, sum)) = self.core.sum(slot) else { return };
        let res = sum.run(&*file, &MayBlock::on_worker());
        self.summed(slot, res);
    }

    /// Handles the result `res` of an I/O's checksums. Must be followed by [`Inner::start_batches`].
    fn summed(&mut self, slot: u32, res: i32) {
        let req = &mut self.core.reqs[slot];
        req.step = Step::Own;
        if res == -errno::EAGAIN && !req.kiocb.is_write() {
            // A write to the same place is in progress. Read again: the device and this thread go on meanwhile.
            self.core.files.uncount(req.file, &mut req.kiocb);
            self.core.leave_worker(slot);
            return self.core.ready.push_back(slot);
        }
        let next = dio::summed(&mut req.kiocb, res);
        self.go_on(slot, next);
    }

    /// Makes a request wait for a sync of its file. Must be followed by [`Inner::start_batches`].
    pub(crate) fn want_sync(&mut self, slot: u32) {
        self.core.enter_worker(slot);
        self.core.gather(slot, false);
    }

    /// Starts the batches that have waiting requests and are not in progress.
    pub(crate) fn start_batches(&mut self) {
        while let Some(file) = self.core.gathering.pop() {
            self.start_ends(file);
            self.start_sync(file);
        }
    }

    /// Gives the waiting completion work of a file to a worker.
    fn start_ends(&mut self, file: u32) {
        let Core { files, reqs, cold, .. } = &mut self.core;
        let Some(open) = files.get(file as usize).map(|open| open.file.clone()) else { return };
        let Some(work) = files.work(file as usize) else { return };
        let list = Arc::clone(work.list());
        let Some(slots) = work.ends.start() else { return };
        let Some(&leader) = slots.last() else { return };
        let mut filled = lock(&list);
        filled.clear();
        for &slot in slots {
            filled.push(slot, &reqs[slot].kiocb, cold[slot as usize].pieces.as_slice());
            reqs[slot].step = Step::Ends;
        }
        let alone = filled.alone();
        drop(filled);
        reqs[leader].step = Step::LeadsEnds;
        if self.core.wq.queue(leader, Work::Complete(open, list)) {
            self.core.wq.expect(alone);
        } else {
            self.end_here(leader);
        }
    }

    /// Runs a batch of completion work that was queued for a worker, but for which no thread was available.
    #[cold]
    fn end_refused(&mut self, leader: u32) {
        let file = self.core.reqs[leader].file as usize;
        let alone = self.core.files.work(file).map_or(0, |work| lock(work.list()).alone());
        self.core.wq.expect_no_more(alone);
        self.end_here(leader);
    }

    /// Runs a batch of completion work on this thread because no worker is available: the work must not be skipped
    /// (I5).
    #[cold]
    fn end_here(&mut self, leader: u32) {
        let file = self.core.reqs[leader].file as usize;
        let Some(open) = self.core.files.get(file).map(|open| open.file.clone()) else { return };
        let Some(list) = self.core.files.work(file).map(|work| Arc::clone(work.list())) else { return };
        lock(&list).run(&*open, &MayBlock::on_worker(), |slot, res| self.write_ended(slot, res));
        self.ended(leader);
    }

    /// Syncs a file for all requests that wait for a sync: by a worker, or by a flush alone.
    fn start_sync(&mut self, file: u32) {
        let Core { files, reqs, .. } = &mut self.core;
        let Some(open) = files.get(file as usize).map(|open| open.file.clone()) else { return };
        let Some(&[leader, ..]) = files.work(file as usize).and_then(|work| work.syncs.start()) else { return };
        reqs[leader].step = Step::LeadsSync;
        if !open.needs_sync() {
            self.worker_done(leader, WorkDone::Flush);
        } else if !self.core.wq.queue(leader, Work::Sync(open)) {
            self.synced(leader, -errno::EAGAIN);
        }
    }

    /// Handles the result `res` of one write's completion work.
    fn write_ended(&mut self, slot: u32, res: i32) {
        let req = &mut self.core.reqs[slot];
        req.step = Step::Own;
        let next = dio::worked(&mut req.kiocb, res);
        self.go_on(slot, next);
    }

    /// Ends a batch of completion work, and takes each of its writes to the next step. Writes that ended alone are
    /// skipped: their slots may belong to new requests.
    fn ended(&mut self, leader: u32) {
        let file = self.core.reqs[leader].file as usize;
        let Some(work) = self.core.files.work(file) else { return };
        let (slots, list) = (work.ends.end(), Arc::clone(work.list()));
        for (at, &slot) in slots.iter().enumerate() {
            let result = lock(&list).result(at);
            match result {
                Some(_) if lock(&list).ends_alone(at) => {}
                Some(res) => self.write_ended(slot, res),
                // The file panicked in the completion work of this write, or of one before it.
                None => {
                    self.core.wq.expect_no_more(usize::from(lock(&list).ends_alone(at)));
                    self.write_ended(slot, -errno::EIO);
                }
            }
        }
        if let Some(work) = self.core.files.work(file) {
            work.ends.put_room(slots);
        }
        self.core.gathering.push(file as u32);
    }

    /// Ends all requests of a batch whose sync has ended with `res`.
    fn synced(&mut self, leader: u32, res: i32) {
        let file = self.core.reqs[leader].file as usize;
        self.core.reqs[leader].step = Step::Own;
        let Some(slots) = self.core.files.work(file).map(|work| work.syncs.end()) else { return };
        for &slot in &slots {
            let res = if res < 0 { res } else { self.core.reqs[slot].kiocb.result() };
            self.core.finish(slot, res);
        }
        if let Some(work) = self.core.files.work(file) {
            work.syncs.put_room(slots);
        }
        self.core.gathering.push(file as u32);
    }

    /// Sends a read or write to a worker for its mapping; it is issued again afterwards. Returns false if it has ended
    /// instead.
    #[cold]
    pub(crate) fn map_in_worker(&mut self, slot: u32) -> bool {
        let kiocb = self.core.reqs[slot].kiocb;
        let intent = if kiocb.is_write() { Intent::Write } else { Intent::Read };
        self.send_to_worker(slot, |file| Work::Map(file, kiocb.pos, kiocb.len.into(), intent))
    }

    /// Returns false if the request has ended with an error instead.
    pub(crate) fn send_to_worker(&mut self, slot: u32, work: impl FnOnce(Arc<dyn File>) -> Work) -> bool {
        let Some(file) = self.core.files.get(self.core.reqs[slot].file as usize) else {
            self.core.finish(slot, -errno::EBADF);
            return false;
        };
        let work = work(file.file.clone());
        let sent = self.core.wq.queue(slot, work);
        if sent {
            self.core.enter_worker(slot);
        } else {
            self.core.finish(slot, -errno::EAGAIN);
        }
        sent
    }

    /// Handles the result `how` of a worker, by the step of the slot. Makes every transition that follows a worker's
    /// result. Must be followed by [`Inner::start_batches`].
    pub(crate) fn worker_done(&mut self, slot: u32, how: WorkDone) {
        let req = &mut self.core.reqs[slot];
        match (req.step, how) {
            (Step::Own, WorkDone::Result(res)) => self.own_result(slot, res),
            (Step::Own, WorkDone::Reissue) => {
                self.core.leave_worker(slot);
                self.core.ready.push_back(slot);
            }
            (Step::Runs, WorkDone::Result(res)) => {
                req.step = Step::Own;
                self.core.nr_queued -= 1;
                self.core.finish(slot, res);
            }
            // No result yet: issued on this thread instead, which is slower for the caller but correct.
            (Step::Runs, WorkDone::Reissue | WorkDone::NoThread) => {
                req.step = Step::Own;
                self.core.leave_worker(slot);
                self.core.ready.push_back(slot);
            }
            (Step::Own, WorkDone::NoThread) => self.own_result(slot, -errno::EAGAIN),
            (Step::Sums, WorkDone::Result(res)) => self.summed(slot, res),
            (Step::Sums, WorkDone::NoThread) => self.sum_here(slot),
            (Step::Ends, WorkDone::Result(res)) => self.write_ended(slot, res),
            (Step::LeadsEnds, WorkDone::Result(_)) => self.ended(slot),
            (Step::LeadsEnds, WorkDone::NoThread) => self.end_refused(slot),
            (Step::LeadsSync, WorkDone::Flush) => {
                req.step = Step::WantsFlush;
                self.core.ready.push_back(slot);
            }
            (Step::LeadsSync, WorkDone::Result(res)) => self.synced(slot, res),
            (Step::LeadsSync, WorkDone::NoThread) => self.synced(slot, -errno::EAGAIN),
            (step, how) => {
                debug_assert!(false, "no work of {step:?} ends with {how:?}");
                self.core.finish(slot, -errno::EIO);
            }
        }
    }

    /// Ends a request with the result from a worker: that of FALLOCATE, or the error of a mapping.
    fn own_result(&mut self, slot: u32, mut res: i32) {
        let req = &self.core.reqs[slot];
        if req.state == State::Queued {
            self.core.nr_queued -= 1;
            // A failed mapping reports the cancel. A FALLOCATE that was carried out reports its own result.
            if req.rflags & REQ_CANCELED != 0 && req.opcode != opcode::FALLOCATE {
                res = -errno::ECANCELED;
            }
        }
        self.core.finish(slot, res);
    }

    /// Sends the flush that ends a sync.
    #[cold]
    pub(crate) fn issue_flush(&mut self, slot: u32) {
        let req = &mut self.core.reqs[slot];
        let Some(file) = self.core.files.get(req.file as usize) else { return };
        match dio::issue_flush(&mut self.io, file, &mut req.kiocb, slot) {
            Issued::Done(res) => self.synced(slot, res),
            Issued::Again => self.core.retry.push_back(slot),
            Issued::Queued | Issued::Blocks => req.step = Step::LeadsSync,
        }
    }

    /// Called by `Ring::drop` after all devices have released this ring's I/O. Runs the checksums and the completion
    /// work of every write, and cancels the checksums of reads that no worker has begun. Then no I/O of this ring is
    /// counted, and it leaves its graces: mappings and FALLOCATEs that workers still do for it may wait for one. May
    /// block.
    pub(crate) fn end_all(&mut self) {
        loop {
            while let Some(slot) = self.core.tasks.pop_front() {
                if self.core.reqs[slot].kiocb.is_write() {
                    self.run_task(slot);
                }
            }
            while let Some((slot, how)) = self.task_work.pop_done() {
                self.core.wq.took();
                self.worker_done(slot, how);
            }
            while let Some(file) = self.core.gathering.pop() {
                self.start_ends(file);
            }
            self.core.wq.commit();
            self.core.cancel_sums_of_reads();
            let Core { reqs, wq, .. } = &mut self.core;
            let with_worker = |req: &Req| matches!(req.step, Step::Sums | Step::LeadsEnds);
            let Some((slot, _)) = reqs.iter_live().find(|(_, req)| with_worker(req)) else { break };
            if !wq.step_bound() {
                wq.wait_for(slot);
            }
        }
        self.core.files.leave_graces();
    }
}

/// Calls `look` with the memory of an I/O.
fn with_memory<R>(req: &Req, cold: &Cold, look: impl FnOnce(&[BVec]) -> R) -> R {
    if req.rflags & REQ_VECTORED != 0 { look(&cold.vecs) } else { look(&[sqe_memory(req.addr, req.kiocb.len)]) }
}

impl Core {
    /// Adds a slot to the next batch of its file: of completion work, or of a sync.
    fn gather(&mut self, slot: u32, ends: bool) {
        let file = self.reqs[slot].file;
        let Some(work) = self.files.work(file as usize) else { return };
        let batch = if ends { &mut work.ends } else { &mut work.syncs };
        batch.push(slot);
        if !self.gathering.contains(&file) {
            self.gathering.push(file);
        }
    }

    /// Returns the file and the arguments of a worker's checksum work.
    fn sum(&self, slot: u32) -> Option<(Arc<dyn File>, Sum)> {
        let (req, cold) = (&self.reqs[slot], &self.cold[slot as usize]);
        let file = self.files.get(req.file as usize)?.file.clone();
        let vecs = with_memory(req, cold, <[BVec]>::to_vec);
        Some((file, Sum { kiocb: req.kiocb, pieces: cold.pieces.clone(), vecs }))
    }

    /// Takes back reads whose checksums no worker has begun, and stops the others early: their results are no longer
    /// needed.
    fn cancel_sums_of_reads(&mut self) {
        let Core { reqs, wq, .. } = self;
        for slot in 0..reqs.slots() {
            let req = &mut reqs[slot];
            let reads = req.state != State::Free && req.step == Step::Sums && !req.kiocb.is_write();
            if reads && wq.cancel(slot) == Cancelled::Queued {
                req.step = Step::Own;
            }
        }
    }
}
