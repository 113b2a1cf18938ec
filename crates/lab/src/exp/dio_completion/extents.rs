//! A small file in memory over any device: blocks that are written or not, shared or not, and an end that moves.
//!
//! Owns the state of each block, and the way back to how the file began ([`Extents::reset`]). The bytes are on the
//! device, each block at a place of its own, scattered so that no two neighbours can be merged.
//!
//! * E1. A block reads as zeroes until its first write has ended; then its state is [`WRITTEN`], until a reset.
//! * E2. The end moves after the data is there, never before.

use sheave::Device;
use sheave_base::status::Status;
use sheave_base::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::mapping::{Intent, MapFlags};
use sheave_iomap::{File, Mapping, MappingKind, PlainRanges, WriteDone};

/// Bytes of a block.
pub const BLOCK: u64 = 4096;

/// Space without data.
const UNWRITTEN: u8 = 0;
/// Data of this file alone.
const WRITTEN: u8 = 1;
/// Data that others have too. The place is the new one already: the copy is what the lab does not do.
const SHARED: u8 = 2;

/// From one block's place to the next one's, in blocks: odd, so that each has its own, and far.
const STRIDE: u64 = 0x9E37_79B1;

/// What a file begins as, and is after a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Began {
    /// Every block is written.
    Written,
    /// No block is.
    Unwritten,
    /// Every block is written, and shared.
    Shared,
    /// Every block is written, and lies beyond the end, which is at 0.
    Empty,
}

/// The file.
#[derive(Debug)]
pub struct Extents {
    device: Device,
    began: Began,
    blocks: Box<[AtomicU8]>,
    size: AtomicU64,
}

impl Extents {
    /// A file as large as its device, down to a power of two.
    pub fn new(device: &Device, began: Began) -> Extents {
        let blocks = 1u64 << (device.size_bytes() / BLOCK).max(1).ilog2();
        let blocks = (0..blocks).map(|_| AtomicU8::new(UNWRITTEN)).collect();
        let file = Extents { device: device.clone(), began, blocks, size: AtomicU64::new(0) };
        file.reset();
        file
    }

    /// Makes it what it began as. Nothing is in flight.
    pub fn reset(&self) {
        let (state, size) = match self.began {
            Began::Written => (WRITTEN, self.bytes()),
            Began::Unwritten => (UNWRITTEN, self.bytes()),
            Began::Shared => (SHARED, self.bytes()),
            Began::Empty => (WRITTEN, 0),
        };
        for block in &self.blocks {
            // Relaxed: nobody looks meanwhile; the rings see it as they see the call.
            block.store(state, Ordering::Relaxed);
        }
        self.size.store(size, Ordering::Relaxed);
    }

    /// Bytes that there is space for.
    pub fn bytes(&self) -> u64 {
        self.blocks.len() as u64 * BLOCK
    }

    /// Blocks whose first write has ended.
    pub fn written(&self) -> usize {
        // Relaxed: a count by itself.
        self.blocks.iter().filter(|block| block.load(Ordering::Relaxed) == WRITTEN).count()
    }

    /// Where a block lies on the device, in bytes.
    fn place(&self, block: u64) -> u64 {
        (block.wrapping_mul(STRIDE) & (self.blocks.len() as u64 - 1)) * BLOCK
    }
}

impl File for Extents {
    fn device(&self) -> &Device {
        &self.device
    }

    fn size_bytes(&self) -> u64 {
        // Acquire: whoever sees the end sees the data before it (E2); pairs with the exchange in `end_write`.
        self.size.load(Ordering::Acquire)
    }

    fn max_bytes(&self) -> Option<u64> {
        Some(self.bytes())
    }

    fn map(&self, pos: u64, len: u64, _: Intent) -> Result<Mapping, Status> {
        let (block, within) = (pos / BLOCK, pos % BLOCK);
        // Acquire: who sees `WRITTEN` sees the data on the device (E1); pairs with the store in `end_write`.
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
                // Release: the data comes before (E1); pairs with the load in `map`.
                block.store(WRITTEN, Ordering::Release);
            }
        }
        // Release: the data comes before (E2); pairs with the load in `size_bytes`.
        self.size.fetch_max(done.pos + done.len, Ordering::Release);
        Ok(())
    }

    /// The map is memory, and writes nothing down.
    fn needs_sync(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests;
