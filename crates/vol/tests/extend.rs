//! Volumes that grow: writes beyond the end (V23, V24).
#![cfg(not(shuttle))]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{User, format, open, pattern};
use sheave_base::status::Status;
use sheave_blk::Device;
use sheave_drivers::open_device;
use sheave_iomap::File;
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::mapping::Intent;
use sheave_vol::{CheckOptions, ExtentKind, OpenOptions, Pool, PoolError, check};

const UNIT: u64 = 65536;
const BLOCK: u64 = 4096;
const MAX: u64 = 64 << 20;

fn pool() -> (Device, Pool) {
    let device = open_device("ram:size=32M").expect("opens");
    format(&device, UNIT);
    let pool = open(&device);
    (device, pool)
}

fn growing(pool: &Pool, name: &str) -> User {
    User::new(pool.create_growing_volume(name, 0, MAX).expect("creates"))
}

fn size(user: &User) -> u64 {
    user.volume.size_bytes()
}

fn reopened(device: &Device, pool: Pool) -> Pool {
    drop(pool);
    open(device)
}

/// Closes the pool and verifies that the offline check finds nothing.
fn assert_clean(device: &Device, pool: Pool) {
    pool.close().expect("nothing is open");
    let io = sheave_vol::block_io::DeviceIo::new(device).expect("attaches");
    let report = check(&io, &CheckOptions::default()).expect("it is a pool");
    assert!(report.is_clean(), "{:?}", report.findings);
}

#[test]
fn a_write_beyond_the_end_makes_it_larger_and_a_gap_reads_as_zeroes() {
    let (device, pool) = pool();
    let user = growing(&pool, "v");
    assert_eq!((size(&user), user.volume.max_bytes(), user.volume.block_bytes()), (0, Some(MAX), 4096));
    let data = pattern(1, 3 * BLOCK as usize);
    user.write(0, &data).expect("writes");
    assert_eq!(size(&user), 3 * BLOCK);
    user.write(2 * BLOCK, &data).expect("begins before the end and goes beyond it");
    assert_eq!(size(&user), 5 * BLOCK);
    let far = 10 * UNIT + 3 * BLOCK;
    user.write(far, &data).expect("leaves a gap");
    assert_eq!(size(&user), far + 3 * BLOCK);
    let all = |user: &User| {
        let read = user.read(0, size(user) as usize).expect("reads");
        assert!(read[..2 * BLOCK as usize] == data[..2 * BLOCK as usize]);
        assert!(read[2 * BLOCK as usize..5 * BLOCK as usize] == data);
        assert!(read[5 * BLOCK as usize..far as usize].iter().all(|byte| *byte == 0), "the gap");
        assert!(read[far as usize..] == data);
    };
    all(&user);
    // V23: a flush makes data and size durable.
    user.sync().expect("syncs");
    user.write(20 * UNIT, &data).expect("writes");
    drop(user);
    let pool = reopened(&device, pool);
    let user = User::new(pool.open_volume("v").expect("is there"));
    assert_eq!(size(&user), far + 3 * BLOCK, "what was flushed, and no more");
    all(&user);
    assert_eq!(user.volume.extents(0, MAX).expect("extents").last().expect("some").pos, 11 * UNIT);
    drop(user);
    assert_clean(&device, pool);
}

#[test]
fn the_size_is_seen_when_the_data_is_there_and_not_before() {
    let (_device, pool) = pool();
    let user = growing(&pool, "v");
    let data = pattern(2, BLOCK as usize);
    // V23: the writes end out of order.
    let first = user.start(0, &data).expect("starts");
    let second = user.start(BLOCK, &data).expect("starts");
    let far = user.start(7 * BLOCK, &data).expect("starts");
    assert_eq!(size(&user), 0, "nothing has ended");
    pool.sync().expect("a flush makes nothing of what has not ended");
    assert_eq!(size(&user), 0);
    user.end(second).expect("ends");
    assert_eq!(size(&user), 2 * BLOCK);
    assert!(user.read(0, BLOCK as usize).expect("reads").iter().all(|byte| *byte == 0), "not yet there");
    assert!(user.read(BLOCK, BLOCK as usize).expect("reads") == data);
    user.end(first).expect("ends");
    assert_eq!(size(&user), 2 * BLOCK);
    assert!(user.read(0, BLOCK as usize).expect("reads") == data);
    user.end(far).expect("ends");
    assert_eq!(size(&user), 8 * BLOCK);
    assert!(user.read(2 * BLOCK, 5 * BLOCK as usize).expect("reads").iter().all(|byte| *byte == 0));
}

