//! Preparation of operations: each function fills one SQE; nothing reaches the kernel before `enter`.
#![allow(unsafe_code)] // pushing SQEs that name memory

use std::os::fd::RawFd;
use std::time::Duration;

use io_uring::opcode;
use io_uring::squeue::Entry;
use io_uring::types::{self, Fd, Fixed, FsyncFlags};

use super::KernelRing;
use super::rings::RwSqe;

/// The submission queue is full: enter (and reap, if that does not help), then prepare again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the kernel ring's submission queue is full; enter it first")]
pub struct Full;

/// Direction of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KOp {
    /// Moves data from the file to memory.
    Read,
    /// Moves data from memory to the file.
    Write,
}

/// File of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// Slot returned by `register_file`.
    Fixed(u32),
    /// A descriptor.
    Raw(RawFd),
}

/// A piece of memory in the layout of the kernel's `struct iovec`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct IoVec {
    /// Address of the first byte.
    pub base: *mut u8,
    /// Length in bytes.
    pub len: usize,
}

/// A read or write of one piece of memory, for [`KernelRing::prep_run`], which adds direction and file.
#[derive(Debug, Clone, Copy)]
pub struct RwOp {
    /// Length in bytes, at most [`MAX_RW_BYTES`].
    pub len: u32,
    /// Address of the memory.
    pub base: usize,
    /// Position in the file in bytes.
    pub offset: u64,
    /// `user_data` of its CQE.
    pub user_data: u64,
}

const _: () = {
    assert!(size_of::<IoVec>() == size_of::<libc::iovec>());
    assert!(std::mem::offset_of!(IoVec, len) == std::mem::offset_of!(libc::iovec, iov_len));
};

/// Largest number of bytes that one operation moves. The kernel cuts a longer operation to this length, so that it ends
/// short.
pub const MAX_RW_BYTES: usize = 0x7fff_f000;
/// Largest number of segments of one operation; with more the kernel returns `-EINVAL`.
pub const MAX_SEGMENTS: usize = 1024;

/// Evaluates `$build` with `$fd` bound to the target as a type of the `io_uring` crate.
macro_rules! with_target {
    ($target:expr, $fd:ident => $build:expr) => {
        match $target {
            Target::Fixed(slot) => {
                let $fd = Fixed(slot);
                $build
            }
            Target::Raw(raw) => {
                let $fd = Fd(raw);
                $build
            }
        }
    };
}

impl KernelRing {
    /// Prepares a read or write of `segs` at `offset`. One segment uses READ or WRITE (with the registered buffer
    /// `fixed_buf`, if given, which must contain it). Several use READV or WRITEV, which ignore `fixed_buf`. `rw_flags`
    /// are the `RWF_*` flags of `preadv2`.
    ///
    /// # Errors
    ///
    /// [`Full`].
    ///
    /// # Safety
    ///
    /// The memory of the segments must stay valid, unmoved and otherwise unused until the operation's CQE was reaped
    /// (for a write: unchanged), and so must `segs` itself if it has several segments (I3).
    #[inline]
    #[expect(clippy::too_many_arguments, reason = "an SQE has that many fields, and a struct of them is one more copy")]
    pub unsafe fn prep_rw(
        &mut self,
        op: KOp,
        target: Target,
        segs: &[IoVec],
        fixed_buf: Option<u16>,
        offset: u64,
        rw_flags: i32,
        user_data: u64,
    ) -> Result<(), Full> {
        let entry = match *segs {
            [seg] => single(op, target, seg, fixed_buf, offset, rw_flags),
            _ => vectored(op, target, segs, offset, rw_flags),
        };
        self.push(entry, user_data)
    }

