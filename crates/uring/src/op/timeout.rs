//! TIMEOUT, TIMEOUT_REMOVE and LINK_TIMEOUT.
//!
//! Owns the checks of their arguments, and the steps when a timeout is due, has counted enough, is updated or removed.
//! Also owns the search for a timeout by its user data; [`cancel`](super::cancel) has the search by other conditions.
//! Does not own the pending timeouts ([`timers`](crate::timers)).
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
mod tests {
    use std::time::{Duration, Instant};

    use crate::Ring;
    use crate::prep;
    use crate::sqe::*;
    use crate::tests::{Rig, link_timeout, nop, timeout, timespec, with};

    const MS: Duration = Duration::from_millis(1);
    const ETIME: i32 = -errno::ETIME;
    const ECANCELED: i32 = -errno::ECANCELED;
    const ENOENT: i32 = -errno::ENOENT;
    const EINVAL: i32 = -errno::EINVAL;
    const EFAULT: i32 = -errno::EFAULT;

    fn counted(user_data: u64, count: u64) -> Sqe {
        Sqe { off: count, ..timeout(user_data, 1_000_000) }
    }

    fn remove(user_data: u64, of: u64) -> Sqe {
        Sqe { opcode: opcode::TIMEOUT_REMOVE, fd: -1, addr: of, user_data, ..Sqe::default() }
    }

    fn update(user_data: u64, of: u64, ms: i64, flags: u32) -> Sqe {
        let off = timespec(ms / 1000, ms % 1000 * 1_000_000);
        Sqe { off, op_flags: TIMEOUT_UPDATE | flags, ..remove(user_data, of) }
    }

    #[test]
    fn wrong_arguments_are_refused() {
        let good = timeout(1, 1);
        let wrong = [
            (Sqe { len: 0, ..good }, EINVAL),
            (Sqe { len: 2, ..good }, EINVAL),
            (Sqe { buf_index: 1, ..good }, EINVAL),
            (Sqe { splice_fd_in: 1, ..good }, EINVAL),
            (Sqe { ioprio: 1, ..good }, EINVAL),
            (Sqe { op_flags: TIMEOUT_UPDATE, ..good }, EINVAL),
            (Sqe { op_flags: LINK_TIMEOUT_UPDATE, ..good }, EINVAL),
            (Sqe { op_flags: 0x40, ..good }, EINVAL),
            (Sqe { op_flags: 0x100, ..good }, EINVAL),
            (Sqe { op_flags: TIMEOUT_BOOTTIME | TIMEOUT_REALTIME, ..good }, EINVAL),
            (Sqe { addr: timespec(-1, 0), ..good }, EINVAL),
            (Sqe { addr: timespec(0, -1), ..good }, EINVAL),
            (Sqe { addr: 0, ..good }, EFAULT),
            (Sqe { addr: 16, ..good }, EFAULT),
            (Sqe { addr: 1 << 63, ..good }, EFAULT),
            (Sqe { addr: u64::MAX - 7, ..good }, EFAULT),
            (Sqe { addr: 16, op_flags: 0x40, ..good }, EINVAL),
        ];
        let mut rig = Rig::new();
        for (sqe, res) in wrong {
            assert_eq!(rig.run(&[sqe]), [(1, res)], "{sqe:?}");
            // An SQE refused in prep also fails the members before it in its chain.
            let chain = [with(nop(2), IOSQE_IO_HARDLINK), sqe];
            assert_eq!(rig.run(&chain), [(2, ECANCELED), (1, res)], "{sqe:?}");
        }
    }

    #[test]
    fn fires_when_its_time_has_come_and_not_before() {
        let mut rig = Rig::new();
        assert_eq!(rig.run(&[timeout(1, 5)]), []);
        assert_eq!(rig.after(4 * MS), []);
        assert_eq!(rig.after(MS), [(1, ETIME)]);
        assert_eq!(rig.ring.in_flight(), 0);
    }

    #[test]
    fn fires_in_the_order_of_the_deadlines_and_then_of_the_issue() {
        let mut rig = Rig::new();
        let sqes: Vec<Sqe> = [(1, 9), (2, 3), (3, 9), (4, 3), (5, 1)].map(|(ud, ms)| timeout(ud, ms)).into();
        assert_eq!(rig.run(&sqes), []);
        let fired: Vec<u64> = rig.after(10 * MS).into_iter().map(|(user_data, _)| user_data).collect();
        assert_eq!(fired, [5, 2, 4, 1, 3]);
    }

