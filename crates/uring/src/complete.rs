//! Completion: from an ended I/O to a CQE, and to the requests that waited for it.
//!
//! Owns the posting of CQEs (and the overflow list), links, skips, and the return of slots. Called by the poll of the
//! devices, by task work, and by submission for requests that end at once.
//!
//! Invariants:
//! - I1: one terminal CQE a slot (none where CQE_SKIP_SUCCESS says so), posted here, before the slot is freed.
//! - I2: CQEs keep the order in which they were posted, whether the CQ has room or not: while the overflow list holds
//!   any, new ones queue behind it.
//! - I3: nothing is issued here. Requests that may start go to `ready`, which the ring runs after the poll of the
//!   devices.

use std::panic::{AssertUnwindSafe, catch_unwind};

use sheave_base::clock::CoarseTs;
use sheave_base::panics;
use sheave_base::status::Status;
use sheave_blk::ctx::{EndIo, PlainEnd, RunEnd};
use sheave_blk::stats::{RecordStats, Split};
use sheave_iomap::CompletionPlan;
use sheave_iomap::dio;
use sheave_iomap::dio::open_file::COUNT_FLAGS;
use sheave_iomap::kiocb::IOCB_USE_POS;

use crate::core::Core;
use crate::cqe::Cqe;
use crate::opdef;
use crate::owned::Detail;
use crate::plain_run::PlainOwner;
use crate::req::{
    NO_SLOT, REQ_COUNTED, REQ_HAS_GUARD, REQ_OLD_BUF, REQ_OWNS_BUF, REQ_PREP_FAILED, REQ_SLOW_END, REQ_TIMED, Req,
};
use crate::sqe::{IOSQE_CQE_SKIP_SUCCESS, IOSQE_IO_HARDLINK, SQ_CQ_OVERFLOW, TIMEOUT_ETIME_SUCCESS, errno, opcode};

const SLOW: u16 = REQ_SLOW_END | REQ_OWNS_BUF | REQ_OLD_BUF | REQ_HAS_GUARD;

impl EndIo for Core {
    #[inline(always)]
    fn end_io(&mut self, slot: u32, status: Status) {
        self.quiet.stir();
        let req = &mut self.reqs[slot];
        if !dio::end_bio(&mut req.kiocb, status) {
            return;
        }
        if req.kiocb.plan == CompletionPlan::Inline && status.is_ok() {
            let res = req.kiocb.len as i32;
            // One test for both, because almost no request has either.
            if req.rflags & (SLOW | REQ_COUNTED) != 0 {
                let (file, flags, slow) = (req.file, req.kiocb.flags & COUNT_FLAGS, req.rflags & SLOW != 0);
                req.kiocb.flags &= !COUNT_FLAGS;
                self.uncount_later(file, flags);
                self.count_inline(slot, res);
                if slow {
                    return self.finish_slow(slot, res);
                }
            } else {
                self.count_inline(slot, res);
            }
            self.finish_plain(slot, res);
        } else {
            self.data_ended(slot);
            self.tasks.push_back(slot);
        }
    }

    #[inline(always)]
    fn end_run(&mut self, owner: u32, most: usize, mut end_at: impl FnMut(usize) -> Option<PlainEnd>) {
        // While CQEs wait for room, all new ones queue behind them (I2).
        if self.overflow.is_empty() {
            let first = self.queues.cq_tail();
            let cqe_at = |at| end_at(at).map(|end| Cqe { user_data: end.cookie, res: end.bytes as i32, flags: 0 });
            let ended = self.queues.cq_fill(most, cqe_at);
            // The cookies of an owned run are keys, and so are the user data of its CQEs.
            if PlainOwner(owner).is_owned() && ended != 0 {
                self.owned.cq.add(first, ended);
            }
            self.records_ended(owner, ended);
        }
    }

    #[inline(always)]
    fn end_one(&mut self, end: PlainEnd) -> bool {
        debug_assert!(self.overflow.is_empty(), "I2: only a quiet ring sends I/O alone");
        let has_room = self.queues.cq_has_room();
        if has_room {
            self.queues.cq_push(Cqe { user_data: end.cookie, res: end.bytes as i32, flags: 0 });
        }
        has_room
    }

    #[cold]
    fn end_plain(&mut self, owner: u32, end: PlainEnd, status: Status) {
        self.quiet.stir();
        let res = if status.is_ok() { end.bytes as i32 } else { status.result() };
        if res < 0 {
            self.count_failed_record(owner);
        }
        let key = PlainOwner(owner).is_owned().then_some(end.cookie as u32);
        self.post(Cqe { user_data: end.cookie, res, flags: 0 }, key);
        self.records_ended(owner, 1);
    }

    #[inline(always)]
    fn records(&self, owner: u32) -> Option<&RecordStats> {
        self.record_stats(owner)
    }