    /// Prepares a read or write for each of `items`, until `op_for` returns `None` or there is no room. Returns the
    /// number prepared. All memory is in the registered buffer `fixed_buf`, if one is given; a slot without a buffer
    /// counts as none. `op_for` is called only for prepared items, and for the one for which it returns `None`.
    ///
    /// # Safety
    ///
    /// The memory of each item must stay valid, unmoved and otherwise unused until the operation's CQE was reaped (for
    /// a write: unchanged) (I3).
    #[inline(always)]
    pub unsafe fn prep_run<T>(
        &mut self,
        op: KOp,
        target: Target,
        fixed_buf: Option<u16>,
        items: &[T],
        mut op_for: impl FnMut(&T) -> Option<RwOp>,
    ) -> u32 {
        let common = self.common(op, target, fixed_buf);
        self.rings.push_run(items, |item| {
            let RwOp { len, base, offset, user_data } = op_for(item)?;
            debug_assert!(len as usize <= MAX_RW_BYTES, "the kernel would cut it");
            Some(common.of(offset, base, len, user_data))
        })
    }

    /// Does [`prep_run`](Self::prep_run) for memory in registered buffers: `op_for` returns the slot of each. Also
    /// stops at an item whose slot has no buffer.
    ///
    /// # Safety
    ///
    /// The requirements of [`prep_run`](Self::prep_run).
    #[inline(always)]
    pub unsafe fn prep_run_fixed<T>(
        &mut self,
        op: KOp,
        target: Target,
        items: &[T],
        mut op_for: impl FnMut(&T) -> Option<(RwOp, u16)>,
    ) -> u32 {
        let nothing = IoVec { base: std::ptr::null_mut(), len: 0 };
        let common = RwSqe::from(single(op, target, nothing, Some(0), 0, 0));
        let KernelRing { rings, buffers, .. } = self;
        rings.push_run(items, |item| {
            let (RwOp { len, base, offset, user_data }, slot) = op_for(item)?;
            debug_assert!(len as usize <= MAX_RW_BYTES, "the kernel would cut it");
            buffers.has(slot).then(|| common.of(offset, base, len, user_data).in_buffer(slot))
        })
    }

    /// Does [`prep_run`](Self::prep_run) for one operation. Returns false if there is no room.
    ///
    /// # Safety
    ///
    /// The requirements of [`prep_run`](Self::prep_run).
    #[inline(always)]
    pub unsafe fn prep_only(&mut self, op: KOp, target: Target, fixed_buf: Option<u16>, data: RwOp) -> bool {
        let RwOp { len, base, offset, user_data } = data;
        debug_assert!(len as usize <= MAX_RW_BYTES, "the kernel would cut it");
        let entry = self.common(op, target, fixed_buf).of(offset, base, len, user_data);
        self.rings.push_rw(entry)
    }

    /// Returns the common fields of all operations of a run.
    #[inline(always)]
    fn common(&self, op: KOp, target: Target, fixed_buf: Option<u16>) -> RwSqe {
        let fixed_buf = fixed_buf.filter(|&slot| self.buffers.has(slot));
        let nothing = IoVec { base: std::ptr::null_mut(), len: 0 };
        RwSqe::from(single(op, target, nothing, fixed_buf, 0, 0))
    }

    /// Prepares an fsync, or with `datasync` an fdatasync.
    ///
    /// # Errors
    ///
    /// [`Full`].
    #[inline]
    pub fn prep_fsync(&mut self, target: Target, datasync: bool, user_data: u64) -> Result<(), Full> {
        let flags = if datasync { FsyncFlags::DATASYNC } else { FsyncFlags::empty() };
        self.push(with_target!(target, fd => opcode::Fsync::new(fd).flags(flags).build()), user_data)
    }

    /// Prepares a `fallocate` with `mode` made of `FALLOC_FL_*`.
    ///
    /// # Errors
    ///
    /// [`Full`].
    pub fn prep_fallocate(
        &mut self,
        target: Target,
        mode: i32,
        offset: u64,
        len: u64,
        user_data: u64,
    ) -> Result<(), Full> {
        let entry = with_target!(target, fd => opcode::Fallocate::new(fd, len).offset(offset).mode(mode).build());
        self.push(entry, user_data)
    }

