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
mod tests {
    use std::time::Duration;

    use sheave_base::status::Errno;

    use crate::prep::{self, Cancel, Opcode};
    use crate::sqe::*;
    use crate::tests::{Rig, link_timeout, nop, timeout, with};
    use crate::{Fd, FixedFile, Ring};

    const ECANCELED: i32 = -errno::ECANCELED;
    const ENOENT: i32 = -errno::ENOENT;
    const EINVAL: i32 = -errno::EINVAL;
    const EBADF: i32 = -errno::EBADF;
    const ETIME: i32 = -errno::ETIME;

    fn cancel(user_data: u64, of: u64, flags: u32) -> Sqe {
        Sqe { opcode: opcode::ASYNC_CANCEL, fd: -1, addr: of, op_flags: flags, user_data, ..Sqe::default() }
    }

    std::thread_local! {
        /// Number of requests that cancels of this thread have compared with their target.
        pub(super) static LOOKS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
        /// Number of slots that cancels of this thread have passed.
        static SLOTS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    }

    /// Counts the slots that a cancel has passed.
    pub(super) fn count_slots(from: u32, to: u32) {
        SLOTS.set(SLOTS.get() + u64::from(to - from));
    }

    #[test]
    fn to_cancel_all_of_8192_timeouts_goes_once_through_them_and_once_through_the_slots() {
        const TIMEOUTS: u32 = 8192;
        let slots = (2 * TIMEOUTS + 1).next_power_of_two();
        for with_workers in [false, true] {
            let wq = crate::IoWq::builder().stepped(true).build().expect("a pool");
            let builder = Ring::builder().entries(1024).cq_entries(slots).in_flight(slots).io_wq(&wq);
            let mut ring = builder.build().expect("a ring");
            for at in 0..TIMEOUTS {
                let entry = prep::timeout(Duration::from_secs(1000)).user_data(1);
                ring.push(entry).expect("room");
                if with_workers {
                    ring.push(prep::nop().run_async().user_data(1)).expect("room");
                }
                if at % 512 == 511 {
                    ring.submit().expect("submitted");
                }
            }
            let before = (LOOKS.get(), SLOTS.get(), crate::timers::melds());
            ring.push(prep::cancel(Cancel::everything().all()).user_data(2)).expect("room");
            ring.submit().expect("submitted");
            let victims = if with_workers { 2 * TIMEOUTS } else { TIMEOUTS };
            let [looks, gone_through, melds] =
                [LOOKS.get() - before.0, SLOTS.get() - before.1, crate::timers::melds() - before.2];
            assert!(looks <= u64::from(victims), "{looks} comparisons for {victims}");
            assert!(gone_through <= u64::from(slots), "{gone_through} slots of {slots}");
            // Each timeout leaves a heap, at a cost that is logarithmic on average.
            assert!(melds <= u64::from(TIMEOUTS * (TIMEOUTS.ilog2() + 1)), "{melds} melds for {TIMEOUTS}");
            let ended: Vec<_> = ring.completions().map(|c| (c.user_data, c.res)).collect();
            assert_eq!(ended.len() as u32, victims + 1);
            assert!(
                ended.iter().all(|&(user_data, res)| res == if user_data == 2 { victims as i32 } else { ECANCELED })
            );
        }
    }

    #[test]
    fn cancelling_many_visits_each_request_once() {
        const EACH: u32 = 2048;
        let mut ring = Ring::builder().entries(1024).cq_entries(8192).in_flight(8192).build().expect("a ring");
        let forever = || prep::timeout(Duration::from_secs(1000));
        for user_data in [1, 2] {
            for at in 0..EACH {
                ring.push(forever().user_data(user_data)).expect("room");
                if at % 1024 == 1023 {
                    ring.submit().expect("submitted");
                }
            }
        }
        for (what, count) in [(Cancel::user_data(2).all(), EACH), (Cancel::everything(), EACH)] {
            let before = LOOKS.get();
            assert_eq!(ring.cancel(what), Ok(count));
            let looks = LOOKS.get() - before;
            assert!(looks <= u64::from(2 * EACH), "{looks} looks for {count}");
        }
        ring.drain();
        assert_eq!(ring.in_flight(), 0);
    }

