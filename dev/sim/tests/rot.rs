//! A block that was reported rotten stays bad until it is written anew: after crashes, checkpoints and closings, and in
//! snapshots, clones and copies. Through real rings.

use std::ops::ControlFlow;

use sheave_blk::Device;
use sheave_sim::disk::{DiskOptions, Errors, Image, SimDisk};
use sheave_uring::prep;
use sheave_vol::block_io::{BlockIo, DeviceIo};
use sheave_vol::format::SUPERBLOCKS;
use sheave_vol::superblock::Superblock;
use sheave_vol::{Checksum, Pool, ScrubOptions};

use crate::support::{BLOCK, EILSEQ, User, format, open, rot, summed};

const BLOCK_BYTES: u64 = BLOCK as u64;
const EIO: i32 = -5;

/// Crashes the pool: nothing is closed.
fn crash(device: &Device, pool: Pool) -> (Pool, User) {
    drop(pool);
    reopened(device)
}

fn reopened(device: &Device) -> (Pool, User) {
    let pool = open(device);
    let user = User::new(pool.open_volume("v").expect("it is there"));
    (pool, user)
}

fn close(device: &Device, pool: Pool) -> (Pool, User) {
    pool.close().expect("it closes");
    reopened(device)
}

fn scrub(pool: &Pool) -> u64 {
    let report = pool.scrub(&ScrubOptions::default(), &mut |_| ControlFlow::Continue(())).expect("it scrubs");
    assert!(report.completed);
    report.bad_bytes / BLOCK_BYTES
}

fn is_clean(device: &Device) {
    let report = sheave_vol::check_device(device, &Default::default()).expect("it checks");
    assert!(report.is_clean(), "{:?}", report.findings);
}

/// Rot in an open region (V16).
#[test]
fn rot_that_was_told_is_told_after_a_crash() {
    for unit in [4096, 65536, 1 << 20] {
        let (device, pool, mut user) = summed(unit);
        user.write(0, 7, 8);
        user.sync();
        rot(&device, user.addr(BLOCK_BYTES));
        assert_eq!(user.tag(BLOCK_BYTES), Err(EILSEQ));
        drop(user);
        let (pool, mut user) = crash(&device, pool);
        assert_eq!((user.tag(BLOCK_BYTES), user.tag(0)), (Err(EILSEQ), Ok(7)));
        assert_eq!(scrub(&pool), 1);
    }
}

/// Old data is reported rotten, then another unit of its region is written (V16).
#[test]
fn rot_that_was_told_is_told_after_its_region_was_opened_for_others() {
    let (device, pool, mut user) = summed(65536);
    user.write(0, 7, 8);
    user.write(1 << 20, 3, 1);
    user.sync();
    let addr = user.addr(BLOCK_BYTES);
    drop(user);
    let (pool, mut user) = close(&device, pool);
    rot(&device, addr);
    assert_eq!(user.tag(BLOCK_BYTES), Err(EILSEQ));
    assert_eq!(user.write(1 << 20, 4, 1), BLOCK as i32);
    user.sync();
    drop(user);
    let (_pool, mut user) = crash(&device, pool);
    assert_eq!((user.tag(BLOCK_BYTES), user.tag(0), user.tag(1 << 20)), (Err(EILSEQ), Ok(7), Ok(4)));
}

/// Nobody has read the rotten data, and its region was written once. An idle region is closed after a while, also
/// without commits, and then the rot is reported. In a region that is open at the crash, the rot may pass for good data
/// (V16).
#[test]
fn rot_in_a_region_that_was_idle_for_long_is_told_after_a_crash() {
    for (closes, found) in [(false, Ok(9)), (true, Err(EILSEQ))] {
        let (device, pool, mut user) = summed(65536);
        user.write(0, 7, 8);
        user.sync();
        if closes {
            assert!((0..3).any(|_| !pool.close_idle().expect("it looks")), "the third look closes it");
        }
        let io = DeviceIo::new(&device).expect("attaches");
        io.write(user.addr(BLOCK_BYTES), &[9; BLOCK]).expect("it rots");
        drop(user);
        let (_pool, mut user) = crash(&device, pool);
        assert_eq!((user.tag(BLOCK_BYTES), user.tag(0)), (found, Ok(7)), "closed: {closes}");
    }
}