#[test]
fn a_failed_write_changes_no_size() {
    let (_device, pool) = pool();
    let user = growing(&pool, "v");
    let data = pattern(3, 2 * UNIT as usize);
    let mut failed = user.start(UNIT, &data).expect("starts");
    failed.status = Status::IoErr;
    assert_eq!(user.end(failed), Err(Status::IoErr));
    assert_eq!(size(&user), 0);
    // The next write gets the space of the failed one and shows nothing of its data.
    user.write(3 * UNIT, &data[..BLOCK as usize]).expect("writes");
    assert!(user.read(0, 3 * UNIT as usize).expect("reads").iter().all(|byte| *byte == 0));
}

#[test]
fn writes_beyond_the_largest_size_are_refused() {
    let (_device, pool) = pool();
    let data = pattern(4, 4 * BLOCK as usize);
    let user = User::new(pool.create_growing_volume("v", BLOCK, 3 * BLOCK).expect("creates"));
    assert_eq!(user.write(3 * BLOCK, &data), Err(Status::FileTooBig));
    assert_eq!(user.write(u64::MAX - 5 * BLOCK + 1, &data), Err(Status::FileTooBig));
    assert_eq!(user.write(512, &data[..512]), Err(Status::Invalid), "by whole blocks");
    assert_eq!(user.write(BLOCK, &data[..512]), Err(Status::Invalid));
    assert_eq!(size(&user), BLOCK);
    user.write(BLOCK, &data[..2 * BLOCK as usize]).expect("up to the end");
    assert_eq!(size(&user), 3 * BLOCK);
    pool.set_max_size("v", 8 * BLOCK).expect("raises");
    assert_eq!(pool.volume_info("v").expect("is there").max_size_bytes, Some(8 * BLOCK));
    user.write(4 * BLOCK, &data).expect("writes");
    assert_eq!(size(&user), 8 * BLOCK);
    let message = |result: Result<(), PoolError>| result.expect_err("refused").to_string();
    assert!(message(pool.set_max_size("v", 7 * BLOCK)).contains("are more than"));
    assert!(message(pool.set_max_size("v", 8 * BLOCK + 512)).contains("multiples of 4096"));
    assert!(message(pool.resize("v", 9 * BLOCK)).contains("Raise its largest size first"));
    assert!(message(pool.resize("v", 512)).contains("multiples of 4096"));
    assert!(message(pool.create_growing_volume("w", 0, 0).map(drop)).contains("multiples of 4096"));
    assert!(message(pool.create_growing_volume("w", 0, !4095).map(drop)).contains("the limit is"));
    drop(pool.create_volume("fixed", MAX).expect("creates"));
    assert!(message(pool.set_max_size("fixed", MAX)).contains("does not grow"));
    assert_eq!(pool.volume_info("fixed").expect("is there").max_size_bytes, None);
    pool.snapshot("v", "s").expect("snapshot");
    assert!(message(pool.set_max_size("s", MAX)).contains("is a snapshot"));
    assert!(message(pool.resize("s", 0)).contains("is a snapshot"));
    // A limit that is lowered while a write is in flight is raised again by the write.
    let under_way = User::new(pool.create_growing_volume("x", 0, MAX).expect("creates"));
    let started = under_way.start(16 * BLOCK, &data).expect("starts");
    pool.set_max_size("x", 2 * BLOCK).expect("lowers");
    under_way.end(started).expect("ends");
    assert_eq!((size(&under_way), under_way.volume.max_bytes()), (20 * BLOCK, Some(20 * BLOCK)));
}

