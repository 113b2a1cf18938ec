//! Errors of the control path of a ring.

use std::fmt;

use sheave_blk::DeviceError;
use thiserror::Error;

use crate::prep::Entry;
use crate::rsrc::Fd;

/// Why a call on a ring failed. An error of a device keeps its text, its source, and itself in `Device`.
/// Errors of an I/O are in its completion instead.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RingError {
    /// A device could not be attached, or the ring not be made.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// No memory for the ring.
    #[error(transparent)]
    Memory(#[from] sheave_base::buf::BufError),
    /// The SQ is full.
    #[error("the submission queue is full: submit, then push again; or build the ring with more entries")]
    SqFull,
    /// The ring could never take this chain whole: it was not queued.
    #[error(
        "a chain of {len} operations is too long for this ring, which takes {most} at once: make it shorter, or build \
         the ring with more entries, cq_entries or in_flight"
    )]
    ChainTooLong {
        /// Its operations, with those in the queue that it is linked to.
        len: u64,
        /// What the ring takes.
        most: u64,
    },
    /// Everything that may be in flight is in flight.
    #[error(
        "nothing could be submitted: all request slots are in use or the completion queue has overflowed. Read \
         completions, then submit again; or build the ring with more in_flight or cq_entries"
    )]
    Busy,
    /// Only a ring without I/O on its way can do this.
    #[cfg(sheave_lab)]
    #[error("{0} can be changed while no I/O is on its way: drain the ring first")]
    InUse(&'static str),
    /// No such entry in the file table.
    #[error("{0:?} is no entry of this ring's file table: attach the device first")]
    BadFd(Fd),
    /// The file is at odds with its contract.
    #[error("the file says that its blocks have {0} bytes: `block_bytes` has to give a power of two")]
    BlockBytes(u32),
    /// No such entry in the registered table.
    #[error("the registered file table has no entry {0}: register a longer one first")]
    BadFile(usize),
    /// No such registered buffer.
    #[error("there is no registered buffer {0}: register more buffers first")]
    BadBuffer(u16),
    /// A setting is out of its bounds.
    #[error("{what}: {value} is out of bounds; give {low} to {high}")]
    Setting {
        /// Its name.
        what: &'static str,
        /// As given.
        value: u64,
        /// Smallest.
        low: u64,
        /// Largest.
        high: u64,
    },
    /// Workers cannot run there.
    #[error("CPU {0} is not among those this process may use: choose from those, or widen its affinity")]
    Cpu(usize),
    /// No thread can have this name.
    #[error("the name of workers has a zero byte in it: leave it out")]
    WorkerName,
    /// More than there may be.
    #[error("too many {what}: at most {limit}")]
    TooMany {
        /// What.
        what: &'static str,
        /// The bound.
        limit: u64,
    },
}

/// An operation that was not queued, or all of a chain, with the memory that it owns:
/// [`into_memory`](crate::prep::Entry::into_memory) gives that back. With `?` it becomes a [`RingError`], or whatever
/// takes any error, and the operation is dropped.
#[derive(Debug)]
#[non_exhaustive]
pub struct SqFull<T = Entry> {
    /// The operation; of a chain all of them, in an array.
    pub entry: T,
    /// As an error.
    pub error: RingError,
}

impl<T> fmt::Display for SqFull<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T: fmt::Debug> std::error::Error for SqFull<T> {
    /// Its text is that of its `error`, and so is its source.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl<T> From<Box<SqFull<T>>> for RingError {
    fn from(full: Box<SqFull<T>>) -> RingError {
        full.error
    }
}
