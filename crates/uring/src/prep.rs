//! The typed operations: safe SQEs. Each function makes an operation for [`Ring::push`](crate::Ring::push).
//!
//! Every kind of operation has its own type, with exactly the modifiers that it supports: a field of an SQE that is an
//! offset in one operation is an address in another. Modifiers that all operations support are on each of the types,
//! and on [`Entry`], which any operation converts into ([`Op`]).
//!
//! An operation owns its memory. The ring keeps it while the device may touch it and returns it with the completion;
//! dropping a ring, a completion or an operation never frees memory in flight.
//!
//! ```compile_fail,E0599
//! // A removal of a timeout has no offset: that field of its SQE is the address of a time.
//! sheave_uring::prep::timeout_remove(7).offset(0x4141_4141_4000);
//! ```
//!
//! ```compile_fail,E0599
//! // A removal has no flags either: they would make the ring read that address.
//! sheave_uring::prep::timeout_remove(7).dsync();
//! ```
//!
//! ```compile_fail,E0599
//! // That field of a timeout is a number of completions, with its own modifier.
//! sheave_uring::prep::timeout(std::time::Duration::ZERO).offset(1);
//! ```

mod entry;
pub(crate) mod target;
mod timed;
mod when;

use std::ops::Range;

use sheave_base::buf::Buf;

use self::entry::op_type;
use crate::io_buf::{IoBuf, IoBufMut, Vectors};
use crate::sqe::{FSYNC_DATASYNC, RWF_DSYNC, opcode};

pub use crate::rsrc::FileRef;
pub(crate) use entry::Late;
pub use entry::{Entry, Op};
pub use timed::{
    AsyncCancel, Cancel, LinkTimeout, Message, Opcode, Timeout, TimeoutRemove, TimeoutUpdate, cancel, link_timeout,
    link_timeout_update, message, timeout, timeout_remove, timeout_update,
};
pub use when::When;

op_type! {
    /// An operation that does nothing; made by [`nop`].
    Nop
}

op_type! {
    /// A read; made by [`read`], [`readv`] or [`read_fixed`].
    Read
}

op_type! {
    /// A write; made by [`write()`], [`writev`] or [`write_fixed`].
    Write
}

op_type! {
    /// An operation that makes writes durable; made by [`fsync`] or [`fdatasync`].
    Fsync
}

op_type! {
    /// An operation on the space of a range; made by [`punch_hole`] or [`zero_range`].
    Fallocate
}

impl Read {
    /// Sets the byte offset in the file.
    #[inline(always)]
    pub fn offset(mut self, offset: u64) -> Read {
        self.0.sqe.off = offset;
        self
    }

    /// Reads into a part of the memory, and leaves the rest as it is. A part outside of the memory gives `EFAULT`, and
    /// so does any part of a vectored read.
    ///
    /// ```
    /// # use sheave_uring::{prep, Ring};
    /// # let mut ring = Ring::builder().build()?;
    /// # let fd = ring.attach(&sheave_drivers::open_device("ram:size=1M")?)?;
    /// ring.push(prep::read(fd, vec![7; 8192]).part(4096..8192))?;
    /// ring.submit_and_wait(1)?;
    /// let done = ring.pop().expect("waited for it");
    /// assert_eq!(done.result()?, 4096);
    /// let bytes: Vec<u8> = done.into_memory().expect("a read gives its memory back");
    /// assert_eq!((bytes[4095], bytes[4096]), (7, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn part(self, range: Range<usize>) -> Read {
        Read(self.0.with_range(range))
    }
}

impl Write {
    /// Sets the byte offset in the file.
    #[inline(always)]
    pub fn offset(mut self, offset: u64) -> Write {
        self.0.sqe.off = offset;
        self
    }

    /// Writes a part of the memory. A part outside of the memory gives `EFAULT`, and so does any part of a vectored
    /// write.
    #[inline]
    pub fn part(self, range: Range<usize>) -> Write {
        Write(self.0.with_range(range))
    }

    /// Makes the data durable before the write completes.
    #[inline]
    pub fn dsync(mut self) -> Write {
        self.0.sqe.op_flags |= RWF_DSYNC;
        self
    }
}

/// Does nothing.
///
/// ```
/// # let mut ring = sheave_uring::Ring::builder().build()?;
/// ring.push(sheave_uring::prep::nop().user_data(1))?;
/// ring.submit_and_wait(1)?;
/// assert_eq!(ring.completions().next().map(|c| (c.user_data, c.res)), Some((1, 0)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn nop() -> Nop {
    Nop(Entry::without_file(opcode::NOP))
}

/// Reads into memory that comes back with the completion: a [`Buf`], a `Vec<u8>` or any other [`IoBufMut`]; all of it,
/// or a [part](Read::part).
///
/// ```
/// # use sheave_uring::{prep, Ring};
/// # use sheave_base::buf::Buf;
/// # let mut ring = Ring::builder().build()?;
/// # let fd = ring.attach(&sheave_drivers::open_device("ram:size=1M")?)?;
/// ring.push(prep::read(fd, Buf::zeroed(4096, 4096)?).offset(8192))?;
/// ring.submit_and_wait(1)?;
/// let done = ring.pop().expect("waited for it");
/// assert_eq!(done.result()?, 4096);
/// assert_eq!(done.into_buf().expect("a read gives its buffer back").len(), 4096);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// ```compile_fail,E0277
/// # use sheave_uring::{prep, Fd};
/// // Memory that others may read meanwhile cannot be read into.
/// prep::read(Fd::NONE, std::sync::Arc::<[u8]>::from([0; 512]));
/// ```
#[inline(always)]
pub fn read(fd: impl Into<FileRef>, memory: impl IoBufMut) -> Read {
    Read(Entry::new(opcode::READ, fd.into()).with_memory(memory))
}