#[test]
fn copies_have_the_size_of_their_moment_and_grow_on() {
    let (device, pool) = pool();
    let user = growing(&pool, "v");
    let (old, new) = (pattern(5, UNIT as usize), pattern(6, UNIT as usize));
    user.write(0, &old).expect("writes");
    pool.snapshot("v", "s").expect("snapshot");
    user.write(UNIT, &new).expect("grows on");
    pool.clone_volume("s", "c").expect("clones");
    let clone = User::new(pool.open_volume("c").expect("is there"));
    assert_eq!((size(&clone), clone.volume.max_bytes()), (UNIT, Some(MAX)));
    clone.write(3 * UNIT, &new).expect("grows by itself");
    assert_eq!((size(&user), size(&clone)), (2 * UNIT, 4 * UNIT));
    let snapshot = User::new(pool.open_volume("s").expect("is there"));
    assert_eq!(snapshot.write(UNIT, &new), Err(Status::ReadOnly));
    assert_eq!(size(&snapshot), UNIT);
    drop(user);
    pool.set_max_size("v", 2 * UNIT).expect("lowers");
    pool.rollback("v", "s").expect("rolls back");
    let user = User::new(pool.open_volume("v").expect("is there"));
    assert_eq!((size(&user), user.volume.max_bytes()), (UNIT, Some(MAX)), "both are the snapshot's");
    user.write(2 * UNIT, &new).expect("writes");
    assert!(user.read(UNIT, UNIT as usize).expect("reads").iter().all(|byte| *byte == 0), "what was rolled back");
    drop((user, clone, snapshot));
    let pool = reopened(&device, pool);
    let sizes: Vec<u64> = pool.volumes().iter().map(|info| info.size_bytes).collect();
    assert_eq!(sizes, [4 * UNIT, UNIT, UNIT], "c, s, v: the last write to v was not flushed");
    assert!(pool.volumes().iter().all(|info| info.max_size_bytes == Some(MAX)));
    assert_clean(&device, pool);
}

#[test]
fn a_write_under_way_is_in_a_snapshot_with_its_size_or_not_at_all() {
    let (device, pool) = pool();
    let user = growing(&pool, "v");
    let data = pattern(7, 2 * UNIT as usize);
    user.write(0, &data[..UNIT as usize]).expect("writes");
    let started = user.start(4 * UNIT + BLOCK, &data).expect("starts");
    thread::scope(|scope| {
        let taken = scope.spawn(|| pool.snapshot("v", "s"));
        thread::sleep(Duration::from_millis(100));
        assert!(!taken.is_finished(), "it waits for the write");
        user.end(started).expect("ends");
        taken.join().expect("ends").expect("is taken");
    });
    let whole = 6 * UNIT + BLOCK;
    let look = |pool: &Pool| {
        let snapshot = User::new(pool.open_volume("s").expect("is there"));
        assert_eq!(size(&snapshot), whole, "V24: it was begun before, and has ended before it returned");
        assert!(snapshot.read(4 * UNIT + BLOCK, data.len()).expect("reads") == data);
    };
    look(&pool);
    user.write(whole, &data).expect("grows on");
    drop(user);
    let pool = reopened(&device, pool);
    look(&pool);
    assert_clean(&device, pool);
}