/// A write copies a unit that snapshots share. Its rotten blocks stay bad in the copy, whether they were reported
/// before or not (V16).
#[test]
fn rot_stays_bad_in_copies_after_a_crash() {
    for told in [true, false] {
        let (device, pool, mut user) = summed(65536);
        user.write(0, 7, 8);
        user.sync();
        let addr = user.addr(BLOCK_BYTES);
        drop(user);
        pool.snapshot("v", "s").expect("a snapshot");
        let (pool, mut user) = close(&device, pool);
        rot(&device, addr);
        if told {
            assert_eq!(user.tag(BLOCK_BYTES), Err(EILSEQ));
        }
        assert_eq!(user.write(0, 4, 1), BLOCK as i32, "what can be read is copied");
        assert_ne!(user.addr(BLOCK_BYTES), addr);
        user.sync();
        drop(user);
        let (pool, mut user) = crash(&device, pool);
        let mut snapshot = User::new(pool.open_volume("s").expect("it is there"));
        assert_eq!((user.tag(0), user.tag(BLOCK_BYTES), user.tag(2 * BLOCK_BYTES)), (Ok(4), Err(EILSEQ), Ok(7)));
        assert_eq!((snapshot.tag(0), snapshot.tag(BLOCK_BYTES)), (Ok(7), Err(EILSEQ)));
        assert_eq!(scrub(&pool), 2);
        // Healing one copy does not heal the other.
        assert_eq!(user.write(BLOCK_BYTES, 5, 1), BLOCK as i32);
        user.sync();
        drop((user, snapshot));
        let (pool, mut user) = crash(&device, pool);
        let mut snapshot = User::new(pool.open_volume("s").expect("it is there"));
        assert_eq!((user.tag(BLOCK_BYTES), snapshot.tag(BLOCK_BYTES)), (Ok(5), Err(EILSEQ)));
        drop((user, snapshot, pool));
        is_clean(&device);
    }
}

/// Rot that a scrub has reported (V16).
#[test]
fn rot_that_a_scrub_has_told_is_told_after_a_crash() {
    let (device, pool, mut user) = summed(65536);
    user.write(0, 7, 64);
    user.sync();
    for at in [3, 4, 40] {
        rot(&device, user.addr(at * BLOCK_BYTES));
    }
    assert_eq!(scrub(&pool), 3);
    drop(user);
    let (pool, mut user) = crash(&device, pool);
    for at in 0..64 {
        let wanted = if [3, 4, 40].contains(&at) { Err(EILSEQ) } else { Ok(7) };
        assert_eq!(user.tag(at * BLOCK_BYTES), wanted, "block {at}");
    }
    assert_eq!((scrub(&pool), pool.info().bad_blocks), (3, 3));
}

/// Only a write removes a mark; even the return of the right bits does not.
#[test]
fn a_mark_outlives_crashes_checkpoints_closings_and_copies() {
    let (device, pool, mut user) = summed(65536);
    user.write(0, 7, 8);
    user.sync();
    let addr = user.addr(BLOCK_BYTES);
    rot(&device, addr);
    assert_eq!(user.tag(BLOCK_BYTES), Err(EILSEQ));
    rot(&device, addr);
    assert_eq!(user.tag(BLOCK_BYTES), Err(EILSEQ), "though it is what was written: it was told bad");
    drop(user);
    let (mut pool, mut user) = crash(&device, pool);
    for round in 0..6 {
        assert_eq!(user.tag(BLOCK_BYTES), Err(EILSEQ), "round {round}");
        assert_eq!(user.write(2 * BLOCK_BYTES, round, 1), BLOCK as i32, "its neighbours are written");
        user.sync();
        drop(user);
        (pool, user) = if round % 2 == 0 { close(&device, pool) } else { crash(&device, pool) };
    }
    pool.snapshot("v", "s").expect("a snapshot");
    pool.clone_volume("s", "c").expect("a clone");
    let mut clone = User::new(pool.open_volume("c").expect("it is there"));
    assert_eq!(clone.write(0, 9, 1), BLOCK as i32);
    assert_eq!(clone.tag(BLOCK_BYTES), Err(EILSEQ));
    drop((user, clone));
    pool.rollback("v", "s").expect("back");
    let (pool, mut user) = crash(&device, pool);
    assert_eq!((user.tag(BLOCK_BYTES), pool.info().bad_blocks), (Err(EILSEQ), 2));
    drop((user, pool));
    is_clean(&device);
}

