//! READ, WRITE, READV, WRITEV, READ_FIXED, WRITE_FIXED.
//!
//! Owns the checks of their arguments; the I/O itself is the engine's ([`sheave_iomap::dio`]). Most reads and writes
//! are plain records ([`plain`](crate::plain)) and do not come here.
//!
//! The caller promises that memory at the given addresses stays valid (see [`Ring::push_sqe`](crate::Ring::push_sqe)).
//! Addresses that cannot be valid are refused, as in the kernel: a range outside of user space, the first page, vectors
//! with negative lengths.

use sheave_blk::bio::{BVec, NO_FIXED_BUF};
use sheave_iomap::dio::{self, Issued, MAX_RW_COUNT, OpenFile, Scratch};
use sheave_iomap::kiocb::{
    IOCB_COMPLETION_WORK, IOCB_COUNTED, IOCB_DSYNC, IOCB_NOWAIT, IOCB_SUMMED, IOCB_SYNC, IOCB_USE_POS, IOCB_WRITE,
};

use crate::core::{Cold, Core};
use crate::op::Issue;
use crate::op::file_of;
use crate::req::{REQ_COUNTED, REQ_OLD_BUF, REQ_SLOW_END, REQ_VECTORED, Req};
use crate::ring::inner::Inner;
use crate::sqe::{
    IOSQE_BUFFER_SELECT, RWF_APPEND, RWF_DSYNC, RWF_HIPRI, RWF_NOWAIT, RWF_OK, RWF_SYNC, Sqe, errno, opcode,
};
use crate::user_memory::{FIRST_PAGE, is_user_range, sqe_memory};

const IOV_MAX: u32 = 1024;

#[inline]
pub(crate) fn is_write(op: u8) -> bool {
    matches!(op, opcode::WRITE | opcode::WRITEV | opcode::WRITE_FIXED)
}

#[inline(always)]
fn prep_common(ring: &mut Inner, slot: u32, sqe: &Sqe) -> Result<(), i32> {
    if u64::from(sqe.ioprio) | sqe.pad2 != 0 {
        check_rare(sqe)?;
    }
    let req = &mut ring.core.reqs[slot];
    req.kiocb.pos = sqe.off;
    req.kiocb.flags = u16::from(is_write(sqe.opcode)) * IOCB_WRITE;
    Ok(())
}

#[cold]
fn check_rare(sqe: &Sqe) -> Result<(), i32> {
    let (class, level) = (sqe.ioprio >> 13, sqe.ioprio & 0x1fff);
    if class > 3 || (class == 0 && level != 0) {
        return Err(errno::EINVAL);
    }
    match sqe.pad2 {
        0 => Ok(()),
        1 if sqe.addr3 < FIRST_PAGE || !is_user_range(sqe.addr3, 1) => Err(errno::EFAULT),
        // Protection information, which no device here has, or an unknown attribute.
        _ => Err(errno::EINVAL),
    }
}

/// Prepares READ, WRITE and their fixed forms: one range of memory.
pub(crate) fn prep(ring: &mut Inner, slot: u32, sqe: &Sqe) -> Result<(), i32> {
    prep_common(ring, slot, sqe)?;
    let elsewhere =
        matches!(sqe.opcode, opcode::READ_FIXED | opcode::WRITE_FIXED) || sqe.flags & IOSQE_BUFFER_SELECT != 0;
    let len = sqe.len.min(MAX_RW_COUNT);
    if !elsewhere && !is_user_range(sqe.addr, u64::from(len)) {
        return Err(errno::EFAULT);
    }
    Ok(())
}

/// Prepares READV and WRITEV. The vectors are read here and never again.
pub(crate) fn prep_vectored(ring: &mut Inner, slot: u32, sqe: &Sqe) -> Result<(), i32> {
    prep_common(ring, slot, sqe)?;
    let select = sqe.flags & IOSQE_BUFFER_SELECT != 0;
    if sqe.len > IOV_MAX || (select && sqe.len != 1) {
        return Err(errno::EINVAL);
    }
    let vecs = &mut ring.core.cold[slot as usize].vecs;
    vecs.clear();
    if sqe.len != 0 {
        let bytes = u64::from(sqe.len) * size_of::<BVec>() as u64;
        if sqe.addr < FIRST_PAGE || !is_user_range(sqe.addr, bytes) {
            return Err(errno::EFAULT);
        }
        crate::user_memory::read_vecs(sqe.addr, sqe.len as usize, vecs);
    }
    if select {
        vecs.clear(); // Issue refuses a buffer group with ENOBUFS, so no vector is needed.
    }
    let mut left = u64::from(MAX_RW_COUNT);
    for vec in vecs.iter_mut() {
        if (vec.len() as i64) < 0 {
            return Err(errno::EINVAL);
        }
        if !is_user_range(vec.base() as u64, vec.len() as u64) {
            return Err(errno::EFAULT);
        }
        vec.truncate(left as usize);
        left -= vec.len() as u64;
    }
    let req = &mut ring.core.reqs[slot];
    req.len = MAX_RW_COUNT - left as u32;
    req.rflags |= REQ_VECTORED;
    Ok(())
}

/// Makes the checks of issue that come before the engine's, in the kernel's order.
#[inline(always)]
fn begin(ring: &mut Inner, slot: u32, file: usize) -> Result<(), i32> {
    let read_only = ring.core.files.get(file).is_some_and(OpenFile::is_read_only);
    let req = &mut ring.core.reqs[slot];
    let pos = req.kiocb.pos;
    if read_only && req.kiocb.is_write() {
        return Err(errno::EBADF);
    }
    if req.op_flags != 0 || pos > i64::MAX as u64 || req.flags & IOSQE_BUFFER_SELECT != 0 {
        begin_rare(ring, slot, file)?;
    }
    let req = &mut ring.core.reqs[slot];
    let len = req.len.min(MAX_RW_COUNT);
    if req.kiocb.pos + u64::from(len) > i64::MAX as u64 {
        return Err(errno::EINVAL);
    }
    req.kiocb.len = len;
    Ok(())
}

