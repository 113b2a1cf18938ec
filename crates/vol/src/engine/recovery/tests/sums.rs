//! Pools with checksums, where an opening or the end of a write cannot read data that was in flight: the data is as
//! good afterwards as before.

use std::ops::ControlFlow;
use std::sync::Arc;

use sheave_base::status::Status;
use sheave_blk::Device;
use sheave_drivers::open_device;
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::file::WriteDone;
use sheave_iomap::mapping::Intent;
use sheave_iomap::{File, IoMemory, Mapping, SummedDone};

use super::Unreadable;
use crate::device::block_io::DeviceIo;
use crate::device::reader::MAX_UNREADABLE;
use crate::format::BLOCK;
use crate::{BlockIo, Checksum, CreateOptions, OpenOptions, Pool, PoolError, ScrubOptions, Volume};

const BYTES: u64 = BLOCK as u64;

pub fn write(volume: &Volume, block: u64, tag: u8) {
    let mapping = begin(volume, block, 1);
    land(volume, &mapping, tag);
    end(volume, mapping, tag).unwrap();
}

/// Begins a write of `blocks` blocks, up to the moment at which its data is sent.
fn begin(volume: &Volume, block: u64, blocks: u64) -> Mapping {
    let (pos, len, token) = (block * BYTES, blocks * BYTES, MayBlock::on_worker());
    let mapping = loop {
        match volume.map(pos, len, Intent::Write) {
            Ok(mapping) => break mapping,
            Err(_) => volume.map_blocking(pos, len, Intent::Write, &token).unwrap(),
        };
    };
    volume.begin_write(&mapping);
    mapping
}

/// Lets the data of the write reach the disk.
fn land(volume: &Volume, mapping: &Mapping, tag: u8) {
    volume.pool().io.write(mapping.addr, &vec![tag; mapping.len as usize]).unwrap();
}

fn end(volume: &Volume, mapping: Mapping, tag: u8) -> Result<(), Status> {
    let (pos, len, token) = (mapping.offset, mapping.len, MayBlock::on_worker());
    let mut data = vec![tag; len as usize];
    let pieces = &[mapping][..];
    let status = IoMemory::over(&mut data, |memory| {
        let done = SummedDone::of_write(WriteDone::new(pos, len, Status::Ok, pieces), memory);
        volume.end_summed(&done).or_else(|_| volume.end_summed_blocking(&done, &token))
    });
    let done = WriteDone::new(pos, len, status.err().unwrap_or(Status::Ok), pieces);
    volume.end_write(done, &token).and(status)
}

pub fn read(volume: &Volume, block: u64) -> Result<u8, Status> {
    let (pos, token, mut data) = (block * BYTES, MayBlock::on_worker(), vec![0; BLOCK]);
    let mapping = volume.map(pos, BYTES, Intent::Read).unwrap();
    volume.pool().io.read(mapping.addr, &mut data)?;
    let pieces = &[mapping][..];
    IoMemory::over(&mut data, |memory| {
        let done = SummedDone::of_read(pos, BYTES, pieces, memory);
        volume.end_summed(&done).or_else(|_| volume.end_summed_blocking(&done, &token))
    })?;
    assert!(data.iter().all(|byte| *byte == data[0]));
    Ok(data[0])
}

/// Makes a pool that was cut off while block 0 was 1 in the newest checkpoint and 2 on the disk. Returns the address of
/// the block. After one checkpoint the page of the region says that it is open; after six a record of the journal does.
fn cut_off(blocks: u64, checkpoints: u32) -> (Device, u64) {
    let device = open_device("ram:size=64M").unwrap();
    let options = CreateOptions { checksum: Checksum::Crc32c, ..CreateOptions::default() };
    Pool::create(&device, &options).unwrap();
    let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
    let volume = pool.create_volume("v", 16 << 20).unwrap();
    (0..blocks).for_each(|block| write(&volume, block, 1));
    (0..checkpoints).for_each(|_| volume.pool().checkpoint().unwrap());
    (0..blocks).for_each(|block| write(&volume, block, 2));
    let at = volume.map(0, BYTES, Intent::Read).unwrap().addr;
    DeviceIo::new(&device).unwrap().flush().unwrap();
    (device, at)
}