    #[test]
    fn takes_every_clock_and_absolute_times() {
        let mut rig = Rig::new();
        rig.time.advance(Duration::from_secs(10));
        let abs = Sqe { op_flags: TIMEOUT_ABS, ..timeout(1, 9_000) };
        assert_eq!(rig.run(&[abs]), [(1, ETIME)], "a moment in the past fires at once");
        for clock in [0, TIMEOUT_BOOTTIME, TIMEOUT_REALTIME] {
            let sqes = [
                Sqe { op_flags: clock | TIMEOUT_ABS, ..timeout(2, 12_000) },
                Sqe { op_flags: clock, ..timeout(3, 1_000) },
            ];
            rig.time.set(10_000_000_000);
            assert_eq!(rig.run(&sqes), []);
            assert_eq!(rig.after(1000 * MS), [(3, ETIME)]);
            assert_eq!(rig.after(999 * MS), []);
            assert_eq!(rig.after(MS), [(2, ETIME)]);
        }
    }

    #[test]
    fn takes_nanoseconds_beyond_a_second_and_times_without_end() {
        let mut rig = Rig::new();
        let long = Sqe { addr: timespec(i64::MAX, i64::MAX), user_data: 2, ..timeout(2, 0) };
        assert_eq!(rig.run(&[Sqe { addr: timespec(1, 2_000_000_000), ..timeout(1, 0) }, long]), []);
        assert_eq!(rig.after(2999 * MS), []);
        assert_eq!(rig.after(MS), [(1, ETIME)]);
        assert_eq!(rig.after(Duration::from_secs(1 << 30)), []);
        assert_eq!(rig.run(&[remove(3, 2)]), [(3, 0), (2, ECANCELED)]);
    }

    #[test]
    fn firing_is_a_failure_unless_etime_success() {
        let mut rig = Rig::new();
        let link = |sqe| with(sqe, IOSQE_IO_LINK);
        assert_eq!(rig.run(&[link(timeout(1, 1)), nop(2)]), []);
        assert_eq!(rig.after(MS), [(1, ETIME), (2, ECANCELED)]);
        let success = Sqe { op_flags: TIMEOUT_ETIME_SUCCESS, ..timeout(3, 1) };
        assert_eq!(rig.run(&[link(success), nop(4)]), []);
        assert_eq!(rig.after(MS), [(3, ETIME), (4, 0)]);
        // CQE_SKIP_SUCCESS suppresses the CQE of a success.
        let silent = with(success, IOSQE_CQE_SKIP_SUCCESS);
        assert_eq!(rig.run(&[silent, with(timeout(5, 1), IOSQE_CQE_SKIP_SUCCESS)]), []);
        assert_eq!(rig.after(MS), [(5, ETIME)]);
    }

    #[test]
    fn ends_when_its_count_is_reached() {
        let mut rig = Rig::new();
        assert_eq!(rig.run(&[counted(1, 3)]), []);
        assert_eq!(rig.run(&[nop(2), nop(3)]), [(2, 0), (3, 0)]);
        assert_eq!(rig.run(&[nop(4)]), [(4, 0), (1, 0)]);
        assert_eq!(rig.run(&[counted(5, 1 << 32 | 1)]), [], "the lower half of `off` counts");
        assert_eq!(rig.run(&[nop(6)]), [(6, 0), (5, 0)]);
        assert_eq!(rig.run(&[counted(7, 1 << 32), nop(8)]), [(8, 0)], "and 0 there is no count");
    }

    #[test]
    fn counts_all_of_its_submit() {
        let mut rig = Rig::new();
        // CQEs of one submit are posted at its end, so those of SQEs before the timeout count too.
        assert_eq!(rig.run(&[nop(1), nop(2), counted(3, 2)]), [(1, 0), (2, 0), (3, 0)]);
    }

    #[test]
    fn counts_are_reached_in_order_and_start_what_is_linked() {
        let mut rig = Rig::new();
        let chain = [with(counted(1, 3), IOSQE_IO_LINK), nop(2)];
        assert_eq!(rig.run(&[chain[0], chain[1], counted(3, 4), counted(4, 2)]), []);
        // The third NOP reaches the count of 1; the NOP linked to 1 posts the fourth CQE, which reaches the count of 3.
        assert_eq!(rig.run(&[nop(5), nop(6), nop(7)]), [(5, 0), (6, 0), (7, 0), (4, 0), (1, 0), (2, 0), (3, 0)]);
    }

