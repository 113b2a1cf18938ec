//! Rebuilding a pool from the newest root among its pages, after both superblocks and all copies are lost.

use sheave_blk::Device;
use sheave_drivers::open_device;
use sheave_iomap::File;
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::file::WriteDone;
use sheave_iomap::mapping::Intent;

use super::*;
use crate::device::block_io::DeviceIo;
use crate::format::{BLOCK_BYTES, SUPERBLOCKS};
use crate::{CheckOptions, CheckReport, Checksum, CreateOptions, FindingKind, OpenOptions, Pool, check_device};

const SIZE: usize = 24 << 20;
const UNIT: u64 = 65536;

fn device() -> Device {
    open_device(&format!("ram:size={SIZE}")).unwrap()
}

fn read(device: &Device, at: u64, bytes: &mut [u8]) {
    DeviceIo::new(device).unwrap().read(at, bytes).unwrap();
}

fn put(device: &Device, at: u64, bytes: &[u8]) {
    DeviceIo::new(device).unwrap().write(at, bytes).unwrap();
}

fn copy_of(device: &Device) -> Device {
    let (mut bytes, copy) = (vec![0; SIZE], self::device());
    read(device, 0, &mut bytes);
    put(&copy, 0, &bytes);
    copy
}

fn write(pool: &Pool, name: &str, pos: u64) {
    let (volume, token) = (pool.open_volume(name).unwrap(), MayBlock::on_worker());
    let piece = volume.map_blocking(pos, BLOCK_BYTES, Intent::Write, &token).unwrap();
    pool.inner.io.write(piece.addr, &[pos as u8 ^ 0x5a; BLOCK]).unwrap();
    volume.end_write(WriteDone::new(pos, BLOCK_BYTES, Status::Ok, &[piece]), &token).unwrap();
}

fn holds(pool: &Pool, name: &str, units: std::ops::Range<u64>) {
    let volume = pool.open_volume(name).unwrap();
    for unit in units {
        let piece = volume.map(unit * UNIT, BLOCK_BYTES, Intent::Read).unwrap();
        let mut block = [0; BLOCK];
        pool.inner.io.read(piece.addr, &mut block).unwrap();
        assert_eq!(block, [(unit * UNIT) as u8 ^ 0x5a; BLOCK], "unit {unit} of '{name}'");
    }
}

/// Makes a pool that was opened several times and written to between checkpoints. The pool is closed, or left as by a
/// crash, with records in the journal.
fn used(options: &CreateOptions, close: bool) -> Device {
    let device = device();
    Pool::create(&device, options).unwrap();
    for round in 0..3 {
        let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
        let name = format!("v{round}");
        drop(pool.create_volume(&name, 1 << 30).unwrap());
        (0..5).for_each(|unit| write(&pool, &name, unit * UNIT));
        pool.inner.checkpoint().unwrap();
        (5..10).for_each(|unit| write(&pool, &name, unit * UNIT));
        pool.sync().unwrap();
        if close || round < 2 {
            pool.close().unwrap();
        }
    }
    device
}

/// Overwrites both superblocks and their copies with zeroes.
fn ruin(device: &Device) {
    let mut block = [0; BLOCK];
    read(device, 0, &mut block);
    let copies = Superblock::decode(&block, 0, u64::MAX).unwrap().copies;
    assert!(copies.iter().all(|at| *at != 0), "{copies:?}");
    SUPERBLOCKS.into_iter().chain(copies).for_each(|at| put(device, at, &[0x33; BLOCK]));
}

fn checked(device: &Device, repair: bool) -> CheckReport {
    check_device(device, &CheckOptions::default().repair(repair)).unwrap()
}

fn is_refused(device: &Device, words: &str) {
    for repair in [false, true] {
        let report = checked(device, repair);
        assert!(!report.is_repairable() && !report.repaired, "{:?}", report.findings);
        let told = report.findings.iter().any(|found| found.kind == FindingKind::NoPool && found.means.contains(words));
        assert!(told, "{:?}", report.findings);
    }
}

fn root(device: &Device) -> Copied {
    find(&DeviceIo::new(device).unwrap(), &mut |_| ()).unwrap().expect("there is one")
}

