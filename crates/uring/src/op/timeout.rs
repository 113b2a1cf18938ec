//! TIMEOUT, TIMEOUT_REMOVE and LINK_TIMEOUT.
//!
//! Owns the checks of their arguments, and the steps when a timeout is due, has counted enough, is updated or removed.
//! Owns the search for a timeout by its user data; [`cancel`](super::cancel) has the search by other conditions. Does
//! not own the pending timeouts ([`timers`](crate::timers)).
//!
//! A LINK_TIMEOUT limits the member before it in its chain. It is armed when that member has begun and has not ended at
//! once, and leaves the chain when it fires.
//!
//! Invariants:
//! - I1: a request is armed in the timers from its issue until it fires, its count is reached, or it is cancelled.
//! - I2: no request ends while SQEs are taken: cancelled requests end afterwards, in `run_ready`.

use sheave_base::clock::{Clock, Timeline};

use crate::core::Core;
use crate::op::Issue;
use crate::req::REQ_HAS_GUARD;
use crate::ring::inner::Inner;
use crate::sqe::{
    IOSQE_CQE_SKIP_SUCCESS, IOSQE_FIXED_FILE, LINK_TIMEOUT_UPDATE, Sqe, TIMEOUT_ABS, TIMEOUT_BOOTTIME,
    TIMEOUT_ETIME_SUCCESS, TIMEOUT_REALTIME, TIMEOUT_UPDATE, errno, opcode,
};
use crate::timers::Kind;
use crate::user_memory::{FIRST_PAGE, is_user_range, read_timespec};

const NS_PER_SEC: i64 = 1_000_000_000;
const TIMEOUT_CLOCKS: u32 = TIMEOUT_BOOTTIME | TIMEOUT_REALTIME;

/// Reads the timespec at an address, in ns. Saturates.
fn read_ns(addr: u64) -> Result<u64, i32> {
    if addr < FIRST_PAGE || !is_user_range(addr, size_of::<[i64; 2]>() as u64) {
        return Err(errno::EFAULT);
    }
    let [sec, nsec] = read_timespec(addr);
    if sec < 0 || nsec < 0 {
        return Err(errno::EINVAL);
    }
    Ok(sec.saturating_mul(NS_PER_SEC).saturating_add(nsec) as u64)
}

/// Returns the timeline, and the moment on it, that `ns` means under these flags.
fn deadline(clock: &Clock, timeout_flags: u32, ns: u64, abs: bool) -> (Timeline, u64) {
    let timeline = match timeout_flags & TIMEOUT_CLOCKS {
        TIMEOUT_BOOTTIME => Timeline::Boottime,
        // A span has the same length on every clock, and must not change when the wall clock is set.
        TIMEOUT_REALTIME if abs => Timeline::Realtime,
        _ => Timeline::Monotonic,
    };
    (timeline, if abs { ns } else { clock.now_ns(timeline).saturating_add(ns) })
}

fn prep_common(ring: &mut Inner, slot: u32, sqe: &Sqe, link: bool) -> Result<(), i32> {
    if sqe.buf_index != 0 || sqe.len != 1 || sqe.splice_fd_in != 0 || (link && sqe.off as u32 != 0) {
        return Err(errno::EINVAL);
    }
    let known = TIMEOUT_ABS | TIMEOUT_CLOCKS | TIMEOUT_ETIME_SUCCESS;
    if sqe.op_flags & !known != 0 || sqe.op_flags & TIMEOUT_CLOCKS == TIMEOUT_CLOCKS {
        return Err(errno::EINVAL);
    }
    ring.core.reqs[slot].data[0] = read_ns(sqe.addr)?;
    Ok(())
}

/// Prepares TIMEOUT: checks the flags, and reads the time, once.
pub(crate) fn prep(ring: &mut Inner, slot: u32, sqe: &Sqe) -> Result<(), i32> {
    prep_common(ring, slot, sqe, false)
}

/// Issues TIMEOUT: arms it for its time, and for the number of CQEs in the lower half of `off`, unless that is 0.
pub(crate) fn issue(ring: &mut Inner, slot: u32) -> Issue {
    let req = &ring.core.reqs[slot];
    let (timeline, at) = deadline(ring.io.clock(), req.op_flags, req.data[0], req.op_flags & TIMEOUT_ABS != 0);
    match req.off as u32 {
        0 => ring.core.timers.arm(slot, Kind::Timeout, timeline, at),
        count => ring.core.timers.arm_counted(slot, timeline, at, ring.core.batch_tail, count),
    }
    Issue::Queued
}

/// Prepares LINK_TIMEOUT, which must come behind the request it limits.
pub(crate) fn prep_link(ring: &mut Inner, slot: u32, sqe: &Sqe) -> Result<(), i32> {
    prep_common(ring, slot, sqe, true)?;
    let guarded = ring.core.chain.last().ok_or(errno::EINVAL)?;
    if ring.core.reqs[guarded].opcode == opcode::LINK_TIMEOUT {
        return Err(errno::EINVAL);
    }
    ring.core.reqs[guarded].rflags |= REQ_HAS_GUARD;
    ring.core.reqs[slot].data[1] = u64::from(guarded);
    Ok(())
}