    #[test]
    fn wrong_arguments_are_refused() {
        let good = cancel(1, 9, 0);
        let wrong = [
            Sqe { off: 1, ..good },
            Sqe { splice_fd_in: 1, ..good },
            Sqe { ioprio: 1, ..good },
            cancel(1, 9, 0x40),
            cancel(1, 9, 0x8000_0000),
            cancel(1, 9, ASYNC_CANCEL_ANY | ASYNC_CANCEL_FD),
            cancel(1, 9, ASYNC_CANCEL_ANY | ASYNC_CANCEL_OP),
        ];
        let mut rig = Rig::new();
        for sqe in wrong {
            let chain = [with(nop(2), IOSQE_IO_HARDLINK), sqe];
            assert_eq!(rig.run(&chain), [(2, ECANCELED), (1, EINVAL)], "{sqe:?}");
        }
        assert_eq!(rig.run(&[Sqe { buf_index: 7, fd: 99, addr3: 1, ..good }]), [(1, ENOENT)], "the rest is ignored");
    }

    #[test]
    fn finds_the_first_with_its_user_data() {
        let mut rig = Rig::new();
        assert_eq!(rig.run(&[cancel(1, 9, 0)]), [(1, ENOENT)]);
        assert_eq!(rig.run(&[timeout(9, 5), timeout(9, 7), timeout(8, 6)]), []);
        assert_eq!(rig.run(&[cancel(1, 9, 0)]), [(1, 0), (9, ECANCELED)]);
        assert_eq!(rig.after(Duration::from_millis(7)), [(8, ETIME), (9, ETIME)]);
    }

    #[test]
    fn counted_timeouts_are_found_first() {
        let mut rig = Rig::new();
        let counted = |count, ms| Sqe { off: count, ..timeout(9, ms) };
        assert_eq!(rig.run(&[timeout(9, 1), counted(9, 2), counted(8, 3)]), []);
        for (ms, left) in [(2, 2), (3, 1), (1, 0)] {
            assert_eq!(rig.run(&[cancel(1, 9, ASYNC_CANCEL_USERDATA)]), [(1, 0), (9, ECANCELED)], "the one of {ms} ms");
            assert_eq!(rig.ring.in_flight(), left);
        }
        assert_eq!(rig.after(Duration::from_millis(10)), []);
    }

    #[test]
    fn all_and_any_say_how_many() {
        let mut rig = Rig::new();
        assert_eq!(rig.run(&[cancel(1, 9, ASYNC_CANCEL_ALL)]), [(1, 0)]);
        assert_eq!(rig.run(&[cancel(1, 9, ASYNC_CANCEL_ANY)]), [(1, 0)]);
        assert_eq!(rig.run(&[timeout(9, 5), timeout(8, 5), timeout(9, 5), timeout(7, 5)]), []);
        let cqes = rig.run(&[cancel(1, 9, ASYNC_CANCEL_ALL)]);
        assert_eq!(cqes, [(1, 2), (9, ECANCELED), (9, ECANCELED)]);
        // ANY alone cancels all, whatever the user data.
        assert_eq!(rig.run(&[cancel(2, 1234, ASYNC_CANCEL_ANY)]), [(2, 2), (8, ECANCELED), (7, ECANCELED)]);
        assert_eq!(rig.ring.in_flight(), 0);
    }

    #[test]
    fn by_opcode_and_with_several_conditions() {
        let mut rig = Rig::new();
        let by_op =
            |user_data, of, op: u8, flags| Sqe { len: op.into(), ..cancel(user_data, of, ASYNC_CANCEL_OP | flags) };
        assert_eq!(rig.run(&[timeout(9, 5), timeout(8, 5), timeout(7, 5)]), []);
        assert_eq!(rig.run(&[by_op(1, 0, opcode::READ, ASYNC_CANCEL_ALL)]), [(1, 0)]);
        assert_eq!(rig.run(&[by_op(1, 0, opcode::LINK_TIMEOUT, ASYNC_CANCEL_ALL)]), [(1, 0)]);
        assert_eq!(rig.run(&[by_op(1, 8, opcode::READ, ASYNC_CANCEL_USERDATA)]), [(1, ENOENT)]);
        assert_eq!(rig.run(&[by_op(1, 8, opcode::TIMEOUT, ASYNC_CANCEL_USERDATA)]), [(1, 0), (8, ECANCELED)]);
        assert_eq!(rig.run(&[by_op(1, 8, opcode::TIMEOUT, 0)]), [(1, 0), (9, ECANCELED)]);
        assert_eq!(rig.run(&[by_op(1, 8, opcode::TIMEOUT, ASYNC_CANCEL_ALL)]), [(1, 1), (7, ECANCELED)]);
    }

