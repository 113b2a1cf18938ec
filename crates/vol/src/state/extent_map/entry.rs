//! Entries: one word of a volume's map per allocation unit; and the geometry of maps.
//!
//! Owns the bits of an entry. Bits 0..34 are the number of the unit in the pool. In pools with units of up to 16 blocks
//! the next 16 bits are the written bits of the blocks; maps of larger units have these bits beside the entries. Flags
//! are at the top:
//!
//! | flag | meaning |
//! |---|---|
//! | `ALLOC` | the entry has a unit: the low bits are valid |
//! | `FULL` | every block of the unit is written; the written bits need not be read |
//! | `OWN` | no other volume has the unit; otherwise a write goes to `map_blocking`, which moves it or sets `OWN` |
//! | `READY` | the unit is not being copied or zeroed. Without it writers wait |
//! | `DIRTY` | the entry is not durable: a flush of the device alone is not enough |
//! | `HANDED` | a writer was given an unwritten block and may have a write in flight |
//! | `RECALLED` | a reclaim of the unit began: writers must map it again, and earlier writes may still be in flight |
//! | `LISTED` | the unit is in the list that the next commit records |
//!
//! `ALLOC` and `FULL` are the highest bits, followed by the flags that writers need too. So one comparison of numbers
//! shows whether an entry is [plain](super::plain).
//!
//! - I1: an entry changes only under the pool's lock. It is read without the lock.
//! - I2: written bits of an entry without `ALLOC` are 0.
//! - I3: `OWN`, `HANDED`, `RECALLED` and `LISTED` concern one volume, but every volume that shares a leaf has all of
//!   its entries. So copying a leaf clears these flags in the copy and in the original. In a leaf that is shared as a
//!   whole, `LISTED` is set only while a copy settles, for its source. The other three may be wrong there, and nothing
//!   uses them: a path that may be shared is tagged, and a change makes the leaf exclusive first. All other flags,
//!   including `DIRTY`, are right for every volume that shares the unit.

use crate::format::BLOCK_SHIFT;

/// Binary logarithm of the number of leaves of an index node.
pub(crate) const INDEX_SHIFT: u32 = 8;

/// Position of the written bits in an entry, and the number of blocks that they can cover.
const BITS_SHIFT: u32 = 34;
const MOST_BITS: u32 = 16;

/// Map word of one unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Entry(pub(crate) u64);

impl Entry {
    pub(crate) const NONE: Entry = Entry(0);
    pub(crate) const ALLOC: u64 = 1 << 63;
    pub(crate) const FULL: u64 = 1 << 62;
    pub(crate) const OWN: u64 = 1 << 61;
    pub(crate) const READY: u64 = 1 << 60;
    pub(crate) const DIRTY: u64 = 1 << 59;
    pub(crate) const HANDED: u64 = 1 << 58;
    pub(crate) const LISTED: u64 = 1 << 57;
    pub(crate) const RECALLED: u64 = 1 << 56;
    /// Flags each of which means that writes to unwritten blocks may be in flight.
    pub(crate) const WRITERS: u64 = Self::HANDED | Self::RECALLED;
    /// Flags that concern one volume (I3).
    pub(crate) const OF_ONE: u64 = Self::OWN | Self::WRITERS | Self::LISTED;
    /// Every entry that is at least this number is plain for readers.
    pub(crate) const PLAIN_FOR_READS: u64 = Self::ALLOC | Self::FULL;
    /// Every entry that is at least this number is plain for writers.
    pub(crate) const PLAIN_FOR_WRITES: u64 = Self::PLAIN_FOR_READS | Self::OWN | Self::READY;
    pub(super) const PHYS: u64 = (1 << BITS_SHIFT) - 1;
    const BITS: u64 = ((1 << MOST_BITS) - 1) << BITS_SHIFT;

    /// Returns the entry for a unit that no other volume has.
    #[inline]
    pub(crate) fn at(phys: u64) -> Entry {
        Entry(Self::ALLOC | Self::OWN | Self::READY | phys & Self::PHYS)
    }

    #[inline(always)]
    pub(crate) fn phys(self) -> u64 {
        self.0 & Self::PHYS
    }

    #[inline(always)]
    pub(crate) fn has(self, flags: u64) -> bool {
        self.0 & flags == flags
    }

    #[inline(always)]
    pub(crate) fn any(self, flags: u64) -> bool {
        self.0 & flags != 0
    }

    #[inline]
    #[must_use]
    pub(crate) fn with(self, flags: u64) -> Entry {
        Entry(self.0 | flags)
    }

    #[inline]
    #[must_use]
    pub(crate) fn without(self, flags: u64) -> Entry {
        Entry(self.0 & !flags)
    }

