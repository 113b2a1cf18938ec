//! The requests of a reactor, each in a slot whose number is the `user_data` of its operations in the ring.
//!
//! A slot keeps its place in memory from one request to the next, and is filled field by field: a request is large, and
//! is never moved.

use sheave_nbd::session::Request;
use sheave_uring::Fd;

use super::raw::Segments;
use super::unaligned::Unaligned;
use crate::block_locks::Standing;
use crate::payload::Payload;

/// The operation that a request has in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The operation that the command names.
    Command,
    /// Reads a block of which a part is changed. The index is that in `Unaligned::edges`.
    ReadEdge(u8),
    /// Writes such a block back, with zeroes in it.
    WriteEdge(u8),
    /// Writes zeroes where the file cannot zero a range.
    Zeroes,
    /// Makes the finished change durable (FUA).
    Sync,
}

/// A request that has a slot.
#[derive(Debug)]
pub(super) struct Op {
    /// True from its begin to its end.
    in_use: bool,
    /// True if its client is gone: the operation in the ring ends, and no other is started.
    pub(super) abandoned: bool,
    pub(super) stage: Stage,
    /// Number of its session.
    pub(super) conn: u32,
    /// Descriptor of its file in the ring.
    pub(super) fd: i32,
    /// Turn of the loop in which it arrived.
    pub(super) turn: u32,
    pub(super) request: Request,
    /// First byte and length of the range in the file that the stage works on.
    pub(super) range: (u64, u64),
    /// Bytes of `range` that are done. While a write gathers its payload: bytes received.
    pub(super) done: u64,
    pub(super) payload: Option<Payload>,
    /// Position of `range` in the payload's memory.
    pub(super) at: usize,
    /// Memory of the guest that the request transfers, in place of a payload.
    pub(super) segments: Option<Segments>,
    pub(super) standing: Standing,
    /// Edges to be rewritten.
    pub(super) unaligned: Option<Box<Unaligned>>,
}

/// Fields of a request that are needed after its slot is free.
pub(super) struct Ended {
    pub(super) conn: usize,
    pub(super) turn: u32,
    pub(super) request: Request,
    pub(super) payload: Option<Payload>,
    pub(super) segments: Option<Segments>,
}

/// The slots.
///
/// Invariant O1: a slot that is not in use holds no memory and has no standing.
#[derive(Debug, Default)]
pub(super) struct Ops {
    slots: Vec<Op>,
    free: Vec<u32>,
}

impl Ops {
    /// Gives a request a slot. The caller adds the memory that the request transfers.
    #[inline]
    pub(super) fn begin(&mut self, conn: usize, fd: Fd, request: Request, turn: u32) -> (u32, &mut Op) {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => self.grow(request),
        };
        let op = &mut self.slots[slot as usize];
        (op.in_use, op.abandoned, op.stage) = (true, false, Stage::Command);
        (op.conn, op.fd, op.turn) = (conn as u32, fd.raw(), turn);
        (op.range, op.done) = ((request.offset, request.len), 0);
        op.request = request;
        (slot, op)
    }

    #[cold]
    fn grow(&mut self, request: Request) -> u32 {
        self.slots.push(Op {
            in_use: false,
            abandoned: false,
            stage: Stage::Command,
            conn: 0,
            fd: 0,
            turn: 0,
            request,
            range: (0, 0),
            done: 0,
            payload: None,
            at: 0,
            segments: None,
            standing: Standing::Apart,
            unaligned: None,
        });
        self.slots.len() as u32 - 1
    }

    /// Returns the request in a slot.
    #[inline]
    pub(super) fn get(&self, slot: u32) -> Option<&Op> {
        self.slots.get(slot as usize).filter(|op| op.in_use)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut Op> {
        self.slots.get_mut(slot as usize).filter(|op| op.in_use)
    }

    /// Frees the slot of a request that has ended or was never started. Returns what is left of it.
    #[inline]
    pub(super) fn end(&mut self, slot: u32) -> Option<Ended> {
        let op = self.get_mut(slot)?;
        debug_assert!(matches!(op.standing, Standing::Apart), "its change has ended");
        op.in_use = false;
        // O1
        if op.unaligned.is_some() {
            op.unaligned = None;
        }
        let (conn, turn, request) = (op.conn as usize, op.turn, op.request);
        let ended = Ended { conn, turn, request, payload: op.payload.take(), segments: op.segments.take() };
        self.free.push(slot);
        Some(ended)
    }

    /// Returns the requests.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Op> {
        self.slots.iter().filter(|op| op.in_use)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Op> {
        self.slots.iter_mut().filter(|op| op.in_use)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == self.slots.len()
    }
}
