//! Entries: what a volume's map says of one allocation unit, in one word; and the geometry of maps.
//!
//! Owns the bits of an entry. Bits 0..34 are the unit of the pool. In pools with units of up to 16 blocks the next 16
//! bits say which blocks are written; maps of larger units have these bits beside the entries. Flags are at the top:
//!
//! | flag | says |
//! |---|---|
//! | `ALLOC` | there is space: the low bits count |
//! | `FULL` | every block of the unit is written; the written bits need not be looked at |
//! | `OWN` | nobody else has the unit. Without it a write goes to `map_blocking`, which moves the unit or sets it |
//! | `READY` | nobody copies or zeroes. Without it writers wait |
//! | `DIRTY` | what the entry says is not durable: a flush of the device alone is not enough |
//! | `HANDED` | a writer got an unwritten block, and may be writing |
//! | `RECALLED` | the space was wanted back: writers ask for it anew, and who got it before may be writing |
//! | `LISTED` | the unit stands in the list of what the next commit must record |
//!
//! The first two are at the top, and what writers need beside them follows: so one comparison with a number says
//! whether an entry is [plain](super::plain).
//!
//! - I1: an entry changes under the pool's lock only; it is read without.
//! - I2: written bits of an entry without `ALLOC` are 0.
//! - I3: `OWN`, `HANDED`, `RECALLED` and `LISTED` say something of one volume, and an entry belongs to each that shares
//!   its leaf. So the copy of a leaf has none of them, nor has what it is a copy of. In a leaf that is shared as
//!   a whole `LISTED` is set only while a copy settles, for its source; the other three may be left from before, and
//!   nobody goes by them: a way that may be shared is tagged, and who changes an entry takes a leaf of its own first.
//!   The other flags, `DIRTY` among them, say of the unit what is true for all who share it.

use crate::format::BLOCK_SHIFT;

/// Leaves of an index node, as a power of two.
pub(crate) const INDEX_SHIFT: u32 = 8;

/// Where the written bits begin that an entry has itself, and how many it may have.
const BITS_SHIFT: u32 = 34;
const MOST_BITS: u32 = 16;

/// What a map says of one unit.
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
    /// Writes to unwritten blocks may be under way.
    pub(crate) const WRITERS: u64 = Self::HANDED | Self::RECALLED;
    /// What an entry says of one volume (I3).
    pub(crate) const OF_ONE: u64 = Self::OWN | Self::WRITERS | Self::LISTED;
    /// Entries from here on are plain for readers.
    pub(crate) const PLAIN_FOR_READS: u64 = Self::ALLOC | Self::FULL;
    /// Entries from here on are plain for writers.
    pub(crate) const PLAIN_FOR_WRITES: u64 = Self::PLAIN_FOR_READS | Self::OWN | Self::READY;
    pub(super) const PHYS: u64 = (1 << BITS_SHIFT) - 1;
    const BITS: u64 = ((1 << MOST_BITS) - 1) << BITS_SHIFT;

    /// Space at a unit of the pool, which nobody else has.
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

    /// Whether it has space.
    #[inline(always)]
    pub(crate) fn is_alloc(self) -> bool {
        self.has(Self::ALLOC)
    }

    /// The written bits that it has itself.
    #[inline(always)]
    pub(crate) fn bits(self) -> u64 {
        (self.0 & Self::BITS) >> BITS_SHIFT
    }

    /// This entry with other written bits.
    #[inline]
    #[must_use]
    pub(crate) fn with_bits(self, bits: u64) -> Entry {
        Entry(self.0 & !Self::BITS | bits << BITS_SHIFT & Self::BITS)
    }

    /// Whether others may have the unit.
    #[inline]
    pub(crate) fn is_shared(self) -> bool {
        self.0 & (Self::ALLOC | Self::OWN) == Self::ALLOC
    }

    /// Whether somebody copies or zeroes the unit.
    #[inline]
    pub(crate) fn is_busy(self) -> bool {
        self.0 & (Self::ALLOC | Self::READY) == Self::ALLOC
    }

    /// Whether it sends a writer to `map_blocking`, though it has space.
    #[inline]
    pub(crate) fn stops_writes(self) -> bool {
        self.is_shared() || self.is_busy()
    }

    /// Whether both say the same of where the data is.
    #[inline]
    pub(crate) fn same_place(self, other: Entry) -> bool {
        (self.0 ^ other.0) & (Self::ALLOC | Self::PHYS) == 0
    }
}

/// Sizes that all maps of a pool have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Geometry {
    /// Bytes of an allocation unit, as a power of two: 12 to 20.
    pub(crate) unit_shift: u32,
    /// Entries of a leaf, as a power of two.
    pub(crate) leaf_shift: u32,
}

impl Geometry {
    /// For units of `1 << unit_shift` bytes. A leaf and its written bits fit one block of 4 KiB.
    pub(crate) fn new(unit_shift: u32) -> Geometry {
        let unit_shift = unit_shift.clamp(BLOCK_SHIFT, 20);
        Geometry { unit_shift, leaf_shift: if unit_shift <= 17 { 8 } else { 8 - (unit_shift - 16) / 2 } }
    }

    pub(crate) fn unit_bytes(&self) -> u64 {
        1 << self.unit_shift
    }

    /// Blocks of a unit, as a power of two.
    #[inline(always)]
    pub(crate) fn blocks_shift(&self) -> u32 {
        self.unit_shift - BLOCK_SHIFT
    }

    /// Blocks of a unit.
    #[inline(always)]
    pub(crate) fn blocks(&self) -> u32 {
        1 << self.blocks_shift()
    }

    /// Entries of a leaf.
    pub(crate) fn leaf_entries(&self) -> usize {
        1 << self.leaf_shift
    }

    /// Whether entries have the written bits of their units themselves.
    #[inline(always)]
    pub(crate) fn has_bits_in_entries(&self) -> bool {
        self.blocks() <= MOST_BITS
    }

    /// Words of written bits of a leaf that stand beside its entries, as a power of two.
    pub(crate) fn bits_shift(&self) -> u32 {
        self.leaf_shift + self.blocks_shift() - 6
    }

    /// Units of a slot of a top, as a power of two.
    #[inline(always)]
    pub(crate) fn slot_shift(&self) -> u32 {
        self.leaf_shift + INDEX_SHIFT
    }

    /// Units that `bytes` take.
    pub(crate) fn units_of(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.unit_bytes())
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
