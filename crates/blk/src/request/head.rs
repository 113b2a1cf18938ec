//! Head of a request: the fields that all plain records of a run share.
//!
//! Owns the meaning of the fields, and the test for records that end alike. A head is half of a request's cache line,
//! copied as a whole in two stores. Invariant I5 of the parent applies to it.

use sheave_base::clock::CoarseTs;

use crate::bio::{BioId, Op};

/// Half of a request that is the same for all plain records of a run, copied in two stores. `Request` dereferences to
/// it.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(16))]
pub struct RqHead {
    /// Operation.
    pub op: Op,
    /// `RQ_*` bits.
    pub flags: u8,
    /// Number of pieces of memory.
    pub nr_segs: u16,
    /// Number of bios beyond the first; for a plain record the index of the registered buffer that contains its memory.
    pub(crate) merged_or_buf: u16,
    pub(crate) part: u16,
    /// Length in bytes.
    pub bytes: u32,
    /// Different for every use of the tag.
    pub(crate) generation: u32,
    /// Last bio; for a plain record the number of its owner.
    pub(crate) tail_or_owner: u32,
    pub(crate) bio_head: BioId,
    /// Time of issue: the cached time of the batch.
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
    /// Returns a number that distinguishes successive requests with the same tag.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    #[inline(always)]
    pub(crate) fn is_plain(&self) -> bool {
        self.bio_head == BioId::PLAIN
    }

    /// Returns true if both are plain records with the same operation and registered buffer, which a driver treats
    /// alike.
    #[inline(always)]
    pub fn goes_like(&self, other: &RqHead) -> bool {
        self.first_word() == other.first_word() && self.is_plain() && other.is_plain()
    }

    /// [`goes_like`](Self::goes_like), except that the registered buffers may differ.
    #[inline(always)]
    pub fn goes_like_in_any_buffer(&self, other: &RqHead) -> bool {
        // The fields before the buffer, and the one behind it.
        let rest = |head: &RqHead| (head.first_word() as u32, head.part);
        rest(self) == rest(other) && self.is_plain() && other.is_plain()
    }

    /// Returns the operation, the registered buffer and the fields beside them as one word, for a single comparison.
    #[inline(always)]
    fn first_word(&self) -> u64 {
        let (op, flags) = (u64::from(self.op as u8), u64::from(self.flags) << 8);
        let (segs, buf) = (u64::from(self.nr_segs) << 16, u64::from(self.merged_or_buf) << 32);
        op | flags | segs | buf | u64::from(self.part) << 48
    }

    /// Returns true if both are plain records with the same owner, operation and flags, issued at the same time.
    #[inline(always)]
    pub(crate) fn ends_like(&self, other: &RqHead) -> bool {
        let whose = |head: &RqHead| u64::from(head.bio_head.0) << 32 | u64::from(head.tail_or_owner);
        let what = |head: &RqHead| u16::from(head.op as u8) | u16::from(head.flags) << 8;
        whose(self) == whose(other) && self.start == other.start && what(self) == what(other) && self.is_plain()
    }
}

const _: () = assert!(size_of::<RqHead>() == 32, "two stores");
