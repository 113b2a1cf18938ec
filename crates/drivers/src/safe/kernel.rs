//! Use of the ring's own kernel ring by a driver: waits for descriptors and times, and, in the unsafe tier, transfers
//! between the memory of requests and the driver's own descriptors.
//!
//! Owns the calls of a driver and their checks; the operations are in `ops`. Each operation is prepared and goes to the
//! kernel with the ring's next system call.
#![allow(unsafe_code)] // The tier whose drivers vouch for memory.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use sheave_kring::{Address, Direction, IoVec, KOp, KernelRing, MAX_SEGMENTS};

use super::memory;
use super::ops::{OpToken, Ops, What};
use super::request::{Polled, Refused, RequestId};
use super::table::held_slot;

/// Resources that a driver needs on the kernel ring of each ring that attaches it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelUse {
    pub(super) operations: u16,
    pub(super) buffers: Option<(u16, u32)>,
}

impl KernelUse {
    /// Requests up to `operations` operations at a time on each ring, watches and timers included.
    #[must_use]
    pub fn new(operations: u16) -> KernelUse {
        KernelUse { operations, buffers: None }
    }

    /// Requests `count` receive buffers (a power of two) of `bytes` bytes on each ring, for [`Polled::receive_any`].
    #[must_use]
    pub fn receive_buffers(mut self, count: u16, bytes: u32) -> KernelUse {
        self.buffers = Some((count, bytes));
        self
    }
}

/// Kind of a [`Transfer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransferKind {
    /// Sends all of the memory to a socket.
    Send,
    /// Receives the available bytes from a socket, at least one; 0 means that the peer has closed it.
    Receive,
    /// Receives from a socket until the memory is full; fewer bytes mean that the peer has closed it.
    ReceiveAll,
    /// Reads from a file, at an offset in bytes.
    Read(u64),
    /// Writes to a file, at an offset in bytes.
    Write(u64),
    /// Writes to a file, at an offset in bytes, and ends when the data is durable.
    WriteDurably(u64),
}

/// An operation that moves memory, for [`Polled::transfer`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Transfer<'a> {
    /// Kind of the operation.
    pub kind: TransferKind,
    /// The socket or file. It stays open until the operation has ended.
    pub fd: &'a Arc<OwnedFd>,
    /// The memory, in order, at most 1,024 pieces; the list itself is copied.
    pub memory: &'a [IoVec],
    /// The requests whose memory is used. They end after the operation, even if the driver ends them earlier.
    pub holds: &'a [RequestId],
}

impl<'a> Transfer<'a> {
    /// Makes a transfer on the socket or file `fd` with memory of the requests `holds`.
    #[must_use]
    pub fn new(kind: TransferKind, fd: &'a Arc<OwnedFd>, memory: &'a [IoVec], holds: &'a [RequestId]) -> Transfer<'a> {
        Transfer { kind, fd, memory, holds }
    }
}

/// Result of an operation.
#[derive(Debug)]
#[non_exhaustive]
pub struct OpEnd<'a> {
    /// The operation.
    pub token: OpToken,
    /// Bytes moved, or `-errno`: `-ECANCELED` (-125) after a cancellation, `-ETIME` (-62) when a timer has expired. A
    /// transfer may have moved fewer bytes than requested.
    pub res: i32,
    /// True if the operation has not ended and more results will follow.
    pub more: bool,
    /// Data received by [`Polled::receive_any`]; the buffer goes back to the kernel after the call.
    pub data: &'a [u8],
}