    #[test]
    fn what_fires_or_is_reached_does_not_count_for_others() {
        let mut rig = Rig::new();
        assert_eq!(rig.run(&[counted(1, 2), counted(2, 1), timeout(3, 1)]), []);
        assert_eq!(rig.after(MS), [(3, ETIME)]);
        assert_eq!(rig.run(&[nop(4)]), [(4, 0), (2, 0)]);
        assert_eq!(rig.run(&[nop(5)]), [(5, 0), (1, 0)]);
        // A timeout that gives no CQE does not count for others either.
        assert_eq!(rig.run(&[counted(1, 2), with(counted(2, 1), IOSQE_CQE_SKIP_SUCCESS)]), []);
        assert_eq!(rig.run(&[nop(4)]), [(4, 0)]);
        assert_eq!(rig.run(&[nop(5)]), [(5, 0), (1, 0)]);
    }

    #[test]
    fn what_is_removed_counts_and_so_do_messages_but_not_what_skips() {
        let mut rig = Rig::new();
        assert_eq!(rig.run(&[counted(1, 2), timeout(2, 1)]), []);
        assert_eq!(rig.run(&[remove(3, 2)]), [(3, 0), (2, ECANCELED), (1, 0)]);
        let itself = rig.ring.handle();
        let itself = rig.ring.attach_ring(&itself).expect("room");
        assert_eq!(rig.run(&[counted(4, 2)]), []);
        let message = Sqe { opcode: opcode::MSG_RING, fd: itself.raw(), off: 77, user_data: 5, ..Sqe::default() };
        assert_eq!(rig.run(&[message]), [(5, 0), (77, 0), (4, 0)]);
        assert_eq!(rig.run(&[counted(6, 1)]), []);
        assert_eq!(rig.run(&[with(nop(7), IOSQE_CQE_SKIP_SUCCESS)]), []);
        assert_eq!(rig.run(&[nop(8)]), [(8, 0), (6, 0)]);
    }

    #[test]
    fn overflowed_cqes_count_when_they_enter_the_cq() {
        let mut rig = Rig::of(Ring::builder().entries(8).cq_entries(8).in_flight(64), "null:size=1M");
        for user_data in 10..22 {
            rig.ring.push(prep::nop().user_data(user_data)).expect("room");
            rig.ring.submit().expect("submitted");
        }
        assert!(rig.ring.cq_overflowed());
        rig.ring.push(prep::timeout(Duration::from_secs(99)).count(4).user_data(1)).expect("room");
        rig.ring.submit().expect("submitted");
        assert_eq!(rig.ring.completions().count(), 8);
        // The four CQEs of the overflow list enter now, and reach the count.
        let rest: Vec<(u64, i32)> =
            std::iter::from_fn(|| Some(rig.reap()).filter(|cqes| !cqes.is_empty())).flatten().collect();
        assert_eq!(rest, [(18, 0), (19, 0), (20, 0), (21, 0), (1, 0)]);
    }

    #[test]
    fn removing_says_whether_it_was_there() {
        let mut rig = Rig::new();
        assert_eq!(rig.run(&[remove(1, 9)]), [(1, ENOENT)]);
        assert_eq!(rig.run(&[timeout(2, 5), timeout(2, 9)]), []);
        assert_eq!(rig.run(&[remove(3, 2)]), [(3, 0), (2, ECANCELED)]);
        assert_eq!(rig.after(9 * MS), [(2, ETIME)], "the first with that user data was removed");
        assert_eq!(rig.run(&[remove(4, 2)]), [(4, ENOENT)]);
        // A removed timeout counts as failed, and so does a remove that found nothing.
        assert_eq!(
            rig.run(&[with(timeout(5, 1), IOSQE_IO_LINK), nop(6), with(remove(7, 1), IOSQE_IO_LINK), nop(8)]),
            [(7, ENOENT), (8, ECANCELED)]
        );
        assert_eq!(rig.run(&[remove(9, 5)]), [(9, 0), (5, ECANCELED), (6, ECANCELED)]);
    }

    #[test]
    fn wrong_removes_are_refused() {
        let plain = remove(1, 2);
        let up = update(1, 2, 1, 0);
        let wrong = [
            (with(plain, IOSQE_FIXED_FILE), EINVAL),
            (Sqe { buf_index: 1, ..plain }, EINVAL),
            (Sqe { len: 1, ..plain }, EINVAL),
            (Sqe { splice_fd_in: 1, ..plain }, EINVAL),
            (Sqe { op_flags: TIMEOUT_ABS, ..plain }, EINVAL),
            (Sqe { op_flags: TIMEOUT_ETIME_SUCCESS, ..plain }, EINVAL),
            (Sqe { op_flags: TIMEOUT_UPDATE | TIMEOUT_BOOTTIME, ..up }, EINVAL),
            (Sqe { op_flags: TIMEOUT_UPDATE | TIMEOUT_REALTIME, ..up }, EINVAL),
            (Sqe { op_flags: TIMEOUT_UPDATE | 0x100, ..up }, EINVAL),
            (Sqe { off: timespec(-1, 0), ..up }, EINVAL),
            (Sqe { off: timespec(0, -1), ..up }, EINVAL),
            (Sqe { off: 16, ..up }, EFAULT),
            (Sqe { off: 16, op_flags: LINK_TIMEOUT_UPDATE, ..up }, EFAULT),
        ];
        let mut rig = Rig::new();
        for (sqe, res) in wrong {
            let chain = [with(nop(2), IOSQE_IO_HARDLINK), sqe];
            assert_eq!(rig.run(&chain), [(2, ECANCELED), (1, res)], "{sqe:?}");
        }
    }

