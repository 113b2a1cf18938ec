//! Checksums of data: the CRC32C of every written 4 KiB block of a pool that keeps them.
//!
//! | module | holds |
//! |---|---|
//! | [`arena`] | the numbers in memory |
//! | [`stripes`] | which blocks are being written |
//! | [`regions`] | what is open and what changed, under the pool's lock; what a checkpoint writes of it |
//! | [`data`] | what an I/O does at its end: sums up what was written, compares what was read |
//! | [`unknown`] | which blocks could not be read when their checksums were to be computed |
//! | [`marks`] | which blocks were told bad, and stay so |
//!
//! Checksums belong to blocks of the pool, so that what snapshots share has one. A write stores them when its data is
//! on the device, before the written bits; a read compares. Volumes of such a pool have blocks of 4 KiB.
//!
//! Invariants:
//! - S1: data is written only to regions that are [open](Sums::is_open), and a region is open only while that is
//!   durable: so after a crash the checksums of all that may have been under way are computed anew, and no others.
//!   Copies that a write makes of shared units are data too.
//! - S2: a checksum is stored before its region is marked dirty; a checkpoint takes the mark before it reads checksums.
//! - S3: of writes to one block at once, whoever ends last reads the block back ([`Stripes`]); what cannot be read is
//!   [`unknown`], not bad.
//! - S4: a mismatch is one only when no write was under way between two looks and a read in between.

mod arena;
pub(crate) mod data;
pub(crate) mod marks;
pub(crate) mod regions;
mod stripes;
pub(crate) mod unknown;

use std::collections::BTreeMap;

use sheave_base::sync::Mutex;
use sheave_base::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use sheave_iomap::Mapping;

use arena::SumArena;
use stripes::Stripes;

use crate::format::BLOCK_SHIFT;
use crate::format::page::sums::Marked;
use crate::format::superblock::Geometry;

/// Flags of a region: data may be written.
const OPEN: u32 = 1;
/// Checksums have changed since the last checkpoint.
const DIRTY: u32 = 2;

/// The checksum of a block's data.
#[inline]
pub(crate) fn crc(block: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, block) as u32
}

/// The checksums of a pool, used without its lock.
#[derive(Debug)]
pub(crate) struct Sums {
    pub(crate) arena: SumArena,
    pub(crate) stripes: Stripes,
    unit_shift: u32,
    region_units: u64,
    /// One at a time reads blocks back (S3).
    pub(crate) repair: Mutex<()>,
    pub(crate) mismatches: AtomicU64,
    marks: Marks,
    unknown: Unknown,
    /// Checksums that opening the pool computed and that were others before.
    pub(crate) rebuilt: AtomicU64,
}

/// The marks of bad blocks; what is done with them is in [`marks`].
#[derive(Debug, Default)]
pub(crate) struct Marks(Mutex<MarkTable>);

/// What is under its lock.
#[derive(Debug, Default)]
pub(crate) struct MarkTable {
    regions: BTreeMap<u64, Marked>,
    /// How many marks were set, and how many of the first of them are surely durable.
    set: u64,
    durable: u64,
}

/// The checksums that blocks had which could not be read, by region and block; what is done with them is in
/// [`unknown`].
#[derive(Debug, Default)]
pub(crate) struct Unknown(Mutex<BTreeMap<(u64, u64), u32>>);

impl Sums {
    pub(crate) fn new(geometry: &Geometry) -> Sums {
        Sums {
            arena: SumArena::new(),
            stripes: Stripes::new(),
            unit_shift: geometry.unit_bytes.trailing_zeros() - BLOCK_SHIFT,
            region_units: geometry.region_units(),
            repair: Mutex::new(()),
            mismatches: AtomicU64::new(0),
            marks: Marks::default(),
            unknown: Unknown::default(),
            rebuilt: AtomicU64::new(0),
        }
    }

    /// Blocks that did not match since the pool was opened.
    pub(crate) fn mismatches(&self) -> u64 {
        self.mismatches.load(Ordering::Relaxed) // Relaxed: a statistic.
    }

