//! Plain I/O: reads and writes of one piece of memory that need only a request.
//!
//! Owns only the data types: the submitter's parameters of a lane, of a run on it and of each I/O of a run, and the
//! state of an open lane. I/O is submitted through [`ctx::lane`](crate::ctx::lane), and `hctx::gather` makes its
//! requests.

use sheave_base::clock::CoarseTs;

use crate::bio::{BIO_USER, BioAttrs, Op};
use crate::request::RqHead;
use crate::tag_set::TagInfo;

/// Parameters that all plain I/Os of a lane share.
///
/// ```compile_fail,E0451
/// # use sheave_blk::{bio::Op, ctx::lane::PlainKind};
/// // Most flags are reserved for the block layer: with this one, the end of the bio would be counted at a parent.
/// PlainKind { op: Op::Read, flags: 1 << 6, fixed_buf: 0 };
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlainKind {
    pub(crate) op: Op,
    pub(crate) flags: u16,
    pub(crate) fixed_buf: u16,
}

impl PlainKind {
    /// Makes the kind of writes or (`write` false) of reads. Flags that a submitter may not set are ignored.
    /// `fixed_buf` is the registered buffer that contains all memory, or [`NO_FIXED_BUF`](crate::bio::NO_FIXED_BUF).
    #[inline(always)]
    #[must_use]
    pub const fn new(write: bool, flags: u16, fixed_buf: u16) -> PlainKind {
        PlainKind { op: if write { Op::Write } else { Op::Read }, flags: flags & BIO_USER, fixed_buf }
    }
}

/// Partition and kind of a lane in one word, for comparing lanes of one device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaneId(u64);

impl LaneId {
    /// Differs from the id of every lane.
    pub(crate) const NONE: LaneId = LaneId(u64::MAX);

    #[inline(always)]
    pub(crate) fn new(part: u16, kind: PlainKind) -> LaneId {
        let PlainKind { op, flags, fixed_buf } = kind;
        LaneId(op as u64 | u64::from(flags) << 8 | u64::from(fixed_buf) << 24 | u64::from(part) << 40)
    }
}

/// Result of sending an I/O alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Alone {
    /// The I/O was not sent and nothing was changed. The caller must submit it through a lane.
    No,
    /// The I/O is in flight. A poll reports its end through [`EndIo`](crate::ctx::EndIo).
    Sent,
    /// The I/O has ended with success and was reported to [`EndIo::end_one`](crate::ctx::EndIo::end_one).
    Ended,
}

/// Parameters that the I/Os of a run share, in addition to those of the lane.
#[derive(Clone, Copy, Debug)]
pub struct PlainRunOf {
    /// Number passed back when they end.
    pub owner: u32,
    /// Length of each I/O, a multiple of the logical block size.
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
    /// Makes an I/O at `sector` with the memory from address `base` on. `cookie` is passed back when it ends.
    ///
    /// # Safety
    /// The same as for [`BVec::new`](crate::bio::BVec::new), for the number of bytes of the run that uses the I/O.
    #[allow(unsafe_code)] // Devices write to where it points.
    #[inline(always)]
    pub const unsafe fn new(cookie: u64, sector: u64, base: usize) -> PlainIo {
        PlainIo { cookie, sector, base }
    }
}

/// I/O with a registered buffer of its own, for a run whose memory is in several buffers. The lane itself must have no
/// registered buffer. The driver gets the buffer unless the I/O shares a request with others.
#[derive(Clone, Copy, Debug)]
pub struct BufferedIo {
    /// The I/O itself.
    pub io: PlainIo,
    /// Index of the registered buffer.
    pub fixed_buf: u16,
}

/// Element of a run: a [`PlainIo`], or one with its own registered buffer.
pub trait RunItem: Copy {
    /// Returns the I/O.
    fn io(self) -> PlainIo;
    /// Returns its registered buffer if that is not the lane's.
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

/// Larger than any sector, and not adjacent to any.
const NOWHERE: u64 = 1 << 62;

/// State of the open lane. Kept in the hardware context and not on the stack, where its fields would take registers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenLane {
    pub(crate) bio: BioAttrs,
    /// Template of plain records. Times, bytes and owner are those of the open run.
    pub(crate) head: RqHead,
    pub(crate) info: TagInfo,
    /// Length of the longest I/O that takes the fast path; 0, so that none does, with FUA or PREFLUSH.
    pub(crate) max_bytes: u32,
    /// Time stamp of the batch.
    pub(crate) time: CoarseTs,
    /// First sector and end of the request gathered last (or of the bio merged into it last), or `NOWHERE`: a hint for
    /// merges.
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Partition and kind from which `bio`, `head`, `info` and `max_bytes` were made.
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