    #[test]
    fn an_update_gives_a_new_time_and_takes_the_count() {
        let mut rig = Rig::new();
        assert_eq!(rig.run(&[counted(1, 2)]), []);
        assert_eq!(rig.run(&[update(2, 1, 5, 0)]), [(2, 0)]);
        assert_eq!(rig.run(&[nop(3), nop(4)]), [(3, 0), (4, 0)]);
        assert_eq!(rig.after(4 * MS), []);
        assert_eq!(rig.run(&[update(5, 1, 8, TIMEOUT_ABS)]), [(5, 0)]);
        assert_eq!(rig.after(3 * MS), []);
        assert_eq!(rig.after(MS), [(1, ETIME)]);
        assert_eq!(rig.run(&[update(6, 1, 8, 0)]), [(6, ENOENT)]);
    }

    #[test]
    fn update_and_remove_keep_timeouts_and_guards_apart() {
        let mut rig = Rig::new();
        let guarded = [with(timeout(1, 1_000), IOSQE_IO_LINK), link_timeout(2, 500)];
        assert_eq!(rig.run(&guarded), []);
        let miss = [remove(3, 2), update(4, 2, 1, 0), update(5, 1, 1, LINK_TIMEOUT_UPDATE)];
        assert_eq!(rig.run(&miss), [(3, ENOENT), (4, ENOENT), (5, ENOENT)]);
        assert_eq!(rig.run(&[update(6, 2, 7, LINK_TIMEOUT_UPDATE)]), [(6, 0)]);
        assert_eq!(rig.after(7 * MS), [(2, ETIME), (1, ECANCELED)]);
        // Without UPDATE, the flag for link timeouts removes a timeout.
        assert_eq!(rig.run(&[timeout(7, 1)]), []);
        let odd = Sqe { op_flags: LINK_TIMEOUT_UPDATE, ..update(8, 7, 1, 0) };
        assert_eq!(rig.run(&[odd]), [(8, 0), (7, ECANCELED)]);
    }

    #[test]
    fn a_guard_ends_with_its_request() {
        let mut rig = Rig::new();
        for link in [IOSQE_IO_LINK, IOSQE_IO_HARDLINK] {
            let chain = [with(nop(1), link), with(link_timeout(2, 5), IOSQE_IO_LINK), nop(3)];
            assert_eq!(rig.run(&chain), [(1, 0), (2, ECANCELED), (3, 0)]);
            // The request fails. Its own link flag decides about the rest of the chain, not that of the link timeout.
            let bad = Sqe { opcode: opcode::FSYNC, fd: -1, ..nop(4) };
            let rest = if link == IOSQE_IO_LINK { ECANCELED } else { 0 };
            let chain = [with(bad, link), with(link_timeout(5, 5), IOSQE_IO_LINK), nop(6)];
            assert_eq!(rig.run(&chain), [(4, -errno::EBADF), (5, ECANCELED), (6, rest)]);
        }
        assert_eq!(rig.ring.in_flight(), 0);
        assert_eq!(rig.after(10 * MS), []);
    }

    #[test]
    fn a_guard_that_fires_cancels_its_request() {
        let mut rig = Rig::new();
        let chain = [with(timeout(1, 100), IOSQE_IO_HARDLINK), with(link_timeout(2, 5), IOSQE_IO_LINK), nop(3)];
        assert_eq!(rig.run(&chain), []);
        assert_eq!(rig.after(5 * MS), [(2, ETIME), (1, ECANCELED), (3, 0)]);
        let silent = [
            with(timeout(1, 100), IOSQE_IO_LINK),
            with(link_timeout(2, 5), IOSQE_CQE_SKIP_SUCCESS | IOSQE_IO_LINK),
            nop(3),
        ];
        assert_eq!(rig.run(&silent), []);
        assert_eq!(rig.after(5 * MS), [(1, ECANCELED), (3, ECANCELED)], "a guard that skips never gives a CQE");
        assert_eq!(rig.ring.in_flight(), 0);
    }

