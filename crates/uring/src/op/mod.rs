//! The operations, one module each. `nop` is the smallest complete one.

pub mod cancel;
pub mod fallocate;
pub mod fsync;
pub mod msg_ring;
pub mod nop;
pub mod rw;
pub mod timeout;

use crate::req::NO_FILE;
use crate::ring::inner::Inner;
use crate::sqe::{IOSQE_FIXED_FILE, errno};

/// Result of an issue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Issue {
    /// Ended with this result.
    Done(i32),
    /// Begun. `complete::finish` is called when it ends.
    Queued,
    /// Begun and ended, and the slot is free.
    Ended,
    /// A bounded resource (bios) is exhausted. Issue again after the next completions.
    Again,
    /// A bounded resource is exhausted while a part is in flight. Issue again; a cancel comes too late.
    Rest,
    /// The mapping of the range blocks, so a worker must map it. Issue again afterwards.
    Blocks,
}

/// Returns the open file that a request names, by the file table or the registered one. The request keeps it from now
/// on.
#[inline]
pub(crate) fn file_of(ring: &mut Inner, slot: u32) -> Result<usize, i32> {
    let req = &mut ring.core.reqs[slot];
    if req.file != NO_FILE {
        // Issued before: the request keeps its file although the tables may have changed.
        return Ok(req.file as usize);
    }
    let file = ring.core.files.resolve(req.fd, req.flags & IOSQE_FIXED_FILE != 0).ok_or(errno::EBADF)?;
    req.file = file as u32;
    Ok(file)
}