/// A write of the block removes its mark, durably when the write is durable: also with FUA, and after a discard.
#[test]
fn a_write_heals_a_marked_block_for_good() {
    for way in 0..3 {
        let (device, pool, mut user) = summed(65536);
        user.write(0, 7, 8);
        user.sync();
        rot(&device, user.addr(BLOCK_BYTES));
        assert_eq!(user.tag(BLOCK_BYTES), Err(EILSEQ));
        match way {
            0 => {
                assert_eq!(user.write(0, 8, 4), 4 * BLOCK as i32);
                user.sync();
            }
            1 => {
                let mut data = sheave_base::buf::Buf::zeroed(BLOCK, BLOCK).expect("memory");
                data.fill(8);
                let write = prep::write(user.fd, data).offset(BLOCK_BYTES).dsync();
                assert_eq!(user.run(write).0, BLOCK as i32);
            }
            _ => {
                assert_eq!(user.run(prep::punch_hole(user.fd, BLOCK_BYTES, BLOCK_BYTES)).0, 0);
                user.sync();
                drop(user);
                let crashed = crash(&device, pool);
                (_, user) = crashed;
                assert_eq!(user.tag(BLOCK_BYTES), Ok(0));
                continue;
            }
        }
        drop(user);
        let (pool, mut user) = crash(&device, pool);
        assert_eq!((user.tag(BLOCK_BYTES), pool.info().bad_blocks), (Ok(8), 0));
        drop(user);
        let (_pool, mut user) = close(&device, pool);
        assert_eq!(user.tag(BLOCK_BYTES), Ok(8));
    }
}

/// A unit that is freed with marks has none when it is allocated again.
#[test]
fn marks_go_with_what_they_were_about() {
    let (device, pool, mut user) = summed(65536);
    user.write(0, 7, 16);
    user.sync();
    let addr = user.addr(0);
    for at in 0..16 {
        rot(&device, addr + at * BLOCK_BYTES);
    }
    assert_eq!(scrub(&pool), 16);
    drop(user);
    pool.delete("v").expect("it goes");
    pool.create_volume("v", 8 << 20).expect("a volume");
    let (pool, mut user) = close(&device, pool);
    assert_eq!(user.write(0, 9, 1), BLOCK as i32);
    assert_eq!(user.addr(0), addr, "it has the unit that was bad");
    user.sync();
    assert_eq!((user.tag(0), pool.info().bad_blocks), (Ok(9), 0));
    drop(user);
    let (pool, mut user) = crash(&device, pool);
    assert_eq!((user.tag(0), pool.info().bad_blocks), (Ok(9), 0));
    assert_eq!(user.write(BLOCK_BYTES, 8, 15), 15 * BLOCK as i32);
    assert_eq!((scrub(&pool), pool.info().checksum_errors), (0, 0));
}

