//! FSYNC: everything that completed before is durable when it completes. With `FSYNC_DATASYNC` the same here, for a
//! device has no metadata of its own.

use sheave_blk::bio::{NO_FIXED_BUF, Op};
use sheave_blk::ctx::BioSpec;
use sheave_iomap::dio;

use crate::op::Issue;
use crate::op::file_of;
use crate::req::State;
use crate::ring::inner::Inner;
use crate::sqe::{FSYNC_DATASYNC, Sqe, errno};

/// Checks the fields that must be empty, and the offset, which is looked at here and used nowhere.
pub(crate) fn prep(_: &mut Inner, _: u32, sqe: &Sqe) -> Result<(), i32> {
    let zero = sqe.addr == 0 && sqe.buf_index == 0 && sqe.splice_fd_in == 0;
    if !zero || sqe.op_flags & !FSYNC_DATASYNC != 0 || sqe.off > i64::MAX as u64 {
        return Err(errno::EINVAL);
    }
    Ok(())
}

/// Sends a flush, or lets a worker sync a file that is more than its device.
pub(crate) fn issue(ring: &mut Inner, slot: u32) -> Issue {
    let file = match file_of(ring, slot) {
        Ok(file) => file,
        Err(errno) => return Issue::Done(-errno),
    };
    let req = &mut ring.core.reqs[slot];
    let Some(file) = ring.core.files.get(file) else { return Issue::Done(-errno::EBADF) };
    // Without anything of the file's own to commit, what came before needs only a flush of the device.
    if !file.is_identity() && file.file.needs_sync() {
        dio::start_sync(&mut req.kiocb);
        ring.want_sync(slot);
        ring.start_batches();
        // A pool of workers that has no place for this ring refuses the sync.
        return if ring.core.reqs[slot].state == State::Free { Issue::Ended } else { Issue::Queued };
    }
    req.kiocb = sheave_iomap::Kiocb { refs: 1, ..Default::default() };
    let spec = BioSpec { bdev: file.bdev, op: Op::Flush, flags: 0, sector: 0, bytes: 0, owner: slot };
    if ring.io.submit(&spec, &[], NO_FIXED_BUF) { Issue::Queued } else { Issue::Again }
}
