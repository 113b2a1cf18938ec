//! Readers' half of a tag set: a walk over the busy tags, and the counts computed from it.
//!
//! Owns no tag. Invariants I2 and I3 of the parent hold for every walk.

use crossbeam_utils::CachePadded;
use sheave_base::sync::Arc;
use sheave_base::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::bio::Op;

/// The request is accounted.
pub(super) const LIVE: u32 = 1 << 31;
/// The block layer holds the request back.
pub(super) const HELD: u32 = 1 << 30;
pub(super) const PART_SHIFT: u32 = 8;

/// Number of requests that drivers have, by direction. Flushes, discards and write-zeroes are `other`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct InFlight {
    /// Reads.
    pub reads: u32,
    /// Writes.
    pub writes: u32,
    /// Operations without data.
    pub other: u32,
}

impl InFlight {
    /// Returns the sum.
    pub fn total(&self) -> u32 {
        self.reads + self.writes + self.other
    }

    pub(crate) fn count(&mut self, op: Op) {
        match op {
            Op::Read => self.reads += 1,
            Op::Write => self.writes += 1,
            _ => self.other += 1,
        }
    }
}

/// Words of an owned set. Readers keep them for each of many sets, so that a reading follows as few pointers as
/// possible.
#[derive(Debug)]
pub(crate) struct TagWalk {
    busy: Arc<[CachePadded<AtomicU64>]>,
    info: Arc<[AtomicU32]>,
}

impl TagWalk {
    pub(super) fn new(busy: Arc<[CachePadded<AtomicU64>]>, info: Arc<[AtomicU32]>) -> TagWalk {
        TagWalk { busy, info }
    }

    /// [`TagSet::for_each`](super::TagSet::for_each) for this set.
    #[inline]
    pub(crate) fn for_each(&self, tell: &mut impl FnMut(Op, u16, bool)) {
        for (word, busy) in self.busy.iter().enumerate() {
            // Acquire: as in `TagSet::busy`.
            tell_of_word(&self.info, word, busy.load(Ordering::Acquire), tell);
        }
    }
}

/// Calls `tell` for each accounted request of one word of tags.
#[inline(always)]
pub(super) fn tell_of_word(info: &[AtomicU32], word: usize, mut busy: u64, tell: &mut impl FnMut(Op, u16, bool)) {
    while busy != 0 {
        let tag = word * 64 + busy.trailing_zeros() as usize;
        busy &= busy - 1;
        // Relaxed: ordered by the load of the busy word (I2). A tag that is reused meanwhile shows its old or its new
        // request; either was accounted during the walk.
        let info = info[tag].load(Ordering::Relaxed);
        if info & LIVE != 0 {
            tell(Op::from_u8(info as u8), (info >> PART_SHIFT) as u16, info & HELD != 0);
        }
    }
}
