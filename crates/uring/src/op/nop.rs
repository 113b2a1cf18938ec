//! NOP: does nothing, and shows the parts of an operation.
//!
//! `nop_flags`: `IORING_NOP_INJECT_RESULT` makes `len` the result. The flags that would use files or buffers are
//! refused.

use crate::op::Issue;
use crate::ring::inner::Inner;
use crate::sqe::{NOP_INJECT_RESULT, Sqe, errno};

/// Checks the flags and stores the result.
pub(crate) fn prep(ring: &mut Inner, slot: u32, sqe: &Sqe) -> Result<(), i32> {
    if sqe.op_flags & !NOP_INJECT_RESULT != 0 {
        return Err(errno::EINVAL);
    }
    let inject = sqe.op_flags & NOP_INJECT_RESULT != 0;
    ring.core.reqs[slot].res = if inject { sqe.len as i32 } else { 0 };
    Ok(())
}

/// Ends at once.
pub(crate) fn issue(ring: &mut Inner, slot: u32) -> Issue {
    Issue::Done(ring.core.reqs[slot].res)
}
