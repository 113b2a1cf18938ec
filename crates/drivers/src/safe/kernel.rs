//! What a driver does on the ring's own kernel ring: waits for descriptors and times, and, in the unsafe tier, moves
//! the memory of requests through descriptors of its own.
//!
//! Owns the calls of a driver and their checks; the operations are in `ops`. Each operation is prepared and goes to the
//! kernel with whatever else the ring sends in its next system call.
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

/// What a driver wants of the kernel ring of each ring that attaches it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelUse {
    pub(super) operations: u16,
    pub(super) buffers: Option<(u16, u32)>,
}

impl KernelUse {
    /// At most so many operations at a time on each ring, watches and timers included.
    #[must_use]
    pub fn new(operations: u16) -> KernelUse {
        KernelUse { operations, buffers: None }
    }

    /// And `count` buffers (a power of two) of `bytes` each on each ring, for [`Polled::receive_any`].
    #[must_use]
    pub fn receive_buffers(mut self, count: u16, bytes: u32) -> KernelUse {
        self.buffers = Some((count, bytes));
        self
    }
}

/// What a [`Transfer`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransferKind {
    /// Sends all of the memory to a socket.
    Send,
    /// Receives from a socket what there is, at least a byte; 0 says that the other end has closed it.
    Receive,
    /// Receives from a socket until the memory is full; less says that the other end has closed it.
    ReceiveAll,
    /// Reads from a file, at an offset in bytes.
    Read(u64),
    /// Writes to a file, at an offset in bytes.
    Write(u64),
    /// Writes to a file, at an offset in bytes, and ends when that is durable.
    WriteDurably(u64),
}

/// An operation that moves memory, for [`Polled::transfer`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Transfer<'a> {
    /// What it does.
    pub kind: TransferKind,
    /// The socket or file. It stays open until the operation has ended.
    pub fd: &'a Arc<OwnedFd>,
    /// The memory, in order, at most 1,024 pieces; the list itself is copied.
    pub memory: &'a [IoVec],
    /// The requests whose memory is in it. They end after the operation, whatever the driver says before.
    pub holds: &'a [RequestId],
}

impl<'a> Transfer<'a> {
    /// Does this with the socket or file, and with memory of these requests.
    #[must_use]
    pub fn new(kind: TransferKind, fd: &'a Arc<OwnedFd>, memory: &'a [IoVec], holds: &'a [RequestId]) -> Transfer<'a> {
        Transfer { kind, fd, memory, holds }
    }
}

/// What came of an operation.
#[derive(Debug)]
#[non_exhaustive]
pub struct OpEnd<'a> {
    /// Which one.
    pub token: OpToken,
    /// Bytes moved, or `-errno`: `-ECANCELED` (-125) when it was cancelled, `-ETIME` (-62) when a timer has run out. A
    /// transfer may have moved fewer bytes than it was asked to.
    pub res: i32,
    /// The operation has not ended: more will come of it.
    pub more: bool,
    /// What [`Polled::receive_any`] has received; the buffer goes back to the kernel after the call.
    pub data: &'a [u8],
}

impl Polled<'_> {
    /// Has the driver polled whenever this descriptor is readable, has failed, or has lost its other end, for as long
    /// as the watch is not [cancelled](Polled::cancel). A driver that leaves the descriptor readable is polled again at
    /// once.
    ///
    /// # Errors
    ///
    /// [`Refused`].
    pub fn watch(&mut self, fd: &Arc<OwnedFd>) -> Result<OpToken, Refused> {
        let (ops, kring) = self.kernel()?;
        ops.plain(kring, What::Watch, fd.clone()).ok_or(Refused::TooMany)
    }

    /// Ends after a time, with `-ETIME`.
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

    /// Receives from a socket into the [buffers](KernelUse::receive_buffers) that the driver asked for, and tells of
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

    /// Asks for the end of an operation. It ends in any case, with `-ECANCELED` or as it would have; of a watch the end
    /// is told, too. False when the token names none, for example one that has ended.
    pub fn cancel(&mut self, token: OpToken) -> bool {
        self.kernel().is_ok_and(|(ops, kring)| ops.cancel(kring, token))
    }

    /// Where a part of a request's memory is, for a [`Transfer`] that holds it: pieces are added to the list.
    ///
    /// # Errors
    ///
    /// [`Refused`], and the list is as it was.
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

    /// Moves memory through a descriptor; [`SafeQueue::op_ended`](super::SafeQueue::op_ended) hears what came of it.
    ///
    /// # Errors
    ///
    /// [`Refused`], and nothing happens.
    ///
    /// # Safety
    ///
    /// Until the operation has ended each piece of memory stays valid, and nobody else uses it; what is sent or written
    /// nobody changes. For the memory of requests that is so when they are in [`Transfer::holds`] and the driver
    /// neither copies to that part of it nor lends it to a child or another transfer; only reads are received into.
    /// For memory of the driver's own it is so when the [`SafeQueue`](super::SafeQueue) keeps it, without moving or
    /// freeing it: a queue is dropped after all its operations have ended.
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
        // SAFETY: promised by the caller; the adapter ends no request before what holds it (Q2), and drops the driver
        // after all its operations (Q5).
        let begun = unsafe { ops.begin(kring, what, Some(fd.clone()), memory, holds.iter().map(|id| id.tag)) };
        let token = begun.ok_or(Refused::TooMany)?;
        holds.iter().for_each(|id| self.slots[usize::from(id.tag)].ops += 1);
        Ok(token)
    }

    /// Whether there is room for one more operation.
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