    #[test]
    fn by_file_finds_no_timeouts_and_says_when_there_is_no_file() {
        let mut rig = Rig::new();
        let device = rig.device.raw();
        let by_file = |fd, flags| Sqe { fd, ..cancel(1, 9, ASYNC_CANCEL_FD | flags) };
        assert_eq!(rig.run(&[Sqe { fd: device, ..timeout(9, 5) }]), []);
        assert_eq!(rig.run(&[by_file(device, 0)]), [(1, ENOENT)]);
        assert_eq!(rig.run(&[by_file(device, ASYNC_CANCEL_ALL)]), [(1, 0)]);
        assert_eq!(rig.run(&[by_file(99, ASYNC_CANCEL_ALL)]), [(1, EBADF)]);
        assert_eq!(rig.run(&[by_file(-1, 0)]), [(1, EBADF)]);
        assert_eq!(rig.run(&[by_file(0, ASYNC_CANCEL_FD_FIXED)]), [(1, ENOENT)]);
        assert_eq!(rig.run(&[by_file(1, ASYNC_CANCEL_FD_FIXED)]), [(1, EBADF)]);
        assert_eq!(rig.run(&[with(by_file(1, 0), IOSQE_FIXED_FILE)]), [(1, EBADF)]);
        assert_eq!(rig.ring.in_flight(), 1);
    }

    #[test]
    fn finds_neither_itself_nor_link_timeouts_nor_later_chain_members() {
        let mut rig = Rig::new();
        assert_eq!(rig.run(&[cancel(1, 1, 0)]), [(1, ENOENT)]);
        let chain = [with(timeout(1, 5), IOSQE_IO_LINK), with(link_timeout(2, 900), IOSQE_IO_LINK), nop(3)];
        assert_eq!(rig.run(&chain), []);
        assert_eq!(rig.run(&[cancel(4, 2, 0), cancel(5, 3, 0)]), [(4, ENOENT), (5, ENOENT)]);
        // The request of a link timeout is found; the link timeout and the rest end with it, in the chain's order.
        assert_eq!(rig.run(&[cancel(6, 1, 0)]), [(6, 0), (1, ECANCELED), (2, ECANCELED), (3, ECANCELED)]);
        // A request behind a drain is not found either.
        assert_eq!(rig.run(&[timeout(7, 5), with(timeout(8, 5), IOSQE_IO_DRAIN)]), []);
        assert_eq!(rig.ring.cancel(Cancel::user_data(8)), Err(Errno(errno::ENOENT)));
        assert_eq!(rig.ring.cancel(Cancel::user_data(7)), Ok(1));
        assert_eq!(rig.reap(), [(7, ECANCELED)]);
        assert_eq!(rig.ring.cancel(Cancel::user_data(8)), Ok(1));
    }

    #[test]
    fn hard_links_go_on() {
        let mut rig = Rig::new();
        let chain = [with(timeout(1, 5), IOSQE_IO_HARDLINK), with(timeout(2, 5), IOSQE_IO_LINK), nop(3)];
        assert_eq!(rig.run(&chain), []);
        // A timeout that starts because the first one was cancelled is not counted.
        assert_eq!(rig.run(&[cancel(4, 0, ASYNC_CANCEL_ANY)]), [(4, 1), (1, ECANCELED)]);
        assert_eq!(rig.run(&[cancel(5, 0, ASYNC_CANCEL_ANY)]), [(5, 1), (2, ECANCELED), (3, ECANCELED)]);
    }