#[test]
fn a_pool_without_superblocks_and_copies_is_rebuilt_from_its_newest_root() {
    for checksum in [Checksum::None, Checksum::Crc32c] {
        for (close, copies) in [(true, 1), (false, 1), (true, 2), (false, 2)] {
            let device = used(&CreateOptions { checksum, metadata_copies: Some(copies), ..Default::default() }, close);
            ruin(&device);
            let error = Pool::open(&device, &OpenOptions::default()).unwrap_err().to_string();
            assert!(error.contains("no pool"), "an opening that writes looks for no root: {error}");
            let rescued = Pool::open(&device, &OpenOptions { rescue: true, ..OpenOptions::default() }).unwrap();
            (0..3).for_each(|round| holds(&rescued, &format!("v{round}"), 0..10));
            drop(rescued);
            let report = checked(&device, false);
            assert!(report.is_repairable(), "{:?}", report.findings);
            let slots = report.findings.iter().filter(|found| found.place.what.starts_with("superblock "));
            assert_eq!(slots.filter(|found| found.means.contains("the root at byte")).count(), 2, "{report:?}");
            assert!(checked(&device, true).repaired);
            let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
            (0..3).for_each(|round| holds(&pool, &format!("v{round}"), 0..10));
            pool.close().unwrap();
            assert!(checked(&device, false).is_clean());
        }
    }
}

/// If the newest root may not be the last state, nothing is repaired, and the error says why.
#[test]
fn a_root_that_may_be_old_or_is_not_whole_is_refused() {
    let whole = used(&CreateOptions::default(), true);
    let newest = root(&whole);
    // A page of the root's checkpoint is missing, as after a checkpoint that was cut off.
    let device = copy_of(&whole);
    ruin(&device);
    put(&device, newest.sb.table.address, &[0; BLOCK]);
    is_refused(&device, "not all pages are there");
    // The newest root is lost, and the previous one is intact.
    let device = copy_of(&whole);
    ruin(&device);
    put(&device, newest.at, &[0; BLOCK]);
    is_refused(&device, "pages of a later one");
    // A second root has the same age and another content.
    let device = copy_of(&whole);
    ruin(&device);
    let (mut block, mut other) = ([0; BLOCK], newest.sb.clone());
    other.owner[3] ^= 1;
    other.encode_root(&mut block, 23 << 20);
    put(&device, 23 << 20, &block);
    is_refused(&device, "of the same age");
    // The journal has blocks of a later opening, whose root is lost.
    let device = copy_of(&whole);
    let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
    write(&pool, "v0", 20 * UNIT);
    pool.sync().unwrap();
    drop(pool);
    ruin(&device);
    let later = root(&device);
    assert!(later.sb.generation > newest.sb.generation, "an opening writes a root of its own");
    put(&device, later.at, &[0; BLOCK]);
    let report = checked(&device, true);
    assert!(!report.repaired && !report.is_repairable(), "{:?}", report.findings);
    // The device has no root.
    let device = copy_of(&whole);
    ruin(&device);
    let mut block = [0; BLOCK];
    for at in (0..SIZE as u64).step_by(BLOCK) {
        read(&device, at, &mut block);
        if identify(&block).is_ok_and(|(head, _)| head.kind == kind::ROOT) {
            put(&device, at, &[0; BLOCK]);
        }
    }
    is_refused(&device, "Without a superblock there is no pool");
}

/// Pages and roots of an older pool may be left on the device: the pool that was made last is chosen. A pool inside a
/// volume is ignored, and so is a root at another address than its own.
#[test]
fn what_is_left_of_other_pools_is_passed_over() {
    let device = used(&CreateOptions::default(), true);
    let old = root(&device);
    let mut block = [0; BLOCK];
    read(&device, old.at, &mut block);
    put(&device, old.at + 4 * UNIT, &block);
    assert_eq!(root(&device).at, old.at, "a block in another place is none");
    let mut newer = old.sb.clone();
    (newer.pool, newer.created) = ([7; 16], old.sb.created + 1);
    newer.encode_root(&mut block, 22 << 20);
    put(&device, 22 << 20, &block);
    let found = root(&device);
    assert!(found.sb.pool == [7; 16] && found.others);
    (newer.pool, newer.created) = ([8; 16], old.sb.created + 1);
    newer.encode_root(&mut block, 21 << 20);
    put(&device, 21 << 20, &block);
    let tied = find(&DeviceIo::new(&device).unwrap(), &mut |_| ()).err();
    assert!(tied.is_some_and(|words| words.contains("of the same age")));
}
