//! ASYNC_CANCEL: ends requests that wait.
//!
//! Owns the search and the conditions for a cancel. A cancel finds pending timeouts, and requests that wait for their
//! issue because a worker has them first or a resource was exhausted. It does not find a request that a device has, a
//! LINK_TIMEOUT, a member of a chain whose turn has not come, a request behind a drain, or itself.
//!
//! Invariants:
//! - I1: a cancelled request ends once, with `-ECANCELED`, from `ready`: after the CQE of the cancel.

use crate::core::Core;
use crate::io_wq::Cancelled;
use crate::op::Issue;
use crate::prep::target::Target;
use crate::req::{NO_FILE, NO_SLOT, REQ_CANCELED, Req, State, Step};
use crate::ring::inner::Inner;
use crate::sqe::{
    ASYNC_CANCEL_ANY, ASYNC_CANCEL_FD, ASYNC_CANCEL_FD_FIXED, ASYNC_CANCEL_OP, ASYNC_CANCEL_USERDATA, IOSQE_FIXED_FILE,
    Sqe, errno, opcode,
};
use crate::timers::Kind;

/// Checks that the flags go together. The file is looked up at issue.
pub(crate) fn prep(_: &mut Inner, _: u32, sqe: &Sqe) -> Result<(), i32> {
    let target = Target { flags: sqe.op_flags, user_data: sqe.addr, fd: sqe.fd, opcode: sqe.len as u8 };
    if sqe.off == 0 && sqe.splice_fd_in == 0 && target.is_valid() { Ok(()) } else { Err(errno::EINVAL) }
}

/// Cancels. The result is 0, the number of requests for a cancel of many, or an error.
pub(crate) fn issue(ring: &mut Inner, slot: u32) -> Issue {
    let req = &ring.core.reqs[slot];
    let fixed = if req.flags & IOSQE_FIXED_FILE != 0 { ASYNC_CANCEL_FD_FIXED } else { 0 };
    let target = Target { flags: req.op_flags | fixed, user_data: req.addr, fd: req.fd, opcode: req.len as u8 };
    Issue::Done(ring.core.cancel(target))
}

impl Core {
    /// Cancels the first match, or all. Returns the result for the CQE.
    pub(crate) fn cancel(&mut self, target: Target) -> i32 {
        let Target { flags, .. } = target;
        let mut file = None;
        if flags & ASYNC_CANCEL_FD != 0 {
            file = self.files.resolve_any(target.fd, flags & ASYNC_CANCEL_FD_FIXED != 0);
            if file.is_none() {
                return -errno::EBADF;
            }
        }
        if !target.is_many() {
            let found = self.queued_from(0, target, file).or_else(|| self.timeout_from(self.first_timeout(), target));
            let Some(slot) = found else { return -errno::ENOENT };
            return self.cancel_slot(slot).map_or_else(|errno| -errno, |()| 0);
        }
        // One pass over the slots suffices: cancelling a request changes nothing for those behind it.
        let (mut count, mut from) = (0, 0);
        while let Some(slot) = self.queued_from(from, target, file) {
            from = slot + 1;
            // An error means that a worker already runs it. It counts as found, as in the kernel, and ends by itself.
            let _ = self.cancel_slot(slot);
            count += 1;
        }
        let mut next = self.first_timeout();
        while let Some(slot) = self.timeout_from(next, target) {
            next = self.timers.after(slot);
            // Cannot fail: the timeout is armed.
            let _ = self.cancel_slot(slot);
            count += 1;
        }
        count
    }