fn open(device: &Device, bad: &[u64]) -> Result<(Pool, Arc<Unreadable>), PoolError> {
    open_with(device, bad, &OpenOptions::default())
}

fn open_with(device: &Device, bad: &[u64], options: &OpenOptions) -> Result<(Pool, Arc<Unreadable>), PoolError> {
    let disk = Arc::new(Unreadable { io: DeviceIo::new(device).unwrap(), bad: bad.to_vec().into() });
    let pool = Pool::open_through(device, Box::new(disk.clone()), options)?;
    Ok((pool, disk))
}

fn is_sound(pool: &Pool) {
    let report = pool.scrub(&ScrubOptions::default(), &mut |_| ControlFlow::Continue(())).unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
    let info = pool.info();
    assert_eq!((info.bad_blocks, info.checksum_errors), (0, 0));
}

#[test]
fn data_that_could_not_be_read_at_opening_is_good_when_it_can() {
    let (device, at) = cut_off(3, 1);
    let (pool, disk) = open(&device, &[at]).unwrap();
    let volume = pool.open_volume("v").unwrap();
    assert_eq!((read(&volume, 0), read(&volume, 1)), (Err(Status::Medium), Ok(2)));
    disk.bad.lock().unwrap().clear();
    assert_eq!(read(&volume, 0), Ok(2), "the disk reads it again");
    is_sound(&pool);
    // From here on its checksum is known.
    volume.pool().io.write(at, &[3; BLOCK]).unwrap();
    assert_eq!(read(&volume, 0), Err(Status::Protection), "it rots");
    assert_eq!(pool.info().bad_blocks, 1);
}

/// The region stays open, on the disk too, however often the pool is closed or cut off in between.
#[test]
fn data_that_could_not_be_read_stays_undecided_until_it_can() {
    for (closes, checkpoints) in [(true, 1), (false, 1), (true, 6), (false, 6)] {
        let (device, at) = cut_off(3, checkpoints);
        for _ in 0..3 {
            let (pool, _) = open(&device, &[at]).unwrap();
            let volume = pool.open_volume("v").unwrap();
            assert_eq!((read(&volume, 0), read(&volume, 1)), (Err(Status::Medium), Ok(2)));
            (0..5).for_each(|_| volume.pool().checkpoint().unwrap());
            drop(volume);
            if closes {
                pool.close().unwrap();
            }
        }
        let (pool, _) = open(&device, &[]).unwrap();
        assert_eq!(read(&pool.open_volume("v").unwrap(), 0), Ok(2), "closes: {closes}");
        is_sound(&pool);
    }
}

/// A write replaces the content of the unreadable block: later rot in it is reported.
#[test]
fn rot_after_a_rewrite_of_an_unreadable_block_is_reported() {
    let (device, at) = cut_off(3, 1);
    let (pool, _) = open(&device, &[at]).unwrap();
    let volume = pool.open_volume("v").unwrap();
    write(&volume, 0, 4);
    assert_eq!(read(&volume, 0), Ok(4));
    // The region is no longer held open, and closes.
    let is_held = || volume.pool().lock().sums.as_ref().is_some_and(|regions| regions.is_intended(at >> 16));
    assert!(is_held());
    (0..5).for_each(|_| volume.pool().checkpoint().unwrap());
    assert!(!is_held());
    volume.pool().io.write(at, &[5; BLOCK]).unwrap();
    assert_eq!(read(&volume, 0), Err(Status::Protection));
}

/// Makes a pool that was cut off after `blocks` blocks of its volume were written. Returns the address of each.
fn cut_off_at(blocks: u64) -> (Device, Vec<u64>) {
    let (device, _) = cut_off(blocks, 1);
    let pool = Pool::open(&device, &OpenOptions::default().read_only(true)).unwrap();
    let volume = pool.open_volume("v").unwrap();
    let place = |block| volume.map(block * BYTES, BYTES, Intent::Read).unwrap().addr;
    (device, (0..blocks).map(place).collect())
}

