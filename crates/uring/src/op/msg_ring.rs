//! MSG_RING: posts a CQE in another ring, or in this one.
//!
//! The `fd` names an entry of the file table that is a ring ([`Ring::attach_ring`](crate::Ring::attach_ring)). The
//! message goes through the target's [`task_work`](crate::task_work) and wakes the target only if it sleeps. The result
//! is 0 if the message was accepted.

use crate::cqe::Cqe;
use crate::op::Issue;
use crate::ring::inner::Inner;
use crate::sqe::{IOSQE_FIXED_FILE, MSG_RING_CQE_SKIP, MSG_RING_FLAGS_PASS, Sqe, errno};

/// `IORING_MSG_DATA`, the only supported command.
const MSG_DATA: u32 = 0;

/// Checks the flags and stores the message.
pub(crate) fn prep(ring: &mut Inner, slot: u32, sqe: &Sqe) -> Result<(), i32> {
    if sqe.buf_index != 0 || sqe.op_flags & !(MSG_RING_CQE_SKIP | MSG_RING_FLAGS_PASS) != 0 {
        return Err(errno::EINVAL);
    }
    ring.core.reqs[slot].data = [sqe.addr3, u64::from(sqe.splice_fd_in as u32)];
    Ok(())
}

/// Sends the message. Never waits for the other ring.
pub(crate) fn issue(ring: &mut Inner, slot: u32) -> Issue {
    Issue::Done(send(ring, slot).map_or_else(|errno| -errno, |()| 0))
}