/// Writes memory that comes back with the completion: a [`Buf`], a `Vec<u8>`, an `Arc<[u8]>` or any other [`IoBuf`];
/// all of it, or a [part](Write::part).
///
/// ```
/// # use sheave_uring::{prep, Ring};
/// # use sheave_base::buf::Buf;
/// # let mut ring = Ring::builder().build()?;
/// # let fd = ring.attach(&sheave_drivers::open_device("null:size=1M")?)?;
/// // Write, then make it durable: the fsync starts when the write has succeeded.
/// ring.push(prep::write(fd, Buf::zeroed(4096, 4096)?).offset(0).link())?;
/// ring.push(prep::fsync(fd))?;
/// ring.submit_and_wait(2)?;
/// assert!(ring.completions().all(|c| c.result().is_ok()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[inline(always)]
pub fn write(fd: impl Into<FileRef>, memory: impl IoBuf) -> Write {
    Write(Entry::new(opcode::WRITE, fd.into()).with_memory(memory))
}

/// Reads into several buffers, one after the other, at most 1,024.
pub fn readv(fd: impl Into<FileRef>, bufs: Vec<Buf>) -> Read {
    Read(Entry::new(opcode::READV, fd.into()).with_vectors(Vectors::new(bufs)))
}

/// Writes several buffers, one after the other, at most 1,024.
pub fn writev(fd: impl Into<FileRef>, bufs: Vec<Buf>) -> Write {
    Write(Entry::new(opcode::WRITEV, fd.into()).with_vectors(Vectors::new(bufs)))
}

#[inline(always)]
fn fixed(opcode: u8, fd: impl Into<FileRef>, buf_index: u16, range: Range<usize>) -> Entry {
    let mut entry = Entry::new(opcode, fd.into());
    entry.sqe.buf_index = buf_index;
    entry.late = Late::Fixed(range.start, range.len());
    entry
}

/// Reads into a range of a buffer that the ring has registered.
///
/// ```
/// # use sheave_uring::{prep, Ring};
/// # use sheave_base::buf::Buf;
/// # let mut ring = Ring::builder().build()?;
/// # let fd = ring.attach(&sheave_drivers::open_device("null:size=1M")?)?;
/// ring.register_buffers(vec![Buf::zeroed(1 << 16, 4096)?])?;
/// ring.push(prep::read_fixed(fd, 0, 0..4096).offset(4096))?;
/// ring.submit_and_wait(1)?;
/// assert_eq!(ring.completions().next().map(|c| c.res), Some(4096));
/// let bytes = ring.buffer(0).expect("no I/O is in flight");
/// assert_eq!(bytes.len(), 1 << 16);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[inline(always)]
pub fn read_fixed(fd: impl Into<FileRef>, buf_index: u16, range: Range<usize>) -> Read {
    Read(fixed(opcode::READ_FIXED, fd, buf_index, range))
}

/// Writes a range of a buffer that the ring has registered.
#[inline(always)]
pub fn write_fixed(fd: impl Into<FileRef>, buf_index: u16, range: Range<usize>) -> Write {
    Write(fixed(opcode::WRITE_FIXED, fd, buf_index, range))
}

/// Makes all writes durable that completed before this started.
pub fn fsync(fd: impl Into<FileRef>) -> Fsync {
    Fsync(Entry::new(opcode::FSYNC, fd.into()))
}

/// Makes the data of all writes durable that completed before this started, as `fdatasync(2)`. On a device this is a
/// full flush.
pub fn fdatasync(fd: impl Into<FileRef>) -> Fsync {
    let mut entry = Entry::new(opcode::FSYNC, fd.into());
    entry.sqe.op_flags = FSYNC_DATASYNC;
    Fsync(entry)
}

fn fallocate(fd: impl Into<FileRef>, mode: u32, offset: u64, len: u64) -> Fallocate {
    let mut entry = Entry::new(opcode::FALLOCATE, fd.into());
    entry.sqe.off = offset;
    entry.sqe.addr = len;
    entry.sqe.len = mode;
    Fallocate(entry)
}

/// Releases the space of a range, which reads as zeroes afterwards.
///
/// ```
/// # use sheave_uring::{prep, Ring};
/// # let mut ring = Ring::builder().build()?;
/// # let fd = ring.attach(&sheave_drivers::open_device("null:size=1M")?)?;
/// ring.push(prep::punch_hole(fd, 0, 65536))?;
/// ring.submit_and_wait(1)?;
/// assert_eq!(ring.completions().next().map(|c| c.res), Some(0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn punch_hole(fd: impl Into<FileRef>, offset: u64, len: u64) -> Fallocate {
    // FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE.
    fallocate(fd, 0x03, offset, len)
}

/// Writes zeroes to a range without transferring them.
pub fn zero_range(fd: impl Into<FileRef>, offset: u64, len: u64) -> Fallocate {
    // FALLOC_FL_ZERO_RANGE.
    fallocate(fd, 0x10, offset, len)
}