impl Polled<'_> {
    /// Requests polls of the driver whenever this descriptor is readable, has failed, or its peer has closed, until the
    /// watch is [cancelled](Polled::cancel). If the driver leaves the descriptor readable, it is polled again at once.
    ///
    /// # Errors
    ///
    /// [`Refused`].
    pub fn watch(&mut self, fd: &Arc<OwnedFd>) -> Result<OpToken, Refused> {
        let (ops, kring) = self.kernel()?;
        ops.plain(kring, What::Watch, fd.clone()).ok_or(Refused::TooMany)
    }

    /// Starts a timer, which ends with `-ETIME` after the time `after`.
    ///
    /// # Errors
    ///
    /// [`Refused`].
    pub fn timer(&mut self, after: Duration) -> Result<OpToken, Refused> {
        let (ops, kring) = self.kernel()?;
        ops.timer(kring, after.into()).ok_or(Refused::TooMany)
    }

    /// Connects a socket.
    ///
    /// # Errors
    ///
    /// [`Refused`].
    pub fn connect(&mut self, fd: &Arc<OwnedFd>, to: &Address) -> Result<OpToken, Refused> {
        let (ops, kring) = self.kernel()?;
        ops.connect(kring, fd.clone(), to).ok_or(Refused::TooMany)
    }

    /// Receives from a socket into the [buffers](KernelUse::receive_buffers) that the driver requested, and reports
    /// each piece, until an error, the end of the connection, or `-ENOBUFS`, after which it may be called again. Linux
    /// 6.0 and later.
    ///
    /// # Errors
    ///
    /// [`Refused`].
    pub fn receive_any(&mut self, fd: &Arc<OwnedFd>) -> Result<OpToken, Refused> {
        let (ops, kring) = self.kernel()?;
        if ops.group.is_none() {
            return Err(Refused::NoBuffers);
        }
        ops.plain(kring, What::RecvMultishot, fd.clone()).ok_or(Refused::TooMany)
    }

    /// Requests the end of an operation. It ends in any case, with `-ECANCELED` or with its own result; the end of a
    /// watch is reported, too. Returns false if the token names no operation, for example one that has ended.
    pub fn cancel(&mut self, token: OpToken) -> bool {
        self.kernel().is_ok_and(|(ops, kring)| ops.cancel(kring, token))
    }

    /// Appends the pieces of a part of a request's memory to `to`, for a [`Transfer`] that holds the request.
    ///
    /// # Errors
    ///
    /// [`Refused`]; `to` is unchanged.
    pub fn memory(&self, id: RequestId, range: Range<usize>, to: &mut Vec<IoVec>) -> Result<(), Refused> {
        self.find(id)?;
        let before = to.len();
        let add = |base: usize, len| to.push(IoVec { base: std::ptr::with_exposed_provenance_mut(base), len });
        if memory::each_piece(self.rqs.segments(id.tag), range, add) {
            return Ok(());
        }
        to.truncate(before);
        Err(Refused::OutOfRange)
    }

    /// Starts a transfer; [`SafeQueue::op_ended`](super::SafeQueue::op_ended) reports its result.
    ///
    /// # Errors
    ///
    /// [`Refused`]; nothing was started.
    ///
    /// # Safety
    ///
    /// Until the operation has ended each piece of memory stays valid, nobody else uses it, and nobody changes memory
    /// that is sent or written. For the memory of requests this holds if they are in [`Transfer::holds`], the driver
    /// neither copies to that part of it nor lends it to a child or another transfer, and only memory of reads is
    /// received into. For the driver's own memory it holds if the [`SafeQueue`](super::SafeQueue) keeps it, without
    /// moving or freeing it: a queue is dropped after all its operations have ended.
    pub unsafe fn transfer(&mut self, transfer: Transfer<'_>) -> Result<OpToken, Refused> {
        let Transfer { kind, fd, memory, holds } = transfer;
        if memory.is_empty() || memory.len() > MAX_SEGMENTS {
            return Err(Refused::OutOfRange);
        }
        holds.iter().try_for_each(|&id| self.find(id))?;
        let what = match kind {
            TransferKind::Send => What::Message(Direction::Send),
            TransferKind::Receive => What::Message(Direction::Recv),
            TransferKind::ReceiveAll => What::Message(Direction::RecvAll),
            TransferKind::Read(at) => What::File(KOp::Read, at, 0),
            TransferKind::Write(at) => What::File(KOp::Write, at, 0),
            TransferKind::WriteDurably(at) => What::File(KOp::Write, at, RWF_DSYNC),
        };
        let (ops, kring) = self.kernel()?;
        // SAFETY: promised by the caller; the adapter ends no request before the operations that hold it (Q2), and
        // drops the driver after all its operations (Q5).
        let begun = unsafe { ops.begin(kring, what, Some(fd.clone()), memory, holds.iter().map(|id| id.tag)) };
        let token = begun.ok_or(Refused::TooMany)?;
        holds.iter().for_each(|id| self.slots[usize::from(id.tag)].ops += 1);
        Ok(token)
    }

    /// Returns true if one more operation can begin.
    pub fn has_room(&self) -> bool {
        self.ops.as_ref().is_some_and(|ops| ops.has_room())
    }

    fn kernel(&mut self) -> Result<(&mut Ops, &mut KernelRing), Refused> {
        match (self.ops.as_deref_mut(), self.kring.as_deref_mut()) {
            (Some(ops), Some(kring)) => Ok((ops, kring)),
            _ => Err(Refused::NoKernelRing),
        }
    }

    fn find(&self, id: RequestId) -> Result<(), Refused> {
        let held = id.queue == self.key && held_slot(self.slots, id.tag, id.generation);
        if held { Ok(()) } else { Err(Refused::Ended) }
    }
}

/// `RWF_DSYNC` of `pwritev2`.
const RWF_DSYNC: i32 = 2;
