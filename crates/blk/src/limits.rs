//! Queue limits: the shape of one request, and the places where a larger bio is cut. Also the capacity of a device.
//!
//! Owns the limits of a device and the arithmetic of splitting; the cutting itself is in [`split`](crate::split). Owns
//! the current size of a device, which is shared by its queue, the rings, and a driver that finds it changed.
//!
//! Invariants:
//! - I1: `logical_block` is a power of two of at least 512; every size limit is a multiple of it.
//! - I2: [`Limits::max_bytes_at`] is never 0, so that splitting makes progress.

use sheave_base::sync::Arc;
use sheave_base::sync::atomic::{AtomicU64, Ordering};

use crate::bio::{Op, SECTOR_SHIFT};

/// Largest number of requests in flight on one hardware context, or on all of them with host-wide tags. Limited by the
/// masks of a [`tag_set`](crate::tag_set).
pub const MAX_DEPTH: u16 = 4096;

/// Limits of one request to a device. Sizes are in bytes unless the name contains `sectors` (512 B).
///
/// A driver sets the values that differ from the default: 512 B blocks, 1.25 MiB per request, no discards, depth 256.
///
/// ```
/// use sheave_blk::limits::Limits;
///
/// let limits = Limits::default().logical_block(4096).queue_depth(64);
/// assert_eq!((limits.logical_block, limits.max_discard_sectors), (4096, 0));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Smallest addressable unit.
    pub logical_block: u32,
    /// Unit that the device writes without reading first.
    pub physical_block: u32,
    /// Longest read or write.
    pub max_sectors: u32,
    /// Largest number of pieces of memory in one request.
    pub max_segments: u16,
    /// A request must not cross a multiple of this many sectors; 0 means no boundary.
    pub chunk_sectors: u32,
    /// Alignment of memory addresses and of the length of every piece except the last.
    pub dma_alignment: u32,
    /// Longest discard; 0 if the device supports none.
    pub max_discard_sectors: u32,
    /// Longest write-zeroes; 0 if the device supports none.
    pub max_write_zeroes_sectors: u32,
    /// Largest number of requests in flight on one hardware context.
    pub queue_depth: u16,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            logical_block: 512,
            physical_block: 4096,
            max_sectors: 2560,
            max_segments: 128,
            chunk_sectors: 0,
            dma_alignment: 1,
            max_discard_sectors: 0,
            max_write_zeroes_sectors: 0,
            queue_depth: 256,
        }
    }
}

sheave_base::setters!(Limits {
    logical_block: u32,
    physical_block: u32,
    max_sectors: u32,
    max_segments: u16,
    chunk_sectors: u32,
    dma_alignment: u32,
    max_discard_sectors: u32,
    max_write_zeroes_sectors: u32,
    queue_depth: u16,
});

impl Limits {
    /// Corrects every limit so that I1 and I2 hold, whatever values the device has reported.
    pub fn normalized(mut self) -> Limits {
        self.logical_block = self.logical_block.clamp(512, 1 << 16).next_power_of_two();
        self.physical_block = self.physical_block.max(self.logical_block);
        let per_block = self.logical_block >> SECTOR_SHIFT;
        let whole = |sectors: u32| sectors - sectors % per_block;
        let most = u32::MAX >> SECTOR_SHIFT;
        self.max_sectors = whole(self.max_sectors.clamp(per_block, most));
        self.max_discard_sectors = whole(self.max_discard_sectors.min(most));
        self.max_write_zeroes_sectors = whole(self.max_write_zeroes_sectors.min(most));
        self.chunk_sectors = whole(self.chunk_sectors);
        self.max_segments = self.max_segments.max(1);
        self.dma_alignment = self.dma_alignment.clamp(1, 1 << 30).next_power_of_two();
        self.queue_depth = self.queue_depth.clamp(1, MAX_DEPTH);
        self
    }

    /// Returns the longest request with this operation in bytes; 0 if the device does not support it.
    pub fn max_bytes(&self, op: Op) -> u32 {
        let sectors = match op {
            Op::Read | Op::Write => self.max_sectors,
            Op::Discard => self.max_discard_sectors,
            Op::WriteZeroes => self.max_write_zeroes_sectors,
            Op::Flush => 0,
        };
        sectors << SECTOR_SHIFT
    }