    #[inline(always)]
    fn file_of(&self, owner: u32) -> Option<u16> {
        u16::try_from(PlainOwner(owner).file()).ok()
    }

    fn slow_run(&mut self, owner: u32, slow: &RunEnd) {
        self.keep_slow_records(owner, slow);
    }

    fn look(&mut self, now: CoarseTs) -> CoarseTs {
        self.look_at_files(now)
    }

    fn timed_plain(&mut self, owner: u32, run: &RunEnd) {
        self.count_former_records(owner, run);
    }

    #[inline(always)]
    fn timed(&mut self, _: u32, split: &Split) {
        if let Some(times) = &mut self.times {
            times.bio = *split;
        }
    }

    #[inline(always)]
    fn end_poll(&mut self) {
        if self.ended.ios != 0 {
            self.uncount_ended();
        }
    }
}

impl Core {
    /// Marks the last CQE, of a single record that owned its memory, as one with a key.
    #[inline(always)]
    pub(crate) fn last_was_owned(&mut self) {
        self.owned.cq.add(self.queues.cq_tail().wrapping_sub(1), 1);
    }

    /// Takes `ended` plain records of one owner out of the counts of the ring and of the file's grace.
    #[inline(always)]
    fn records_ended(&mut self, owner: u32, ended: u32) {
        self.records -= ended;
        let owner = PlainOwner(owner);
        if owner.is_counted() {
            self.files.uncount_many(owner.file(), owner.count_flags(), ended);
        }
    }

    #[inline(always)]
    pub(crate) fn finish(&mut self, slot: u32, res: i32) {
        if self.reqs[slot].rflags & REQ_TIMED != 0 {
            self.count_timed(slot, res);
        }
        let req = &mut self.reqs[slot];
        if req.rflags & (SLOW | REQ_COUNTED) != 0 {
            self.files.uncount(req.file, &mut req.kiocb);
            if req.rflags & SLOW != 0 {
                return self.finish_slow(slot, res);
            }
        }
        self.finish_plain(slot, res);
    }

    /// Ends a request that needs nothing of [`Core::finish_slow`].
    #[inline(always)]
    fn finish_plain(&mut self, slot: u32, res: i32) {
        let req = &self.reqs[slot];
        let cqe = Cqe { user_data: req.user_data, res, flags: 0 };
        self.post(cqe, None);
        self.reqs.free(slot);
    }

    /// Defers the uncounting of an I/O that ended inline to the end of the poll, for all I/Os counted in the same
    /// place.
    #[inline(always)]
    fn uncount_later(&mut self, file: u32, flags: u16) {
        if self.ended.file != file || self.ended.flags != flags {
            self.uncount_ended();
            (self.ended.file, self.ended.flags) = (file, flags);
        }
        self.ended.ios += 1;
    }

    #[inline(never)]
    fn uncount_ended(&mut self) {
        let ios = std::mem::take(&mut self.ended.ios);
        self.files.uncount_many(self.ended.file, self.ended.flags, ios);
    }

    #[cold]
    fn finish_slow(&mut self, slot: u32, res: i32) {
        let failed = self.is_failure(slot, res);
        let req = self.reqs[slot];
        if req.kiocb.flags & IOCB_USE_POS != 0 && res > 0 {
            self.files.advance_pos(req.file as usize, res as u64);
        }
        let skip = req.flags & IOSQE_CQE_SKIP_SUCCESS != 0;
        self.end_slot(slot, res, skip && !failed);
        let mut next = req.link;
        if req.rflags & REQ_HAS_GUARD != 0 {
            next = self.disarm_guard(next);
        }
        if next == NO_SLOT {
            return;
        }
        if failed && req.flags & IOSQE_IO_HARDLINK == 0 {
            self.cancel_chain(next, skip);
        } else {
            self.ready.push_back(next);
        }
    }

    /// Returns true if the result breaks a link, and gives a CQE despite CQE_SKIP_SUCCESS.
    pub(crate) fn is_failure(&self, slot: u32, res: i32) -> bool {
        let req = &self.reqs[slot];
        let short = opdef::get(req.opcode).is_some_and(|def| def.short_is_failure);
        if res == -errno::ETIME && req.opcode == opcode::TIMEOUT && req.op_flags & TIMEOUT_ETIME_SUCCESS != 0 {
            return false;
        }
        // A length above the maximum of a read or write was cut, as in the kernel. That is not short.
        res < 0 || (short && (res as u32) < req.len.min(dio::MAX_RW_COUNT))
    }

    /// Ends a link timeout whose request has ended. Returns the next member of the chain.
    fn disarm_guard(&mut self, guard: u32) -> u32 {
        self.timers.disarm(guard);
        let next = self.reqs[guard].link;
        let skip = self.reqs[guard].flags & IOSQE_CQE_SKIP_SUCCESS != 0;
        self.end_slot(guard, -errno::ECANCELED, skip);
        next
    }

