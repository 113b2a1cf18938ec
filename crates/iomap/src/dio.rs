//! The direct-I/O engine: one way for raw devices, volumes and whatever else is a [`File`].
//!
//! Owns the checks a direct I/O must pass, and what happens when its bios end. Does not own the kiocb's memory or the
//! place where deferred completions run: the ring asks [`next`] what an I/O that has ended needs still, and calls
//! [`end_write`] and [`sync`] where they may block.
//!
//! | module | holds |
//! |---|---|
//! | [`open_file`] | a file as one ring has it |
//! | [`run`] | plain I/O, one after the other: the fast path |
//! | [`mapped`] | the loop over mappings |
//!
//! Order of the checks, as a block device of the kernel has it: may be written; position; nothing to do; end of file;
//! whole blocks; memory that cannot be any; its alignment. A file that [grows](File::max_bytes) ends for its writers
//! where it may grow to: who begins there gets `EFBIG`, who comes across it a short write.
//!
//! A file in more pieces than there are bios just now gives a short read or write.
//!
//! Order on completion: the file's completion work -> the grace's count is dropped -> a sync if one is needed -> the
//! result.
//!
//! Invariants:
//! - I1: a kiocb ends once: [`end_bio`] says so when the last reference is gone.
//! - I2: an error demotes the plan to `Task` at least, so that error handling never runs inside a reap. (The error of a
//!   plain record of a [`run`] needs no handling: nothing but its result is left to do.)

pub mod mapped;
pub mod open_file;
pub mod run;

use sheave_base::status::Status;
use sheave_blk::bio::{BIO_FUA, BIO_POLLED, BVec, NO_FIXED_BUF, Op};
use sheave_blk::ctx::{BioSpec, IoCtx};

use crate::completion_plan::{CompletionPlan, MayBlock};
use crate::file::{File, SummedDone, WriteDone};
use crate::io_memory::IoMemory;
use crate::kiocb::{
    IOCB_COMPLETION_WORK, IOCB_DSYNC, IOCB_NEED_SYNC, IOCB_POLLED, IOCB_SUMMED, IOCB_SYNC, IOCB_WRITE, Kiocb,
};
use crate::mapping::Mapping;

pub use mapped::Scratch;
pub use open_file::OpenFile;
pub use run::{Bounds, LOOK_AHEAD, MappedRun, Places, PlainRun, PlainWay};

/// Longest transfer of one I/O, as in the kernel: 2 GiB less a page.
pub const MAX_RW_COUNT: u32 = 0x7fff_f000;

/// The first page of the address space is never mapped.
const FIRST_PAGE: usize = 4096;

/// What became of an I/O that was issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Issued {
    /// Bios are in flight; [`end_bio`] will say when it is done.
    Queued,
    /// It ended at once, with this result: bytes, or `-errno`.
    Done(i32),
    /// No bio is free: issue it again when some have ended.
    Again,
    /// The file must block to map the range: [`File::map_blocking`] in a worker, then issue it again.
    Blocks,
}

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
    /// The device must be flushed before it is: [`issue_flush`], on the ring's thread.
    Flush,
}

#[inline]
fn error(status: Status) -> Issued {
    Issued::Done(-status.errno())
}

/// Issues the I/O of `kiocb` (`pos`, `len` and `flags` filled in) on memory `vecs`. `owner` comes back in
/// [`end_bio`]; `fixed_buf` names the registered buffer that holds the only vector. A file with a grace is in a
/// [section](OpenFile::enter).
pub fn issue(
    io: &mut IoCtx,
    file: &OpenFile,
    kiocb: &mut Kiocb,
    owner: u32,
    vecs: (&[BVec], u16),
    scratch: &mut Scratch,
) -> Issued {
    match vecs {
        ([vec], fixed_buf) => issue_one(io, file, kiocb, owner, (*vec, fixed_buf), scratch),
        (vecs, _) => issue_slow(io, file, kiocb, owner, (vecs, NO_FIXED_BUF), scratch),
    }
}

