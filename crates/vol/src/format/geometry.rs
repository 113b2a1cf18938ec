//! The geometry of a pool: the sizes and shapes that follow from its unit, its size and its journal.
//!
//! Owns how many units a leaf maps, where units begin, and how many pages checksums take. Called by whoever turns units
//! into bytes or pages.

use crate::format::damage::{Damage, require};
use crate::format::page::PageRef;
use crate::format::*;

/// What the sizes of a pool mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of an allocation unit.
    pub unit_bytes: u32,
    /// Allocation units of the pool.
    pub total_units: u64,
    /// First unit that is not reserved for superblocks and journal.
    pub first_unit: u64,
    /// Entries of a leaf.
    pub leaf_entries: usize,
    /// 4 KiB blocks of a unit.
    pub unit_blocks: usize,
    /// Words of written bits of an entry.
    pub entry_words: usize,
    /// Each page has a second copy.
    pub paired: bool,
}

impl Geometry {
    /// Of a pool of this many units and journal blocks. `unit_bytes` is a power of two in the format's bounds.
    pub fn new(unit_bytes: u32, total_units: u64, journal_blocks: u32) -> Geometry {
        let unit_blocks = unit_bytes as usize / BLOCK;
        let reserved = JOURNAL_START + u64::from(journal_blocks) * BLOCK_BYTES;
        Geometry {
            unit_bytes,
            total_units,
            first_unit: reserved.div_ceil(u64::from(unit_bytes)),
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

    /// Bytes of the pool.
    pub fn bytes(&self) -> u64 {
        self.total_units.saturating_mul(u64::from(self.unit_bytes))
    }

    /// All written bits of the last word of an entry; the words before it are all ones.
    pub fn full_word(&self) -> u64 {
        if self.unit_blocks >= 64 { u64::MAX } else { (1 << self.unit_blocks) - 1 }
    }

    /// Units of a region: as many as a page of checksums has room for.
    pub fn region_units(&self) -> u64 {
        (MAX_SUMS / self.unit_blocks) as u64
    }

    /// Regions of a pool of so many units.
    pub fn regions(&self, units: u64) -> u64 {
        units.div_ceil(self.region_units())
    }

    /// Pages of a level that the tree of checksums may have.
    pub(crate) fn sums_pages(&self, level: u16) -> u64 {
        (0..level).fold(self.regions(self.total_units), |pages, _| pages.div_ceil(INDEX_CHILDREN as u64))
    }

    /// Free units that data does not get in a pool with one copy of its pages.
    pub(crate) fn reserve_units(&self) -> u64 {
        let pages_per_unit = self.unit_blocks as u64;
        let (least, most) = (128_u64.div_ceil(pages_per_unit).max(2), 65_536 / pages_per_unit);
        (self.total_units / 64).clamp(least, most.max(least))
    }

    /// Whether these words say that all blocks are written.
    pub fn is_full(&self, written: &[u64]) -> bool {
        written.iter().all(|&word| word == self.full_word())
    }

    /// Level of the lowest index page that covers this many units: 1 at least.
    pub fn root_level(&self, units: u64) -> u16 {
        let mut pages = units.div_ceil(self.leaf_entries as u64).div_ceil(INDEX_CHILDREN as u64);
        let mut level = 1;
        while pages > 1 {
            pages = pages.div_ceil(INDEX_CHILDREN as u64);
            level += 1;
        }
        level
    }

    /// Units under a page of a level.
    pub fn units_below(&self, level: u16) -> u64 {
        (self.leaf_entries as u64) << (8 * u32::from(level.min(MAX_LEVEL)))
    }

    /// A unit of data or metadata, not a reserved one and not beyond the end.
    pub fn is_unit(&self, phys: u64) -> bool {
        (self.first_unit..self.total_units).contains(&phys)
    }

    /// None, or a page inside the pool.
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
