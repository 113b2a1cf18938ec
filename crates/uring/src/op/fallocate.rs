//! FALLOCATE: punches a hole, or zeroes a range. Both leave zeroes behind, as on a block device; punching also releases
//! the space where the device can.

use sheave_blk::bio::{NO_FIXED_BUF, Op};
use sheave_blk::ctx::BioSpec;
use sheave_iomap::dio::OpenFile;
use sheave_iomap::{FallocateMode, Kiocb};

use crate::io_wq::Work;
use crate::op::Issue;
use crate::op::file_of;
use crate::ring::inner::Inner;
use crate::sqe::{Sqe, errno};

const KEEP_SIZE: u32 = 0x01;
const PUNCH_HOLE: u32 = 0x02;
const ZERO_RANGE: u32 = 0x10;
/// Longest bio without data: its length must fit into 32 bits.
const MAX_BYTES: u64 = 1 << 31;

/// Checks the fields that must be empty.
pub(crate) fn prep(ring: &mut Inner, slot: u32, sqe: &Sqe) -> Result<(), i32> {
    ring.core.reqs[slot].data = [0; 2];
    let zero = sqe.op_flags == 0 && sqe.buf_index == 0 && sqe.splice_fd_in == 0;
    if zero { Ok(()) } else { Err(errno::EINVAL) }
}

/// Checks mode and range, then sends write-zeroes bios, or queues the file's own fallocate to a worker.
pub(crate) fn issue(ring: &mut Inner, slot: u32) -> Issue {
    let req = &ring.core.reqs[slot];
    // A range in `data` means a second issue: begin() has checked everything and stored the rest of the range.
    if req.data[1] != 0 {
        let identity = ring.core.files.get(req.file as usize).is_some_and(OpenFile::is_identity);
        return if identity { send(ring, slot) } else { send_to_file(ring, slot) };
    }
    match begin(ring, slot) {
        Ok(issue) => issue,
        Err(errno) => Issue::Done(-errno),
    }
}

fn begin(ring: &mut Inner, slot: u32) -> Result<Issue, i32> {
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
    // Refused only here: `docs/reference/compat.md` fixes the order of these checks.
    if plain {
        return Err(errno::EOPNOTSUPP);
    }
    if !file.is_identity() {
        // The file does it itself, on a worker, because it may block.
        req.data = [off, off + len];
        req.kiocb = Kiocb::started(off, 0, 0);
        return Ok(send_to_file(ring, slot));
    }
    req.kiocb = Kiocb::started(off, 0, 0);
    req.data = [off, off + len];
    Ok(send(ring, slot))
}

/// Queues the file's fallocate, in the state in which a cancel finds it until a worker has begun.
fn send_to_file(ring: &mut Inner, slot: u32) -> Issue {
    let req = &ring.core.reqs[slot];
    let [pos, end] = req.data;
    let mode = if req.len & PUNCH_HOLE != 0 { FallocateMode::PunchHole } else { FallocateMode::ZeroRange };
    let Some(file) = ring.core.files.get(ring.core.reqs[slot].file as usize) else {
        return Issue::Done(-errno::EBADF);
    };
    let work = Work::Fallocate(file.file.clone(), mode, pos, end - pos);
    if !ring.core.wq.queue(slot, work) {
        return Issue::Done(-errno::EAGAIN);
    }
    ring.core.enqueue(slot);
    ring.core.enter_worker(slot);
    Issue::Queued
}

/// Sends bios for the rest of the range. The kiocb keeps the submission's reference until all are sent, which takes
/// several calls when bios run out.
fn send(ring: &mut Inner, slot: u32) -> Issue {
    let req = &mut ring.core.reqs[slot];
    let Some(bdev) = ring.core.files.get(req.file as usize).map(|file| file.bdev) else {
        return Issue::Done(-errno::EBADF);
    };
    let [at, end] = &mut req.data;
    while *at < *end && req.kiocb.status.is_ok() {
        let bytes = (*end - *at).min(MAX_BYTES);
        let spec = BioSpec { bdev, op: Op::WriteZeroes, flags: 0, sector: *at >> 9, bytes: bytes as u32, owner: slot };
        if req.kiocb.refs == u16::MAX || !ring.io.submit(&spec, &[], NO_FIXED_BUF) {
            return if req.kiocb.refs == 1 { Issue::Again } else { Issue::Rest };
        }
        req.kiocb.refs += 1;
        *at += bytes;
    }
    req.kiocb.refs -= 1;
    if req.kiocb.refs == 0 { Issue::Done(req.kiocb.result()) } else { Issue::Queued }
}
