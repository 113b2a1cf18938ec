//! Blocks whose checksum is not known, because the device did not read them when it was to be computed.
//!
//! Owns which those are, and what is kept of each: the checksum that it had. Opening computes the checksums of regions
//! that were open at a crash from the data; a write that failed, or was not alone, computes those of its blocks. A
//! block that the device does not read then may hold what the old checksum says, or what was written since: so what is
//! read of it later is believed, once.
//!
//! - N1: a region with such a block stays open, on the device too, so that the next opening looks again. It may close
//!   when the block has been written, or read.
//! - N2: a checksum is learned by exchange for the one that the block had: that of a write is never replaced.
//!   Of several who read the block at once one learns it, and nobody takes it for bad.
//! - N3: there are at most as many as opening may fail to read: `MAX_UNREADABLE`. Of a device that fails to read more
//!   of them back, the others keep the checksum that they have. Only in a pool that is open read-only there may be any
//!   number, as nothing looks through them there.

use std::collections::BTreeMap;

use sheave_base::sync::MutexGuard;
use sheave_base::sync::atomic::Ordering;

use super::Sums;

impl Sums {
    fn unknown(&self) -> MutexGuard<'_, BTreeMap<(u64, u64), u32>> {
        self.unknown.0.lock().expect("invariant: no panic under this lock")
    }

    /// Opening could not read the block.
    pub(crate) fn set_unknown(&self, block: u64) {
        if let Some(had) = self.get(block) {
            self.unknown().insert((self.region_of(block), block), had);
        }
    }

    /// The end of a write could not read the block back, which is still counted as being written: its region cannot
    /// close before this. No more than `most` (N3).
    pub(crate) fn doubt(&self, block: u64, most: usize) {
        let Some(had) = self.get(block) else { return };
        let mut unknown = self.unknown();
        if unknown.len() >= most {
            unknown.retain(|&(_, block), had| self.get(block) == Some(*had));
        }
        let at = (self.region_of(block), block);
        if unknown.len() < most || unknown.contains_key(&at) {
            unknown.insert(at, had);
        }
    }

    /// The end of a write has read the block back, and this is the checksum of what it holds.
    pub(crate) fn set_read(&self, block: u64, sum: u32) {
        self.unknown().remove(&(self.region_of(block), block));
        self.set(block, sum);
    }

    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn unknown_blocks(&self) -> usize {
        self.unknown().len()
    }

    /// The regions with blocks that could not be read.
    pub(crate) fn unknown_regions(&self) -> Vec<u64> {
        let mut regions: Vec<u64> = self.unknown().keys().map(|key| key.0).collect();
        regions.dedup();
        regions
    }

    /// Whether a region must stay open (N1). Forgets the blocks of it that have been written.
    pub(crate) fn has_unknown(&self, region: u64) -> bool {
        let mut unknown = self.unknown();
        if unknown.is_empty() {
            return false;
        }
        unknown.retain(|&(of, block), had| of != region || self.get(block) == Some(*had));
        unknown.range((region, 0)..=(region, u64::MAX)).next().is_some()
    }

    /// The block was read, and this is the checksum of what it holds. Whether that is its checksum: it is what was read
    /// first since the pool was opened, or what was read then.
    pub(crate) fn learn(&self, block: u64, sum: u32) -> bool {
        // Held until the checksum is there: of several who read the block at once one learns it, the others find it.
        let mut unknown = self.unknown();
        let Some(had) = unknown.remove(&(self.region_of(block), block)) else {
            return self.get(block) == Some(sum);
        };
        // Release: pairs with the Acquire load in `get`. Relaxed: what is there instead is not looked at (N2).
        let exchange = |slot: &sheave_base::sync::atomic::AtomicU32| {
            slot.compare_exchange(had, sum, Ordering::Release, Ordering::Relaxed).is_ok()
        };
        let learned = self.slot(block).is_some_and(exchange);
        if learned {
            self.mark_dirty(self.region_of(block));
            self.rebuilt.fetch_add(1, Ordering::Relaxed); // Relaxed: a statistic.
        }
        drop(unknown);
        learned
    }
}
