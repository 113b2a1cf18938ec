//! From a kiocb to bios: the checks that a direct I/O must pass, in order, and the way that it takes then.
//!
//! Order of the checks, as a block device of the kernel has it: may be written; position; nothing to do; end of file;
//! whole blocks; memory that cannot be any; its alignment. A file that [grows](crate::File::max_bytes) ends for its
//! writers where it may grow to: who begins there gets `EFBIG`, who comes across it a short write.

use sheave_base::status::Status;
use sheave_blk::bio::{BVec, NO_FIXED_BUF, Op};
use sheave_blk::ctx::{BioSpec, IoCtx};

use super::mapped::{Scratch, issue_mapped};
use super::open_file::OpenFile;
use super::run::PlainWay;
use super::{Issued, bio_spec, error};
use crate::io_memory::runs;
use crate::kiocb::{IOCB_COMPLETION_WORK, IOCB_DSYNC, IOCB_NEED_SYNC, IOCB_SYNC, Kiocb};

/// The first page of the address space is never mapped.
const FIRST_PAGE: usize = 4096;

/// Issues the I/O of `kiocb` (`pos`, `len` and `flags` filled in) on memory `vecs`. `owner` comes back in
/// [`end_bio`](super::end_bio); `fixed_buf` names the registered buffer that holds the only vector. A file with a grace
/// is in a [section](OpenFile::enter).
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

/// Issues the I/O of `kiocb` on one piece of memory; otherwise as [`issue`].
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
        && vec.len() == len as usize
        && let Some(mut run) = PlainWay::new(file, flags, fixed_buf).and_then(|way| way.start(io))
        && run.fits(pos, len, vec.base())
    {
        *kiocb = Kiocb::started(pos, len, flags);
        let submitted = run.submit(pos, owner, vec);
        run.finish();
        return if submitted { Issued::Queued } else { Issued::Again };
    }
    issue_slow(io, file, kiocb, owner, (&[vec], fixed_buf), scratch)
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
    issue_mapped(io, file, kiocb, owner, (vecs, fixed_buf), scratch)
}

/// Cuts the vectors to `bytes` in all.
fn truncate(vecs: &mut Vec<BVec>, mut bytes: usize) {
    vecs.retain_mut(|vec| {
        vec.truncate(bytes);
        bytes -= vec.len();
        !vec.is_empty()
    });
}

/// Whether every run is a whole number of blocks.
fn in_blocks(vecs: &[BVec], file: &OpenFile) -> bool {
    runs(vecs).all(|(_, len)| len & file.block_mask as usize == 0)
}

/// Whether the device can take every run where it is.
fn aligned(vecs: &[BVec], file: &OpenFile) -> bool {
    runs(vecs).all(|(base, _)| base & file.dma_mask as usize == 0)
}

/// Flushes the device, as the last step of a sync; all other steps are done.
/// [`end_bio`](super::end_bio) says when it has ended.
pub fn issue_flush(io: &mut IoCtx, file: &OpenFile, kiocb: &mut Kiocb, owner: u32) -> Issued {
    kiocb.flags &= !(IOCB_COMPLETION_WORK | IOCB_NEED_SYNC);
    kiocb.refs = 1;
    let spec = BioSpec { bdev: file.bdev, op: Op::Flush, flags: 0, sector: 0, bytes: 0, owner };
    if io.submit(&spec, &[], NO_FIXED_BUF) { Issued::Queued } else { Issued::Again }
}
