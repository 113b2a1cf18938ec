//! FSYNC: when it completes, every write that completed before it is durable. `FSYNC_DATASYNC` does the same here: a
//! device has no metadata of its own.

use sheave_blk::bio::{NO_FIXED_BUF, Op};
use sheave_blk::ctx::BioSpec;
use sheave_iomap::dio;

use crate::op::Issue;
use crate::op::file_of;
use crate::req::State;
use crate::ring::inner::Inner;
use crate::sqe::{FSYNC_DATASYNC, Sqe, errno};

/// Checks the fields that must be empty, and the offset, which is not used otherwise.
pub(crate) fn prep(_: &mut Inner, _: u32, sqe: &Sqe) -> Result<(), i32> {
    let zero = sqe.addr == 0 && sqe.buf_index == 0 && sqe.splice_fd_in == 0;
    if !zero || sqe.op_flags & !FSYNC_DATASYNC != 0 || sqe.off > i64::MAX as u64 {
        return Err(errno::EINVAL);
    }
    Ok(())
}

/// Sends a flush, or has a worker sync a file that is more than its device.
pub(crate) fn issue(ring: &mut Inner, slot: u32) -> Issue {
    let file = match file_of(ring, slot) {
        Ok(file) => file,
        Err(errno) => return Issue::Done(-errno),
    };
    let req = &mut ring.core.reqs[slot];
    let Some(file) = ring.core.files.get(file) else { return Issue::Done(-errno::EBADF) };
    // A file without pending state of its own needs only a flush of the device.
    if !file.is_identity() && file.file.needs_sync() {
        dio::start_sync(&mut req.kiocb);
        ring.want_sync(slot);
        ring.start_batches();
        // If the worker pool has no place for this ring, the sync was refused and the slot is free.
        return if ring.core.reqs[slot].state == State::Free { Issue::Ended } else { Issue::Queued };
    }
    req.kiocb = sheave_iomap::Kiocb { refs: 1, ..Default::default() };
    let spec = BioSpec { bdev: file.bdev, op: Op::Flush, flags: 0, sector: 0, bytes: 0, owner: slot };
    if ring.io.submit(&spec, &[], NO_FIXED_BUF) { Issue::Queued } else { Issue::Again }
}
