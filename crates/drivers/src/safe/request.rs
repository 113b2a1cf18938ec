//! A request as a driver without unsafe code sees it during a call.
//!
//! Owns the checks. Ranges lie within the request. The memory of a read is only written to, and the memory of a write
//! only read. Memory that a child uses is not copied to. Does not own the end of a request (`queue`).
//!
//! Invariants:
//! - R1: a [`Request`] is held by the queue, so its memory is valid.
//! - R2: of the ranges used by children of one request and by copies, two overlap only if both are only read.
#![allow(unsafe_code)] // Lends the memory of requests to children.

use std::ops::Range;

use sheave_base::buf::Buf;
use sheave_base::clock::PreciseTs;
use sheave_base::status::Status;
use sheave_blk::bio::{BVec, Op};
use sheave_blk::request::{RQ_FUA, RqTable};
use sheave_blk::stack::{Lower, LowerIo};
use sheave_kring::KernelRing;

use super::memory;
use super::ops::Ops;
use super::table::{ChildOf, Children, Slot, held_slot_mut, settle};

/// Handle of a request of one queue, valid after the call too, and on other threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId {
    pub(super) queue: u64,
    pub(super) generation: u64,
    pub(super) tag: u16,
}

impl RequestId {
    /// Returns a number below [`Open::depth`](super::Open::depth) that is unique among the current requests of the
    /// queue: an index for a table of the driver's.
    pub fn slot(self) -> usize {
        usize::from(self.tag)
    }
}

/// Reason why nothing was copied or sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// The range is not within the request.
    #[error("the range is not within the request's memory")]
    OutOfRange,
    /// The direction is wrong: the memory of a write may only be read, and the memory of a read only written.
    #[error("the request's memory goes the other way: a read's is written to, a write's is read")]
    Direction,
    /// A child uses the memory.
    #[error("a child of the request uses this memory: wait until it has ended")]
    InUse,
    /// The limit is reached: [`MAX_CHILDREN`] of a request, or the number of operations that the driver
    /// [requested](super::KernelUse::new).
    #[error("there are as many as there may be ({MAX_CHILDREN} children of a request): send more when one has ended")]
    TooMany,
    /// The driver has not requested the kernel ring with [`SafeDriver::kernel`](super::SafeDriver::kernel).
    #[error("the driver has no kernel ring: `SafeDriver::kernel` asks for it")]
    NoKernelRing,
    /// The driver has no receive buffers.
    #[error("the driver has no buffers to receive into: `KernelUse::receive_buffers` asks for them")]
    NoBuffers,
    /// The request has ended, or is not one of this queue.
    #[error("the id names no request that the queue has")]
    Ended,
}

/// Largest number of children of one request at a time.
pub const MAX_CHILDREN: u32 = 1024;

/// The memory of a child.
#[derive(Debug)]
#[non_exhaustive]
pub enum Memory {
    /// No memory: a flush, discard or write-zeroes of this many bytes.
    None(u32),
    /// This part of the request's own memory, which must not be copied or used otherwise meanwhile.
    OfRequest(Range<usize>),
    /// A buffer of the driver's, which is returned with the child's end.
    Own(Buf),
}

/// I/O for a device below.
///
/// ```
/// use sheave_blk::bio::Op;
/// use sheave_drivers::safe::{Child, Memory};
///
/// let durable = Child::new(1, Op::Write, 2048, Memory::OfRequest(0..4096)).fua(true).number(7);
/// assert_eq!((durable.lower, durable.sector, durable.number), (1, 2048, 7));
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Child {
    /// Number of the device, in the order of the argument of [`stacked`](super::stacked).
    pub lower: usize,
    /// Operation on the device.
    pub op: Op,
    /// True if the write must be durable when it ends.
    pub fua: bool,
    /// First sector on that device.
    pub sector: u64,
    /// Memory of the I/O, which defines its length.
    pub memory: Memory,
    /// Number that is returned with the child's end.
    pub number: u32,
}

