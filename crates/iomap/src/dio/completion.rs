//! From the end of the bios to the result: the steps that an I/O still needs.
//!
//! Order: the file looks at the memory -> the file's completion work -> the grace's count is dropped -> a sync if one
//! is needed -> the result. Does not own the threads on which deferred steps run: the ring calls [`next`], and calls
//! [`end_write`] and [`sync`] where they may block.

use sheave_base::status::{Errno, Status};
use sheave_blk::bio::BVec;

use crate::completion_plan::{CompletionPlan, MayBlock};
use crate::file::{File, SummedDone, WriteDone};
use crate::io_memory::IoMemory;
use crate::kiocb::{IOCB_COMPLETION_WORK, IOCB_NEED_SYNC, IOCB_SUMMED, Kiocb};
use crate::mapping::Mapping;

/// Next step of an I/O whose bios have ended; see [`next`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Next {
    /// The file processes the memory: [`end_summed`] on the ring's thread, or [`end_summed_blocking`] where it may
    /// block if [`end_summed`] returns `None`; then [`summed`].
    Sum,
    /// The file's completion work: [`end_write`], where it may block; then [`worked`].
    Work,
    /// A sync of the file: [`sync`], where it may block. The count in the grace is dropped first.
    Sync,
    /// No step is left: this is the result.
    Done(i32),
}

/// Outcome of a sync on a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Synced {
    /// Complete, with this result: 0, or `-errno`.
    Done(i32),
    /// The device must be flushed first: [`issue_flush`](super::issue_flush), on the ring's thread.
    Flush,
}

/// Ends one bio of the kiocb. Returns true if that was the last reference: the kiocb then completes according to its
/// plan.
#[inline(always)]
pub fn end_bio(kiocb: &mut Kiocb, status: Status) -> bool {
    if !status.is_ok() {
        kiocb.fail(status);
    }
    kiocb.refs -= 1;
    kiocb.refs == 0
}

/// Returns the next step of an I/O whose bios have ended. Called again after each step.
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

/// Passes the memory of an I/O to the file, for its checksums; `pieces` are the mappings that the I/O used. Returns the
/// argument for [`summed`], 0 or `-errno`, or `None` if [`end_summed_blocking`] must be called.
#[must_use]
pub fn end_summed(file: &dyn File, kiocb: &Kiocb, pieces: &[Mapping], vecs: &[BVec]) -> Option<i32> {
    match file.end_summed(&summed_done(kiocb, pieces, vecs)) {
        Ok(()) => Some(0),
        Err(Status::Again) => None,
        Err(status) => Some(status.result()),
    }
}

/// Passes the memory of an I/O to the file where that may block, after [`end_summed`] returned `None`. Returns the
/// argument for [`summed`], 0 or `-errno`.
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

/// Records the result `res` of [`end_summed`] and returns the next step.
pub fn summed(kiocb: &mut Kiocb, res: i32) -> Next {
    kiocb.flags &= !IOCB_SUMMED;
    if res < 0 {
        kiocb.fail(Status::from_errno(Errno(res)));
    }
    next(kiocb)
}

/// Runs the file's completion work, where it may block; `pieces` are the mappings that the write used. Returns the
/// argument for [`worked`], 0 or `-errno`.
#[must_use]
pub fn end_write(file: &dyn File, kiocb: &Kiocb, pieces: &[Mapping], token: &MayBlock<'_>) -> i32 {
    let done = WriteDone { pos: kiocb.pos, len: u64::from(kiocb.len), status: kiocb.status, pieces };
    file.end_write(done, token).map_or_else(|status| status.result(), |()| 0)
}

/// Records the result `res` of [`end_write`] and returns the next step. An error of the data takes precedence over one
/// of the completion work.
pub fn worked(kiocb: &mut Kiocb, res: i32) -> Next {
    kiocb.flags &= !IOCB_COMPLETION_WORK;
    if res < 0 && kiocb.status.is_ok() { Next::Done(res) } else { next(kiocb) }
}

/// Makes `kiocb` a sync of the file.
pub fn start_sync(kiocb: &mut Kiocb) {
    *kiocb = Kiocb { flags: IOCB_NEED_SYNC, plan: CompletionPlan::Worker, ..Kiocb::default() };
}

/// Syncs the file, where that may block, for all I/Os that had reached [`Next::Sync`] before the call.
pub fn sync(file: &dyn File, token: &MayBlock<'_>) -> Synced {
    match file.sync(token) {
        None => Synced::Flush,
        Some(Ok(())) => Synced::Done(0),
        Some(Err(status)) => Synced::Done(status.result()),
    }
}
