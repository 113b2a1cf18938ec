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

/// What issue says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Issue {
    /// It has ended, with this result.
    Done(i32),
    /// It has begun; `complete::finish` is called when it ends.
    Queued,
    /// It has begun and ended, and its slot is free.
    Ended,
    /// Something bounded is used up (bios); issue it again after the next completions.
    Again,
    /// Something bounded is used up, and a part of it is in flight: to be issued again, and too late for a cancel.
    Rest,
    /// A worker must map the range first; then issue it again.
    Blocks,
}

/// The open file that a request names: an entry of the file table, or of the registered one. The request holds it
/// from now on.
#[inline]
pub(crate) fn file_of(ring: &mut Inner, slot: u32) -> Result<usize, i32> {
    let req = &mut ring.core.reqs[slot];
    if req.file != NO_FILE {
        // Issued before: it keeps its file, whatever the tables say now.
        return Ok(req.file as usize);
    }
    let file = ring.core.files.resolve(req.fd, req.flags & IOSQE_FIXED_FILE != 0).ok_or(errno::EBADF)?;
    req.file = file as u32;
    Ok(file)
}