#[test]
fn a_disk_that_reads_next_to_no_data_does_not_open_for_writing() {
    let (device, places) = cut_off_at(MAX_UNREADABLE as u64 + 1);
    let error = open(&device, &places).map(drop).unwrap_err().to_string();
    assert!(error.contains("more than 256 blocks") && error.contains("--rescue"), "{error}");
    assert!(open(&device, &places[1..]).is_ok());
}

/// A read-only opening writes nothing, so blocks remain unknown: a bad spot of any size costs only the data in it.
#[test]
fn a_read_only_opening_serves_all_readable_blocks() {
    let (device, places) = cut_off_at(1000);
    // One block in three of the first 900: some blocks of each unit can be read.
    let bad: Vec<u64> = places[..900].iter().copied().step_by(3).collect();
    assert!(bad.len() > MAX_UNREADABLE);
    for options in [OpenOptions::default().read_only(true), OpenOptions::default().rescue(true)] {
        let (pool, disk) = open_with(&device, &bad, &options).unwrap();
        let volume = pool.open_volume("v").unwrap();
        let look = |bad: &[u64]| {
            for (block, place) in (0..).zip(&places) {
                let wanted = if bad.contains(place) { Err(Status::Medium) } else { Ok(2) };
                assert_eq!(read(&volume, block), wanted, "block {block}");
            }
        };
        look(&bad);
        disk.bad.lock().unwrap().clear();
        look(&[]);
        is_sound(&pool);
    }
}

/// Returns a pool with a volume in which two writes of blocks 0 to `blocks` overlapped. The first write, of 4,
/// succeeded, and its data is on the disk in the end. The second, of 5, could not read the blocks back.
fn met(blocks: u64) -> (Device, Pool, Arc<Unreadable>, Vec<u64>) {
    let (device, at) = cut_off(blocks, 1);
    let (pool, disk) = open(&device, &[]).unwrap();
    let volume = pool.open_volume("v").unwrap();
    let (first, second) = (begin(&volume, 0, blocks), begin(&volume, 0, blocks));
    assert_eq!(first.len, blocks * BYTES, "one piece");
    land(&volume, &second, 5);
    land(&volume, &first, 4);
    end(&volume, first, 4).unwrap();
    let places: Vec<u64> = (0..blocks).map(|block| at + block * BYTES).collect();
    *disk.bad.lock().unwrap() = places.clone();
    assert_eq!(end(&volume, second, 5), Err(Status::Medium), "who cannot read back fails");
    drop(volume);
    (device, pool, disk, places)
}

/// V16: acknowledged data is never taken for bad because the end of another write could not read it.
#[test]
fn writes_that_met_and_could_not_be_read_back_leave_nothing_that_is_bad() {
    let (_device, pool, disk, places) = met(3);
    let volume = pool.open_volume("v").unwrap();
    assert_eq!(read(&volume, 1), Err(Status::Medium));
    (0..5).for_each(|_| volume.pool().checkpoint().unwrap());
    disk.bad.lock().unwrap().truncate(1);
    assert_eq!((read(&volume, 0), read(&volume, 1)), (Err(Status::Medium), Ok(4)));
    disk.bad.lock().unwrap().clear();
    assert_eq!(read(&volume, 0), Ok(4));
    is_sound(&pool);
    // From here on its checksum is known, and the region is no longer held open.
    assert!(volume.pool().lock().sums.as_ref().is_some_and(|regions| regions.is_intended(places[0] >> 16)));
    (0..5).for_each(|_| volume.pool().checkpoint().unwrap());
    assert!(!volume.pool().lock().sums.as_ref().is_some_and(|regions| regions.is_intended(places[0] >> 16)));
    volume.pool().io.write(places[0], &[9; BLOCK]).unwrap();
    assert_eq!(read(&volume, 0), Err(Status::Protection), "it rots");
}