#[test]
fn a_cut_beside_a_write_in_flight_leaves_all_or_nothing_of_it() {
    let (_device, pool) = pool();
    let (old, new) = (pattern(8, 4 * UNIT as usize), pattern(9, UNIT as usize));
    for (at, cut) in [(UNIT, 0), (2 * UNIT, UNIT / 2), (4 * UNIT, 3 * UNIT), (4 * UNIT + BLOCK, 4 * BLOCK)] {
        let user = growing(&pool, "v");
        user.write(0, &old).expect("writes");
        user.punch(at.min(3 * UNIT), BLOCK).expect("punches");
        // This thread has a write in flight and cuts the volume: neither waits for the other.
        let started = user.start(at, &new).expect("starts");
        pool.resize("v", cut).expect("cuts");
        assert_eq!(size(&user), cut);
        user.end(started).expect("ends");
        let now = size(&user);
        let end = at + UNIT;
        assert!(
            now == cut || (cut < now && now <= end),
            "{now}: as it was cut, or as the write that came later left it"
        );
        if now < end {
            pool.resize("v", end).expect("grows");
        }
        let read = user.read(0, end as usize).expect("reads");
        let zero = |from: u64, to: u64| read[from as usize..to as usize].iter().all(|byte| *byte == 0);
        assert!(read[..cut as usize].iter().zip(&old).all(|(a, b)| a == b || *a == 0));
        assert!(zero(cut, at.max(cut)), "what was cut off does not come back");
        let blocks = read[at as usize..].chunks(BLOCK as usize).zip(new.chunks(BLOCK as usize));
        for (block, written) in blocks {
            assert!(block == written || block.iter().all(|byte| *byte == 0), "a block of neither");
        }
        drop(user);
        pool.delete("v").expect("deletes");
    }
    // A cut that removes the unit of a write in flight removes the write too. After a cut within that unit the write
    // counts as later, and enlarges the volume again.
    let user = growing(&pool, "v");
    user.write(0, &old[..BLOCK as usize]).expect("writes");
    let started = user.start(4 * BLOCK, &new[..BLOCK as usize]).expect("starts");
    pool.resize("v", 0).expect("cuts");
    user.end(started).expect("ends");
    assert_eq!(size(&user), 0, "the unit went with the cut, and the write with it");
    user.write(0, &old[..2 * BLOCK as usize]).expect("writes");
    let started = user.start(4 * BLOCK, &new[..BLOCK as usize]).expect("starts");
    pool.resize("v", BLOCK).expect("cuts");
    user.end(started).expect("ends");
    assert_eq!(size(&user), 5 * BLOCK, "the unit stayed: the write came after the cut");
    assert!(user.read(BLOCK, 3 * BLOCK as usize).expect("reads").iter().all(|byte| *byte == 0));
}

/// A volume of fixed size is cut while a write to an unwritten part is in flight.
#[test]
fn what_is_cut_off_a_fixed_volume_does_not_come_back_with_a_late_write() {
    let (_device, pool) = pool();
    let user = User::new(pool.create_volume("v", 2 * UNIT).expect("creates"));
    user.write(0, &pattern(1, BLOCK as usize)).expect("writes");
    let started = user.start(8 * BLOCK, &pattern(2, BLOCK as usize)).expect("starts");
    pool.resize("v", 4 * BLOCK).expect("cuts");
    user.end(started).expect("it came before the cut");
    pool.resize("v", 2 * UNIT).expect("grows");
    let read = user.read(4 * BLOCK, UNIT as usize).expect("reads");
    assert!(read.iter().all(|byte| *byte == 0), "V9: gone, also when it grows again");
}

#[test]
fn a_full_pool_raises_no_size_and_gets_back_what_the_write_had() {
    let (device, pool) = pool();
    let user = growing(&pool, "v");
    user.write(0, &pattern(1, UNIT as usize)).expect("writes");
    let free = pool.info().free_bytes;
    let much = vec![1; (free + UNIT) as usize];
    assert_eq!(user.write(4 * UNIT, &much), Err(Status::NoSpc), "V15");
    assert_eq!(size(&user), UNIT);
    user.sync().expect("syncs");
    let info = pool.info();
    assert_eq!((info.free_bytes, info.data_bytes), (free, UNIT), "{info:?}");
    assert!(user.volume.extents(UNIT, MAX).expect("extents").iter().all(|one| one.kind == ExtentKind::Hole));
    // Another write in flight keeps its units.
    let data = pattern(2, 2 * UNIT as usize);
    let started = user.start(UNIT, &data).expect("starts");
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            let other = User::new(pool.open_volume("v").expect("is there"));
            other.write(8 * UNIT, &much)
        });
        thread::sleep(Duration::from_millis(100));
        user.end(started).expect("ends");
        assert_eq!(other.join().expect("ends"), Err(Status::NoSpc));
    });
    assert_eq!(size(&user), 3 * UNIT);
    assert!(user.read(UNIT, data.len()).expect("reads") == data);
    drop(user);
    pool.sync().expect("syncs");
    let pool = reopened(&device, pool);
    assert_eq!(pool.volume_info("v").expect("is there").size_bytes, 3 * UNIT);
    assert_clean(&device, pool);
}

