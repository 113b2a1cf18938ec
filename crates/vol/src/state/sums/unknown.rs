//! Blocks of unknown checksum: the device failed to read them when their checksum had to be computed.
//!
//! Owns the set of these blocks, each with its old checksum. Recovery computes the checksums of regions that were open
//! at a crash from the data. So does a write that failed or overlapped another one, for its own blocks. If a block
//! cannot be read then, it may contain the data of the old checksum, or data written since. So the data of its first
//! later read is accepted as correct.
//!
//! - N1: a region with such a block stays open, on the device too, so that the next opening reads the block again. The
//!   region may close when the block has been written or read.
//! - N2: a checksum is accepted by a compare-and-exchange with the old one, so it never replaces the checksum of a
//!   later write. Of several concurrent readers one stores it, and the others do not report the block as bad.
//! - N3: there are at most `MAX_UNREADABLE` such blocks, as many as recovery may fail to read. Beyond that, a block
//!   that a write fails to read back keeps its present checksum. Only a read-only pool may have more, because nothing
//!   scans the set there.

use std::collections::BTreeMap;

use sheave_base::sync::MutexGuard;
use sheave_base::sync::atomic::Ordering;

use super::Sums;

impl Sums {
    fn unknown(&self) -> MutexGuard<'_, BTreeMap<(u64, u64), u32>> {
        self.unknown.0.lock().expect("invariant: no panic under this lock")
    }

    /// Recovery: notes a block that could not be read.
    pub(crate) fn set_unknown(&self, block: u64) {
        if let Some(had) = self.get(block) {
            self.unknown().insert((self.region_of(block), block), had);
        }
    }

    /// Adds a block that the completion of a write could not read back. The write must still be in flight for the
    /// stripes, so that the region cannot close before this. Adds no block beyond `most` (N3).
    pub(crate) fn doubt(&self, block: u64, most: usize) {
        let Some(had) = self.get(block) else { return };
        let mut unknown = self.unknown();
        // Makes room by forgetting blocks that have been written since.
        if unknown.len() >= most {
            unknown.retain(|&(_, block), had| self.get(block) == Some(*had));
        }
        let at = (self.region_of(block), block);
        if unknown.len() < most || unknown.contains_key(&at) {
            unknown.insert(at, had);
        }
    }

    /// Stores the checksum of a block that the completion of a write has read back.
    pub(crate) fn set_read(&self, block: u64, sum: u32) {
        self.unknown().remove(&(self.region_of(block), block));
        self.set(block, sum);
    }

    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn unknown_blocks(&self) -> usize {
        self.unknown().len()
    }

    /// Returns the regions with such blocks.
    pub(crate) fn unknown_regions(&self) -> Vec<u64> {
        let mut regions: Vec<u64> = self.unknown().keys().map(|key| key.0).collect();
        regions.dedup();
        regions
    }

    /// Returns true if a region must stay open (N1). Removes blocks of the region that have been written since.
    pub(crate) fn has_unknown(&self, region: u64) -> bool {
        let mut unknown = self.unknown();
        if unknown.is_empty() {
            return false;
        }
        unknown.retain(|&(of, block), had| of != region || self.get(block) == Some(*had));
        unknown.range((region, 0)..=(region, u64::MAX)).next().is_some()
    }

    /// Compares `sum`, the checksum of a block that was read, with the stored one. If the block's checksum is unknown,
    /// stores the first one computed. Returns true if `sum` is correct.
    pub(crate) fn learn(&self, block: u64, sum: u32) -> bool {
        // Held until the checksum is stored: of several concurrent readers one stores it, and the others then find it.
        let mut unknown = self.unknown();
        let Some(had) = unknown.remove(&(self.region_of(block), block)) else {
            return self.get(block) == Some(sum);
        };
        // Release: pairs with the Acquire load in `get`. Relaxed: a value found instead is not used (N2).
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