impl Child {
    /// Makes I/O on the device `lower`, from `sector` on; not FUA, and with the number 0.
    #[inline]
    #[must_use]
    pub fn new(lower: usize, op: Op, sector: u64, memory: Memory) -> Child {
        Child { lower, op, fua: false, sector, memory, number: 0 }
    }
}

sheave_base::setters!(Child { fua: bool, number: u32 });

/// A child that has ended.
#[derive(Debug)]
#[non_exhaustive]
pub struct ChildEnd {
    /// [`Child::number`] of the child.
    pub number: u32,
    /// Status with which the child ended.
    pub status: Status,
    /// The child's own buffer, if it had one.
    pub buf: Option<Buf>,
}

/// A request, for the time of a call.
#[derive(Debug)]
pub struct Request<'a> {
    pub(super) id: RequestId,
    pub(super) slot: &'a mut Slot,
    pub(super) children: &'a mut Children,
    pub(super) rqs: &'a RqTable<'a>,
    pub(super) lower: Option<&'a Lower>,
    pub(super) now: PreciseTs,
}

impl Request<'_> {
    /// Returns a handle that is valid after the call.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// Returns the operation.
    pub fn op(&self) -> Op {
        self.rqs.by_tag(self.id.tag).op
    }

    /// Returns the first sector on the device.
    pub fn sector(&self) -> u64 {
        self.rqs.by_tag(self.id.tag).sector
    }

    /// Returns the length; 0 for a flush.
    pub fn bytes(&self) -> u32 {
        self.rqs.by_tag(self.id.tag).bytes
    }

    /// Returns true for a write that must be durable when it ends.
    pub fn fua(&self) -> bool {
        self.rqs.by_tag(self.id.tag).flags & RQ_FUA != 0
    }

    /// Returns the time of the ring's clock.
    pub fn now(&self) -> PreciseTs {
        self.now
    }

    /// Returns the driver's own number of the request; 0 at its start.
    pub fn note(&self) -> u64 {
        self.slot.note
    }

    /// Sets [`Request::note`].
    pub fn set_note(&mut self, note: u64) {
        self.slot.note = note;
    }

    /// Returns the number of children that have not ended.
    pub fn children(&self) -> u32 {
        self.slot.children
    }

    /// Returns the first error of the request's children so far.
    pub fn joined(&self) -> Status {
        self.slot.joined
    }

    /// Clears the error of the request's children, for a driver that has handled it.
    pub fn forget_errors(&mut self) {
        self.slot.joined = Status::Ok;
    }

    /// Copies from a write's memory, from `offset` on.
    ///
    /// # Errors
    ///
    /// [`Refused`]; `to` is unchanged.
    pub fn copy_to(&self, offset: usize, to: &mut [u8]) -> Result<(), Refused> {
        let range = self.check(Op::Write, offset..offset.saturating_add(to.len()))?;
        let pieces = memory::pieces(self.rqs.segments(self.id.tag), range).ok_or(Refused::OutOfRange)?;
        // SAFETY: R1; it is a write, so no child writes to its memory (R2).
        unsafe { memory::copy_out(&pieces, to) };
        Ok(())
    }

    /// Copies to a read's memory from `offset` on.
    ///
    /// # Errors
    ///
    /// [`Refused`]; the memory is unchanged.
    pub fn copy_from(&mut self, offset: usize, from: &[u8]) -> Result<(), Refused> {
        let range = self.check(Op::Read, offset..offset.saturating_add(from.len()))?;
        self.check_free(&range)?;
        let pieces = memory::pieces(self.rqs.segments(self.id.tag), range).ok_or(Refused::OutOfRange)?;
        // SAFETY: R1; no child uses the range (R2).
        unsafe { memory::copy_in(&pieces, from) };
        Ok(())
    }

    /// Sends I/O to a device below; [`SafeQueue::child_ended`](super::SafeQueue::child_ended) reports its end.
    ///
    /// # Errors
    ///
    /// [`Refused`]; nothing was sent, and a buffer is dropped.
    pub fn send(&mut self, child: Child) -> Result<(), Refused> {
        if self.slot.children >= MAX_CHILDREN {
            return Err(Refused::TooMany);
        }
        let (mut buf, mut range) = (None, None);
        let (bytes, vecs) = match child.memory {
            Memory::None(bytes) => (bytes, Vec::new()),
            Memory::OfRequest(of) => {
                let of = self.check(child.op, of)?;
                if child.op == Op::Read {
                    self.check_free(&of)?;
                }
                let segments = self.rqs.segments(self.id.tag);
                let pieces = memory::pieces(segments, of.clone()).ok_or(Refused::OutOfRange)?;
                let bytes = of.len() as u32;
                range = (child.op == Op::Read).then_some(of);
                // SAFETY: a request ends after its children, and its direction is the child's (`check`).
                (bytes, unsafe { memory::lend(&pieces) })
            }
            Memory::Own(mut own) => {
                let bytes = u32::try_from(own.len()).map_err(|_| Refused::OutOfRange)?;
                // SAFETY: `Children` keeps the buffer until the child has ended, and moving it does not move its bytes.
                let vec = unsafe { BVec::new(own.as_mut_ptr().expose_provenance(), own.len()) };
                buf = Some(own);
                (bytes, vec![vec])
            }
        };
        let of = ChildOf { tag: self.id.tag, number: child.number, buf, range };
        let token = self.children.insert(of);
        self.slot.children += 1;
        let (lower, op, fua) = (child.lower, child.op, child.fua && child.op == Op::Write);
        match self.lower {
            Some(to) => to.submit(LowerIo { lower, op, fua, sector: child.sector, bytes, vecs, token }),
            None => self.children.reject(token),
        }
        Ok(())
    }

    /// Checks that the range may be used in this direction.
    fn check(&self, op: Op, range: Range<usize>) -> Result<Range<usize>, Refused> {
        if !op.has_data() || op != self.op() {
            return Err(Refused::Direction);
        }
        let within = range.start <= range.end && range.end <= self.bytes() as usize;
        if within { Ok(range) } else { Err(Refused::OutOfRange) }
    }

    /// Checks that no child writes to the range (R2).
    fn check_free(&self, range: &Range<usize>) -> Result<(), Refused> {
        if self.slot.children > 0 && self.children.uses(self.id.tag, range) {
            return Err(Refused::InUse);
        }
        Ok(())
    }
}

