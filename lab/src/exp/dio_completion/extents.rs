//! A small file in memory over any device, with written and unwritten, shared and private blocks, and a movable end.
//!
//! Owns the state of each block, and the return to the initial state ([`Extents::reset`]). The bytes are on the device,
//! where the addresses of the blocks are scattered so that no two neighbours can be merged.
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
/// Data that other files have too. The mapping already has the new address, because the lab makes no copy.
const SHARED: u8 = 2;

/// Distance of the addresses of neighbouring blocks, in blocks. It is odd, so that all blocks have different addresses
/// if their number is a power of two.
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
    /// Makes a file whose number of blocks is the largest power of two that fits on the device.
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

    /// Returns the number of bytes of allocated space.
    pub fn bytes(&self) -> u64 {
        self.blocks.len() as u64 * BLOCK
    }

    /// Returns the number of blocks whose first write has ended.
    pub fn written(&self) -> usize {
        // Relaxed: a count by itself.
        self.blocks.iter().filter(|block| block.load(Ordering::Relaxed) == WRITTEN).count()
    }

    /// Returns the address of a block on the device, in bytes.
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

    /// Returns false, because the block states are in memory only and there is nothing to sync.
    fn needs_sync(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sheave::{Buf, Fd, Ring, op, open_device};
    use sheave_uring::LateCompletions;

    use super::*;

    const SIZE: u64 = 1 << 20;

    struct Bench {
        file: Arc<Extents>,
        ring: Ring,
        fd: Fd,
    }

    impl Bench {
        fn new(began: Began) -> Bench {
            let device = open_device(&format!("ram:size={SIZE}")).expect("a small device");
            let file = Arc::new(Extents::new(&device, began));
            let mut ring = Ring::builder().entries(8).build().expect("a ring");
            let fd = ring.attach_file(file.clone()).expect("attached");
            Bench { file, ring, fd }
        }

        fn write(&mut self, pos: u64, byte: u8) -> i32 {
            let mut buf = Buf::zeroed(BLOCK as usize, 4096).expect("memory");
            buf.fill(byte);
            self.ring.push(op::write(self.fd, buf).offset(pos)).expect("room");
            self.ring.submit_and_wait(1).expect("submitted");
            self.ring.completions().next().expect("one").res
        }

        fn read(&mut self, pos: u64) -> (i32, Vec<u8>) {
            self.ring
                .push(op::read(self.fd, Buf::zeroed(BLOCK as usize, 4096).expect("memory")).offset(pos))
                .expect("room");
            self.ring.submit_and_wait(1).expect("submitted");
            let done = self.ring.completions().next().expect("one");
            (done.res, done.into_buf().expect("its buffer").to_vec())
        }
    }

    #[test]
    fn a_first_write_takes_a_worker_and_the_second_does_not() {
        for began in [Began::Unwritten, Began::Shared] {
            let mut bench = Bench::new(began);
            assert_eq!(bench.write(8 * BLOCK, 7), 4096);
            assert_eq!(bench.ring.late_completions(), LateCompletions { in_task: 0, in_worker: 1 }, "{began:?}");
            assert_eq!(bench.write(8 * BLOCK, 9), 4096);
            assert_eq!(bench.ring.late_completions().in_worker, 1, "{began:?}: an overwrite now");
            assert_eq!(bench.file.written(), 1);
            assert_eq!(bench.read(8 * BLOCK), (4096, vec![9; 4096]));
            bench.file.reset();
            assert_eq!(bench.file.written(), 0);
        }
    }

    #[test]
    fn what_was_not_written_reads_as_zeroes() {
        let mut bench = Bench::new(Began::Written);
        assert_eq!(bench.write(0, 7), 4096);
        let mut bench = Bench { file: Arc::new(Extents::new(bench.file.device(), Began::Unwritten)), ..bench };
        bench.fd = bench.ring.attach_file(bench.file.clone()).expect("attached");
        assert_eq!(bench.read(0), (4096, vec![0; 4096]), "the 7s of the file before are not shown");
    }

    #[test]
    fn the_end_moves_with_the_writes() {
        let mut bench = Bench::new(Began::Empty);
        assert_eq!(bench.read(0).0, 0, "at the end");
        for n in 1..=3 {
            assert_eq!(bench.write((n - 1) * BLOCK, n as u8), 4096);
            assert_eq!(bench.file.size_bytes(), n * BLOCK);
            assert_eq!(bench.ring.late_completions().in_worker, n);
        }
        assert_eq!(bench.write(0, 9), 4096);
        assert_eq!(bench.ring.late_completions().in_worker, 3, "within the end nothing is left to do");
        assert_eq!(bench.read(2 * BLOCK), (4096, vec![3; 4096]));
    }

    #[test]
    fn a_quick_look_says_what_map_says_and_stops_at_what_is_not_plain() {
        let mut bench = Bench::new(Began::Unwritten);
        for block in [5, 2, 9] {
            assert_eq!(bench.write(block * BLOCK, 1), 4096);
        }
        let plain = |mut at: [u64; 4], len: u64| {
            let ranges = PlainRanges::new(&at, len, Intent::Write);
            (bench.file.map_plain(&mut at, &ranges), at)
        };
        let place = |pos: u64| bench.file.map(pos, 512, Intent::Write).expect("mapped").addr;
        let asked = [5 * BLOCK, 2 * BLOCK + 512, 9 * BLOCK, 3 * BLOCK];
        assert_eq!(
            plain(asked, 512),
            (3, [place(asked[0]), place(asked[1]), place(asked[2]), asked[3]]),
            "3 has no data"
        );
        assert_eq!(plain(asked, 4096).0, 1, "the second crosses the end of its block");
    }

    #[test]
    fn every_block_has_a_place_of_its_own_and_no_neighbour() {
        let bench = Bench::new(Began::Written);
        let blocks = bench.file.bytes() / BLOCK;
        let mut places: Vec<u64> = (0..blocks).map(|block| bench.file.place(block)).collect();
        let near = places.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) == BLOCK).count();
        places.sort_unstable();
        assert!(places.iter().enumerate().all(|(n, &place)| place == n as u64 * BLOCK));
        assert_eq!(near, 0, "what is next to each other in the file would be merged");
    }
}
