//! Request slots: the state of a request from submission to completion. Plain records ([`plain`](crate::plain)) have
//! none.
//!
//! Owns the preallocated slots and their free list. A slot is two cache lines.
//!
//! States of a slot, in order; each transition is one function:
//!
//! | state | meaning | entered by |
//! |---|---|---|
//! | `Free` | in the free list | [`ReqTable::free`] |
//! | `Prepared` | taken, arguments checked; waits in a chain, behind a drain or for its issue | [`ReqTable::take`] |
//! | `Queued` | about to be issued: a worker has it, or a resource is exhausted; a cancel finds it | `Core::enqueue` |
//! | `Issued` | its operation has begun and ends by itself, or by a cancel | `submit::issue` |
//!
//! Invariants:
//! - I1: a slot posts at most one terminal CQE, in `complete::finish`, and is freed there.
//! - I2: `link` chains slots in submission order; a slot is in one chain at most.
//! - I3: a slot number other than `NO_SLOT` is below the number of slots: all come from [`ReqTable::take`] and return
//!   unchanged from drivers and workers.
#![allow(unsafe_code)] // The slots of the ring: every step of every request indexes them.

use sheave_iomap::Kiocb;

/// No slot.
pub const NO_SLOT: u32 = u32::MAX;

/// No open file.
pub const NO_FILE: u32 = u32::MAX;

/// State of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum State {
    /// In the free list.
    #[default]
    Free,
    /// Checked, not begun.
    Prepared,
    /// About to be issued.
    Queued,
    /// Begun.
    Issued,
}

/// The slot has something that the fast completion does not handle: links, skip, an owned buffer.
pub const REQ_SLOW_END: u16 = 1 << 0;
/// Prep failed; `res` is the error.
pub const REQ_PREP_FAILED: u16 = 1 << 1;
/// Starts after everything before it has ended.
pub const REQ_DRAIN: u16 = 1 << 2;
/// Owns memory of the typed interface.
pub const REQ_OWNS_BUF: u16 = 1 << 3;
/// Has a link timeout behind it.
pub const REQ_HAS_GUARD: u16 = 1 << 4;
/// The vectors are in the side table.
pub const REQ_VECTORED: u16 = 1 << 5;
/// Uses a registered buffer that was replaced after its issue.
pub const REQ_OLD_BUF: u16 = 1 << 6;
/// Was cancelled: ends with `-ECANCELED` instead of being issued.
pub const REQ_CANCELED: u16 = 1 << 7;
/// A member of a chain other than its head.
pub const REQ_LINKED: u16 = 1 << 8;

/// The times are in the side table.
pub const REQ_TIMED: u16 = 1 << 9;
/// Counted in its file's grace, in the counter that its kiocb names, if the file has one.
pub const REQ_COUNTED: u16 = 1 << 12;

/// Work for a slot between the end of its data and its result that needs a worker or a flush. `blocking::worker_done`
/// makes every transition that follows a worker's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Step {
    /// Initial and final step. No worker has the request, or one maps or allocates for it.
    #[default]
    Own,
    /// A worker runs the whole operation (`IOSQE_ASYNC`), or will.
    Runs,
    /// A worker reads the memory of the I/O for its file's checksums.
    Sums,
    /// Member, not leader, of a batch of completion work that a worker does for its file.
    Ends,
    /// Leader of a batch of completion work that a worker does for its file.
    LeadsEnds,
    /// Leader of a batch that waits for a sync of its file: a worker syncs, or the flush at its end is in flight.
    LeadsSync,
    /// Leader of a batch whose sync needs only a flush, which has not been sent.
    WantsFlush,
}

/// Fields of a slot that are equal for all requests of a kind, grouped so that one store copies them. A slot
/// dereferences to them.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(16))]
pub(crate) struct Ident {
    pub fd: i32,
    pub opcode: u8,
    pub flags: u8,
    pub state: State,
    pub step: Step,
    pub buf_index: u16,
    /// `REQ_*` bits.
    pub rflags: u16,
    pub link: u32,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Req {
    pub user_data: u64,
    pub addr: u64,
    pub(crate) ident: Ident,
    /// The open file, from the first issue on, or [`NO_FILE`].
    pub file: u32,
    pub off: u64,
    /// `sqe.len`, or the bytes of all vectors.
    pub len: u32,
    pub op_flags: u32,
    /// Result of a failed prep. NOP keeps its result here.
    pub res: i32,
    /// State of the I/O, for operations on files.
    pub kiocb: Kiocb,
    /// Arguments of some operations: time and limited request of a timeout, range of a FALLOCATE, payload of a message.
    pub data: [u64; 2],
}

impl std::ops::Deref for Req {
    type Target = Ident;

    #[inline(always)]
    fn deref(&self) -> &Ident {
        &self.ident
    }
}

impl std::ops::DerefMut for Req {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Ident {
        &mut self.ident
    }
}

const _: () = assert!(size_of::<Req>() == 128);

/// Most bytes that a request in flight takes: slot with kiocb, bio, block request.
pub const REQUEST_BYTES: usize =
    size_of::<Req>() + size_of::<sheave_blk::bio::Bio>() + size_of::<sheave_blk::request::Request>();
const _: () = assert!(REQUEST_BYTES <= 640);

#[derive(Debug)]
pub(crate) struct ReqTable {
    slots: Box<[Req]>,
    free: Vec<u32>,
}

impl ReqTable {
    pub fn new(count: u32) -> ReqTable {
        ReqTable { slots: vec![Req::default(); count as usize].into(), free: (0..count).rev().collect() }
    }

    #[inline(always)]
    pub fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Returns a slot to the free list. Called once for each slot taken.
    #[inline(always)]
    pub fn free(&mut self, slot: u32) {
        let req = &mut self[slot];
        debug_assert!(req.state != State::Free, "a slot is freed once");
        req.state = State::Free;
        self.free.push(slot);
    }

    pub fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    #[inline]
    pub fn live(&self) -> u32 {
        (self.slots.len() - self.free.len()) as u32
    }

    #[inline]
    pub fn available(&self) -> u32 {
        self.free.len() as u32
    }

    pub fn iter_live(&self) -> impl Iterator<Item = (u32, &Req)> {
        self.slots.iter().enumerate().filter(|(_, req)| req.state != State::Free).map(|(at, req)| (at as u32, req))
    }
}

impl std::ops::Index<u32> for ReqTable {
    type Output = Req;

    #[inline(always)]
    fn index(&self, slot: u32) -> &Req {
        debug_assert!((slot as usize) < self.slots.len(), "I3");
        // SAFETY: a slot number that is not NO_SLOT is below `slots.len()` (I3).
        unsafe { self.slots.get_unchecked(slot as usize) }
    }
}

impl std::ops::IndexMut<u32> for ReqTable {
    #[inline(always)]
    fn index_mut(&mut self, slot: u32) -> &mut Req {
        debug_assert!((slot as usize) < self.slots.len(), "I3");
        // SAFETY: a slot number that is not NO_SLOT is below `slots.len()` (I3).
        unsafe { self.slots.get_unchecked_mut(slot as usize) }
    }
}

/// The chain that is being assembled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chain {
    pub(crate) head: u32,
    pub(crate) tail: u32,
    pub(crate) failed: bool,
}

impl Chain {
    /// Returns the member that the next SQE is linked to.
    pub(crate) fn last(&self) -> Option<u32> {
        (self.head != NO_SLOT).then_some(self.tail)
    }
}

impl Default for Chain {
    fn default() -> Self {
        Chain { head: NO_SLOT, tail: NO_SLOT, failed: false }
    }
}
