//! Errors at the neighbours of a unit that is copied are not reported: the neighbours stay where they are.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use sheave_base::status::Status;
use sheave_drivers::open_device;
use sheave_iomap::File;
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::file::WriteDone;
use sheave_iomap::mapping::Intent;

use crate::block_io::DeviceIo;
use crate::format::settings::Checksum;
use crate::state::sums::crc;
use crate::{BlockIo, CreateOptions, OpenOptions, Pool, Volume};

const UNIT: u64 = 65536;

/// A device that cannot read some bytes.
struct Unreadable {
    io: DeviceIo,
    bad: Arc<Mutex<Range<u64>>>,
}

impl BlockIo for Unreadable {
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), Status> {
        let bad = self.bad.lock().unwrap().clone();
        if at < bad.end && bad.start < at + buf.len() as u64 { Err(Status::Medium) } else { self.io.read(at, buf) }
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

/// A volume of eight written units, with the snapshot `s`. Unit `bad` cannot be read or, in a pool with checksums, has
/// rotted.
fn frozen(bad: u64, checksum: Checksum) -> (Pool, Volume) {
    let device = open_device("ram:size=64M").unwrap();
    Pool::create(&device, &CreateOptions { checksum, ..CreateOptions::default() }).unwrap();
    let nowhere = Arc::new(Mutex::new(0..0));
    let io = Box::new(Unreadable { io: DeviceIo::new(&device).unwrap(), bad: Arc::clone(&nowhere) });
    let pool = Pool::open_through(&device, io, &OpenOptions::default()).unwrap();
    let volume = pool.create_volume("v", 1 << 20).unwrap();
    (0..8).for_each(|unit| write(&pool, &volume, unit * UNIT, &[unit as u8 + 1; UNIT as usize]).unwrap());
    pool.snapshot("v", "s").unwrap();
    let at = place(&volume, bad);
    match checksum {
        Checksum::None => *nowhere.lock().unwrap() = at + 8192..at + 12288,
        Checksum::Crc32c => pool.inner.io.write(at + 8192, &[0xee; 4096]).unwrap(),
    }
    (pool, volume)
}

/// Writes in the way that a ring does.
fn write(pool: &Pool, volume: &Volume, pos: u64, bytes: &[u8]) -> Result<(), Status> {
    let may_block = MayBlock::on_worker();
    let mapping = volume.map_blocking(pos, bytes.len() as u64, Intent::Write, &may_block)?;
    assert_eq!(mapping.len, bytes.len() as u64);
    pool.inner.io.write(mapping.addr, bytes)?;
    if let Some(sums) = &pool.inner.sums {
        let numbers = mapping.addr / 4096..;
        numbers.zip(bytes.chunks(4096)).for_each(|(number, block)| sums.set(number, crc(block)));
    }
    let pieces = [mapping];
    volume.end_write(WriteDone::new(pos, bytes.len() as u64, Status::Ok, &pieces), &may_block)
}

fn place(volume: &Volume, unit: u64) -> u64 {
    volume.extents(unit * UNIT, 1).unwrap()[0].addr
}

#[test]
fn a_neighbour_that_cannot_be_copied_stays_where_it_is() {
    for checksum in [Checksum::None, Checksum::Crc32c] {
        let (pool, volume) = frozen(6, checksum);
        let before: Vec<u64> = (0..8).map(|unit| place(&volume, unit)).collect();
        let data = pool.info().data_bytes;
        write(&pool, &volume, 5 * UNIT, &[55; 4096]).expect("nothing is wrong with this unit");
        assert_ne!(place(&volume, 5), before[5], "{checksum:?}");
        assert_eq!(place(&volume, 6), before[6], "{checksum:?}: it is shared as before");
        pool.sync().unwrap();
        let kept = match checksum {
            // One read of the whole group failed, so the wanted unit was copied alone.
            Checksum::None => 1,
            Checksum::Crc32c => 3,
        };
        assert_eq!(pool.info().data_bytes - data, kept * UNIT, "{checksum:?}: what was not used is free again");
        assert_eq!((4..8).filter(|unit| place(&volume, *unit) != before[*unit as usize]).count() as u64, kept);
        // The bad unit itself: a write to it fails with the read error, or copies the bad block along.
        let wanted = write(&pool, &volume, 6 * UNIT, &[66; 4096]);
        match checksum {
            Checksum::None => assert_eq!(wanted, Err(Status::Medium)),
            Checksum::Crc32c => {
                wanted.expect("a copy takes what is bad along");
                assert_eq!(pool.info().bad_blocks, 2, "in the snapshot, and in the copy");
            }
        }
    }
}