/// Handles flags, buffer groups, and offsets that are not positions.
#[cold]
fn begin_rare(ring: &mut Inner, slot: u32, file: usize) -> Result<(), i32> {
    let polled = ring.core.polled;
    let pos = ring.core.files.pos(file);
    let grows = ring.core.files.get(file).is_some_and(|file| file.file.max_bytes().is_some());
    let req = &mut ring.core.reqs[slot];
    if req.flags & IOSQE_BUFFER_SELECT != 0 {
        return Err(errno::ENOBUFS);
    }
    if req.op_flags & !RWF_OK != 0 {
        return Err(errno::EOPNOTSUPP);
    }
    // On a file that grows, two appends at a time would get the same position. Other files have a fixed end.
    if req.op_flags & RWF_APPEND != 0 && grows {
        return Err(errno::EOPNOTSUPP);
    }
    if req.op_flags & RWF_HIPRI != 0 && !polled {
        return Err(errno::EINVAL);
    }
    for (flag, iocb) in [(RWF_DSYNC, IOCB_DSYNC), (RWF_SYNC, IOCB_DSYNC | IOCB_SYNC), (RWF_NOWAIT, IOCB_NOWAIT)] {
        if req.op_flags & flag != 0 {
            req.kiocb.flags |= iocb;
        }
    }
    if req.off == u64::MAX {
        req.kiocb.pos = pos;
        req.kiocb.flags |= IOCB_USE_POS;
        req.rflags |= REQ_SLOW_END;
    } else if req.kiocb.pos > i64::MAX as u64 {
        return Err(errno::EINVAL);
    }
    Ok(())
}

/// Converts the engine's result. Keeps the mappings if the end of the I/O needs them.
#[inline(always)]
fn issued(issued: Issued, req: &mut Req, scratch: &Scratch, cold: &mut Cold) -> Issue {
    match issued {
        Issued::Queued => {
            if req.kiocb.flags & IOCB_COUNTED != 0 {
                req.rflags |= REQ_COUNTED;
            }
            if req.kiocb.flags & (IOCB_COMPLETION_WORK | IOCB_SUMMED) != 0 {
                cold.pieces.copy_from(scratch.pieces());
            }
            Issue::Queued
        }
        Issued::Done(res) => Issue::Done(res),
        Issued::Again => Issue::Again,
        Issued::Blocks => Issue::Blocks,
    }
}

#[inline(always)]
fn start(ring: &mut Inner, slot: u32, file: usize, fixed_buf: u16) -> Issue {
    ring.core.files.enter(file);
    let Core { files, reqs, scratch, cold, .. } = &mut ring.core;
    let req = &mut reqs[slot];
    let vec = sqe_memory(req.addr, req.kiocb.len);
    let Some(file) = files.get(file) else { return Issue::Done(-errno::EBADF) };
    let done = dio::issue_one(&mut ring.io, file, &mut req.kiocb, slot, (vec, fixed_buf), scratch);
    issued(done, req, scratch, &mut cold[slot as usize])
}

fn read_write(ring: &mut Inner, slot: u32) -> Result<Issue, i32> {
    let file = file_of(ring, slot)?;
    begin(ring, slot, file)?;
    Ok(start(ring, slot, file, NO_FIXED_BUF))
}

fn read_write_fixed(ring: &mut Inner, slot: u32) -> Result<Issue, i32> {
    let file = file_of(ring, slot)?;
    let req = &ring.core.reqs[slot];
    let (mut index, len) = (req.buf_index, u64::from(req.len.min(MAX_RW_COUNT)));
    if req.rflags & REQ_OLD_BUF != 0 {
        // Issued before, and the buffer was replaced since: the request keeps its memory, which has no number any more.
        index = NO_FIXED_BUF;
    } else if !ring.core.bufs.covers(index, req.addr, len) {
        return Err(errno::EFAULT);
    }
    begin(ring, slot, file)?;
    Ok(start(ring, slot, file, index))
}

fn read_write_vectored(ring: &mut Inner, slot: u32) -> Result<Issue, i32> {
    let file = file_of(ring, slot)?;
    begin(ring, slot, file)?;
    ring.core.files.enter(file);
    let Core { files, reqs, scratch, cold, .. } = &mut ring.core;
    let req = &mut reqs[slot];
    let file = files.get(file).ok_or(errno::EBADF)?;
    let cold = &mut cold[slot as usize];
    let done = dio::issue(&mut ring.io, file, &mut req.kiocb, slot, (&cold.vecs, NO_FIXED_BUF), scratch);
    Ok(issued(done, req, scratch, cold))
}

/// Issues READ and WRITE.
pub(crate) fn issue(ring: &mut Inner, slot: u32) -> Issue {
    read_write(ring, slot).unwrap_or_else(|errno| Issue::Done(-errno))
}

/// Issues READ_FIXED and WRITE_FIXED. The range must lie within a registered buffer.
pub(crate) fn issue_fixed(ring: &mut Inner, slot: u32) -> Issue {
    read_write_fixed(ring, slot).unwrap_or_else(|errno| Issue::Done(-errno))
}

/// Issues READV and WRITEV.
pub(crate) fn issue_vectored(ring: &mut Inner, slot: u32) -> Issue {
    read_write_vectored(ring, slot).unwrap_or_else(|errno| Issue::Done(-errno))
}
