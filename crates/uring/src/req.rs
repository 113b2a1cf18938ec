//! Request slots: what a ring keeps of an SQE from submission to completion, unless it is a plain record
//! ([`plain`](crate::plain)).
//!
//! Owns the slots, preallocated, and their free list. A slot is two cache lines.
//!
//! States of a slot, in order; each transition is one function:
//!
//! | state | meaning | entered by |
//! |---|---|---|
//! | `Free` | in the free list | [`ReqTable::free`] |
//! | `Prepared` | taken, arguments checked; waits in a chain, behind a drain or for its issue | [`ReqTable::take`] |
//! | `Queued` | about to be issued: a worker has it, or something is used up; a cancel finds it | `Core::enqueue` |
//! | `Issued` | its operation has begun and will end by itself, or by a cancel | `submit::issue` |
//!
//! Invariants:
//! - I1: a slot posts at most one terminal CQE, in `complete::finish`, and is freed there.
//! - I2: `link` chains slots in submission order; a slot is in one chain at most.
//! - I3: a slot number that is not `NO_SLOT` is below the number of slots: they come from [`ReqTable::take`] and, over
//!   drivers and workers, come back unchanged.
#![allow(unsafe_code)] // The slots of the ring: every step of every request indexes them.

use sheave_iomap::Kiocb;

/// No slot.
pub const NO_SLOT: u32 = u32::MAX;

/// No open file.
pub const NO_FILE: u32 = u32::MAX;

/// Where a slot is in its life.
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

/// Slot has something that the fast completion does not handle: links, skip, an owned buffer.
pub const REQ_SLOW_END: u16 = 1 << 0;
/// Prep failed; `res` is the error.
pub const REQ_PREP_FAILED: u16 = 1 << 1;
/// Goes behind everything before it.
pub const REQ_DRAIN: u16 = 1 << 2;
/// Owns a buffer of the typed interface.
pub const REQ_OWNS_BUF: u16 = 1 << 3;
/// A link timeout guards it.
pub const REQ_HAS_GUARD: u16 = 1 << 4;
/// Its vectors are in the cold table.
pub const REQ_VECTORED: u16 = 1 << 5;
/// Uses a registered buffer that was replaced meanwhile.
pub const REQ_OLD_BUF: u16 = 1 << 6;
/// Was cancelled: ends with that instead of its issue.
pub const REQ_CANCELED: u16 = 1 << 7;
/// Is a member of a chain, not its head.
pub const REQ_LINKED: u16 = 1 << 8;

/// Its times are in the cold table.
pub const REQ_TIMED: u16 = 1 << 9;
/// Is counted in its file's grace, as its kiocb says, if the file has one.
pub const REQ_COUNTED: u16 = 1 << 12;

/// What is being done for a slot between the end of its data and its result, where that takes a worker or a flush.
/// `blocking::worker_done` has every transition that an answer of a worker makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Step {
    /// Its own operation: it has not been to a worker, or one maps, allocates or starts for it. Each step ends here.
    #[default]
    Own,
    /// A worker runs its whole operation (`IOSQE_ASYNC`), or will.
    Runs,
    /// A worker looks at the memory of the I/O, for its file's checksums.
    Sums,
    /// It is in a batch of completion work of its file, which a worker does, and is not its leader.
    Ends,
    /// It leads a batch of completion work of its file, which a worker does.
    LeadsEnds,
    /// It leads a batch that waits for a sync of its file: a worker syncs, or the flush that ends it is under way.
    LeadsSync,
    /// It leads a batch whose sync needs but a flush, which has not been sent.
    WantsFlush,
}

/// The fields of a slot that are the same for every request of a kind: copied in one store. A slot has them as its own.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(16))]
pub(crate) struct Ident {
    /// `sqe.fd`.
    pub fd: i32,
    /// `sqe.opcode`.
    pub opcode: u8,
    /// `sqe.flags`.
    pub flags: u8,
    /// Where it is in its life.
    pub state: State,
    /// What is being done for it by a worker or a flush.
    pub step: Step,
    /// `sqe.buf_index`.
    pub buf_index: u16,
    /// `REQ_*` bits.
    pub rflags: u16,
    /// The next of the chain.
    pub link: u32,
}

/// A request slot.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Req {
    /// Comes back in the CQE.
    pub user_data: u64,
    /// `sqe.addr`.
    pub addr: u64,
    pub(crate) ident: Ident,
    /// The open file it uses since its issue, or [`NO_FILE`].
    pub file: u32,
    /// `sqe.off`.
    pub off: u64,
    /// `sqe.len`, or the bytes of all vectors.
    pub len: u32,
    /// `sqe.op_flags`.
    pub op_flags: u32,
    /// Result of a prep that failed.
    pub res: i32,
    /// The I/O, for operations on files.
    pub kiocb: Kiocb,
    /// For the operation: the ns of a timeout, the request that a link timeout guards.
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

/// A request in flight takes at most this many bytes: slot with kiocb, bio, block request.
pub const REQUEST_BYTES: usize =
    size_of::<Req>() + size_of::<sheave_blk::bio::Bio>() + size_of::<sheave_blk::request::Request>();
const _: () = assert!(REQUEST_BYTES <= 640);

/// All slots of a ring.
#[derive(Debug)]
pub(crate) struct ReqTable {
    slots: Box<[Req]>,
    free: Vec<u32>,
}

impl ReqTable {
    /// `count` slots.
    pub fn new(count: u32) -> ReqTable {
        ReqTable { slots: vec![Req::default(); count as usize].into(), free: (0..count).rev().collect() }
    }

    /// Takes a slot; `None` when all are in use.
    #[inline(always)]
    pub fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Puts a slot back; every slot comes back once.
    #[inline(always)]
    pub fn free(&mut self, slot: u32) {
        let req = &mut self[slot];
        debug_assert!(req.state != State::Free, "a slot is freed once");
        req.state = State::Free;
        self.free.push(slot);
    }

    /// All slots.
    pub fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Slots in use.
    #[inline]
    pub fn live(&self) -> u32 {
        (self.slots.len() - self.free.len()) as u32
    }

    /// Slots not in use.
    #[inline]
    pub fn available(&self) -> u32 {
        self.free.len() as u32
    }

    /// The slots in use.
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
    /// The member that the next SQE comes behind.
    pub(crate) fn last(&self) -> Option<u32> {
        (self.head != NO_SLOT).then_some(self.tail)
    }
}

impl Default for Chain {
    fn default() -> Self {
        Chain { head: NO_SLOT, tail: NO_SLOT, failed: false }
    }
}
