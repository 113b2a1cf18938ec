//! Submission: from SQEs to issued requests.
//!
//! Owns the checks that all operations share, the assembly of chains, and drains. The order of the checks is the
//! kernel's (see `docs/reference/compat.md`), and so is the effect of an error at each step on a chain and on a drain.
//!
//! Invariants:
//! - I1: every SQE taken gives its slot to exactly one of: issue, a chain, the deferred list, or its error CQE.
//! - I2: a drained request starts when every request before it has ended; everything after it waits for it. While
//!   `drain_active` is set, everything submitted queues in `deferred`, in order.
//! - I3: while requests are issued, the plug and the grace sections of their files are open; both end before the call
//!   returns.

use crate::core::Deferred;
use crate::op::Issue;
use crate::opdef::{self, OpDef};
use crate::req::{
    NO_FILE, NO_SLOT, REQ_CANCELED, REQ_DRAIN, REQ_HAS_GUARD, REQ_LINKED, REQ_OWNS_BUF, REQ_PREP_FAILED, REQ_SLOW_END,
    State, Step,
};
use crate::ring::inner::Inner;
use crate::sqe::{
    IOSQE_ASYNC, IOSQE_BUFFER_SELECT, IOSQE_CQE_SKIP_SUCCESS, IOSQE_FIXED_FILE, IOSQE_IO_DRAIN, IOSQE_LINKS, Sqe, errno,
};

impl Inner {
    /// Takes all published SQEs that have slots. Returns their number. `waits`: the caller will wait, and runs the work
    /// that is [kept](crate::io_wq::RingWq::keep_alone) for that wait.
    pub(crate) fn consume(&mut self, waits: bool) -> u32 {
        let pending = self.core.queues.sq_pending();
        if pending <= self.core.available() { self.take(pending, waits) } else { self.consume_a_part(waits) }
    }

    /// Takes whole chains while there are slots for them, and refuses chains that are longer than the slot table.
    #[cold]
    fn consume_a_part(&mut self, waits: bool) -> u32 {
        let mut taken = 0;
        loop {
            let count = self.whole_chains();
            taken += self.take(count, waits);
            match self.refuse_long_chain() {
                0 => return taken,
                refused => taken += refused,
            }
        }
    }

    /// Takes the next `count` SQEs, for which there are slots. Returns 0 while too many completions wait to be read.
    fn take(&mut self, count: u32, waits: bool) -> u32 {
        if count == 0 || self.core.overflow.len() >= self.core.overflow_max {
            return 0;
        }
        self.core.batch_tail = self.core.queues.cq_tail();
        self.io.start_plug(count);
        let mut left = count;
        while left > 0 {
            let plain = self.is_plain();
            let run = if plain { crate::plain::submit_run(self, left) } else { 0 };
            if run == 0 {
                self.submit_next(plain);
            }
            left -= run.max(1);
        }
        if self.core.chain.head != NO_SLOT {
            self.end_chain();
        }
        self.core.queues.sq_advance();
        self.run_ready();
        self.core.files.leave();
        self.io.finish_plug();
        if !(waits && self.core.wq.keep_alone()) {
            self.core.wq.commit();
        }
        count
    }

    /// Returns the number of pending SQEs to take now: those with slots, less the part of a chain at their end. A link
    /// is only kept within one batch: the rest of a cut chain would start without waiting.
    fn whole_chains(&self) -> u32 {
        let (pending, available) = (self.core.queues.sq_pending(), self.core.available());
        if pending <= available { pending } else { available - self.core.linked_before(available) }
    }

    /// Ends the next chain if it is longer than all slots of the ring: each member gives a CQE, the first with
    /// `-E2BIG`. Returns its length; 0 if there is no such chain, or it must wait for a free slot or for completions to
    /// be read. The kernel has no such limit; a kernel ring that runs out of memory for requests does not end the chain
    /// as a whole.
    fn refuse_long_chain(&mut self) -> u32 {
        let pending = self.core.queues.sq_pending();
        let links = (0..pending).take_while(|&at| self.core.is_linked(at)).count() as u32;
        let len = pending.min(links + 1);
        let has_to_wait = self.core.available() == 0 || self.core.overflow.len() >= self.core.overflow_max;
        if len <= self.core.reqs.slots() || has_to_wait {
            return 0;
        }
        self.core.quiet.stir();
        let (mut res, mut silent) = (-errno::E2BIG, false);
        for _ in 0..len {
            let mut sqe = Sqe::default();
            let is_owned = self.core.owned.sq.look(self.core.queues.sq_at(), 1).1;
            let Some(_) = self.core.queues.sq_take(&mut sqe) else { continue };
            // Never fails: each iteration frees its slot.
            let Some(slot) = self.core.reqs.take() else { break };
            let req = &mut self.core.reqs[slot];
            (req.user_data, req.flags, req.rflags) = (sqe.user_data, sqe.flags, 0);
            (req.state, req.file, req.link) = (State::Prepared, NO_FILE, NO_SLOT);
            if is_owned {
                self.own(slot, sqe.user_data as u32);
            }
            self.core.end_slot(slot, res, silent);
            // The head's flag decides if the rest gives CQEs, as in every chain with a refused member.
            if res != -errno::ECANCELED {
                (res, silent) = (-errno::ECANCELED, sqe.flags & IOSQE_CQE_SKIP_SUCCESS != 0);
            }
            // A drain within a chain also drains the first request after the chain.
            self.core.drain_next |= sqe.flags & IOSQE_IO_DRAIN != 0 && !self.core.drain_disabled;
        }
        self.core.queues.sq_advance();
        len
    }