#[test]
fn what_a_failed_write_left_is_listed_also_beyond_a_lower_limit_and_goes_with_a_cut() {
    let (_device, pool) = pool();
    let user = growing(&pool, "v");
    user.write(0, &pattern(1, UNIT as usize)).expect("writes");
    user.sync().expect("syncs");
    let free = pool.info().free_bytes;
    let mut failed = user.start(4 * UNIT, &pattern(2, 8 * UNIT as usize)).expect("starts");
    failed.status = Status::IoErr;
    assert_eq!(user.end(failed), Err(Status::IoErr));
    pool.set_max_size("v", 2 * UNIT).expect("sets");
    let listed = user.volume.extents(UNIT, u64::MAX).expect("extents");
    let space: u64 = listed.iter().filter(|one| one.kind == ExtentKind::Unwritten).map(|one| one.len).sum();
    assert_eq!((space, pool.info().free_bytes), (8 * UNIT, free - 8 * UNIT), "{listed:?}");
    pool.resize("v", 0).expect("cuts");
    user.sync().expect("syncs");
    assert_eq!(pool.info().free_bytes, free + UNIT);
}

#[test]
fn two_writes_that_find_no_room_take_nothing_from_a_third() {
    let (_device, pool) = pool();
    let user = growing(&pool, "v");
    user.write(0, &pattern(1, UNIT as usize)).expect("writes");
    let much = vec![1; (pool.info().free_bytes + UNIT) as usize];
    let another = || User::new(pool.open_volume("v").expect("is there"));
    let (third, data) = (another(), pattern(2, UNIT as usize));
    let nap = || thread::sleep(Duration::from_millis(100));
    let held = user.start(UNIT, &pattern(3, UNIT as usize)).expect("starts");
    thread::scope(|scope| {
        let first = scope.spawn(|| another().write(8 * UNIT, &much));
        nap();
        // The first write waits for I/O in flight. This one begins later, in space that the first was given.
        let started = third.start(8 * UNIT, &data).expect("starts");
        let second = scope.spawn(|| another().write(20 * UNIT, &much));
        nap();
        user.end(held).expect("ends");
        nap();
        third.end(started).expect("ends");
        assert_eq!(first.join().expect("ends"), Err(Status::NoSpc));
        assert_eq!(second.join().expect("ends"), Err(Status::NoSpc));
    });
    assert_eq!(size(&user), 9 * UNIT);
    assert!(user.read(8 * UNIT, data.len()).expect("reads") == data, "it was told that this is written");
}