fn send(ring: &mut Inner, slot: u32) -> Result<(), i32> {
    let req = &ring.core.reqs[slot];
    let files = &ring.core.files;
    let file = files.resolve_any(req.fd, req.flags & IOSQE_FIXED_FILE != 0).ok_or(errno::EBADF)?;
    let target = files.ring(file).ok_or(errno::EBADFD)?;
    let [addr3, flags] = req.data;
    let pass = req.op_flags & MSG_RING_FLAGS_PASS != 0;
    let odd = req.op_flags & MSG_RING_CQE_SKIP != 0 || (flags != 0 && !pass);
    if req.addr as u32 != MSG_DATA || addr3 != 0 || odd {
        return Err(errno::EINVAL);
    }
    let cqe = Cqe { user_data: req.off, res: req.len as i32, flags: if pass { flags as u32 } else { 0 } };
    target.send_cqe(cqe).map_err(|error| error.errno().0)
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use crate::Ring;
    use crate::sqe::*;
    use crate::tests::{Rig, nop, with};

    const EINVAL: i32 = -errno::EINVAL;
    const EBADF: i32 = -errno::EBADF;
    const EBADFD: i32 = -errno::EBADFD;
    const EOVERFLOW: i32 = -errno::EOVERFLOW;

    fn message(fd: i32, off: u64, len: u32) -> Sqe {
        Sqe { opcode: opcode::MSG_RING, fd, off, len, user_data: 1, ..Sqe::default() }
    }

    fn to_itself(rig: &mut Rig) -> i32 {
        let itself = rig.ring.handle();
        rig.ring.attach_ring(&itself).expect("room").raw()
    }

    #[test]
    fn wrong_arguments_are_refused_or_fail() {
        let mut rig = Rig::new();
        let itself = to_itself(&mut rig);
        let good = message(itself, 9, 0);
        for sqe in [Sqe { buf_index: 1, ..good }, Sqe { ioprio: 1, ..good }, Sqe { op_flags: 4, ..good }] {
            let chain = [with(nop(2), IOSQE_IO_HARDLINK), sqe];
            assert_eq!(rig.run(&chain), [(2, -errno::ECANCELED), (1, EINVAL)], "{sqe:?}");
        }
        let failing = [
            (message(99, 9, 0), EBADF),
            (message(-1, 9, 0), EBADF),
            (message(rig.device.raw(), 9, 0), EBADFD),
            (Sqe { addr: 2, ..message(rig.device.raw(), 9, 0) }, EBADFD),
            (with(message(1, 9, 0), IOSQE_FIXED_FILE), EBADF),
            (with(message(0, 9, 0), IOSQE_FIXED_FILE), EBADFD),
            (Sqe { op_flags: MSG_RING_CQE_SKIP, ..good }, EINVAL),
            (Sqe { splice_fd_in: 5, ..good }, EINVAL),
            (Sqe { addr3: 5, ..good }, EINVAL),
            (Sqe { addr: 1, ..good }, EINVAL),
            (Sqe { addr: 2, ..good }, EINVAL),
        ];
        for (sqe, res) in failing {
            let chain = [with(nop(2), IOSQE_IO_HARDLINK), sqe];
            assert_eq!(rig.run(&chain), [(2, 0), (1, res)], "{sqe:?}");
        }
        assert_eq!(rig.run(&[Sqe { addr: 1 << 40, ..good }]), [(1, 0), (9, 0)], "the lower half is the command");
    }

    #[test]
    fn the_target_gets_user_data_result_and_flags() {
        let mut rig = Rig::new();
        let itself = to_itself(&mut rig);
        assert_eq!(rig.run(&[message(itself, 9, -5i32 as u32)]), [(1, 0), (9, -5)]);
        let mut other = Ring::builder().entries(8).build().expect("a ring");
        let fd = rig.ring.attach_ring(&other.handle()).expect("room").raw();
        let flags = Sqe { op_flags: MSG_RING_FLAGS_PASS, splice_fd_in: 0x55, ..message(fd, u64::MAX, 77) };
        assert_eq!(rig.run(&[flags, message(fd, 8, 0)]), [(1, 0), (1, 0)]);
        assert_eq!(other.wait(2, None), crate::Waited::Ready(2));
        let cqes: Vec<_> = other.completions().map(|c| (c.user_data, c.res, c.flags.bits())).collect();
        assert_eq!(cqes, [(u64::MAX, 77, 0x55), (8, 0, 0)]);
    }

    #[test]
    fn messages_to_full_or_dropped_rings_fail() {
        let mut rig = Rig::new();
        let mut other = Ring::builder().entries(8).build().expect("a ring");
        let attached = rig.ring.attach_ring(&other.handle()).expect("room");
        let fd = attached.raw();
        let mut sent = 0;
        while rig.run(&[message(fd, sent, 0)]) == [(1, 0)] {
            sent += 1;
            assert!(sent < 10_000, "a mailbox has an end");
        }
        assert_eq!(rig.run(&[message(fd, sent, 0)]), [(1, EOVERFLOW)]);
        // No accepted message is lost, and reading makes room, also if the CQ is smaller than the mailbox.
        let mut got = Vec::new();
        while got.len() < sent as usize {
            assert!(other.wait(1, None).is_ready());
            got.extend(other.completions().map(|c| c.user_data));
        }
        assert_eq!(got, (0..sent).collect::<Vec<_>>());
        assert_eq!(rig.run(&[message(fd, 0, 0)]), [(1, 0)]);
        drop(other);
        assert_eq!(rig.run(&[message(fd, 0, 0)]), [(1, EBADFD)]);
        rig.ring.detach(attached).expect("it was attached");
        assert_eq!(rig.run(&[message(fd, 0, 0)]), [(1, EBADF)]);
    }

    #[test]
    fn a_full_queue_of_the_target_keeps_messages_in_the_mailbox() {
        let mut target = Ring::builder().entries(8).cq_entries(8).in_flight(8).build().expect("a ring");
        let sender = target.handle();
        let mut sent = 0;
        for _ in 0..20 {
            while sender.send(sent, 0).is_ok() {
                sent += 1;
            }
            target.reap();
        }
        assert!(sent <= 8 + 16 + 64, "CQ, overflow list and mailbox are bounded, {sent} were accepted");
        let mut got = Vec::new();
        while got.len() < sent as usize {
            got.extend(target.completions().map(|c| c.user_data));
        }
        assert_eq!(got, (0..sent).collect::<Vec<_>>());
    }
}