    /// Returns the length in bytes of the longest request that may start at `sector`, up to the next chunk boundary.
    pub fn max_bytes_at(&self, op: Op, sector: u64) -> u32 {
        let max = self.max_bytes(op);
        if self.chunk_sectors == 0 {
            return max;
        }
        let chunk = u64::from(self.chunk_sectors);
        let to_boundary = (chunk - sector % chunk) << SECTOR_SHIFT;
        max.min(to_boundary.min(u64::from(u32::MAX)) as u32)
    }
}

/// Current size of a device. Clones share it.
#[derive(Clone, Debug)]
pub struct Capacity(Arc<AtomicU64>);

impl Capacity {
    pub(crate) fn new(bytes: u64) -> Capacity {
        Capacity(Arc::new(AtomicU64::new(bytes >> SECTOR_SHIFT)))
    }

    /// Returns the size in sectors of 512 bytes.
    #[inline(always)]
    pub fn sectors(&self) -> u64 {
        // Relaxed: a size that changes is seen by the next I/O or the one after.
        self.0.load(Ordering::Relaxed)
    }

    /// Sets a new size. New I/O beyond it fails; I/O in flight ends as the driver decides.
    pub fn set_bytes(&self, bytes: u64) {
        // Relaxed: as in `sectors`.
        self.0.store(bytes >> SECTOR_SHIFT, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn whatever_a_device_claims_the_invariants_hold(
            sizes in any::<[u32; 7]>(),
            max_segments in any::<u16>(),
            queue_depth in any::<u16>(),
            sector in any::<u64>(),
        ) {
            let [logical_block, physical_block, max_sectors, chunk_sectors, dma, discard, zeroes] = sizes;
            let limits = Limits {
                logical_block,
                physical_block,
                max_sectors,
                max_segments,
                chunk_sectors,
                dma_alignment: dma,
                max_discard_sectors: discard,
                max_write_zeroes_sectors: zeroes,
                queue_depth,
            }.normalized();
            let block = limits.logical_block;
            prop_assert!(block.is_power_of_two() && (512..=65536).contains(&block), "I1");
            prop_assert!(limits.physical_block >= block);
            let (discard, zeroes) = (limits.max_discard_sectors, limits.max_write_zeroes_sectors);
            for sectors in [limits.max_sectors, limits.chunk_sectors, discard, zeroes] {
                prop_assert_eq!(sectors % (block >> 9), 0, "I1");
            }
            prop_assert!(limits.dma_alignment.is_power_of_two());
            prop_assert!((1..=MAX_DEPTH).contains(&limits.queue_depth) && limits.max_segments > 0);
            prop_assert_eq!(limits.clone().normalized(), limits.clone(), "once is enough");
            let sector = sector - sector % u64::from(block >> 9);
            for op in [Op::Read, Op::Write] {
                let bytes = limits.max_bytes_at(op, sector);
                prop_assert!(bytes > 0 && bytes <= limits.max_bytes(op), "I2");
                prop_assert_eq!(bytes % block, 0);
            }
        }
    }

    #[test]
    fn requests_end_at_chunk_boundaries() {
        let limits = Limits { max_sectors: 100, chunk_sectors: 64, max_discard_sectors: 1000, ..Limits::default() };
        assert_eq!(limits.max_bytes_at(Op::Read, 0), 64 * 512);
        assert_eq!(limits.max_bytes_at(Op::Read, 63), 512);
        assert_eq!(limits.max_bytes_at(Op::Discard, 64 + 32), 32 * 512);
        assert_eq!(limits.max_bytes_at(Op::WriteZeroes, 0), 0, "the device has no such operation");
        let limits = Limits { chunk_sectors: 0, ..limits };
        assert_eq!(limits.max_bytes_at(Op::Read, 63), 100 * 512);
        let huge = Limits { max_sectors: u32::MAX, chunk_sectors: u32::MAX, ..Limits::default() }.normalized();
        assert_eq!(huge.max_bytes_at(Op::Write, 0), u32::MAX - 511, "as much as a bio can say");
    }
}
