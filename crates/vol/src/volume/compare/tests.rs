//! Units keep their contents while they are read, and blocks that cannot be read count as differences.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use sheave_base::grace::Grace;
use sheave_base::status::Status;
use sheave_drivers::open_device;
use sheave_iomap::File;
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::file::WriteDone;
use sheave_iomap::mapping::Intent;

use crate::block_io::DeviceIo;
use crate::{BlockIo, CreateOptions, Extent, OpenOptions, Pool, Volume};

const UNIT: u64 = 65536;
const BLOCK: u64 = 4096;

/// Behaviour of the device's reads.
#[derive(Default)]
struct Reads {
    /// Places that cannot be read.
    bad: Range<u64>,
    /// Graces that each read should hold up.
    held: Vec<Arc<Grace>>,
    /// Reads that held up all of them, and reads that did not.
    counts: (u32, u32),
}

struct Watched {
    io: DeviceIo,
    reads: Arc<Mutex<Reads>>,
}

impl BlockIo for Watched {
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), Status> {
        let mut reads = self.reads.lock().unwrap();
        // A grace period that nobody holds up ends within three looks.
        let is_held = |grace: &Arc<Grace>| {
            let ticket = grace.start();
            (0..4).all(|_| !grace.is_over(ticket))
        };
        match reads.held.iter().all(is_held) {
            true => reads.counts.0 += 1,
            false => reads.counts.1 += 1,
        }
        if at < reads.bad.end && reads.bad.start < at + buf.len() as u64 {
            return Err(Status::Medium);
        }
        self.io.read(at, buf)
    }

    fn write(&self, at: u64, buf: &[u8]) -> Result<(), Status> {
        self.io.write(at, buf)
    }

    fn flush(&self) -> Result<(), Status> {
        self.io.flush()
    }

    fn discard(&self, at: u64, len: u64) -> Result<(), Status> {
        self.io.discard(at, len)
    }

    fn size_bytes(&self) -> u64 {
        self.io.size_bytes()
    }
}

/// Returns a volume, one block of which was written after its snapshot, and that snapshot.
fn written() -> (Pool, [Volume; 2], Arc<Mutex<Reads>>) {
    let device = open_device("ram:size=64M").unwrap();
    Pool::create(&device, &CreateOptions::default()).unwrap();
    let reads = Arc::<Mutex<Reads>>::default();
    let io = Box::new(Watched { io: DeviceIo::new(&device).unwrap(), reads: Arc::clone(&reads) });
    let pool = Pool::open_through(&device, io, &OpenOptions::default()).unwrap();
    let volume = pool.create_volume("v", 1 << 20).unwrap();
    (0..4).for_each(|unit| write(&pool, &volume, unit * UNIT, &[unit as u8 + 1; UNIT as usize]));
    pool.snapshot("v", "s").unwrap();
    write(&pool, &volume, 5 * BLOCK, &[9; BLOCK as usize]);
    let base = pool.open_volume("s").unwrap();
    (pool, [volume, base], reads)
}

fn write(pool: &Pool, volume: &Volume, pos: u64, bytes: &[u8]) {
    let may_block = MayBlock::on_worker();
    let mapping = volume.map_blocking(pos, bytes.len() as u64, Intent::Write, &may_block).unwrap();
    pool.inner.io.write(mapping.addr, bytes).unwrap();
    let pieces = [mapping];
    volume.end_write(WriteDone::new(pos, bytes.len() as u64, Status::Ok, &pieces), &may_block).unwrap();
}

/// Returns the differences as block numbers: the first, and the one behind the last.
fn told(volumes: &[Volume; 2]) -> Vec<(u64, u64)> {
    let told = volumes[0].differences_since(&volumes[1], 0, u64::MAX, &mut |_| true).unwrap();
    told.extents.iter().map(|Extent { pos, len, .. }| (pos / BLOCK, (pos + len) / BLOCK)).collect()
}

#[test]
fn units_stay_what_they_are_until_they_were_read() {
    let (_pool, volumes, reads) = written();
    for held in 0..2 {
        *reads.lock().unwrap() = Reads { held: vec![Arc::clone(volumes[held].core.top.grace())], ..Reads::default() };
        assert_eq!(told(&volumes), [(5, 6)]);
        let counts = reads.lock().unwrap().counts;
        assert!(counts.0 > 0 && counts.1 == 0, "volume {held}: {counts:?}");
    }
    // Nothing holds the graces up afterwards.
    for volume in &volumes {
        let ticket = volume.core.top.grace().start();
        assert!((0..4).any(|_| volume.core.top.grace().is_over(ticket)));
    }
}

#[test]
fn a_block_that_cannot_be_read_is_a_difference_and_its_neighbours_are_compared() {
    let (_pool, volumes, reads) = written();
    for volume in &volumes {
        let place = volume.extents(9 * BLOCK, BLOCK).unwrap()[0].addr;
        *reads.lock().unwrap() = Reads { bad: place..place + 1, ..Reads::default() };
        assert_eq!(told(&volumes), [(5, 6), (9, 10)]);
    }
}