    /// Gives `slot` the `key` of the memory that its operation owns, and the caller's user data that the key replaced.
    fn own(&mut self, slot: u32, key: u32) {
        self.core.cold[slot as usize].owned = key;
        let req = &mut self.core.reqs[slot];
        req.user_data = self.core.owned.user_data(key);
        req.rflags = REQ_OWNS_BUF;
    }

    /// True if SQEs can be taken one by one: no chain or drain is open.
    #[inline]
    fn is_plain(&self) -> bool {
        let core = &self.core;
        core.chain.head == NO_SLOT && !(core.drain_active | core.drain_next)
    }

    /// Takes one SQE of any kind through the table. `plain`: no chain or drain is open.
    fn submit_next(&mut self, plain: bool) {
        self.core.quiet.stir();
        let mut sqe = Sqe::default();
        let is_owned = self.core.owned.sq.look(self.core.queues.sq_at(), 1).1;
        if self.core.queues.sq_take(&mut sqe).is_none() {
            return;
        }
        let sqe = &sqe;
        let plain = plain && sqe.flags & !(IOSQE_FIXED_FILE | IOSQE_ASYNC) == 0 && !is_owned;
        let Some(slot) = self.core.reqs.take() else { return };
        let req = &mut self.core.reqs[slot];
        req.user_data = sqe.user_data;
        req.addr = sqe.addr;
        req.off = sqe.off;
        req.len = sqe.len;
        req.op_flags = sqe.op_flags;
        req.fd = sqe.fd;
        req.opcode = sqe.opcode;
        req.flags = sqe.flags;
        req.state = State::Prepared;
        req.buf_index = sqe.buf_index;
        req.rflags = 0;
        req.step = Step::Own;
        req.link = NO_SLOT;
        req.file = NO_FILE;
        if plain
            && sqe.personality == 0
            && let Some(def) = opdef::get(sqe.opcode)
            && (sqe.ioprio == 0 || def.ioprio)
        {
            match (def.prep)(self, slot, sqe) {
                // A request outside of a chain has no link timeout to arm.
                Ok(()) if sqe.flags & IOSQE_ASYNC != 0 && self.offload(slot) => {}
                Ok(()) => _ = self.issue(slot, def),
                Err(errno) => self.core.finish(slot, -errno),
            }
            return;
        }
        if is_owned {
            self.own(slot, sqe.user_data as u32);
        }
        self.submit_slow(slot, sqe);
    }

    /// Handles everything with flags, in a chain, behind a drain, or invalid.
    #[cold]
    fn submit_slow(&mut self, slot: u32, sqe: &Sqe) {
        if sqe.flags & (IOSQE_LINKS | IOSQE_CQE_SKIP_SUCCESS) != 0 {
            self.core.reqs[slot].rflags |= REQ_SLOW_END;
        }
        let prepared = self.prepare(slot, sqe);
        if let Err(errno) = prepared {
            let req = &mut self.core.reqs[slot];
            req.res = -errno;
            req.rflags |= REQ_PREP_FAILED;
        }
        let (in_chain, goes_on) = (self.core.chain.head != NO_SLOT, sqe.flags & IOSQE_LINKS != 0);
        if in_chain || goes_on {
            self.append(slot, prepared.is_err());
            if !goes_on {
                self.end_chain();
            }
        } else if prepared.is_err() {
            let res = self.core.reqs[slot].res;
            self.core.end_slot(slot, res, false);
        } else {
            self.queue(slot);
        }
    }

    /// Runs the checks that all operations share, then the operation's own.
    fn prepare(&mut self, slot: u32, sqe: &Sqe) -> Result<(), i32> {
        let def = opdef::get(sqe.opcode).ok_or(errno::EINVAL)?;
        // Bit 7 is no IOSQE flag.
        if sqe.flags & 0x80 != 0 {
            return Err(errno::EINVAL);
        }
        if sqe.flags & IOSQE_BUFFER_SELECT != 0 && !def.buffer_select {
            return Err(errno::EOPNOTSUPP);
        }
        if sqe.flags & IOSQE_CQE_SKIP_SUCCESS != 0 {
            self.core.drain_disabled = true;
        }
        if sqe.flags & IOSQE_IO_DRAIN != 0 {
            if self.core.drain_disabled {
                return Err(errno::EOPNOTSUPP);
            }
            self.mark_drain(slot);
        }
        if self.core.drain_next && self.core.chain.head == NO_SLOT {
            self.core.drain_next = false;
            self.start_drain(slot);
        }
        if (sqe.ioprio != 0 && !def.ioprio) || sqe.personality != 0 {
            return Err(errno::EINVAL);
        }
        (def.prep)(self, slot, sqe)
    }

