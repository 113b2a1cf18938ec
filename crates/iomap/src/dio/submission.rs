//! From a kiocb to bios: the checks of a direct I/O, in order, and the choice of its path.
//!
//! Order of the checks, the same as for a block device of the kernel: writable; position in range; length not 0; end of
//! file; whole blocks; plausible address; alignment of the memory. A file that [grows](crate::File::max_bytes) ends for
//! its writers at its maximum size: a write that begins there gets `EFBIG`, one that crosses it is short.

use sheave_base::status::Status;
use sheave_blk::bio::{BVec, NO_FIXED_BUF, Op};
use sheave_blk::ctx::{BioSpec, IoCtx};

use super::mapped::{Scratch, issue_mapped};
use super::open_file::OpenFile;
use super::run::PlainWay;
use super::{Issued, bio_spec, error};
use crate::io_memory::runs;
use crate::kiocb::{IOCB_COMPLETION_WORK, IOCB_DSYNC, IOCB_NEED_SYNC, IOCB_SYNC, Kiocb};

/// The first page of the address space, which is never mapped.
const FIRST_PAGE: usize = 4096;

/// Issues the I/O of `kiocb` (`pos`, `len` and `flags` filled in) on memory `vecs`. `owner` is returned with each bio
/// that ends; `fixed_buf` names the registered buffer that holds the only vector. A file with a grace must be in a
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

/// Issues the I/O of `kiocb` on one piece of memory; otherwise like [`issue`].
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

/// Issues every I/O that is not one aligned vector on a raw device within its end.
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
    // Keeps the capacity for the next I/O.
    scratch.cut = cut;
    issued
}

/// Issues an I/O that lies within the end of the file.
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

/// Cuts the vectors to `bytes` bytes in all.
fn truncate(vecs: &mut Vec<BVec>, mut bytes: usize) {
    vecs.retain_mut(|vec| {
        vec.truncate(bytes);
        bytes -= vec.len();
        !vec.is_empty()
    });
}

/// Returns true if every run of adjacent memory is a whole number of blocks.
fn in_blocks(vecs: &[BVec], file: &OpenFile) -> bool {
    runs(vecs).all(|(_, len)| len & file.block_mask as usize == 0)
}

/// Returns true if every run of adjacent memory has the alignment that the device needs.
fn aligned(vecs: &[BVec], file: &OpenFile) -> bool {
    runs(vecs).all(|(base, _)| base & file.dma_mask as usize == 0)
}

/// Flushes the device, the last step of a sync. [`end_bio`](super::end_bio) returns true when the flush has ended.
pub fn issue_flush(io: &mut IoCtx, file: &OpenFile, kiocb: &mut Kiocb, owner: u32) -> Issued {
    kiocb.flags &= !(IOCB_COMPLETION_WORK | IOCB_NEED_SYNC);
    kiocb.refs = 1;
    let spec = BioSpec { bdev: file.bdev, op: Op::Flush, flags: 0, sector: 0, bytes: 0, owner };
    if io.submit(&spec, &[], NO_FIXED_BUF) { Issued::Queued } else { Issued::Again }
}
