//! The typed operations: safe SQEs. Each function makes an [`Entry`]; [`Ring::push`](crate::Ring::push) takes it.
//!
//! An entry owns the memory of its operation. The ring keeps it while the device may touch it and gives it back with
//! the completion; dropping a ring, a completion or an entry never frees memory in flight.
//!
//! ```
//! use sheave_uring::{prep, Ring};
//! use sheave_base::buf::Buf;
//! use sheave_blk::Device;
//!
//! let mut ring = Ring::builder().entries(8).build()?;
//! let fd = ring.attach(&sheave_drivers::open_device("null:size=1M")?)?;
//! ring.push(prep::read(fd, Buf::zeroed(4096, 4096)?).offset(8192).user_data(7))?;
//! ring.submit_and_wait(1)?;
//! let completion = ring.completions().next().expect("waited for it");
//! assert_eq!((completion.user_data, completion.res), (7, 4096));
//! let buf = completion.into_buf().expect("read gives its buffer back");
//! assert_eq!(buf.len(), 4096);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod timed;

use std::time::Duration;

use sheave_base::buf::Buf;

use crate::rsrc::Fd;
use crate::sqe::{
    FSYNC_DATASYNC, IOSQE_ASYNC, IOSQE_CQE_SKIP_SUCCESS, IOSQE_FIXED_FILE, IOSQE_IO_DRAIN, IOSQE_IO_HARDLINK,
    IOSQE_IO_LINK, RWF_DSYNC, Sqe, opcode,
};

pub use timed::{
    Cancel, When, cancel, link_timeout, link_timeout_update, message, timeout, timeout_remove, timeout_update,
};

/// Address and length, as in `iovec`.
type IoVec = [usize; 2];

/// Memory that belongs to an operation.
#[derive(Debug)]
pub(crate) enum Owned {
    One(Buf),
    /// Buffers, and the vectors that describe them.
    Many(Vec<Buf>, #[allow(dead_code)] Box<[IoVec]>),
}

/// What only the ring can put into the SQE.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Late {
    Nothing,
    /// A range of a registered buffer (start and length): its address.
    Fixed(usize, usize),
    /// A time: where the ring has put it, in `addr`.
    Time(When),
    /// The same in `off`.
    NewTime(Duration),
}

/// An operation that can be pushed.
#[derive(Debug)]
#[must_use = "push it to a ring"]
pub struct Entry {
    pub(crate) sqe: Sqe,
    pub(crate) owned: Option<Owned>,
    pub(crate) late: Late,
}

impl Entry {
    fn new(opcode: u8, fd: Fd) -> Entry {
        Entry { sqe: Sqe { opcode, fd: fd.0, ..Sqe::default() }, owned: None, late: Late::Nothing }
    }

    /// Comes back in the completion.
    pub fn user_data(mut self, user_data: u64) -> Entry {
        self.sqe.user_data = user_data;
        self
    }

    /// Byte offset in the file.
    pub fn offset(mut self, offset: u64) -> Entry {
        self.sqe.off = offset;
        self
    }

    /// The next operation starts when this one has succeeded; if it fails, the rest of the chain is cancelled.
    pub fn link(mut self) -> Entry {
        self.sqe.flags |= IOSQE_IO_LINK;
        self
    }

    /// The next operation starts when this one has ended, however.
    pub fn hardlink(mut self) -> Entry {
        self.sqe.flags |= IOSQE_IO_HARDLINK;
        self
    }

    /// Starts when everything before has ended, and what follows waits for it.
    pub fn drain(mut self) -> Entry {
        self.sqe.flags |= IOSQE_IO_DRAIN;
        self
    }

    /// Never try inline.
    pub fn run_async(mut self) -> Entry {
        self.sqe.flags |= IOSQE_ASYNC;
        self
    }

    /// No completion on success. A buffer the operation owns is then freed when it ends.
    pub fn skip_success(mut self) -> Entry {
        self.sqe.flags |= IOSQE_CQE_SKIP_SUCCESS;
        self
    }

    /// The file is an index of the registered table.
    pub fn fixed_file(mut self) -> Entry {
        self.sqe.flags |= IOSQE_FIXED_FILE;
        self
    }

    /// The data is durable when the write completes.
    pub fn dsync(mut self) -> Entry {
        self.sqe.op_flags |= RWF_DSYNC;
        self
    }

    fn with_buf(mut self, mut buf: Buf) -> Entry {
        self.sqe.addr = buf.as_mut_ptr() as u64;
        self.sqe.len = buf.len().min(u32::MAX as usize) as u32;
        self.owned = Some(Owned::One(buf));
        self
    }

    fn with_bufs(mut self, mut bufs: Vec<Buf>) -> Entry {
        let vecs: Box<[IoVec]> = bufs.iter_mut().map(|buf| [buf.as_mut_ptr() as usize, buf.len()]).collect();
        self.sqe.addr = vecs.as_ptr() as u64;
        self.sqe.len = vecs.len() as u32;
        self.owned = Some(Owned::Many(bufs, vecs));
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
pub fn nop() -> Entry {
    Entry::new(opcode::NOP, Fd(-1))
}

/// Reads into `buf`, all of it; see the [module](self) for an example.
pub fn read(fd: Fd, buf: Buf) -> Entry {
    Entry::new(opcode::READ, fd).with_buf(buf)
}

/// Writes `buf`, all of it.
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
pub fn write(fd: Fd, buf: Buf) -> Entry {
    Entry::new(opcode::WRITE, fd).with_buf(buf)
}

/// Reads into several buffers, one after the other. At most 1,024.
pub fn readv(fd: Fd, bufs: Vec<Buf>) -> Entry {
    Entry::new(opcode::READV, fd).with_bufs(bufs)
}

/// Writes several buffers, one after the other. At most 1,024.
pub fn writev(fd: Fd, bufs: Vec<Buf>) -> Entry {
    Entry::new(opcode::WRITEV, fd).with_bufs(bufs)
}

fn fixed(opcode: u8, fd: Fd, buf_index: u16, range: std::ops::Range<usize>) -> Entry {
    let mut entry = Entry::new(opcode, fd);
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
pub fn read_fixed(fd: Fd, buf_index: u16, range: std::ops::Range<usize>) -> Entry {
    fixed(opcode::READ_FIXED, fd, buf_index, range)
}

/// Writes a range of a buffer that the ring has registered.
pub fn write_fixed(fd: Fd, buf_index: u16, range: std::ops::Range<usize>) -> Entry {
    fixed(opcode::WRITE_FIXED, fd, buf_index, range)
}

/// Makes every write that completed before durable.
pub fn fsync(fd: Fd) -> Entry {
    Entry::new(opcode::FSYNC, fd)
}

/// The same for data alone; on a device there is no difference.
pub fn fdatasync(fd: Fd) -> Entry {
    let mut entry = Entry::new(opcode::FSYNC, fd);
    entry.sqe.op_flags = FSYNC_DATASYNC;
    entry
}

fn fallocate(fd: Fd, mode: u32, offset: u64, len: u64) -> Entry {
    let mut entry = Entry::new(opcode::FALLOCATE, fd).offset(offset);
    entry.sqe.addr = len;
    entry.sqe.len = mode;
    entry
}

/// Gives the space of a range back; it reads as zeroes afterwards.
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
pub fn punch_hole(fd: Fd, offset: u64, len: u64) -> Entry {
    fallocate(fd, 0x03, offset, len)
}

/// Writes zeroes to a range without sending them.
pub fn zero_range(fd: Fd, offset: u64, len: u64) -> Entry {
    fallocate(fd, 0x10, offset, len)
}