    /// Starts a drain at `slot`. Within a chain, the head and the first request after the chain also become drains.
    fn mark_drain(&mut self, slot: u32) {
        self.start_drain(slot);
        if self.core.chain.head != NO_SLOT {
            self.core.reqs[self.core.chain.head].rflags |= REQ_DRAIN;
            self.core.drain_next = true;
        }
    }

    fn start_drain(&mut self, slot: u32) {
        self.core.drain_active = true;
        self.core.reqs[slot].rflags |= REQ_DRAIN;
        if let Some(last) = self.core.deferred.back_mut() {
            last.before_drain = true;
        }
    }

    fn append(&mut self, slot: u32, failed: bool) {
        let chain = &mut self.core.chain;
        chain.failed |= failed;
        if chain.head == NO_SLOT {
            chain.head = slot;
        } else {
            self.core.reqs[chain.tail].link = slot;
            self.core.reqs[slot].rflags |= REQ_LINKED | REQ_SLOW_END;
        }
        self.core.chain.tail = slot;
    }

    fn end_chain(&mut self) {
        let chain = std::mem::take(&mut self.core.chain);
        if chain.failed {
            self.core.fail_chain(chain.head);
        } else {
            self.queue(chain.head);
        }
    }

    /// Starts a request or a chain, or defers it behind a drain.
    fn queue(&mut self, head: u32) {
        if !self.core.drain_active {
            return self.issue_or_punt(head);
        }
        let mut count = 0;
        let mut slot = head;
        while slot != NO_SLOT {
            count += 1;
            slot = self.core.reqs[slot].link;
        }
        let drain = self.core.reqs[head].rflags & REQ_DRAIN != 0;
        self.core.deferred.push_back(Deferred { head, count, drain, before_drain: false });
        self.core.nr_deferred += count;
        self.run_deferred();
    }

    /// Moves deferred requests that may start to `ready`: the first when every request outside the list has ended, then
    /// those behind it up to the next drain. The drain ends when the list is empty, unless the last entry was a drain
    /// or had one right behind it.
    pub(crate) fn run_deferred(&mut self) {
        let (mut drain_seen, mut first) = (false, true);
        while let Some(&Deferred { head, count, drain, before_drain }) = self.core.deferred.front() {
            drain_seen |= drain;
            if (drain_seen || first) && self.core.live() != self.core.nr_deferred {
                return;
            }
            first = false;
            self.core.deferred.pop_front();
            self.core.nr_deferred -= count;
            self.core.ready.push_back(head);
            self.core.drain_active = drain || before_drain || !self.core.deferred.is_empty();
        }
    }

    fn issue_or_punt(&mut self, slot: u32) {
        let req = &self.core.reqs[slot];
        let Some(def) = opdef::get(req.opcode) else { return };
        if req.flags & IOSQE_ASYNC != 0 && self.offload(slot) {
            return self.arm_guard(slot);
        }
        if self.issue(slot, def) {
            self.arm_guard(slot);
        }
    }

    fn arm_guard(&mut self, slot: u32) {
        if self.core.reqs[slot].rflags & REQ_HAS_GUARD != 0 {
            self.core.arm_guard(slot, self.io.clock());
        }
    }

    /// Issues the operation. Returns true while it is in progress.
    #[inline]
    pub(crate) fn issue(&mut self, slot: u32, def: &OpDef) -> bool {
        self.core.reqs[slot].state = State::Issued;
        match (def.issue)(self, slot) {
            Issue::Queued => return true,
            Issue::Ended => {}
            Issue::Done(res) => self.core.finish(slot, res),
            Issue::Again => {
                self.core.enqueue(slot);
                self.core.retry.push_back(slot);
                return true;
            }
            Issue::Rest => {
                self.core.retry.push_back(slot);
                return true;
            }
            Issue::Blocks => {
                if self.map_in_worker(slot) {
                    self.core.enqueue(slot);
                    return true;
                }
            }
        }
        false
    }

    /// Issues the requests in `ready`, and ends those that were cancelled.
    pub(crate) fn run_ready(&mut self) {
        let mut round = 0;
        while let Some(slot) = self.core.ready.pop_front() {
            if round == 0 {
                // Requests that are ready together form one batch for counted timeouts.
                self.core.batch_tail = self.core.queues.cq_tail();
                round = self.core.ready.len() + 1;
            }
            round -= 1;
            let req = &self.core.reqs[slot];
            let Some(def) = opdef::get(req.opcode) else { continue };
            if req.step == Step::WantsFlush {
                self.issue_flush(slot);
                continue;
            }
            match req.state {
                State::Free | State::Prepared => self.issue_or_punt(slot),
                // Part of the request is in flight.
                State::Issued => {
                    self.issue(slot, def);
                }
                // Returned by a worker, from the retry list, or cancelled.
                State::Queued => {
                    self.core.nr_queued -= 1;
                    if req.rflags & REQ_CANCELED != 0 {
                        self.core.finish(slot, -errno::ECANCELED);
                    } else if self.issue(slot, def) {
                        self.arm_guard(slot);
                    }
                }
            }
        }
    }
}