    /// Ends the rest of a chain that will not run. `silent`: without CQEs, because the failed request asked for none.
    pub(crate) fn cancel_chain(&mut self, head: u32, silent: bool) {
        let mut slot = head;
        while slot != NO_SLOT {
            let req = &self.reqs[slot];
            let next = req.link;
            self.end_slot(slot, -errno::ECANCELED, silent);
            slot = next;
        }
    }

    /// Ends a chain with a member whose prep failed. No member runs.
    pub(crate) fn fail_chain(&mut self, head: u32) {
        let Req { ident, res, .. } = self.reqs[head];
        let failed = |rflags: u16, res: i32| if rflags & REQ_PREP_FAILED != 0 { res } else { -errno::ECANCELED };
        self.end_slot(head, failed(ident.rflags, res), false);
        let mut slot = ident.link;
        if ident.rflags & REQ_HAS_GUARD != 0 {
            slot = self.disarm_guard(slot);
        }
        let silent = ident.flags & IOSQE_CQE_SKIP_SUCCESS != 0;
        while slot != NO_SLOT {
            let Req { ident, res, .. } = self.reqs[slot];
            self.end_slot(slot, failed(ident.rflags, res), silent);
            slot = ident.link;
        }
    }

    /// Posts the CQE unless `silent`, and frees the slot with everything it holds.
    pub(crate) fn end_slot(&mut self, slot: u32, res: i32, silent: bool) {
        let req = &self.reqs[slot];
        let (cqe, rflags, addr) = (Cqe { user_data: req.user_data, res, flags: 0 }, req.rflags, req.addr);
        let mut owned = None;
        if rflags & REQ_OWNS_BUF != 0 {
            let key = self.cold[slot as usize].owned;
            if silent {
                // The drop runs the program's code. If it panics, the slot is freed nevertheless, and the chain goes
                // on.
                if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(self.owned.end(key)))) {
                    panics::discard(panic);
                }
            } else {
                owned = Some(key);
                if res == -errno::EINVAL {
                    self.explain(slot, key);
                }
            }
        }
        if rflags & REQ_OLD_BUF != 0 {
            self.bufs.put_retired(addr);
        }
        if !silent {
            self.post(cqe, owned);
        }
        self.reqs.free(slot);
    }

    /// Stores the device's alignment for an I/O that was refused because of its offset, length or memory.
    #[cold]
    fn explain(&mut self, slot: u32, key: u32) {
        let req = &self.reqs[slot];
        let Some(file) = self.files.get(req.file as usize).filter(|_| opcode::is_rw(req.opcode)) else { return };
        let (block, memory) = file.alignment();
        let is_vectored = matches!(req.opcode, opcode::READV | opcode::WRITEV);
        let memory_is_wrong = !is_vectored && !req.addr.is_multiple_of(memory);
        if memory_is_wrong || !(req.off.is_multiple_of(block) && u64::from(req.len).is_multiple_of(block)) {
            let (block_shift, memory_shift) = (block.trailing_zeros() as u8, memory.trailing_zeros() as u8);
            self.owned.explain(key, Detail { block_shift, memory_shift });
        }
    }

    /// Posts a CQE, into the overflow list if the CQ has no room. `owned` is the key of the memory its operation owned.
    #[inline(always)]
    pub(crate) fn post(&mut self, cqe: Cqe, owned: Option<u32>) {
        if !self.overflow.is_empty() || !self.queues.cq_has_room() {
            return self.post_overflow(cqe, owned);
        }
        self.push_cqe(cqe, owned);
    }

    /// Writes a CQE into the CQ, which must have room. If its operation owned memory, the key replaces the user data
    /// until the CQE is read.
    #[inline(always)]
    fn push_cqe(&mut self, mut cqe: Cqe, owned: Option<u32>) {
        if let Some(key) = owned {
            cqe.user_data = key.into();
            self.owned.cq.add(self.queues.cq_tail(), 1);
        }
        self.queues.cq_push(cqe);
    }

    #[cold]
    fn post_overflow(&mut self, cqe: Cqe, owned: Option<u32>) {
        self.overflow.push_back((cqe, owned));
        self.queues.set_sq_flag(SQ_CQ_OVERFLOW, true);
    }

    /// Moves CQEs of the overflow list into the CQ, in order, while there is room.
    #[inline]
    pub(crate) fn flush_overflow(&mut self) {
        if !self.overflow.is_empty() {
            self.flush_overflowed();
        }
    }

    #[cold]
    fn flush_overflowed(&mut self) {
        while self.queues.cq_has_room() {
            let Some((cqe, owned)) = self.overflow.pop_front() else { break };
            self.push_cqe(cqe, owned);
        }
        if self.overflow.is_empty() {
            self.queues.set_sq_flag(SQ_CQ_OVERFLOW, false);
        }
    }
}
