//! Checksums of data: the CRC32C of every written 4 KiB block of a pool that keeps them.
//!
//! | module | holds |
//! |---|---|
//! | [`arena`] | memory of the checksums |
//! | [`stripes`] | blocks with writes in flight |
//! | [`regions`] | which regions are open or changed, under the pool's lock; their checkpoint pages |
//! | [`data`] | completion of I/O: stores checksums of writes, verifies reads |
//! | [`unknown`] | blocks that could not be read when their checksums were due |
//! | [`marks`] | blocks that were reported bad, and stay so |
//!
//! Checksums belong to blocks of the pool, so snapshots that share a block share its checksum. A write stores its
//! checksums when its data is on the device, before it sets the written bits. A read compares them with its data.
//! Volumes of such a pool have blocks of 4 KiB.
//!
//! Invariants:
//! - S1: data, including copies of shared units, is written only to regions that are [open](Sums::is_open), and a
//!   region is open only while its open state is durable. So after a crash the checksums of all blocks that may have
//!   had writes in flight are computed anew, and no others.
//! - S2: a checksum is stored before its region is marked dirty; a checkpoint clears the dirty flag before it reads
//!   checksums.
//! - S3: of concurrent writes to one block, the last to end reads the block back ([`Stripes`]). A block that cannot be
//!   read is [`unknown`], not bad.
//! - S4: a mismatch counts only if the block was read between two looks at its stripe and no write was in flight from
//!   the first to the second.

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

/// Flag of a region: data may be written (S1).
const OPEN: u32 = 1;
/// Flag of a region: checksums have changed since the last checkpoint.
const DIRTY: u32 = 2;

/// Returns the CRC32C of a block's data.
#[inline]
pub(crate) fn crc(block: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, block) as u32
}

/// The checksums of a pool. Usable without the pool's lock.
#[derive(Debug)]
pub(crate) struct Sums {
    pub(crate) arena: SumArena,
    pub(crate) stripes: Stripes,
    unit_shift: u32,
    region_units: u64,
    /// Held while blocks are read back (S3).
    pub(crate) repair: Mutex<()>,
    pub(crate) mismatches: AtomicU64,
    marks: Marks,
    unknown: Unknown,
    /// Number of checksums that recovery computed and that differed from the stored ones, and of those that were later
    /// accepted for unreadable blocks.
    pub(crate) rebuilt: AtomicU64,
}

/// Marks of bad blocks; its methods are in [`marks`].
#[derive(Debug, Default)]
pub(crate) struct Marks(Mutex<MarkTable>);

#[derive(Debug, Default)]
pub(crate) struct MarkTable {
    regions: BTreeMap<u64, Marked>,
    /// Count of marks set so far, and the count up to which they are known to be durable.
    set: u64,
    durable: u64,
}

/// Old checksums of blocks that could not be read, by region and block; its methods are in [`unknown`].
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

    /// Returns the number of mismatches since the pool was opened.
    pub(crate) fn mismatches(&self) -> u64 {
        self.mismatches.load(Ordering::Relaxed) // Relaxed: a statistic.
    }

    /// Returns the number of blocks whose data was accepted as found, with a checksum that differed from the stored
    /// one.
    pub(crate) fn rebuilt(&self) -> u64 {
        self.rebuilt.load(Ordering::Relaxed) // Relaxed: a statistic.
    }

    pub(crate) fn region(&self, unit: u64) -> u64 {
        unit / self.region_units
    }

    /// Returns the region of a byte address of the pool.
    #[inline]
    pub(crate) fn region_at(&self, addr: u64) -> u64 {
        self.region(addr >> (self.unit_shift + BLOCK_SHIFT))
    }

    /// Shortens a mapping to the region where it begins.
    #[inline]
    pub(crate) fn within_region(&self, mapping: Mapping) -> Mapping {
        let end = ((self.region_at(mapping.addr) + 1) * self.region_units) << (self.unit_shift + BLOCK_SHIFT);
        mapping.len(mapping.len.min(end - mapping.addr))
    }

    /// Returns the region of a pool block, and the block's index within it.
    #[inline]
    pub(crate) fn place(&self, block: u64) -> (u64, usize) {
        let unit = block >> self.unit_shift;
        let inside = (unit % self.region_units) << self.unit_shift | block & ((1 << self.unit_shift) - 1);
        (self.region(unit), inside as usize)
    }

    /// Returns the region of `block`, and the number of blocks that lie in its unit among the `count` blocks from
    /// `block` on.
    pub(crate) fn run_in_unit(&self, block: u64, count: u64) -> (u64, u64) {
        let blocks = 1 << self.unit_shift;
        (self.region_of(block), count.min(blocks - (block & (blocks - 1))))
    }

    pub(crate) fn region_of(&self, block: u64) -> u64 {
        self.place(block).0
    }

    /// Returns the pool blocks of a unit.
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

    /// Returns the checksum of a pool block, or `None` if its region has no memory.
    #[inline]
    pub(crate) fn get(&self, block: u64) -> Option<u32> {
        // Acquire: pairs with the Release store in `set`: a reader that has seen the block's written bit sees its
        // checksum.
        self.slot(block).map(|slot| slot.load(Ordering::Acquire))
    }

    /// Stores the checksum of a pool block. [`Sums::mark_dirty`] must follow (S2).
    #[inline]
    pub(crate) fn set(&self, block: u64, sum: u32) {
        if let Some(slot) = self.slot(block) {
            slot.store(sum, Ordering::Release); // Release: pairs with the Acquire load in `get`
        }
    }

    /// Makes the next checkpoint write the page of a region.
    #[inline]
    pub(crate) fn mark_dirty(&self, region: u64) {
        if let Some(flags) = self.flags(region) {
            flags.fetch_or(DIRTY, Ordering::SeqCst); // SeqCst: S2
        }
    }

    fn take_dirty(&self, region: u64) -> bool {
        self.flags(region).is_some_and(|flags| flags.fetch_and(!DIRTY, Ordering::SeqCst) & DIRTY != 0) // SeqCst: S2
    }

    /// Returns true if data may be written at a byte address of the pool (S1). Call it within a section of the volume's
    /// grace.
    #[inline]
    pub(crate) fn is_open(&self, addr: u64) -> bool {
        // Acquire: pairs with `set_open`: a region that closes clears the flag, and waits for a grace after that.
        self.flags(self.region_at(addr)).is_some_and(|flags| flags.load(Ordering::Acquire) & OPEN != 0)
    }

    pub(crate) fn set_open(&self, region: u64, open: bool) {
        if let Some(flags) = self.flags(region) {
            // SeqCst: ordered before the start of the grace that follows when the region closes.
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
