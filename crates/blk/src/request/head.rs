//! The head of a request: the fields that all plain records of a run have in common.
//!
//! Owns what they mean, and when two records end alike. A head is half of a request's cache line; it is copied as a
//! whole, in two stores. Invariant I5 of the parent is about it.

use sheave_base::clock::CoarseTs;

use crate::bio::{BioId, Op};

/// The half of a request that is the same for all plain records of a run: copied in two stores. A request has the
/// fields as its own.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(16))]
pub struct RqHead {
    /// What to do.
    pub op: Op,
    /// `RQ_*` bits.
    pub flags: u8,
    /// Pieces of memory.
    pub nr_segs: u16,
    /// Bios beyond the first; of a plain record, which has none, the registered buffer that holds its memory.
    pub(crate) merged_or_buf: u16,
    pub(crate) part: u16,
    /// Length in bytes.
    pub bytes: u32,
    /// Another one with every use of the tag.
    pub(crate) generation: u32,
    /// The last bio; of a plain record, the number of its owner.
    pub(crate) tail_or_owner: u32,
    pub(crate) bio_head: BioId,
    /// When it was issued (cached time of the batch).
    pub(crate) start: CoarseTs,
}

impl Default for RqHead {
    fn default() -> Self {
        RqHead {
            op: Op::Read,
            flags: 0,
            nr_segs: 0,
            merged_or_buf: 0,
            part: 0,
            bytes: 0,
            generation: 0,
            tail_or_owner: BioId::NONE.0,
            bio_head: BioId::NONE,
            start: CoarseTs::default(),
        }
    }
}

impl RqHead {
    /// Tells apart the requests that have had a tag one after the other.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    #[inline(always)]
    pub(crate) fn is_plain(&self) -> bool {
        self.bio_head == BioId::PLAIN
    }

    /// Whether both are plain records with one operation and one registered buffer, for which a driver does alike.
    #[inline(always)]
    pub fn goes_like(&self, other: &RqHead) -> bool {
        self.first_word() == other.first_word() && self.is_plain() && other.is_plain()
    }

    /// As [`goes_like`](Self::goes_like), but for the registered buffer, which may be another one, or none.
    #[inline(always)]
    pub fn goes_like_in_any_buffer(&self, other: &RqHead) -> bool {
        // What lies before the buffer, and what lies behind it.
        let rest = |head: &RqHead| (head.first_word() as u32, head.part);
        rest(self) == rest(other) && self.is_plain() && other.is_plain()
    }

    /// The operation, the registered buffer and what lies beside them, which is compared in one go.
    #[inline(always)]
    fn first_word(&self) -> u64 {
        let (op, flags) = (u64::from(self.op as u8), u64::from(self.flags) << 8);
        let (segs, buf) = (u64::from(self.nr_segs) << 16, u64::from(self.merged_or_buf) << 32);
        op | flags | segs | buf | u64::from(self.part) << 48
    }

    /// Whether both are plain records of one owner, with one operation and flags, issued at one time.
    #[inline(always)]
    pub(crate) fn ends_like(&self, other: &RqHead) -> bool {
        let whose = |head: &RqHead| u64::from(head.bio_head.0) << 32 | u64::from(head.tail_or_owner);
        let what = |head: &RqHead| u16::from(head.op as u8) | u16::from(head.flags) << 8;
        whose(self) == whose(other) && self.start == other.start && what(self) == what(other) && self.is_plain()
    }
}

const _: () = assert!(size_of::<RqHead>() == 32, "two stores");