/// Rot in a region that was not written since it was closed is reported, even if the journal has units of that region.
#[test]
fn only_open_regions_are_believed_after_a_crash() {
    let (device, pool, mut user) = summed(65536);
    user.write(0, 7, 16);
    user.sync();
    let addr = user.addr(0);
    drop(user);
    let (pool, mut user) = close(&device, pool);
    // The journal has the unit again, while the unit's region is closed.
    assert_eq!(user.run(prep::punch_hole(user.fd, 5 * BLOCK_BYTES, BLOCK_BYTES)).0, 0);
    user.sync();
    drop(user);
    rot(&device, addr + 3 * BLOCK_BYTES);
    let (pool, mut user) = crash(&device, pool);
    assert_eq!((user.tag(3 * BLOCK_BYTES), user.tag(0), user.tag(5 * BLOCK_BYTES)), (Err(EILSEQ), Ok(7), Ok(0)));
    assert_eq!(pool.info().rebuilt_checksums, 0);
}

/// A bad block is not reported before its mark is written, because after a crash it might count as good (V16).
#[test]
fn a_mark_that_cannot_be_written_is_not_told() {
    let errors = Errors { write: 1000, ..Errors::default() };
    let options = DiskOptions { errors, slow: 0, max_delay: 0, logical_block: 4096, ..DiskOptions::default() };
    let disk = SimDisk::new(Image::new(64 << 20), options);
    let device = disk.device();
    format(&device, 65536, Checksum::Crc32c);
    let pool = open(&device);
    let mut user = User::new(pool.create_volume("v", 8 << 20).expect("a volume"));
    user.write(0, 7, 16);
    user.sync();
    rot(&device, user.addr(0));
    disk.hold(true);
    assert_eq!((user.tag(0), user.tag(0)), (Err(EIO), Err(EIO)));
    disk.hold(false);
    assert_eq!((user.tag(0), user.tag(BLOCK_BYTES)), (Err(EILSEQ), Ok(7)));
    drop(user);
    let (pool, mut user) = crash(&device, pool);
    assert_eq!((user.tag(0), pool.info().bad_blocks), (Err(EILSEQ), 1));
}

/// Changes the superblocks to what a program without marks would have written. Returns the superblocks from before.
fn superblocks(device: &Device, change: impl Fn(&mut Superblock)) -> Vec<Superblock> {
    let io = DeviceIo::new(device).expect("the device opens");
    let slots = SUPERBLOCKS.iter().map(|&at| {
        let mut block = [0; BLOCK];
        io.read(at, &mut block).expect("it reads");
        let mut sb = Superblock::decode(&block, at, u64::MAX).expect("intact");
        change(&mut sb);
        sb.encode(&mut block);
        io.write(at, &block).expect("it writes");
        sb
    });
    slots.collect()
}

/// A program without marks copied data to regions that were not open. The checksums of the units in its journal are
/// computed when the pool opens.
#[test]
fn a_pool_of_a_program_that_knew_no_marks_opens_and_knows_them_when_it_is_upgraded() {
    let (device, pool, mut user) = summed(65536);
    user.write(0, 7, 16);
    user.sync();
    let addr = user.addr(0);
    drop(user);
    let (pool, mut user) = close(&device, pool);
    assert_eq!(user.run(prep::punch_hole(user.fd, 5 * BLOCK_BYTES, BLOCK_BYTES)).0, 0);
    user.sync();
    drop((user, pool));
    rot(&device, addr + 3 * BLOCK_BYTES);
    superblocks(&device, |sb| sb.marks = false);
    let (pool, mut user) = reopened(&device);
    assert!(user.read(3 * BLOCK_BYTES, BLOCK).0 > 0);
    assert_eq!((user.tag(0), pool.info().rebuilt_checksums), (Ok(7), 1));
    assert!(superblocks(&device, |_| ()).iter().all(|sb| !sb.marks), "opening converts nothing");
    assert_eq!(pool.upgrade().expect("upgrades").len(), 1);
    assert!(superblocks(&device, |_| ()).iter().all(|sb| sb.marks));
    rot(&device, addr);
    assert_eq!(user.tag(0), Err(EILSEQ));
    drop(user);
    let (_pool, mut user) = crash(&device, pool);
    assert_eq!(user.tag(0), Err(EILSEQ));
}
