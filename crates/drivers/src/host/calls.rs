//! A request as blocking system calls: `preadv2`, `pwritev2`, `fdatasync`, `fallocate`.
//!
//! Owns the calls, the same that `queue` requests from the kernel ring, and returns their results in the same form:
//! bytes, or `-errno`. `recover` judges the results of both engines by the same rules.
//!
//! Invariants:
//! - C1: the memory of a request, and the vector that names it, stay unchanged until the request has ended.
//! - C2: when a request ends here, no call on its memory goes on.
//!
//! Called by `workers`, and by `sync` on threads that may block. Also has the ioctl and the locks that `overlap` and
//! `claim` need.
#![allow(unsafe_code)] // system calls on the memory of bios; an ioctl that fills a struct of fixed size

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::FallocateFlags;
use sheave_base::status::Status;
use sheave_blk::bio::{Op, SECTOR_SHIFT};
use sheave_blk::request::{RQ_FUA, Request, RqHead};
use sheave_kring::{IoVec, MAX_SEGMENTS};

use super::overlap::Node;
use super::recover::{Judge, Progress, Verdict};
use super::shared::{HostShared, ZEROES_BYTES, Zeroing};

/// The data of a request that a thread needs to execute it.
#[derive(Debug)]
pub(super) struct Ask {
    head: RqHead,
    sector: u64,
    progress: u64,
    vecs: *const IoVec,
    nr_vecs: usize,
}

// SAFETY: C1: on every thread, the memory is the request's until it has ended.
unsafe impl Send for Ask {}

impl Ask {
    /// Makes the data of a request whose memory is named by `vecs`.
    ///
    /// # Safety
    ///
    /// Until the request has ended, `vecs` and all memory that it names stay unchanged (C1).
    pub(super) unsafe fn new(rq: &Request, vecs: &[IoVec]) -> Ask {
        Ask { head: **rq, sector: rq.sector, progress: rq.private, vecs: vecs.as_ptr(), nr_vecs: vecs.len() }
    }

    /// Executes the request, and blocks until it is done.
    pub(super) fn carry_out(&mut self, judge: &Judge<'_>) -> Status {
        loop {
            let done = self.step(judge.shared);
            match judge.verdict(&self.head, &mut self.progress, done) {
                Verdict::End(status) => return status,
                Verdict::Again => {}
            }
        }
    }

    /// Reads or writes as much as the page cache can without blocking. Returns bytes, or `-errno`.
    pub(super) fn try_now(&self, shared: &HostShared) -> i32 {
        self.transfer(shared, 0, libc::RWF_NOWAIT)
    }

    /// Makes the next call that the request needs.
    fn step(&self, shared: &HostShared) -> i32 {
        let progress = Progress::from_bits(self.progress);
        match self.head.op {
            Op::Read | Op::Write => self.transfer(shared, progress.done, 0),
            Op::Flush => sync(shared),
            _ if progress.syncs() => sync(shared),
            Op::Discard => self.fallocate(shared, FallocateFlags::PUNCH_HOLE),
            Op::WriteZeroes => match progress.zeroing() {
                Zeroing::ZeroRange => self.fallocate(shared, FallocateFlags::ZERO_RANGE),
                Zeroing::PunchHole => self.fallocate(shared, FallocateFlags::PUNCH_HOLE),
                Zeroing::Write => self.write_zeroes(shared, progress.done),
            },
            _ => -libc::EOPNOTSUPP,
        }
    }

    /// Reads or writes the rest after the first `done` bytes.
    fn transfer(&self, shared: &HostShared, done: u32, flags: i32) -> i32 {
        // SAFETY: C1.
        let vecs = unsafe { std::slice::from_raw_parts(self.vecs, self.nr_vecs) };
        if done == 0 { self.call(shared, vecs, 0, flags) } else { self.call(shared, &after(vecs, done), done, flags) }
    }

    /// Writes zeroes after the first `done` bytes, as many as one call can name.
    fn write_zeroes(&self, shared: &HostShared, done: u32) -> i32 {
        let Some(zeroes) = shared.zeroes() else { return -libc::ENOMEM };
        let left = (self.head.bytes - done) as usize;
        let base = zeroes.as_ptr().cast_mut();
        let piece = |at: usize| IoVec { base, len: (left - at * ZEROES_BYTES).min(ZEROES_BYTES) };
        let vecs: Vec<IoVec> = (0..left.div_ceil(ZEROES_BYTES).min(MAX_SEGMENTS)).map(piece).collect();
        self.call(shared, &vecs, done, 0)
    }