    #[inline(always)]
    pub(crate) fn is_alloc(self) -> bool {
        self.has(Self::ALLOC)
    }

    /// Returns the written bits stored in the entry itself.
    #[inline(always)]
    pub(crate) fn bits(self) -> u64 {
        (self.0 & Self::BITS) >> BITS_SHIFT
    }

    #[inline]
    #[must_use]
    pub(crate) fn with_bits(self, bits: u64) -> Entry {
        Entry(self.0 & !Self::BITS | bits << BITS_SHIFT & Self::BITS)
    }

    /// Returns true if other volumes may have the unit.
    #[inline]
    pub(crate) fn is_shared(self) -> bool {
        self.0 & (Self::ALLOC | Self::OWN) == Self::ALLOC
    }

    /// Returns true if the unit is being copied or zeroed.
    #[inline]
    pub(crate) fn is_busy(self) -> bool {
        self.0 & (Self::ALLOC | Self::READY) == Self::ALLOC
    }

    /// Returns true if a writer must call `map_blocking` although the entry has a unit.
    #[inline]
    pub(crate) fn stops_writes(self) -> bool {
        self.is_shared() || self.is_busy()
    }

    /// Returns true if both entries have the same unit, or are both holes.
    #[inline]
    pub(crate) fn same_place(self, other: Entry) -> bool {
        (self.0 ^ other.0) & (Self::ALLOC | Self::PHYS) == 0
    }
}

/// Sizes common to all maps of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Geometry {
    /// Binary logarithm of the number of bytes of an allocation unit: 12 to 20.
    pub(crate) unit_shift: u32,
    pub(crate) leaf_shift: u32,
}

impl Geometry {
    /// Returns the geometry for units of `1 << unit_shift` bytes. A leaf and its written bits fit one block of 4 KiB.
    pub(crate) fn new(unit_shift: u32) -> Geometry {
        let unit_shift = unit_shift.clamp(BLOCK_SHIFT, 20);
        Geometry { unit_shift, leaf_shift: if unit_shift <= 17 { 8 } else { 8 - (unit_shift - 16) / 2 } }
    }

    pub(crate) fn unit_bytes(&self) -> u64 {
        1 << self.unit_shift
    }

    #[inline(always)]
    pub(crate) fn blocks_shift(&self) -> u32 {
        self.unit_shift - BLOCK_SHIFT
    }

    #[inline(always)]
    pub(crate) fn blocks(&self) -> u32 {
        1 << self.blocks_shift()
    }

    pub(crate) fn leaf_entries(&self) -> usize {
        1 << self.leaf_shift
    }

    /// Returns true if entries hold the written bits of their units.
    #[inline(always)]
    pub(crate) fn has_bits_in_entries(&self) -> bool {
        self.blocks() <= MOST_BITS
    }

    /// Returns the binary logarithm of the number of words of written bits beside the entries of a leaf.
    pub(crate) fn bits_shift(&self) -> u32 {
        self.leaf_shift + self.blocks_shift() - 6
    }

    /// Returns the binary logarithm of the number of units below one slot of a top.
    #[inline(always)]
    pub(crate) fn slot_shift(&self) -> u32 {
        self.leaf_shift + INDEX_SHIFT
    }

    pub(crate) fn units_of(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.unit_bytes())
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn flags_and_place_do_not_touch() {
        let flags = Entry::PLAIN_FOR_WRITES | Entry::DIRTY | Entry::WRITERS | Entry::LISTED;
        assert_eq!(flags.count_ones(), 8);
        let entry = Entry::at(u64::MAX).with(flags);
        assert_eq!(entry.phys(), crate::format::MAX_POOL_UNITS - 1);
        let bits = entry.with_bits(0x8001);
        assert_eq!((bits.phys(), bits.bits(), entry.bits()), (entry.phys(), 0x8001, 0));
        assert!(bits.has(flags) && bits.with_bits(0) == entry && Entry::NONE.with_bits(u64::MAX).phys() == 0);
        assert!(entry.has(flags) && !entry.without(Entry::FULL).any(Entry::FULL));
        assert!(entry.same_place(Entry::at(u64::MAX)) && !entry.same_place(Entry::at(3)));
    }

    #[test]
    fn a_leaf_fits_a_block() {
        for (unit_shift, entries) in [(12, 256), (16, 256), (17, 256), (18, 128), (19, 128), (20, 64)] {
            let geometry = Geometry::new(unit_shift);
            assert_eq!(geometry.leaf_entries(), entries, "units of 1 << {unit_shift}");
            let bytes = entries * 8 + (8 << geometry.bits_shift());
            assert!(bytes <= 4096 - 64, "{bytes} bytes");
        }
    }
}