    /// Blocks that were believed as they lay on the device when the pool was opened.
    pub(crate) fn rebuilt(&self) -> u64 {
        self.rebuilt.load(Ordering::Relaxed) // Relaxed: a statistic.
    }

    /// The region of a unit.
    pub(crate) fn region(&self, unit: u64) -> u64 {
        unit / self.region_units
    }

    /// The region of a byte address of the pool.
    #[inline]
    pub(crate) fn region_at(&self, addr: u64) -> u64 {
        self.region(addr >> (self.unit_shift + BLOCK_SHIFT))
    }

    /// The part of a mapping that lies in the region where it begins.
    #[inline]
    pub(crate) fn within_region(&self, mapping: Mapping) -> Mapping {
        let end = ((self.region_at(mapping.addr) + 1) * self.region_units) << (self.unit_shift + BLOCK_SHIFT);
        mapping.len(mapping.len.min(end - mapping.addr))
    }

    /// The region of a block, and its number within the region.
    #[inline]
    pub(crate) fn place(&self, block: u64) -> (u64, usize) {
        let unit = block >> self.unit_shift;
        let inside = (unit % self.region_units) << self.unit_shift | block & ((1 << self.unit_shift) - 1);
        (self.region(unit), inside as usize)
    }

    /// The region of a block, and how many of `count` blocks from it on are of its unit.
    pub(crate) fn run_in_unit(&self, block: u64, count: u64) -> (u64, u64) {
        let blocks = 1 << self.unit_shift;
        (self.region_of(block), count.min(blocks - (block & (blocks - 1))))
    }

    /// The region of a block.
    pub(crate) fn region_of(&self, block: u64) -> u64 {
        self.place(block).0
    }

    /// The blocks of a unit, by their numbers in the pool.
    pub(crate) fn blocks_of(&self, unit: u64) -> std::ops::Range<u64> {
        unit << self.unit_shift..(unit + 1) << self.unit_shift
    }

    #[inline]
    fn slot(&self, block: u64) -> Option<&AtomicU32> {
        let (region, inside) = self.place(block);
        self.arena.node(region)?.get(1 + inside)
    }

    fn flags(&self, region: u64) -> Option<&AtomicU32> {
        self.arena.node(region)?.first()
    }

    /// The checksum of a block, by its number in the pool.
    #[inline]
    pub(crate) fn get(&self, block: u64) -> Option<u32> {
        // Acquire: pairs with the Release store in `set`; who sees the block's written bit sees its checksum.
        self.slot(block).map(|slot| slot.load(Ordering::Acquire))
    }

    /// Stores it; [`Sums::mark_dirty`] is to follow (S2).
    #[inline]
    pub(crate) fn set(&self, block: u64, sum: u32) {
        if let Some(slot) = self.slot(block) {
            slot.store(sum, Ordering::Release); // Release: pairs with the Acquire load in `get`
        }
    }

    /// The region's next checkpoint writes its page.
    #[inline]
    pub(crate) fn mark_dirty(&self, region: u64) {
        if let Some(flags) = self.flags(region) {
            flags.fetch_or(DIRTY, Ordering::SeqCst); // SeqCst: S2
        }
    }

    fn take_dirty(&self, region: u64) -> bool {
        self.flags(region).is_some_and(|flags| flags.fetch_and(!DIRTY, Ordering::SeqCst) & DIRTY != 0) // SeqCst: S2
    }

    /// Whether data may be written at a byte address (S1). Inside a section of the volume's grace.
    #[inline]
    pub(crate) fn is_open(&self, addr: u64) -> bool {
        // Acquire: pairs with `set_open`; a region that closes waits for a grace after that.
        self.flags(self.region_at(addr)).is_some_and(|flags| flags.load(Ordering::Acquire) & OPEN != 0)
    }

    pub(crate) fn set_open(&self, region: u64, open: bool) {
        if let Some(flags) = self.flags(region) {
            // SeqCst: before the grace that follows a closing.
            if open {
                flags.fetch_or(OPEN, Ordering::SeqCst)
            } else {
                flags.fetch_and(!OPEN, Ordering::SeqCst)
            };
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