    /// Prepares the cancellation of the operation with the `user_data` `victim`. Both have a CQE; that of the
    /// cancellation is 0, `-ENOENT` (no such operation) or `-EALREADY` (too late, it runs).
    ///
    /// # Errors
    ///
    /// [`Full`].
    pub fn prep_cancel(&mut self, victim: u64, user_data: u64) -> Result<(), Full> {
        self.push(opcode::AsyncCancel::new(victim).build(), user_data)
    }

    /// Prepares a single wake-up: a CQE when `fd` (an eventfd) becomes readable. One may be armed at a time. No other
    /// operation may have its `user_data`: the ring recognises the wake-up by it, and does not count it as I/O. A wait
    /// with nothing else in flight is idle time, not iowait.
    ///
    /// # Errors
    ///
    /// [`Full`].
    pub fn prep_poll_fd(&mut self, fd: RawFd, user_data: u64) -> Result<(), Full> {
        self.push(opcode::PollAdd::new(Fd(fd), libc::POLLIN as u32).build(), user_data)?;
        self.wake = Some(user_data);
        self.wake_taken = false;
        Ok(())
    }

    /// Prepares an alarm: a CQE (`-ETIME`) after the time `after`. One may be armed at a time, with a `user_data` that
    /// no other operation has. Useful for a far deadline that spans many waits: a timeout of `enter` would need a timer
    /// in each wait.
    ///
    /// # Errors
    ///
    /// [`Full`].
    pub fn prep_alarm(&mut self, after: Duration, user_data: u64) -> Result<(), Full> {
        debug_assert!(self.alarm.is_none(), "one alarm at a time");
        *self.alarm_time = after.into();
        let time: *const types::Timespec = &raw const *self.alarm_time;
        self.push(opcode::Timeout::new(time).build(), user_data)?;
        self.alarm = Some(user_data);
        self.alarm_taken = false;
        Ok(())
    }

    #[inline]
    pub(super) fn push(&mut self, entry: Entry, user_data: u64) -> Result<(), Full> {
        debug_assert!(self.signal != Some(user_data), "E1: the number of signals");
        if self.rings.push(entry.user_data(user_data)) { Ok(()) } else { Err(Full) }
    }
}

#[inline]
fn single(op: KOp, target: Target, seg: IoVec, fixed_buf: Option<u16>, offset: u64, rw_flags: i32) -> Entry {
    let len = seg.len.min(MAX_RW_BYTES) as u32;
    let ptr = seg.base;
    with_target!(target, fd => match (op, fixed_buf) {
        (KOp::Read, None) => opcode::Read::new(fd, ptr, len).offset(offset).rw_flags(rw_flags).build(),
        (KOp::Write, None) => opcode::Write::new(fd, ptr, len).offset(offset).rw_flags(rw_flags).build(),
        (KOp::Read, Some(buf)) => {
            opcode::ReadFixed::new(fd, ptr, len, buf).offset(offset).rw_flags(rw_flags).build()
        }
        (KOp::Write, Some(buf)) => {
            opcode::WriteFixed::new(fd, ptr, len, buf).offset(offset).rw_flags(rw_flags).build()
        }
    })
}

#[cold]
#[inline(never)]
fn vectored(op: KOp, target: Target, segs: &[IoVec], offset: u64, rw_flags: i32) -> Entry {
    let iov: *const libc::iovec = segs.as_ptr().cast();
    // With more than MAX_SEGMENTS the kernel returns `-EINVAL`, as for `preadv2`.
    let count = u32::try_from(segs.len()).unwrap_or(u32::MAX);
    with_target!(target, fd => match op {
        KOp::Read => opcode::Readv::new(fd, iov, count).offset(offset).rw_flags(rw_flags).build(),
        KOp::Write => opcode::Writev::new(fd, iov, count).offset(offset).rw_flags(rw_flags).build(),
    })
}