    #[test]
    fn what_a_device_has_is_not_found() {
        let mut rig = Rig::slow();
        let (read, device) = (rig.read(1), rig.device.raw());
        assert_eq!(rig.run(&[read]), []);
        let by_file = Sqe { fd: device, ..cancel(3, 0, ASYNC_CANCEL_FD) };
        assert_eq!(rig.run(&[cancel(2, 1, 0), by_file]), [(2, ENOENT), (3, ENOENT)]);
        assert_eq!(rig.after(Duration::from_secs(1)), [(1, 512)]);
    }

    #[test]
    fn what_a_worker_has_first_is_cancelled_by_user_data_or_file() {
        let mut rig = Rig::new();
        for by_file in [false, true] {
            let read = with(rig.read(1), IOSQE_ASYNC);
            // In the same submit, so that results of the worker are only taken afterwards.
            let flags = if by_file { ASYNC_CANCEL_FD } else { 0 };
            let of = Sqe { fd: rig.device.raw(), ..cancel(2, 1, flags) };
            let mut cqes = rig.run(&[read, of]);
            while rig.ring.in_flight() > 0 {
                cqes.extend(rig.reap());
            }
            assert_eq!(cqes, [(2, 0), (1, ECANCELED)]);
        }
    }

    #[test]
    fn requests_that_wait_for_bios_are_cancelled_at_once() {
        let builder = Ring::builder().entries(32).cq_entries(64).in_flight(64);
        let mut rig = Rig::of(builder, "null:size=1T,latency=1s");
        // A bio carries 2 GiB: these two use up all 64.
        let len = 100 << 30;
        let zero =
            |user_data| Sqe { opcode: opcode::FALLOCATE, fd: rig.device.raw(), len: 0x10, addr: len, ..nop(user_data) };
        let mut sqes = vec![zero(1), zero(2)];
        sqes.extend((3..=10).map(|user_data| rig.read(user_data)));
        assert_eq!(rig.run(&sqes), []);
        assert_eq!(rig.ring.cancel(Cancel::user_data(5)), Ok(1));
        assert_eq!(rig.reap(), [(5, ECANCELED)]);
        let guarded = [with(rig.read(11), IOSQE_IO_LINK), link_timeout(12, 5)];
        assert_eq!(rig.run(&guarded), []);
        assert_eq!(rig.after(Duration::from_millis(5)), [(12, ETIME), (11, ECANCELED)], "a guard cancels it too");
        assert_eq!(rig.ring.cancel(Cancel::file(rig.device).all()), Ok(7));
        assert_eq!(rig.reap(), [3, 4, 6, 7, 8, 9, 10].map(|user_data| (user_data, ECANCELED)));
        // The second got some bios, so it is in flight, and takes the rest when the first returns them.
        assert_eq!(rig.after(Duration::from_secs(1)), [(1, 0)]);
        assert_eq!(rig.after(Duration::from_secs(1)), [(2, 0)]);
        assert_eq!(rig.ring.in_flight(), 0);
    }

    #[test]
    fn conditions_are_added() {
        let mut rig = Rig::new();
        assert_eq!(rig.ring.cancel(Cancel::everything()), Ok(0));
        assert_eq!(rig.ring.cancel(Cancel::file(Fd::NONE)), Err(Errno(errno::EBADF)));
        assert_eq!(rig.ring.cancel(Cancel::fixed_file(FixedFile(1))), Err(Errno(errno::EBADF)));
        assert_eq!(rig.ring.cancel(Cancel::everything().and(Cancel::opcode(Opcode::Readv))), Err(Errno(errno::EINVAL)));
        assert_eq!(rig.run(&[timeout(1, 5), timeout(2, 5), timeout(2, 5)]), []);
        let narrow = Cancel::opcode(Opcode::Timeout).and(Cancel::user_data(2));
        assert_eq!(rig.ring.cancel(narrow.and(Cancel::file(rig.device))), Err(Errno(errno::ENOENT)));
        rig.ring.push(prep::cancel(narrow.all()).user_data(3)).expect("room");
        rig.ring.submit().expect("submitted");
        assert_eq!(rig.reap(), [(3, 2), (2, ECANCELED), (2, ECANCELED)]);
        assert_eq!(rig.ring.cancel(Cancel::user_data(1)), Ok(1));
        rig.ring.drain();
        assert_eq!(rig.reap(), [(1, ECANCELED)]);
    }
}
