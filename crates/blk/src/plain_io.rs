//! Plain I/O: reads and writes of one piece of memory that need nothing but a request.
//!
//! Owns the data types alone: what a submitter says of a lane, of a run on it and of each I/O of a run; and what a lane
//! keeps of that while it is open. I/O comes in by [`ctx::lane`](crate::ctx::lane), and `hctx::gather` makes its
//! requests.

use sheave_base::clock::CoarseTs;

use crate::bio::{BIO_USER, BioAttrs, Op};
use crate::request::RqHead;
use crate::tag_set::TagInfo;

/// What plain I/Os of a lane have in common.
///
/// ```compile_fail,E0451
/// # use sheave_blk::{bio::Op, ctx::lane::PlainKind};
/// // Most flags of a bio are the block layer's own: a bio that says it is a child is looked for at its parent.
/// PlainKind { op: Op::Read, flags: 1 << 6, fixed_buf: 0 };
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlainKind {
    pub(crate) op: Op,
    pub(crate) flags: u16,
    pub(crate) fixed_buf: u16,
}

impl PlainKind {
    /// Writes, or else reads. `flags` may be `BIO_FUA`, `BIO_NOMERGE`: others do not count. `fixed_buf`
    /// is the registered buffer that all memory is in, or [`NO_FIXED_BUF`](crate::bio::NO_FIXED_BUF).
    #[inline(always)]
    #[must_use]
    pub const fn new(write: bool, flags: u16, fixed_buf: u16) -> PlainKind {
        PlainKind { op: if write { Op::Write } else { Op::Read }, flags: flags & BIO_USER, fixed_buf }
    }
}

/// Partition and kind of a lane in one word, to compare lanes of one device by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaneId(u64);

impl LaneId {
    /// No lane's.
    pub(crate) const NONE: LaneId = LaneId(u64::MAX);

    #[inline(always)]
    pub(crate) fn new(part: u16, kind: PlainKind) -> LaneId {
        let PlainKind { op, flags, fixed_buf } = kind;
        LaneId(op as u64 | u64::from(flags) << 8 | u64::from(fixed_buf) << 24 | u64::from(part) << 40)
    }
}

/// What became of an I/O that was to go alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Alone {
    /// It has to go by a lane, and nothing has happened.
    No,
    /// It is on its way: [`EndIo`](crate::ctx::EndIo) brings it back, in a poll.
    Sent,
    /// It has ended with success, and [`EndIo::end_one`](crate::ctx::EndIo::end_one) has heard of it.
    Ended,
}

/// What the I/Os of a run have in common beside the lane.
#[derive(Clone, Copy, Debug)]
pub struct PlainRunOf {
    /// Given back when they end.
    pub owner: u32,
    /// Length of each; a multiple of the logical block.
    pub bytes: u32,
}

/// One I/O of a run.
#[derive(Clone, Copy, Debug)]
pub struct PlainIo {
    pub(crate) cookie: u64,
    pub(crate) sector: u64,
    pub(crate) base: usize,
}

impl PlainIo {
    /// The I/O from `sector` on with the memory from the address `base` on; `cookie` comes back when it ends.
    ///
    /// # Safety
    /// As for [`BVec::new`](crate::bio::BVec::new), for as many bytes as the I/Os of the run have that it is given to.
    #[allow(unsafe_code)] // Devices write to where it points.
    #[inline(always)]
    pub const unsafe fn new(cookie: u64, sector: u64, base: usize) -> PlainIo {
        PlainIo { cookie, sector, base }
    }
}

/// One I/O of a run whose memory is in a registered buffer, where not all of the run are in the same. For a lane that
/// names none. Drivers get to know the buffer unless the I/O shares a request with others.
#[derive(Clone, Copy, Debug)]
pub struct BufferedIo {
    /// The I/O.
    pub io: PlainIo,
    /// The buffer.
    pub fixed_buf: u16,
}

/// What a run consists of: [`PlainIo`], or each with its own registered buffer.
pub trait RunItem: Copy {
    /// The I/O.
    fn io(self) -> PlainIo;
    /// Its registered buffer, if that is not the lane's.
    fn fixed_buf(self) -> Option<u16>;
}

impl RunItem for PlainIo {
    #[inline(always)]
    fn io(self) -> PlainIo {
        self
    }

    #[inline(always)]
    fn fixed_buf(self) -> Option<u16> {
        None
    }
}

impl RunItem for BufferedIo {
    #[inline(always)]
    fn io(self) -> PlainIo {
        self.io
    }

    #[inline(always)]
    fn fixed_buf(self) -> Option<u16> {
        Some(self.fixed_buf)
    }
}

/// No sector, and none that is beside one.
const NOWHERE: u64 = 1 << 62;

/// What the plain I/Os of the lane that is open share. It lives in the hardware context and not on the stack: there it
/// is copied as a whole, in one store, and takes no registers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenLane {
    pub(crate) bio: BioAttrs,
    /// Of plain records; its times, bytes and owner are those of the run that is open.
    pub(crate) head: RqHead,
    pub(crate) info: TagInfo,
    /// Longer ones go the long way; with FUA or PREFLUSH all of them.
    pub(crate) max_bytes: u32,
    /// The batch's time stamp.
    pub(crate) time: CoarseTs,
    /// First sector and end of the request gathered last (or of what merged with it last), or no sectors: a hint where
    /// to try a merge.
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// What all but the last three was made from.
    pub(crate) id: LaneId,
}

impl Default for OpenLane {
    fn default() -> Self {
        OpenLane {
            bio: BioAttrs::new(0),
            head: RqHead::default(),
            info: TagInfo::default(),
            max_bytes: 0,
            time: CoarseTs::default(),
            start: NOWHERE,
            end: NOWHERE,
            id: LaneId::NONE,
        }
    }
}

impl OpenLane {
    #[inline(always)]
    pub(crate) fn forget_place(&mut self) {
        (self.start, self.end) = (NOWHERE, NOWHERE);
    }
}