/// Fails: a LINK_TIMEOUT is armed with the request before it and ends with it, so its own turn in the chain never
/// comes.
pub(crate) fn issue_link(_: &mut Inner, _: u32) -> Issue {
    Issue::Done(-errno::ECANCELED)
}

/// Prepares TIMEOUT_REMOVE: checks the flags, and reads the new time if there is one.
pub(crate) fn prep_remove(ring: &mut Inner, slot: u32, sqe: &Sqe) -> Result<(), i32> {
    let zero = sqe.buf_index == 0 && sqe.len == 0 && sqe.splice_fd_in == 0;
    if sqe.flags & IOSQE_FIXED_FILE != 0 || !zero {
        return Err(errno::EINVAL);
    }
    let updates = TIMEOUT_UPDATE | LINK_TIMEOUT_UPDATE;
    if sqe.op_flags & updates == 0 {
        return if sqe.op_flags == 0 { Ok(()) } else { Err(errno::EINVAL) };
    }
    if sqe.op_flags & !(updates | TIMEOUT_ABS) != 0 {
        return Err(errno::EINVAL);
    }
    ring.core.reqs[slot].data[0] = read_ns(sqe.off)?;
    Ok(())
}

/// Issues TIMEOUT_REMOVE: removes the first timeout with this user data, or changes its time.
pub(crate) fn issue_remove(ring: &mut Inner, slot: u32) -> Issue {
    let req = &ring.core.reqs[slot];
    let (user_data, flags, ns) = (req.addr, req.op_flags, req.data[0]);
    let update = flags & TIMEOUT_UPDATE != 0;
    let kind = if update && flags & LINK_TIMEOUT_UPDATE != 0 { Kind::Guard } else { Kind::Timeout };
    let Some(found) = ring.core.armed_with(kind, user_data) else { return Issue::Done(-errno::ENOENT) };
    if update {
        let (timeline, at) = deadline(ring.io.clock(), ring.core.reqs[found].op_flags, ns, flags & TIMEOUT_ABS != 0);
        ring.core.timers.rearm(found, timeline, at);
    } else {
        // Cannot fail: the timeout is armed.
        let _ = ring.core.cancel_slot(found);
    }
    Issue::Done(0)
}

impl Core {
    /// Returns the first armed request with this user data.
    fn armed_with(&self, kind: Kind, user_data: u64) -> Option<u32> {
        self.armed(kind).find(|&slot| self.reqs[slot].user_data == user_data)
    }

    /// Ends the timeouts that are due. Reads a clock only if a timeout is armed on it.
    #[cold]
    pub(crate) fn run_timers(&mut self, clock: &Clock) {
        while let Some(slot) = self.timers.pop_due(clock) {
            if self.reqs[slot].opcode == opcode::LINK_TIMEOUT {
                self.fire_guard(slot);
            } else {
                self.finish_uncounted(slot, -errno::ETIME);
            }
        }
    }

    /// Ends the timeouts whose number of CQEs was posted. Returns false if there were none.
    #[cold]
    pub(crate) fn run_counted(&mut self) -> bool {
        self.timers.look_at(self.queues.cq_tail());
        let mut any = false;
        while let Some(slot) = self.timers.pop_reached() {
            self.finish_uncounted(slot, 0);
            any = true;
        }
        any
    }

    /// Ends a timeout that fired or whose count was reached. Its own CQE does not count for other timeouts.
    fn finish_uncounted(&mut self, slot: u32, res: i32) {
        if self.reqs[slot].flags & IOSQE_CQE_SKIP_SUCCESS == 0 || self.is_failure(slot, res) {
            self.timers.uncount();
        }
        self.finish(slot, res);
    }

    /// Ends a link timeout that is due: takes it out of the chain and cancels the request it limits, unless a device
    /// has that.
    fn fire_guard(&mut self, guard: u32) {
        let (guarded, next) = (self.reqs[guard].data[1] as u32, self.reqs[guard].link);
        let req = &mut self.reqs[guarded];
        req.link = next;
        req.rflags &= !REQ_HAS_GUARD;
        let res = self.cancel_slot(guarded).map_or_else(|errno| -errno, |()| -errno::ETIME);
        let silent = self.reqs[guard].flags & IOSQE_CQE_SKIP_SUCCESS != 0;
        self.end_slot(guard, res, silent);
    }

    /// Arms the link timeout of a request that has begun and has not ended.
    #[cold]
    pub(crate) fn arm_guard(&mut self, slot: u32, clock: &Clock) {
        let guard = self.reqs[slot].link;
        if self.timers.armed_as(guard).is_some() {
            return; // Issued before: it found a resource exhausted.
        }
        let req = &self.reqs[guard];
        let (timeline, at) = deadline(clock, req.op_flags, req.data[0], req.op_flags & TIMEOUT_ABS != 0);
        self.timers.arm(guard, Kind::Guard, timeline, at);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
