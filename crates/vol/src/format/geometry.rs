//! The geometry of a pool: the sizes and shapes that follow from its unit, its size and its journal.
//!
//! Owns the number of units that a leaf maps, the first usable unit, and the number of pages for checksums. Called to
//! convert between units, bytes and pages.

use crate::format::damage::{Damage, require};
use crate::format::page::PageRef;
use crate::format::*;

/// Sizes of a pool, and the numbers derived from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of an allocation unit.
    pub unit_bytes: u32,
    /// Number of allocation units of the pool.
    pub total_units: u64,
    /// First unit that is not reserved for superblocks and journal.
    pub first_unit: u64,
    /// Number of entries of a leaf.
    pub leaf_entries: usize,
    /// Number of 4 KiB blocks of a unit.
    pub unit_blocks: usize,
    /// Number of words of written bits of an entry.
    pub entry_words: usize,
    /// True if each page has a second copy.
    pub paired: bool,
}

impl Geometry {
    /// Derives the geometry of a pool with one copy of its pages. `unit_bytes` is a power of two within the format's
    /// bounds.
    pub fn new(unit_bytes: u32, total_units: u64, journal_blocks: u32) -> Geometry {
        let unit_blocks = unit_bytes as usize / BLOCK;
        let reserved = JOURNAL_START + u64::from(journal_blocks) * BLOCK_BYTES;
        Geometry {
            unit_bytes,
            total_units,
            first_unit: reserved.div_ceil(u64::from(unit_bytes)),
            // Larger units have larger bitmaps: with fewer entries, entries and bitmaps still fit one block.
            leaf_entries: match unit_blocks {
                0..=32 => MAX_LEAF_ENTRIES,
                33..=128 => 128,
                _ => 64,
            },
            unit_blocks,
            entry_words: unit_blocks.div_ceil(64),
            paired: false,
        }
    }

    /// Returns the size of the pool in bytes.
    pub fn bytes(&self) -> u64 {
        self.total_units.saturating_mul(u64::from(self.unit_bytes))
    }

    /// Returns the last word of an entry whose blocks are all written; all words before it are all ones.
    pub fn full_word(&self) -> u64 {
        if self.unit_blocks >= 64 { u64::MAX } else { (1 << self.unit_blocks) - 1 }
    }

    /// Returns the number of units of a region: those whose checksums fit one page.
    pub fn region_units(&self) -> u64 {
        (MAX_SUMS / self.unit_blocks) as u64
    }

    /// Returns the number of regions of `units` units.
    pub fn regions(&self, units: u64) -> u64 {
        units.div_ceil(self.region_units())
    }

    /// Returns the largest number of pages that the tree of checksums can have at `level`.
    pub(crate) fn sums_pages(&self, level: u16) -> u64 {
        (0..level).fold(self.regions(self.total_units), |pages, _| pages.div_ceil(INDEX_CHILDREN as u64))
    }

    /// Returns the number of free units reserved for metadata in a pool with one copy of its pages.
    pub(crate) fn reserve_units(&self) -> u64 {
        let pages_per_unit = self.unit_blocks as u64;
        let (least, most) = (128_u64.div_ceil(pages_per_unit).max(2), 65_536 / pages_per_unit);
        // A 64th of the pool: at least 128 pages and 2 units, at most 65,536 pages.
        (self.total_units / 64).clamp(least, most.max(least))
    }

    /// Returns true if `written` has the bits of all blocks of a unit.
    pub fn is_full(&self, written: &[u64]) -> bool {
        written.iter().all(|&word| word == self.full_word())
    }

    /// Returns the level of the lowest index page that covers `units` units, at least 1.
    pub fn root_level(&self, units: u64) -> u16 {
        let mut pages = units.div_ceil(self.leaf_entries as u64).div_ceil(INDEX_CHILDREN as u64);
        let mut level = 1;
        while pages > 1 {
            pages = pages.div_ceil(INDEX_CHILDREN as u64);
            level += 1;
        }
        level
    }

    /// Returns the number of units that a page of `level` covers.
    pub fn units_below(&self, level: u16) -> u64 {
        (self.leaf_entries as u64) << (8 * u32::from(level.min(MAX_LEVEL)))
    }

    /// Returns true for a unit of data or metadata: neither reserved nor beyond the end of the pool.
    pub fn is_unit(&self, phys: u64) -> bool {
        (self.first_unit..self.total_units).contains(&phys)
    }

    /// Returns an error unless `page` is none, or a page inside the pool with the copies that the pool has.
    pub(crate) fn require_page(&self, page: PageRef, field: &'static str) -> Result<(), Damage> {
        if page.is_none() {
            require(page.second == 0, field, page.second, "is a second copy of no page")?;
            return require(page.checksum == 0, field, page.checksum, "is a checksum of no page");
        }
        let aligned = page.address.is_multiple_of(BLOCK_BYTES);
        let unit = page.address / u64::from(self.unit_bytes);
        require(aligned && self.is_unit(unit), field, page.address, "is no page of the pool")?;
        let second = u64::from(page.second);
        let good = if self.paired { self.is_unit(second) && second != unit } else { second == 0 };
        require(good, field, page.second, "is no unit that a second copy can be in")
    }
}
