//! Errors of the control path of a ring.

use std::fmt;

use sheave_blk::DeviceError;
use thiserror::Error;

use crate::prep::Entry;
use crate::rsrc::Fd;

/// Reason why a call on a ring failed. `Device` keeps the device's error, with its text and source. Errors of an I/O
/// are in its completion instead.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RingError {
    /// A device could not be attached, or the ring could not be built.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// There is no memory for the ring.
    #[error(transparent)]
    Memory(#[from] sheave_base::buf::BufError),
    /// The SQ is full.
    #[error("the submission queue is full: submit, then push again; or build the ring with more entries")]
    SqFull,
    /// The ring could never take this chain as a whole. It was not queued.
    #[error(
        "a chain of {len} operations is too long for this ring, which takes {most} at once: make it shorter, or build \
         the ring with more entries, cq_entries or in_flight"
    )]
    ChainTooLong {
        /// Number of its operations, with those in the queue that it is linked to.
        len: u64,
        /// Most operations that the ring takes at once.
        most: u64,
    },
    /// The maximum number of requests is in flight.
    #[error(
        "nothing could be submitted: all request slots are in use or the completion queue has overflowed. Read \
         completions, then submit again; or build the ring with more in_flight or cq_entries"
    )]
    Busy,
    /// Only a ring without I/O in flight can do this.
    #[cfg(sheave_lab)]
    #[error("{0} can be changed while no I/O is on its way: drain the ring first")]
    InUse(&'static str),
    /// The file table has no such entry.
    #[error("{0:?} is no entry of this ring's file table: attach the device first")]
    BadFd(Fd),
    /// The file breaks its contract.
    #[error("the file says that its blocks have {0} bytes: `block_bytes` has to give a power of two")]
    BlockBytes(u32),
    /// The registered table has no such entry.
    #[error("the registered file table has no entry {0}: register a longer one first")]
    BadFile(usize),
    /// There is no such registered buffer.
    #[error("there is no registered buffer {0}: register more buffers first")]
    BadBuffer(u16),
    /// A setting is out of bounds.
    #[error("{what}: {value} is out of bounds; give {low} to {high}")]
    Setting {
        /// Name of the setting.
        what: &'static str,
        /// The given value.
        value: u64,
        /// Smallest value.
        low: u64,
        /// Largest value.
        high: u64,
    },
    /// Workers cannot run on this CPU.
    #[error("CPU {0} is not among those this process may use: choose from those, or widen its affinity")]
    Cpu(usize),
    /// No thread can have this name.
    #[error("the name of workers has a zero byte in it: leave it out")]
    WorkerName,
    /// A limit is exceeded.
    #[error("too many {what}: at most {limit}")]
    TooMany {
        /// The limited items.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
}

/// An operation, or a whole chain, that was not queued. [`into_memory`](crate::prep::Entry::into_memory) returns the
/// memory that an operation owns. `?` converts this error into a [`RingError`], or into any type that takes any error,
/// and drops the operation.
#[derive(Debug)]
#[non_exhaustive]
pub struct SqFull<T = Entry> {
    /// The operation, or all of a chain as an array.
    pub entry: T,
    /// Reason for the refusal.
    pub error: RingError,
}

impl<T> fmt::Display for SqFull<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T: fmt::Debug> std::error::Error for SqFull<T> {
    /// Returns the source of `error`, not `error` itself, whose text this error already displays.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl<T> From<Box<SqFull<T>>> for RingError {
    fn from(full: Box<SqFull<T>>) -> RingError {
        full.error
    }
}