    #[test]
    fn a_guard_cannot_take_back_what_a_device_has() {
        let mut rig = Rig::slow();
        let chain = [with(rig.read(1), IOSQE_IO_LINK), link_timeout(2, 5)];
        assert_eq!(rig.run(&chain), []);
        assert_eq!(rig.after(5 * MS), [(2, ENOENT)]);
        assert_eq!(rig.after(1000 * MS), [(1, 512)]);
    }

    #[test]
    fn a_guard_stands_behind_a_request_and_only_one() {
        let mut rig = Rig::new();
        assert_eq!(rig.run(&[link_timeout(1, 5)]), [(1, EINVAL)]);
        let twice = [with(nop(1), IOSQE_IO_LINK), with(link_timeout(2, 5), IOSQE_IO_LINK), link_timeout(3, 5)];
        assert_eq!(rig.run(&twice), [(1, ECANCELED), (2, ECANCELED), (3, EINVAL)]);
        let with_off = [with(nop(1), IOSQE_IO_LINK), Sqe { off: 1, ..link_timeout(2, 5) }];
        assert_eq!(rig.run(&with_off), [(1, ECANCELED), (2, EINVAL)]);
    }

    #[test]
    fn a_guard_is_not_armed_before_its_request_begins() {
        let mut rig = Rig::new();
        let chain = [with(timeout(1, 10), IOSQE_IO_HARDLINK), with(timeout(2, 50), IOSQE_IO_LINK), link_timeout(3, 5)];
        assert_eq!(rig.run(&chain), []);
        assert_eq!(rig.after(10 * MS), [(1, ETIME)]);
        assert_eq!(rig.after(4 * MS), []);
        assert_eq!(rig.after(MS), [(3, ETIME), (2, ECANCELED)]);
    }

    #[test]
    fn a_drain_waits_for_timeouts() {
        let mut rig = Rig::new();
        assert_eq!(rig.run(&[timeout(1, 5), with(nop(2), IOSQE_IO_DRAIN), nop(3)]), []);
        assert_eq!(rig.after(5 * MS), [(1, ETIME), (2, 0), (3, 0)]);
    }

    #[test]
    fn a_sleeping_ring_wakes_in_time() {
        let mut ring = Ring::builder().spin(Duration::ZERO).build().expect("a ring");
        let start = Instant::now();
        ring.push(prep::timeout(20 * MS).user_data(1)).expect("room");
        ring.push(prep::timeout(Duration::from_secs(1000)).user_data(2)).expect("room");
        ring.submit().expect("submitted");
        let early = ring.wait(1, Some(2 * MS));
        assert!(!early.is_ready() || start.elapsed() >= 20 * MS, "the caller's time is over first");
        assert_eq!(ring.wait(1, None), crate::Waited::Ready(1));
        assert!(start.elapsed() >= 20 * MS);
        assert_eq!(ring.completions().map(|c| (c.user_data, c.res)).collect::<Vec<_>>(), [(1, ETIME)]);
    }

    #[test]
    fn typed_times_are_moments_of_their_clocks() {
        let mut ring = Ring::builder().build().expect("a ring");
        let now = Instant::now();
        ring.push(prep::timeout(now - MS).user_data(1)).expect("room");
        ring.push(prep::timeout(std::time::SystemTime::now() + 30 * MS).user_data(2)).expect("room");
        ring.push(prep::timeout(now + 15 * MS).user_data(3)).expect("room");
        ring.push(prep::timeout(10 * MS).boottime().etime_success().user_data(4)).expect("room");
        assert_eq!(ring.submit_and_wait(4).expect("submitted"), 4);
        assert!(now.elapsed() >= 29 * MS);
        let mut results: Vec<(u64, i32)> = ring.completions().map(|c| (c.user_data, c.res)).collect();
        results.sort_unstable(); // On a slow machine they may be due together, each on its own clock.
        assert_eq!(results, [1, 2, 3, 4].map(|user_data| (user_data, ETIME)));
    }

    #[test]
    fn a_ring_without_timeouts_reads_no_clock() {
        let mut rig = Rig::new();
        rig.run(&[nop(1)]);
        let reads = rig.time.reads();
        for _ in 0..100 {
            rig.run(&[nop(1)]);
        }
        assert_eq!(rig.time.reads(), reads);
        rig.run(&[timeout(2, 5)]);
        assert!(rig.time.reads() > reads);
    }
}