/// The same for one piece of memory.
pub fn issue_one(
    io: &mut IoCtx,
    file: &OpenFile,
    kiocb: &mut Kiocb,
    owner: u32,
    (vec, fixed_buf): (BVec, u16),
    scratch: &mut Scratch,
) -> Issued {
    let (pos, len, flags) = (kiocb.pos, kiocb.len, kiocb.flags);
    if file.identity
        && vec.base() >= FIRST_PAGE
        && let Some(mut run) = PlainWay::new(file, flags, fixed_buf).and_then(|way| way.start(io))
        && run.fits(pos, len, vec.base())
    {
        *kiocb = Kiocb::started(pos, len, flags);
        let submitted = run.submit(pos, len, owner, vec);
        run.finish();
        return if submitted { Issued::Queued } else { Issued::Again };
    }
    issue_slow(io, file, kiocb, owner, (&[vec], fixed_buf), scratch)
}

#[inline(always)]
fn bio_spec(bdev: u16, iocb_flags: u16, owner: u32, addr: u64, bytes: u32, fua: bool) -> BioSpec {
    let write = iocb_flags & IOCB_WRITE != 0;
    let polled = if iocb_flags & IOCB_POLLED != 0 { BIO_POLLED } else { 0 };
    let fua = if write && fua { BIO_FUA } else { 0 };
    let op = if write { Op::Write } else { Op::Read };
    BioSpec { bdev, op, flags: polled | fua, sector: addr >> 9, bytes, owner }
}

/// Everything but one aligned vector on a raw device within its end.
#[cold]
fn issue_slow(
    io: &mut IoCtx,
    file: &OpenFile,
    kiocb: &mut Kiocb,
    owner: u32,
    vecs: (&[BVec], u16),
    scratch: &mut Scratch,
) -> Issued {
    let write = kiocb.is_write();
    if write && file.read_only {
        return Issued::Done(-9); // EBADF
    }
    if kiocb.pos.saturating_add(kiocb.len.into()) > i64::MAX as u64 {
        return error(Status::Invalid);
    }
    if kiocb.len == 0 {
        return Issued::Done(0);
    }
    let size = file.size_bytes();
    let max = if write && !file.identity { file.file.max_bytes() } else { None };
    let limit = max.map_or(size, |max| max.max(size));
    if kiocb.pos >= limit {
        return match (write, max) {
            (false, _) => Issued::Done(0),
            (true, None) => error(Status::NoSpc),
            (true, Some(_)) => error(Status::FileTooBig),
        };
    }
    if kiocb.pos + u64::from(kiocb.len) <= limit {
        return issue_checked(io, file, kiocb, owner, vecs, scratch);
    }
    kiocb.len = (limit - kiocb.pos) as u32;
    let mut cut = std::mem::take(&mut scratch.cut);
    cut.clear();
    cut.extend_from_slice(vecs.0);
    truncate(&mut cut, kiocb.len as usize);
    let issued = issue_checked(io, file, kiocb, owner, (&cut, vecs.1), scratch);
    // Its room is kept.
    scratch.cut = cut;
    issued
}

/// What lies within the end of the file.
fn issue_checked(
    io: &mut IoCtx,
    file: &OpenFile,
    kiocb: &mut Kiocb,
    owner: u32,
    (vecs, fixed_buf): (&[BVec], u16),
    scratch: &mut Scratch,
) -> Issued {
    if (kiocb.pos as u32 | kiocb.len) & file.block_mask != 0 || !in_blocks(vecs, file) {
        return error(Status::Invalid);
    }
    if vecs.iter().any(|vec| vec.base() < FIRST_PAGE && !vec.is_empty()) {
        return Issued::Done(-14); // EFAULT
    }
    if !aligned(vecs, file) {
        return error(Status::Invalid);
    }
    *kiocb = Kiocb::started(kiocb.pos, kiocb.len, kiocb.flags);
    if file.identity {
        let fua = kiocb.flags & (IOCB_DSYNC | IOCB_SYNC) != 0;
        let spec = bio_spec(file.bdev, kiocb.flags, owner, kiocb.pos, kiocb.len, fua);
        return if io.submit(&spec, vecs, fixed_buf) { Issued::Queued } else { Issued::Again };
    }
    mapped::issue_mapped(io, file, kiocb, owner, (vecs, fixed_buf), scratch)
}

