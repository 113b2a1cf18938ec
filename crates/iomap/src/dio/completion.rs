//! From the end of the bios to the result: what an I/O needs still, and each of those steps.
//!
//! Order: the file looks at the memory -> the file's completion work -> the grace's count is dropped -> a sync if one
//! is needed -> the result. Owns no place where deferred steps run: the ring asks [`next`], and calls [`end_write`] and
//! [`sync`] where they may block.

use sheave_base::status::{Errno, Status};
use sheave_blk::bio::BVec;

use crate::completion_plan::{CompletionPlan, MayBlock};
use crate::file::{File, SummedDone, WriteDone};
use crate::io_memory::IoMemory;
use crate::kiocb::{IOCB_COMPLETION_WORK, IOCB_NEED_SYNC, IOCB_SUMMED, Kiocb};
use crate::mapping::Mapping;

/// What an I/O whose bios have ended needs still; see [`next`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Next {
    /// The file looks at the memory: [`end_summed`] on the ring's thread, [`end_summed_blocking`] where it may block if
    /// that says `None`; then [`summed`].
    Sum,
    /// The file's completion work: [`end_write`], where it may block; then [`worked`].
    Work,
    /// A sync of the file: [`sync`], where it may block. The count in the grace is to be dropped before.
    Sync,
    /// Nothing: this is the result.
    Done(i32),
}

/// What a sync in a worker comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Synced {
    /// It is done, with this result: 0, or `-errno`.
    Done(i32),
    /// The device must be flushed before it is: [`issue_flush`](super::issue_flush), on the ring's thread.
    Flush,
}

/// A bio of the kiocb has ended. True when that was the last reference: then the kiocb completes as its plan says.
#[inline(always)]
pub fn end_bio(kiocb: &mut Kiocb, status: Status) -> bool {
    if !status.is_ok() {
        kiocb.fail(status);
    }
    kiocb.refs -= 1;
    kiocb.refs == 0
}

/// What an I/O whose bios have ended needs still. Asked again after each step.
pub fn next(kiocb: &Kiocb) -> Next {
    if kiocb.flags & IOCB_SUMMED != 0 && (kiocb.is_write() || kiocb.status.is_ok()) {
        Next::Sum
    } else if kiocb.flags & IOCB_COMPLETION_WORK != 0 {
        Next::Work
    } else if kiocb.flags & IOCB_NEED_SYNC != 0 && kiocb.status.is_ok() {
        Next::Sync
    } else {
        Next::Done(kiocb.result())
    }
}

fn summed_done<'a>(kiocb: &Kiocb, pieces: &'a [Mapping], vecs: &'a [BVec]) -> SummedDone<'a> {
    let (len, memory) = (u64::from(kiocb.len), IoMemory::new(vecs, !kiocb.is_write()));
    SummedDone { write: kiocb.is_write(), pos: kiocb.pos, len, status: kiocb.status, pieces, memory }
}

/// Shows the file the memory of an I/O, for its checksums; `pieces` are the mappings that it used. The result, 0 or
/// `-errno`, is for [`summed`]; `None` when it takes [`end_summed_blocking`].
#[must_use]
pub fn end_summed(file: &dyn File, kiocb: &Kiocb, pieces: &[Mapping], vecs: &[BVec]) -> Option<i32> {
    match file.end_summed(&summed_done(kiocb, pieces, vecs)) {
        Ok(()) => Some(0),
        Err(Status::Again) => None,
        Err(status) => Some(status.result()),
    }
}

/// Shows the file the memory of an I/O where that may block: after an [`end_summed`] that said `None`. The result, 0 or
/// `-errno`, is for [`summed`].
#[must_use]
pub fn end_summed_blocking(
    file: &dyn File,
    kiocb: &Kiocb,
    pieces: &[Mapping],
    vecs: &[BVec],
    token: &MayBlock<'_>,
) -> i32 {
    file.end_summed_blocking(&summed_done(kiocb, pieces, vecs), token).map_or_else(|status| status.result(), |()| 0)
}

/// The file has seen the memory, with this result; what is next.
pub fn summed(kiocb: &mut Kiocb, res: i32) -> Next {
    kiocb.flags &= !IOCB_SUMMED;
    if res < 0 {
        kiocb.fail(Status::from_errno(Errno(res)));
    }
    next(kiocb)
}

/// The file's completion work, where it may block; `pieces` are the mappings that the write used. The result, 0 or
/// `-errno`, is for [`worked`].
#[must_use]
pub fn end_write(file: &dyn File, kiocb: &Kiocb, pieces: &[Mapping], token: &MayBlock<'_>) -> i32 {
    let done = WriteDone { pos: kiocb.pos, len: u64::from(kiocb.len), status: kiocb.status, pieces };
    file.end_write(done, token).map_or_else(|status| status.result(), |()| 0)
}

/// The completion work was done, with this result; what is next. An error of the data comes before one of the work.
pub fn worked(kiocb: &mut Kiocb, res: i32) -> Next {
    kiocb.flags &= !IOCB_COMPLETION_WORK;
    if res < 0 && kiocb.status.is_ok() { Next::Done(res) } else { next(kiocb) }
}

/// Makes `kiocb` a sync of the file.
pub fn start_sync(kiocb: &mut Kiocb) {
    *kiocb = Kiocb { flags: IOCB_NEED_SYNC, plan: CompletionPlan::Worker, ..Kiocb::default() };
}

/// Syncs the file, where that may block: for all that have come to [`Next::Sync`] before.
pub fn sync(file: &dyn File, token: &MayBlock<'_>) -> Synced {
    match file.sync(token) {
        None => Synced::Flush,
        Some(Ok(())) => Synced::Done(0),
        Some(Err(status)) => Synced::Done(status.result()),
    }
}