/// Two writes are in flight in a unit beyond the end, to its blocks 9 and 3. A third write finds no space and waits for
/// the release of that unit; `give_up` ends its wait. The write of block 9 ends. `hole` then removes that block, the
/// only written one, and leaves the volume with `blocks` blocks of the unit. The write of block 3 must keep the unit.
fn what_is_under_way_keeps_its_unit(give_up: bool, blocks: u64, hole: impl Fn(&Pool, &User) + Sync) {
    let (device, pool) = pool();
    let user = growing(&pool, "v");
    let (unit, data) = (4 * UNIT, pattern(2, BLOCK as usize));
    user.write(0, &pattern(1, UNIT as usize)).expect("writes");
    let first = user.start(unit + 9 * BLOCK, &data).expect("starts");
    let second = user.start(unit + 3 * BLOCK, &data).expect("starts");
    let much = pool.info().free_bytes + UNIT;
    let nap = || thread::sleep(Duration::from_millis(100));
    let asked = AtomicBool::new(false);
    thread::scope(|scope| {
        let giver = scope.spawn(|| {
            let volume = pool.open_volume("v").expect("is there");
            let asked = || asked.load(Ordering::SeqCst);
            let may_block = MayBlock::until(&asked);
            let (mut at, end) = (8 * UNIT, 8 * UNIT + much);
            loop {
                match volume.map_blocking(at, end - at, Intent::Write, &may_block) {
                    Ok(mapping) => at += mapping.len,
                    Err(status) => return status,
                }
            }
        });
        let begun = Instant::now();
        let until = |what: &str, is: &dyn Fn() -> bool| {
            while !is() {
                assert!(begun.elapsed() < Duration::from_secs(60), "never: {what}");
                thread::sleep(Duration::from_millis(1));
            }
        };
        until("it waits for what is under way", &|| !user.volume.holders().is_empty());
        asked.store(give_up, Ordering::SeqCst);
        match give_up {
            true => until("it gives up", &|| giver.is_finished()),
            false => {
                nap();
                assert!(!giver.is_finished(), "it waits for what is under way");
            }
        }
        user.end(first).expect("ends");
        assert_eq!(size(&user), unit + 10 * BLOCK);
        let holes = scope.spawn(|| hole(&pool, &User::new(pool.open_volume("v").expect("is there"))));
        nap();
        user.end(second).expect("ends");
        holes.join().expect("ends");
        let given = giver.join().expect("ends");
        assert_eq!(given, if give_up { Status::Canceled } else { Status::NoSpc });
    });
    let look = |user: &User| {
        assert_eq!(size(user), unit + blocks * BLOCK);
        let read = user.read(unit, (blocks * BLOCK) as usize).expect("reads");
        for (at, block) in read.chunks(BLOCK as usize).enumerate() {
            assert!(if at == 3 { block == data } else { block.iter().all(|byte| *byte == 0) }, "block {at}");
        }
    };
    look(&user);
    user.sync().expect("syncs");
    drop(user);
    let pool = reopened(&device, pool);
    look(&User::new(pool.open_volume("v").expect("is there")));
    assert_clean(&device, pool);
}

#[test]
fn a_hole_takes_no_unit_that_a_write_is_in_while_space_is_given_back() {
    let punch = |_: &Pool, user: &User| user.punch(4 * UNIT + 9 * BLOCK, BLOCK).expect("punches");
    what_is_under_way_keeps_its_unit(false, 10, punch);
    what_is_under_way_keeps_its_unit(true, 10, punch);
}

#[test]
fn a_smaller_size_takes_no_unit_that_a_write_is_in_while_space_is_given_back() {
    let cut = |pool: &Pool, _: &User| pool.resize("v", 4 * UNIT + 5 * BLOCK).expect("cuts");
    what_is_under_way_keeps_its_unit(false, 5, cut);
    what_is_under_way_keeps_its_unit(true, 5, cut);
}

#[test]
fn units_of_every_size_grow_as_well() {
    for unit_bytes in [4096, 16384, 1 << 20] {
        let device = open_device("ram:size=64M").expect("opens");
        format(&device, unit_bytes);
        let pool = open(&device);
        let user = growing(&pool, "v");
        (0..64).for_each(|at| user.write(at * 3 * BLOCK, &pattern(at, BLOCK as usize)).expect("writes"));
        let all = |user: &User| {
            assert_eq!(size(user), 190 * BLOCK);
            for at in 0..64 {
                assert!(user.read(at * 3 * BLOCK, BLOCK as usize).expect("reads") == pattern(at, BLOCK as usize));
            }
        };
        all(&user);
        user.sync().expect("syncs");
        drop(user);
        let pool = reopened(&device, pool);
        all(&User::new(pool.open_volume("v").expect("is there")));
        assert_clean(&device, pool);
    }
}