/// Cuts the vectors to `bytes` in all.
fn truncate(vecs: &mut Vec<BVec>, mut bytes: usize) {
    vecs.retain_mut(|vec| {
        vec.truncate(bytes);
        bytes -= vec.len();
        !vec.is_empty()
    });
}

/// The runs of adjacent memory: where each starts, and its bytes.
pub(crate) fn runs(vecs: &[BVec]) -> impl Iterator<Item = (usize, usize)> {
    let mut vecs = vecs.iter().filter(|vec| !vec.is_empty()).peekable();
    std::iter::from_fn(move || {
        let first = vecs.next()?;
        let mut end = first.base() + first.len();
        while let Some(vec) = vecs.next_if(|vec| vec.base() == end) {
            end += vec.len();
        }
        Some((first.base(), end - first.base()))
    })
}

/// Whether every run is a whole number of blocks.
fn in_blocks(vecs: &[BVec], file: &OpenFile) -> bool {
    runs(vecs).all(|(_, len)| len & file.block_mask as usize == 0)
}

/// Whether the device can take every run where it is.
fn aligned(vecs: &[BVec], file: &OpenFile) -> bool {
    runs(vecs).all(|(base, _)| base & file.dma_mask as usize == 0)
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
    let (len, memory) = (u64::from(kiocb.len), IoMemory::new(vecs));
    SummedDone { write: kiocb.is_write(), pos: kiocb.pos, len, status: kiocb.status, pieces, memory }
}

/// Shows the file the memory of an I/O, for its checksums; `pieces` are the mappings that it used. The result, 0 or
/// `-errno`, is for [`summed`]; `None` when it takes [`end_summed_blocking`].
#[must_use]
pub fn end_summed(file: &dyn File, kiocb: &Kiocb, pieces: &[Mapping], vecs: &[BVec]) -> Option<i32> {
    match file.end_summed(&summed_done(kiocb, pieces, vecs)) {
        Ok(()) => Some(0),
        Err(Status::Again) => None,
        Err(status) => Some(-status.errno()),
    }
}

/// The same where it may block.
#[must_use]
pub fn end_summed_blocking(
    file: &dyn File,
    kiocb: &Kiocb,
    pieces: &[Mapping],
    vecs: &[BVec],
    token: &MayBlock<'_>,
) -> i32 {
    file.end_summed_blocking(&summed_done(kiocb, pieces, vecs), token).map_or_else(|status| -status.errno(), |()| 0)
}

/// The file has seen the memory, with this result; what is next.
pub fn summed(kiocb: &mut Kiocb, res: i32) -> Next {
    kiocb.flags &= !IOCB_SUMMED;
    if res < 0 {
        kiocb.fail(Status::from_errno(res));
    }
    next(kiocb)
}

/// The file's completion work, where it may block; `pieces` are the mappings that the write used. The result, 0 or
/// `-errno`, is for [`worked`].
#[must_use]
pub fn end_write(file: &dyn File, kiocb: &Kiocb, pieces: &[Mapping], token: &MayBlock<'_>) -> i32 {
    let done = WriteDone { pos: kiocb.pos, len: u64::from(kiocb.len), status: kiocb.status, pieces };
    file.end_write(done, token).map_or_else(|status| -status.errno(), |()| 0)
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
        Some(Err(status)) => Synced::Done(-status.errno()),
    }
}

/// Flushes the device, as the last step of a sync; all other steps are done.
/// [`end_bio`] says when it has ended.
pub fn issue_flush(io: &mut IoCtx, file: &OpenFile, kiocb: &mut Kiocb, owner: u32) -> Issued {
    kiocb.flags &= !(IOCB_COMPLETION_WORK | IOCB_NEED_SYNC);
    kiocb.refs = 1;
    let spec = BioSpec { bdev: file.bdev, op: Op::Flush, flags: 0, sector: 0, bytes: 0, owner };
    if io.submit(&spec, &[], NO_FIXED_BUF) { Issued::Queued } else { Issued::Again }
}

#[cfg(test)]
mod tests;
