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
mod tests;
