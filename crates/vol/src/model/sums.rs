//! Checksums of blocks that several threads write at once, while others compare blocks with their checksums.

use sheave_base::grace::Grace;
use sheave_base::status::Status;
use sheave_base::sync::atomic::{AtomicU64, Ordering};
use sheave_base::sync::{Arc, thread};
use sheave_iomap::mapping::MapFlags;
use sheave_iomap::{IoMemory, Mapping, MappingKind, SummedDone, WriteDone};

use super::explore;
use crate::device::block_io::BlockIo;
use crate::engine::sums::verify::Look;
use crate::format::BLOCK;
use crate::format::superblock::Geometry;
use crate::state::everyone::Everyone;
use crate::state::sums::regions::Regions;
use crate::state::sums::{Sums, crc};

const BLOCKS: usize = 2;

/// Device model with one tag for each block: every byte of the block has that value.
#[derive(Default)]
struct Tags([AtomicU64; BLOCKS]);

impl BlockIo for Tags {
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), Status> {
        for (block, bytes) in (at as usize / BLOCK..).zip(buf.chunks_exact_mut(BLOCK)) {
            bytes.fill(self.0[block].load(Ordering::SeqCst) as u8);
        }
        Ok(())
    }

    fn write(&self, at: u64, buf: &[u8]) -> Result<(), Status> {
        for (block, bytes) in (at as usize / BLOCK..).zip(buf.chunks_exact(BLOCK)) {
            self.0[block].store(u64::from(bytes[0]), Ordering::SeqCst);
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), Status> {
        Ok(())
    }

    fn discard(&self, _: u64, _: u64) -> Result<(), Status> {
        Ok(())
    }

    fn size_bytes(&self) -> u64 {
        (BLOCKS * BLOCK) as u64
    }
}

/// Does one write from begin to end, with the calls that a ring and a worker make.
fn write(sums: &Sums, device: &Tags, first: usize, count: usize, tag: u8) {
    let (offset, len) = ((first * BLOCK) as u64, (count * BLOCK) as u64);
    let piece = Mapping::new(MappingKind::Mapped, offset, len, offset).flags(MapFlags::SUMMED);
    let mut data = vec![tag; count * BLOCK];
    sums.begin(&piece);
    device.write(offset, &data).expect("it is written");
    IoMemory::over(&mut data, |memory| {
        let pieces = &[piece][..];
        let done = SummedDone::of_write(WriteDone::new(offset, len, Status::Ok, pieces), memory);
        if sums.end_alone(&done).is_err() {
            sums.end_or_read_back(device, &done).expect("it ends");
        }
    });
}

/// S3 and S4: once no write to a block is in flight, its checksum is that of the content on the device. No reader that
/// compares meanwhile finds the block bad, however writes of one and of two blocks overlap.
#[test]
fn model_writes_to_one_block_at_once_leave_its_checksum() {
    explore(|| {
        let sums = Arc::new(Sums::new(&Geometry::new(1 << 16, 1 << 20, 16)));
        assert!(sums.arena.make(0));
        let device = Arc::new(Tags::default());
        (0..BLOCKS).for_each(|block| sums.set(block as u64, crc(&[0; BLOCK])));
        let writers =
            [[(0, 2), (1, 1)], [(1, 1), (0, 1)], [(0, 1), (1, 1)]].into_iter().zip(1..).map(|(all, number)| {
                let (sums, device) = (Arc::clone(&sums), Arc::clone(&device));
                thread::spawn(move || {
                    for ((first, count), round) in all.into_iter().zip(0..) {
                        write(&sums, &device, first, count, number * 2 + round);
                    }
                })
            });
        let writers: Vec<_> = writers.collect();
        let mut to = vec![0; BLOCK];
        for _ in 0..2 {
            for block in 0..BLOCKS as u64 {
                let look = sums.settle(&*device, block, &mut to).expect("the device reads");
                assert!(matches!(look, Look::Good | Look::Busy), "block {block} is not bad: {look:?}");
            }
        }
        writers.into_iter().for_each(|writer| writer.join().expect("no panic"));
        for block in 0..BLOCKS as u64 {
            let look = sums.settle(&*device, block, &mut to).expect("the device reads");
            assert!(matches!(look, Look::Good), "block {block} is what was written: {look:?}");
        }
    });
}

/// N2: several readers are the first to read a block that could not be read when the pool was opened. The block is good
/// for all of them.
#[test]
fn model_concurrent_first_reads_of_an_unknown_block_find_it_good() {
    explore(|| {
        let sums = Arc::new(Sums::new(&Geometry::new(1 << 16, 1 << 20, 16)));
        assert!(sums.arena.make(0));
        let device = Arc::new(Tags::default());
        sums.set(0, crc(&[7; BLOCK]));
        sums.set_unknown(0);
        let readers = [(); 2].map(|()| {
            let (sums, device) = (Arc::clone(&sums), Arc::clone(&device));
            thread::spawn(move || sums.settle(&*device, 0, &mut vec![0; BLOCK]).expect("the device reads"))
        });
        for reader in readers {
            let look = reader.join().expect("no panic");
            assert!(matches!(look, Look::Good), "what the first has learned is what the others read: {look:?}");
        }
    });
}

/// N1: the last write to a region ends while a checkpoint examines whether the region can close, and its block could
/// not be read back. The region stays open, so that the next opening reads the block.
#[test]
fn model_a_region_does_not_close_over_a_block_that_its_last_write_leaves_undecided() {
    explore(|| {
        let sums = Arc::new(Sums::new(&Geometry::new(1 << 16, 1 << 20, 16)));
        assert!(sums.arena.make(0));
        sums.set(0, crc(&[7; BLOCK]));
        let grace = Arc::new(Grace::new());
        let everyone = || -> Everyone { [(Arc::clone(&grace), grace.start())].into_iter().collect() };
        let mut regions = Regions::new(Arc::clone(&sums), true);
        let intent = regions.intend(0..1).expect("there is memory");
        regions.intent_is_durable(0..1, intent);
        assert!(regions.open(0, 0..1));
        let seat = Grace::seat(&grace);
        seat.enter();
        let phase = seat.count();
        seat.leave();
        // The region has begun to close and waits only for the write.
        (0..2).for_each(|_| regions.age(everyone, false));
        let writer = {
            let sums = Arc::clone(&sums);
            thread::spawn(move || {
                sums.doubt(0, 1);
                seat.uncount(phase);
            })
        };
        regions.age(everyone, false);
        writer.join().expect("no panic");
        assert!(regions.is_intended(0), "the region is closed, and block 0 is undecided");
    });
}
