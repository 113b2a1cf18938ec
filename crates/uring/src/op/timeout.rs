//! TIMEOUT, TIMEOUT_REMOVE and LINK_TIMEOUT.
//!
//! Owns the checks of their arguments and what happens when a timeout is due, has counted enough, is updated or
//! removed. Does not own the pending ones ([`timers`](crate::timers)) nor the search by anything but user data
//! ([`cancel`](super::cancel)).
//!
//! A LINK_TIMEOUT guards the member before it in its chain. It is armed when that one has begun and has not ended at
//! once, and leaves the chain when it fires.
//!
//! Invariants:
//! - I1: a request is armed in the timers from its issue until it fires, is reached, or is taken out to be cancelled.
//! - I2: nothing is ended while SQEs are taken: what is cancelled ends after them, in `run_ready`.

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

/// Reads the timespec at an address, in ns; far times are the end of time.
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

/// The timeline and the moment on it, for ns as the flags mean them.
fn deadline(clock: &Clock, timeout_flags: u32, ns: u64, abs: bool) -> (Timeline, u64) {
    let timeline = match timeout_flags & TIMEOUT_CLOCKS {
        TIMEOUT_BOOTTIME => Timeline::Boottime,
        // A span is as long on every clock, and does not change when somebody sets one.
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

/// TIMEOUT: flags, and the time, which is read now and never again.
pub(crate) fn prep(ring: &mut Inner, slot: u32, sqe: &Sqe) -> Result<(), i32> {
    prep_common(ring, slot, sqe, false)
}

/// TIMEOUT: waits for its time, or for as many CQEs as the lower half of `off` says.
pub(crate) fn issue(ring: &mut Inner, slot: u32) -> Issue {
    let req = &ring.core.reqs[slot];
    let (timeline, at) = deadline(ring.io.clock(), req.op_flags, req.data[0], req.op_flags & TIMEOUT_ABS != 0);
    match req.off as u32 {
        0 => ring.core.timers.arm(slot, Kind::Timeout, timeline, at),
        count => ring.core.timers.arm_counted(slot, timeline, at, ring.core.batch_tail, count),
    }
    Issue::Queued
}

/// LINK_TIMEOUT: the same, behind the request that it is to guard.
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

/// A LINK_TIMEOUT is armed with the request before it, and ends with it; its turn in the chain never comes.
pub(crate) fn issue_link(_: &mut Inner, _: u32) -> Issue {
    Issue::Done(-errno::ECANCELED)
}

/// TIMEOUT_REMOVE: flags, and the new time if there is one.
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

/// TIMEOUT_REMOVE: takes the first timeout with this user data out, or gives it another time.
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
        // It is armed, and so it can be.
        let _ = ring.core.cancel_slot(found);
    }
    Issue::Done(0)
}

impl Core {
    /// The first armed request with this user data.
    fn armed_with(&self, kind: Kind, user_data: u64) -> Option<u32> {
        self.armed(kind).find(|&slot| self.reqs[slot].user_data == user_data)
    }

    /// Ends what is due. A clock is read only when something waits for it.
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

    /// Ends the timeouts that wait for no more CQEs than were posted; false when there were none.
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

    /// Ends a timeout that fired or was reached: its CQE, if it gives one, does not count for others.
    fn finish_uncounted(&mut self, slot: u32, res: i32) {
        if self.reqs[slot].flags & IOSQE_CQE_SKIP_SUCCESS == 0 || self.is_failure(slot, res) {
            self.timers.uncount();
        }
        self.finish(slot, res);
    }

    /// A guard is due: it leaves the chain and cancels what it guards, unless a device has that.
    fn fire_guard(&mut self, guard: u32) {
        let (guarded, next) = (self.reqs[guard].data[1] as u32, self.reqs[guard].link);
        let req = &mut self.reqs[guarded];
        req.link = next;
        req.rflags &= !REQ_HAS_GUARD;
        let res = self.cancel_slot(guarded).map_or_else(|errno| -errno, |()| -errno::ETIME);
        let silent = self.reqs[guard].flags & IOSQE_CQE_SKIP_SUCCESS != 0;
        self.end_slot(guard, res, silent);
    }

    /// Arms the guard of a request that has begun and has not ended, if it has one.
    #[cold]
    pub(crate) fn arm_guard(&mut self, slot: u32, clock: &Clock) {
        let guard = self.reqs[slot].link;
        if self.timers.armed_as(guard).is_some() {
            return; // It was issued before, and found something used up.
        }
        let req = &self.reqs[guard];
        let (timeline, at) = deadline(clock, req.op_flags, req.data[0], req.op_flags & TIMEOUT_ABS != 0);
        self.timers.arm(guard, Kind::Guard, timeline, at);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
