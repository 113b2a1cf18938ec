//! A small file in memory over any device, with written and unwritten, shared and private blocks, and a movable end.
//!
//! Owns the state of each block, and the return to the initial state ([`Extents::reset`]). The bytes are on the device,
//! each block at a place of its own, scattered so that no two neighbours can be merged.
//!
//! * E1. A block reads as zeroes until its first write has ended; then its state is [`WRITTEN`], until a reset.
//! * E2. The end of the file moves after the data is on the device, never before.

use sheave::Device;
use sheave_base::status::Status;
use sheave_base::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::mapping::{Intent, MapFlags};
use sheave_iomap::{File, Mapping, MappingKind, PlainRanges, WriteDone};

pub const BLOCK: u64 = 4096;

/// Allocated space without data.
const UNWRITTEN: u8 = 0;
/// Data of this file alone.
const WRITTEN: u8 = 1;
/// Data that other files have too. The mapped place is already the new one, because the lab makes no copy.
const SHARED: u8 = 2;

/// Distance of the places of neighbouring blocks, in blocks. Odd, so that each block of a power of two has its own
/// place.
const STRIDE: u64 = 0x9E37_79B1;

/// Initial state of a file, and its state after a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Began {
    /// All blocks hold data.
    Written,
    /// No block holds data.
    Unwritten,
    /// All blocks hold data that other files have too.
    Shared,
    /// All blocks hold data beyond the end of the file, which is at 0.
    Empty,
}

#[derive(Debug)]
pub struct Extents {
    device: Device,
    began: Began,
    blocks: Box<[AtomicU8]>,
    size: AtomicU64,
}

impl Extents {
    /// Makes a file of the largest power of two of blocks that the device holds.
    pub fn new(device: &Device, began: Began) -> Extents {
        let blocks = 1u64 << (device.size_bytes() / BLOCK).max(1).ilog2();
        let blocks = (0..blocks).map(|_| AtomicU8::new(UNWRITTEN)).collect();
        let file = Extents { device: device.clone(), began, blocks, size: AtomicU64::new(0) };
        file.reset();
        file
    }

    /// Restores the initial state. Nothing may be in flight.
    pub fn reset(&self) {
        let (state, size) = match self.began {
            Began::Written => (WRITTEN, self.bytes()),
            Began::Unwritten => (UNWRITTEN, self.bytes()),
            Began::Shared => (SHARED, self.bytes()),
            Began::Empty => (WRITTEN, 0),
        };
        for block in &self.blocks {
            // Relaxed: no I/O runs meanwhile, and I/O that is submitted later is ordered after this call.
            block.store(state, Ordering::Relaxed);
        }
        self.size.store(size, Ordering::Relaxed);
    }

    /// Returns the bytes of allocated space.
    pub fn bytes(&self) -> u64 {
        self.blocks.len() as u64 * BLOCK
    }

    /// Returns the number of blocks whose first write has ended.
    pub fn written(&self) -> usize {
        // Relaxed: a count by itself.
        self.blocks.iter().filter(|block| block.load(Ordering::Relaxed) == WRITTEN).count()
    }

    /// Returns the place of a block on the device, in bytes.
    fn place(&self, block: u64) -> u64 {
        (block.wrapping_mul(STRIDE) & (self.blocks.len() as u64 - 1)) * BLOCK
    }
}

impl File for Extents {
    fn device(&self) -> &Device {
        &self.device
    }

    fn size_bytes(&self) -> u64 {
        // Acquire: a reader of the new end sees the data before it (E2); pairs with the exchange in `end_write`.
        self.size.load(Ordering::Acquire)
    }

    fn max_bytes(&self) -> Option<u64> {
        Some(self.bytes())
    }

    fn map(&self, pos: u64, len: u64, _: Intent) -> Result<Mapping, Status> {
        let (block, within) = (pos / BLOCK, pos % BLOCK);
        // Acquire: a reader of `WRITTEN` sees the data on the device (E1); pairs with the store in `end_write`.
        let state = self.blocks.get(block as usize).ok_or(Status::NoSpc)?.load(Ordering::Acquire);
        let (kind, flags) = match state {
            UNWRITTEN => (MappingKind::Unwritten, MapFlags::NONE),
            SHARED => (MappingKind::Mapped, MapFlags::SHARED),
            _ => (MappingKind::Mapped, MapFlags::NONE),
        };
        Ok(Mapping::new(kind, pos, len.min(BLOCK - within), self.place(block) + within).flags(flags))
    }

    fn map_plain(&self, at: &mut [u64], ranges: &PlainRanges) -> usize {
        for (number, pos) in at.iter_mut().enumerate() {
            let (block, within) = (*pos / BLOCK, *pos % BLOCK);
            // Acquire: as in `map`; pairs with the store in `end_write`.
            let state = self.blocks.get(block as usize).map(|state| state.load(Ordering::Acquire));
            if state != Some(WRITTEN) || ranges.len > BLOCK - within {
                return number;
            }
            *pos = self.place(block) + within;
        }
        at.len()
    }

    fn end_write(&self, done: WriteDone<'_>, _: &MayBlock) -> Result<(), Status> {
        if !done.status.is_ok() {
            return Err(done.status);
        }
        for piece in done.pieces {
            if let Some(block) = self.blocks.get((piece.offset / BLOCK) as usize) {
                // Release: the data is on the device before the state changes (E1); pairs with the load in `map`.
                block.store(WRITTEN, Ordering::Release);
            }
        }
        // Release: the data is on the device before the end moves (E2); pairs with the load in `size_bytes`.
        self.size.fetch_max(done.pos + done.len, Ordering::Release);
        Ok(())
    }

    /// The block states are in memory alone, so that there is nothing to sync.
    fn needs_sync(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests;