/// A block that the disk can read on its own gets its checksum at once.
#[test]
fn a_failed_read_back_is_retried_block_by_block() {
    let (_device, pool, disk, places) = met(3);
    let volume = pool.open_volume("v").unwrap();
    let (first, second) = (begin(&volume, 0, 3), begin(&volume, 0, 3));
    land(&volume, &second, 7);
    land(&volume, &first, 6);
    end(&volume, first, 6).unwrap();
    *disk.bad.lock().unwrap() = vec![places[1]];
    assert_eq!(end(&volume, second, 7), Err(Status::Medium));
    disk.bad.lock().unwrap().clear();
    volume.pool().io.write(places[0], &[9; BLOCK]).unwrap();
    assert_eq!((read(&volume, 0), read(&volume, 1)), (Err(Status::Protection), Ok(6)));
}

/// The next opening reads the blocks again, whether the pool was closed or not.
#[test]
fn what_could_not_be_read_back_is_undecided_for_the_next_opening() {
    for closes in [true, false] {
        let (device, pool, _, _) = met(3);
        (0..5).for_each(|_| pool.open_volume("v").unwrap().pool().checkpoint().unwrap());
        if closes {
            pool.close().unwrap();
        } else {
            drop(pool);
        }
        let (pool, _) = open(&device, &[]).unwrap();
        assert_eq!(read(&pool.open_volume("v").unwrap(), 0), Ok(4), "closes: {closes}");
        is_sound(&pool);
    }
}

/// Memory is bounded: a disk that reads nothing back leaves no more blocks unknown than an opening may have.
#[test]
fn no_more_blocks_are_undecided_than_an_opening_may_meet() {
    let device = open_device("ram:size=64M").unwrap();
    let options = CreateOptions { checksum: Checksum::Crc32c, unit_bytes: 1 << 20, ..CreateOptions::default() };
    Pool::create(&device, &options).unwrap();
    let (pool, disk) = open(&device, &[]).unwrap();
    let volume = pool.create_volume("v", 16 << 20).unwrap();
    for round in 0..3 {
        let begun: Vec<Mapping> = (0..4).map(|_| begin(&volume, round * 256, 128)).collect();
        begun.iter().for_each(|mapping| land(&volume, mapping, 1));
        *disk.bad.lock().unwrap() = (0..256).map(|block| begun[0].addr + block * BYTES).collect();
        assert!(begun.into_iter().all(|mapping| end(&volume, mapping, 1) == Err(Status::Medium)));
    }
    let sums = volume.pool().sums.as_ref().unwrap();
    assert_eq!(sums.unknown_blocks(), MAX_UNREADABLE);
    // A write replaces the content of its blocks, and so makes room for other unknown blocks.
    (0..128).for_each(|block| write(&volume, block, 2));
    let (first, second) = (begin(&volume, 1024, 2), begin(&volume, 1024, 2));
    land(&volume, &first, 3);
    *disk.bad.lock().unwrap() = vec![first.addr];
    let ended = [first, second].map(|mapping| end(&volume, mapping, 3));
    assert_eq!(ended, [Err(Status::Medium); 2]);
    assert_eq!(sums.unknown_blocks(), MAX_UNREADABLE - 128 + 1);
}

/// The first checkpoint of an opening needs room only for the pages that it writes, not for all pages.
#[test]
fn pages_that_were_loaded_want_no_room_in_a_checkpoint() {
    let device = open_device("ram:size=1G").unwrap();
    Pool::create(&device, &CreateOptions::default().checksum(Checksum::Crc32c)).unwrap();
    let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
    let volume = pool.create_volume("v", 1 << 30).unwrap();
    // One write per 16 MiB: no two share a region of 1,000 blocks.
    (0..40).for_each(|number| write(&volume, number * 4096, 1));
    drop(volume);
    pool.close().unwrap();
    let recovered =
        super::super::recover(&DeviceIo::new(&device).unwrap(), &OpenOptions::default(), |_| Err("none".into()))
            .unwrap();
    assert_eq!(recovered.state.sums.as_ref().map(|sums| sums.pages_due()), Some(0));
}