/// Access to all requests and operations of a queue, for a driver that is polled.
#[derive(Debug)]
pub struct Polled<'a> {
    pub(super) slots: &'a mut [Slot],
    pub(super) children: &'a mut Children,
    pub(super) settled: &'a mut Vec<(u16, Status)>,
    pub(super) rqs: &'a RqTable<'a>,
    pub(super) lower: Option<&'a Lower>,
    pub(super) key: u64,
    pub(super) now: PreciseTs,
    pub(super) ops: Option<&'a mut Ops>,
    pub(super) kring: Option<&'a mut KernelRing>,
}

impl Polled<'_> {
    /// Returns the time of the ring's clock.
    pub fn now(&self) -> PreciseTs {
        self.now
    }

    /// Returns the request with this id; `None` if it has ended, or is not one of this queue.
    pub fn get(&mut self, id: RequestId) -> Option<Request<'_>> {
        if id.queue != self.key {
            return None;
        }
        let slot = held_slot_mut(self.slots, id.tag, id.generation)?;
        let Polled { children, rqs, lower, now, .. } = self;
        Some(Request { id, slot, children, rqs, lower: *lower, now: *now })
    }

    /// Ends the request with this id, now or when its last child and the last operation that holds it have ended.
    /// Returns false if there is none.
    pub fn end(&mut self, id: RequestId, status: Status) -> bool {
        let slot = if id.queue == self.key { held_slot_mut(self.slots, id.tag, id.generation) } else { None };
        let Some(slot) = slot else { return false };
        settle(slot, id.tag, Some(status), self.settled);
        true
    }
}