/// Concurrent appenders: each takes the next place and writes when it may, and some of the writes fail.
#[test]
fn appenders_side_by_side_never_show_a_size_without_data() {
    const WRITERS: u64 = 3;
    const BLOCKS: u64 = 1500;
    let (device, pool) = pool();
    drop(growing(&pool, "v"));
    let (next, ended, stop) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let block = |at: u64| pattern(at + 1, BLOCK as usize);
    let done: Vec<AtomicBool> = (0..BLOCKS).map(|_| AtomicBool::new(false)).collect();
    thread::scope(|scope| {
        for _ in 0..WRITERS {
            scope.spawn(|| {
                let user = User::new(pool.open_volume("v").expect("is there"));
                loop {
                    let at = next.fetch_add(1, Ordering::SeqCst);
                    if at >= BLOCKS {
                        break;
                    }
                    user.write(at * BLOCK, &block(at)).expect("appends");
                    assert!(size(&user) >= (at + 1) * BLOCK, "its own write is in it");
                    done[at as usize].store(true, Ordering::SeqCst);
                    if at % 100 == 0 {
                        user.sync().expect("syncs");
                    }
                }
                if ended.fetch_add(1, Ordering::SeqCst) == WRITERS - 1 {
                    stop.store(true, Ordering::SeqCst);
                }
            });
        }
        scope.spawn(|| {
            let user = User::new(pool.open_volume("v").expect("is there"));
            let mut last = 0;
            while !stop.load(Ordering::SeqCst) {
                let there: Vec<bool> = done.iter().map(|one| one.load(Ordering::SeqCst)).collect();
                let now = size(&user);
                assert!(now >= last, "it never shrinks");
                last = now;
                if now == 0 {
                    continue;
                }
                let from = (now / BLOCK).saturating_sub(40);
                for at in from..now / BLOCK {
                    let read = user.read(at * BLOCK, BLOCK as usize).expect("reads");
                    let written = read == block(at);
                    assert!(written || read.iter().all(|byte| *byte == 0), "block {at} is neither");
                    assert!(written || !there[at as usize], "block {at} had ended");
                    assert!(written || at + 1 < now / BLOCK, "the last block is the one that raised the size");
                }
            }
        });
        scope.spawn(|| {
            for number in 0..5 {
                thread::sleep(Duration::from_millis(20));
                pool.snapshot("v", &format!("s{number}")).expect("snapshots");
            }
        });
    });
    let user = User::new(pool.open_volume("v").expect("is there"));
    assert_eq!(size(&user), BLOCKS * BLOCK);
    (0..BLOCKS).for_each(|at| assert!(user.read(at * BLOCK, BLOCK as usize).expect("reads") == block(at)));
    drop(user);
    for info in pool.volumes().iter().filter(|info| info.snapshot && info.size_bytes > 0) {
        let user = User::new(pool.open_volume(&info.name).expect("is there"));
        let last = info.size_bytes / BLOCK - 1;
        assert!(user.read(last * BLOCK, BLOCK as usize).expect("reads") == block(last), "{}", info.name);
    }
    let pool = reopened(&device, pool);
    assert_clean(&device, pool);
}

#[test]
fn a_pool_that_is_only_read_grows_nothing() {
    let (device, pool) = pool();
    let user = growing(&pool, "v");
    user.write(0, &pattern(1, BLOCK as usize)).expect("writes");
    drop(user);
    pool.close().expect("closes");
    let options = OpenOptions::default().read_only(true);
    let pool = Pool::open(&device, &options).expect("opens");
    let user = User::new(pool.open_volume("v").expect("is there"));
    assert_eq!(user.write(BLOCK, &pattern(1, BLOCK as usize)), Err(Status::ReadOnly));
    assert!(pool.set_max_size("v", 2 * MAX).expect_err("refused").to_string().contains("read-only"));
}