    fn call(&self, shared: &HostShared, vecs: &[IoVec], done: u32, mut flags: i32) -> i32 {
        let Ok(offset) = i64::try_from(self.offset() + u64::from(done)) else { return -libc::EINVAL };
        #[cfg(test)]
        let offset = if shared.file.pretended { -1 } else { offset };
        let (fd, base, count) = (shared.file.as_raw_fd(), vecs.as_ptr().cast::<libc::iovec>(), vecs.len() as i32);
        if self.head.flags & RQ_FUA != 0 {
            flags |= libc::RWF_DSYNC;
        }
        let moved = match self.head.op {
            // SAFETY: C1, C2; `IoVec` is an `iovec`, and there are at most `MAX_SEGMENTS`.
            Op::Read => unsafe { libc::preadv2(fd, base, count, offset, flags & !libc::RWF_DSYNC) },
            // SAFETY: as above; zeroes live as long as `shared`.
            _ => unsafe { libc::pwritev2(fd, base, count, offset, flags) },
        };
        if moved < 0 { -last_errno() } else { i32::try_from(moved).unwrap_or(-libc::EIO) }
    }

    fn fallocate(&self, shared: &HostShared, how: FallocateFlags) -> i32 {
        let how = how | FallocateFlags::KEEP_SIZE;
        let done = rustix::fs::fallocate(shared.file.as_fd(), how, self.offset(), u64::from(self.head.bytes));
        done.map_or_else(|errno| -errno.raw_os_error(), |()| 0)
    }

    fn offset(&self) -> u64 {
        self.sector << SECTOR_SHIFT
    }
}

fn sync(shared: &HostShared) -> i32 {
    rustix::fs::fdatasync(shared.file.as_fd()).map_or_else(|errno| -errno.raw_os_error(), |()| 0)
}

/// Returns the file or block device behind the loop device at `path`; `None` if it cannot be opened, or has none.
pub(super) fn loop_status(path: &Path) -> Option<Node> {
    /// Number of the ioctl. It fills 64-bit words: device, inode, device number, and others.
    const LOOP_GET_STATUS64: libc::Ioctl = 0x4c05;
    let node = File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW).open(path).ok()?;
    let mut status = [0u64; 29];
    // SAFETY: the ioctl fills a `struct loop_info64` of 232 bytes, the size of `status`; any bytes are valid words.
    let answer = unsafe { libc::ioctl(node.as_raw_fd(), LOOP_GET_STATUS64, status.as_mut_ptr()) };
    let [device, inode, number, ..] = status;
    (answer == 0).then_some(if number == 0 { Node::File(device, inode) } else { Node::Block(number) })
}

/// Takes a shared lock on a byte of a file, owned by this open file description (an OFD lock). It conflicts only with
/// exclusive locks of others.
pub(super) fn share_byte(file: &File, byte: i64) -> std::io::Result<()> {
    byte_lock(file, libc::F_OFD_SETLK, libc::F_RDLCK, byte).map(|_| ())
}

/// Ends the lock on one byte of this open file description, if it has one.
pub(super) fn let_byte_go(file: &File, byte: i64) -> std::io::Result<()> {
    byte_lock(file, libc::F_OFD_SETLK, libc::F_UNLCK, byte).map(|_| ())
}

/// Returns true if another open file description has a lock on this byte.
pub(super) fn is_byte_locked(file: &File, byte: i64) -> std::io::Result<bool> {
    Ok(byte_lock(file, libc::F_OFD_GETLK, libc::F_WRLCK, byte)? != libc::F_UNLCK)
}

/// Returns the kind of lock that the call leaves in its struct.
fn byte_lock(file: &File, call: i32, kind: i32, byte: i64) -> std::io::Result<i32> {
    let whence = libc::SEEK_SET as libc::c_short;
    let kind = kind as libc::c_short;
    let mut lock = libc::flock { l_type: kind, l_whence: whence, l_start: byte, l_len: 1, l_pid: 0 };
    // SAFETY: the call reads and fills one `flock`, which lives through it.
    match unsafe { libc::fcntl(file.as_raw_fd(), call, &raw mut lock) } {
        0 => Ok(i32::from(lock.l_type)),
        _ => Err(std::io::Error::last_os_error()),
    }
}

fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// Returns the memory of `vecs` after its first `skip` bytes.
fn after(vecs: &[IoVec], skip: u32) -> Vec<IoVec> {
    let mut skip = skip as usize;
    let mut rest = Vec::with_capacity(vecs.len());
    for vec in vecs {
        let front = skip.min(vec.len);
        skip -= front;
        if front < vec.len {
            rest.push(IoVec { base: vec.base.wrapping_add(front), len: vec.len - front });
        }
    }
    rest
}