    /// Returns the first matching request, from slot `from` on, that waits for its issue.
    fn queued_from(&self, from: u32, target: Target, file: Option<usize>) -> Option<u32> {
        if self.nr_queued == 0 {
            return None;
        }
        let waits = |req: &Req| req.state == State::Queued && req.rflags & REQ_CANCELED == 0;
        let on_file = |req: &Req| target.flags & ASYNC_CANCEL_FD == 0 || self.file_used(req) == file;
        let is_meant = |req: &Req| waits(req) && matches(target, req) && on_file(req);
        let found = (from..self.reqs.slots()).find(|&slot| is_meant(&self.reqs[slot]));
        #[cfg(all(test, not(shuttle)))]
        tests::count_slots(from, found.map_or(self.reqs.slots(), |slot| slot + 1));
        found
    }

    fn first_timeout(&self) -> u32 {
        self.timers.first(Kind::Timeout)
    }

    /// Returns the first matching timeout from the armed request `at` on. `at` may be `NO_SLOT`.
    fn timeout_from(&self, mut at: u32, target: Target) -> Option<u32> {
        // A timeout has no file: its `fd` is unused.
        if target.flags & ASYNC_CANCEL_FD != 0 {
            return None;
        }
        while at != NO_SLOT && !matches(target, &self.reqs[at]) {
            at = self.timers.after(at);
        }
        (at != NO_SLOT).then_some(at)
    }

    /// Returns the file of an I/O request, also before it has resolved its `fd`.
    fn file_used(&self, req: &Req) -> Option<usize> {
        match req.file {
            NO_FILE if opcode::is_on_file(req.opcode) => {
                self.files.resolve_any(req.fd, req.flags & IOSQE_FIXED_FILE != 0)
            }
            NO_FILE => None,
            file => Some(file as usize),
        }
    }

    /// Returns the armed requests of a kind, in the order of the search.
    pub(super) fn armed(&self, kind: Kind) -> impl Iterator<Item = u32> {
        let mut next = self.timers.first(kind);
        std::iter::from_fn(move || {
            let slot = next;
            next = (slot != NO_SLOT).then(|| self.timers.after(slot))?;
            Some(slot)
        })
    }

    /// Cancels a request that has begun. Errors: `ENOENT` if a device has it, `EALREADY` if a worker runs its
    /// operation.
    pub(crate) fn cancel_slot(&mut self, slot: u32) -> Result<(), i32> {
        let mut outcome = Ok(());
        if self.timers.disarm(slot) {
            self.enqueue(slot);
            self.ready.push_back(slot);
        } else if self.reqs[slot].state != State::Queued || self.reqs[slot].rflags & REQ_CANCELED != 0 {
            return Err(errno::ENOENT);
        } else if let Some(at) = self.retry.iter().position(|&waiting| waiting == slot) {
            self.retry.remove(at);
            self.ready.push_back(slot);
        } else if self.wq.cancel(slot) == Cancelled::Queued {
            self.ready.push_back(slot);
        } else if self.reqs[slot].step == Step::Runs {
            // The worker's result counts. The flag set below hides it from other cancels.
            outcome = Err(errno::EALREADY);
        } // Otherwise a worker has started on it and will return it.
        self.reqs[slot].rflags |= REQ_CANCELED;
        outcome
    }

    /// Makes a request wait for its issue, in the state that a cancel finds.
    pub(crate) fn enqueue(&mut self, slot: u32) {
        self.reqs[slot].state = State::Queued;
        self.nr_queued += 1;
    }
}

/// True if a request matches in everything but its file.
fn matches(target: Target, req: &Req) -> bool {
    #[cfg(all(test, not(shuttle)))]
    tests::LOOKS.set(tests::LOOKS.get() + 1);
    let Target { flags, user_data, opcode, .. } = target;
    if flags & ASYNC_CANCEL_ANY != 0 {
        return true;
    }
    let by_user_data = flags & ASYNC_CANCEL_USERDATA != 0 || flags & (ASYNC_CANCEL_FD | ASYNC_CANCEL_OP) == 0;
    (flags & ASYNC_CANCEL_OP == 0 || req.opcode == opcode) && (!by_user_data || req.user_data == user_data)
}

#[cfg(all(test, not(shuttle)))]
mod tests;
