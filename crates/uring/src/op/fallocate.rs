//! FALLOCATE: punch a hole, or zero a range. As on a block device both leave zeroes behind; punching gives the space
//! back where the device can.

use sheave_blk::bio::{NO_FIXED_BUF, Op};
use sheave_blk::ctx::BioSpec;

use crate::op::file_of;
use crate::opdef::Issue;
use crate::ring::Ring;
use crate::sqe::{Sqe, errno};

const KEEP_SIZE: u32 = 0x01;
const PUNCH_HOLE: u32 = 0x02;
const ZERO_RANGE: u32 = 0x10;
/// Longest bio without data, so that its length fits.
const MAX_BYTES: u64 = 1 << 31;

/// Checks the fields that must be empty.
pub(crate) fn prep(_: &mut Ring, _: u32, sqe: &Sqe) -> Result<(), i32> {
    let zero = sqe.op_flags == 0 && sqe.buf_index == 0 && sqe.splice_fd_in == 0;
    if zero { Ok(()) } else { Err(errno::EINVAL) }
}

/// Checks mode and range, then sends write-zeroes.
pub(crate) fn issue(ring: &mut Ring, slot: u32) -> Issue {
    match begin(ring, slot) {
        Ok(issue) => issue,
        Err(errno) => Issue::Done(-errno),
    }
}

fn begin(ring: &mut Ring, slot: u32) -> Result<Issue, i32> {
    let file = file_of(ring, slot)?;
    let Some(file) = ring.core.files.get(file) else { return Err(errno::EBADF) };
    let req = &mut ring.core.reqs[slot];
    let (off, mut len, mode) = (req.off, req.addr, req.len);
    if off > i64::MAX as u64 || len == 0 || len > i64::MAX as u64 {
        return Err(errno::EINVAL);
    }
    let plain = mode == 0 || mode == KEEP_SIZE;
    let known = matches!(mode, m if m == PUNCH_HOLE | KEEP_SIZE || m == ZERO_RANGE || m == ZERO_RANGE | KEEP_SIZE);
    if !known && !plain {
        return Err(errno::EOPNOTSUPP);
    }
    if file.is_read_only() {
        return Err(errno::EBADF);
    }
    let end = off.checked_add(len).filter(|&end| end <= i64::MAX as u64).ok_or(errno::EFBIG)?;
    let size = file.file.size_bytes();
    if off >= size {
        return Err(errno::EINVAL);
    }
    if end > size {
        if mode & KEEP_SIZE == 0 {
            return Err(errno::EINVAL);
        }
        len = size - off;
    }
    if (off | len) & u64::from(file.block_mask()) != 0 {
        return Err(errno::EINVAL);
    }
    if plain {
        return Err(errno::EOPNOTSUPP);
    }
    req.kiocb = sheave_iomap::Kiocb { refs: 0, ..Default::default() };
    let bdev = file.bdev;
    let (mut at, end) = (off, off + len);
    while at < end {
        let bytes = (end - at).min(MAX_BYTES);
        let spec = BioSpec { bdev, op: Op::WriteZeroes, flags: 0, sector: at >> 9, bytes: bytes as u32, owner: slot };
        if !ring.io.submit(&spec, &[], NO_FIXED_BUF) {
            if ring.core.reqs[slot].kiocb.refs == 0 {
                return Ok(Issue::Again);
            }
            // What is under way ends first; then the request fails as a whole.
            ring.core.reqs[slot].kiocb.status = sheave_base::status::Status::Again;
            break;
        }
        ring.core.reqs[slot].kiocb.refs += 1;
        at += bytes;
    }
    Ok(Issue::Queued)
}
