//! Space: full pools, waiting for room, growth, accounting, read-only opening.
#![cfg(not(shuttle))]

use std::thread;
use std::time::{Duration, Instant};

use crate::support::{User, format, open, pattern};
use sheave_base::status::Status;
use sheave_blk::bio::Op;
use sheave_drivers::open_device;
use sheave_iomap::File;
use sheave_vol::block_io::DeviceIo;
use sheave_vol::{CheckOptions, CreateOptions, ExtentKind, OpenOptions, Pool, PoolError, WhenFull, check};

const UNIT: u64 = 65536;

/// Writes units until there is no room. Returns the number written.
fn fill(user: &User) -> u64 {
    let data = pattern(3, UNIT as usize);
    let mut at = 0;
    loop {
        match user.write(at * UNIT, &data) {
            Ok(()) => at += 1,
            Err(status) => {
                assert_eq!(status, Status::NoSpc);
                return at;
            }
        }
    }
}

#[test]
fn a_full_pool_reads_overwrites_flushes_and_deletes() {
    let device = open_device("ram:size=16M").expect("opens");
    format(&device, UNIT);
    let pool = open(&device);
    let user = User::new(pool.create_volume("v", 1 << 30).expect("creates"));
    let units = fill(&user);
    let info = pool.info();
    assert_eq!((info.free_bytes, info.data_bytes), (0, units * UNIT));
    user.sync().expect("a full pool flushes");
    let data = pattern(4, UNIT as usize);
    user.write(0, &data).expect("overwrites");
    assert_eq!(user.read(0, UNIT as usize).expect("reads"), data);
    pool.snapshot("v", "s").expect("a snapshot takes no data");
    assert_eq!(user.write(0, &data), Err(Status::NoSpc), "a shared unit wants another");
    assert_eq!(user.read(0, UNIT as usize).expect("reads"), data, "and is as it was");
    pool.delete("s").expect("deletes");
    user.write(0, &data).expect("it is not shared any more");
    user.punch(UNIT, UNIT).expect("discards");
    user.write(units * UNIT, &data).expect("what was discarded is there to be had");
    drop(user);
    pool.delete("v").expect("deletes");
    let user = User::new(pool.create_volume("w", 1 << 30).expect("creates"));
    assert_eq!(fill(&user), units, "all of it came back");
}

/// V11: the space is free without a flush and without a wait.
#[test]
fn a_delete_gives_its_space_back_before_it_returns() {
    let device = open_device("ram:size=16M").expect("opens");
    format(&device, UNIT);
    let pool = open(&device);
    let units = fill(&User::new(pool.create_volume("v", 1 << 30).expect("creates")));
    // Space with two owners is freed with the second owner.
    pool.snapshot("v", "s").expect("a snapshot takes no data");
    pool.delete("s").expect("deletes");
    pool.clone_volume("v", "w").expect("a clone takes no data");
    pool.delete("v").expect("deletes");
    let info = pool.info();
    assert_eq!((info.free_bytes, info.pending_bytes, info.data_bytes), (0, 0, units * UNIT), "the clone has all of it");
    pool.delete("w").expect("deletes");
    let info = pool.info();
    assert_eq!((info.free_bytes, info.pending_bytes, info.data_bytes), (units * UNIT, 0, 0));
}

#[test]
fn a_write_waits_for_room_when_asked_to() {
    waits_for_room(Duration::from_secs(20));
    waits_for_room(Duration::MAX);
}

fn waits_for_room(wait: Duration) {
    let device = open_device("ram:size=16M").expect("opens");
    format(&device, UNIT);
    let options = OpenOptions::default().when_full(WhenFull::Pause(wait));
    {
        let pool = open(&device);
        fill(&User::new(pool.create_volume("v", 1 << 30).expect("creates")));
        drop(pool.create_volume("w", 1 << 20).expect("creates"));
        pool.close().expect("closes");
    }
    let pool = Pool::open(&device, &options).expect("opens");
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let user = User::new(pool.open_volume("w").expect("is there"));
            let start = Instant::now();
            user.write(0, &pattern(1, 4096)).expect("waits, then writes");
            start.elapsed()
        });
        thread::sleep(Duration::from_millis(200));
        assert!(!writer.is_finished(), "there is no room");
        pool.delete("v").expect("deletes");
        assert!(writer.join().expect("no panic") < wait);
    });
    let short = WhenFull::Pause(Duration::from_millis(50));
    drop(pool);
    let pool = Pool::open(&device, &OpenOptions::default().when_full(short)).expect("opens");
    let user = User::new(pool.create_volume("v", 1 << 30).expect("creates"));
    fill(&user);
    let start = Instant::now();
    assert_eq!(user.write(900 << 20, &[1; 4096]), Err(Status::NoSpc), "the time is up");
    assert!(start.elapsed() >= Duration::from_millis(20));
}

#[test]
fn a_grown_device_has_more_room() {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.as_file().set_len(16 << 20).expect("sets");
    let spec = format!("file:{}", file.path().display());
    let units = {
        let device = open_device(&spec).expect("opens");
        format(&device, UNIT);
        let pool = open(&device);
        let units = fill(&User::new(pool.create_volume("v", 1 << 30).expect("creates")));
        assert_eq!(pool.grow().expect("nothing to do"), 16 << 20);
        units
    };
    file.as_file().set_len(32 << 20).expect("sets");
    let device = open_device(&spec).expect("opens");
    let pool = open(&device);
    assert_eq!(pool.info().size_bytes, 16 << 20);
    assert_eq!(pool.grow().expect("grows"), 32 << 20);
    let user = User::new(pool.open_volume("v").expect("is there"));
    let more = fill(&user);
    assert!(more >= units + 240, "{units} {more}");
    user.sync().expect("syncs");
    let before = pool.info();
    drop((user, pool));
    let report = check(&DeviceIo::new(&device).expect("attaches"), &CheckOptions::default()).expect("checks");
    assert!(report.is_clean(), "{:?}", report.findings);
    let pool = open(&device);
    assert_eq!((pool.info().size_bytes, pool.info().data_bytes), (32 << 20, before.data_bytes));
}

#[test]
fn what_is_shared_and_what_is_not() {
    let device = open_device("ram:size=32M").expect("opens");
    format(&device, UNIT);
    let pool = open(&device);
    let user = User::new(pool.create_volume("v", 1 << 30).expect("creates"));
    user.write(0, &pattern(1, 4 * UNIT as usize)).expect("writes");
    user.write(10 * UNIT + 4096, &pattern(2, 4096)).expect("writes");
    let usage = |name: &str| {
        let info = pool.volume_info(name).expect("is there");
        (info.allocated_bytes / UNIT, info.shared_bytes / UNIT, info.unique_bytes / UNIT, info.written_bytes)
    };
    assert_eq!(usage("v"), (5, 0, 5, 4 * UNIT + 4096));
    pool.snapshot("v", "s").expect("snapshots");
    pool.clone_volume("s", "c").expect("clones");
    assert_eq!((usage("v"), usage("s")), ((5, 5, 0, 4 * UNIT + 4096), (5, 5, 0, 4 * UNIT + 4096)));
    user.write(0, &pattern(3, 4096)).expect("writes");
    // The write copied the four units of its group.
    assert_eq!((usage("v"), usage("s"), usage("c").1), ((5, 1, 4, 4 * UNIT + 4096), usage("c"), 5));
    pool.sync().expect("syncs");
    assert_eq!(pool.info().data_bytes, 9 * UNIT);
    assert_eq!(pool.volume_info("c").expect("is there").origin.as_deref(), Some("s"));
    pool.delete("s").expect("deletes a snapshot that has clones");
    assert_eq!(pool.volume_info("c").expect("is there").origin, None);
    assert_eq!(pool.info().data_bytes, 9 * UNIT, "the clone has them");
    pool.delete("c").expect("deletes");
    pool.sync().expect("syncs");
    assert_eq!((usage("v"), pool.info().data_bytes), ((5, 0, 5, 4 * UNIT + 4096), 5 * UNIT));
    let extents = user.volume.extents(0, 11 * UNIT).expect("is open");
    let kinds: Vec<(u64, u64, ExtentKind)> = extents.iter().map(|it| (it.pos, it.len, it.kind)).collect();
    let hole = (4 * UNIT, 6 * UNIT, ExtentKind::Hole);
    assert_eq!(kinds[0], (0, 4 * UNIT, ExtentKind::Data), "they were moved together");
    assert_eq!(
        kinds[1..4],
        [hole, (10 * UNIT, 4096, ExtentKind::Unwritten), (10 * UNIT + 4096, 4096, ExtentKind::Data)]
    );
}

#[test]
fn read_only_changes_nothing() {
    let device = open_device("ram:size=16M").expect("opens");
    format(&device, UNIT);
    let pool = open(&device);
    let user = User::new(pool.create_volume("v", 1 << 20).expect("creates"));
    user.write(0, &pattern(1, 4096)).expect("writes");
    user.sync().expect("syncs");
    drop((user, pool));
    let read_only = OpenOptions::default().read_only(true);
    let bytes = || {
        let mut bytes = vec![0; 16 << 20];
        sheave_vol::BlockIo::read(&DeviceIo::new(&device).expect("attaches"), 0, &mut bytes).expect("reads");
        bytes
    };
    // The journal is replayed in memory only.
    let crashed = bytes();
    for _ in 0..2 {
        let pool = Pool::open(&device, &read_only).expect("opens");
        assert!(pool.info().recovered);
        let user = User::new(pool.open_volume("v").expect("is there"));
        assert_eq!(user.read(0, 4096).expect("reads"), pattern(1, 4096));
        drop((user, pool));
        assert!(bytes() == crashed, "something was written");
    }
    open(&device).close().expect("closes");
    let before = bytes();
    let pool = Pool::open(&device, &read_only).expect("opens");
    let user = User::new(pool.open_volume("v").expect("is there"));
    assert!(user.volume.is_read_only());
    assert_eq!(user.read(0, 4096).expect("reads"), pattern(1, 4096));
    assert_eq!(user.write(0, &pattern(2, 4096)), Err(Status::ReadOnly));
    assert_eq!(user.punch(0, 4096), Err(Status::ReadOnly));
    for result in [pool.delete("v"), pool.rename("v", "w"), pool.resize("v", 4096), pool.rollback("v", "v")] {
        assert!(matches!(result, Err(PoolError::Invalid { .. })), "{result:?}");
    }
    assert!(pool.create_volume("w", 4096).is_err() && pool.snapshot("v", "s").is_err());
    drop(user);
    pool.close().expect("closes");
    assert!(bytes() == before);
}

#[test]
fn several_devices_are_one_pool() {
    let device = open_device("linear:over=ram:size=8M+ram:size=16M").expect("opens");
    format(&device, UNIT);
    let pool = open(&device);
    let user = User::new(pool.create_volume("v", 1 << 30).expect("creates"));
    let units = fill(&user);
    assert!(units > 300, "both are used");
    user.sync().expect("syncs");
    drop((user, pool));
    let pool = open(&device);
    let user = User::new(pool.open_volume("v").expect("is there"));
    for at in 0..units {
        assert!(user.read(at * UNIT, UNIT as usize).expect("reads") == pattern(3, UNIT as usize), "unit {at}");
    }
}

#[test]
fn a_commit_takes_two_flushes_and_a_checkpoint_three() {
    // A file, because a device without a volatile cache gets no flushes to count.
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    let device = open_device(&format!("file:{},size=256M", file.path().display())).expect("opens");
    format(&device, UNIT);
    let pool = open(&device);
    let user = User::new(pool.create_volume("v", 1 << 40).expect("creates"));
    let flushes = || device.stats().op(Op::Flush).ios;
    for round in 0..3u64 {
        for at in 0..1000 {
            user.write((at * 97 % 1000 * 1000 + round) << 20, &pattern(at, 4096)).expect("writes");
        }
        let before = flushes();
        user.sync().expect("syncs");
        let took = flushes() - before;
        assert!((1..=3).contains(&took), "{took} flushes after 1,000 scattered first writes");
        user.write((500 + round) << 20, &pattern(1, 4096)).expect("writes");
        let before = flushes();
        user.sync().expect("syncs");
        assert_eq!(flushes() - before, 2, "a few records");
        let before = flushes();
        pool.sync().expect("syncs");
        assert_eq!(flushes() - before, 1, "nothing to record");
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let device = open_device("ram:size=16M").expect("opens");
    let create = |options: CreateOptions| Pool::create(&device, &options).expect_err("refused").to_string();
    let base = CreateOptions::default();
    assert!(create(base.clone().unit_bytes(3000)).contains("power of two"));
    assert!(create(base.clone().unit_bytes(2 << 20)).contains("power of two"));
    assert!(create(base.clone().journal_bytes(Some(100))).contains("multiple of 4096"));
    let small = open_device("ram:size=512k").expect("opens");
    assert!(Pool::create(&small, &base).expect_err("refused").to_string().contains("too small"));
    let none = Pool::open(&device, &OpenOptions::default()).expect_err("blank").to_string();
    assert!(none.contains("there is no pool"), "{none}");
    Pool::create(&device, &base).expect("formats");
    assert!(create(base).contains("a pool on the device already"));
    let pool = open(&device);
    for size in [0, 100, !511] {
        assert!(pool.create_volume("v", size).is_err(), "{size}");
    }
    drop(pool.create_volume("v", 8192).expect("creates"));
    assert!(matches!(pool.create_volume("v", 8192), Err(PoolError::Exists { .. })));
    assert!(matches!(pool.snapshot("w", "x"), Err(PoolError::NoVolume { .. })));
    assert!(matches!(pool.rename("v", "-x"), Err(PoolError::Invalid { .. })));
    pool.snapshot("v", "s").expect("snapshots");
    assert!(matches!(pool.resize("s", 4096), Err(PoolError::Invalid { .. })));
    assert!(matches!(pool.rollback("s", "v"), Err(PoolError::Invalid { .. })));
}

/// A sparse file of the largest size takes a few KiB on a disk, so anyone can supply one.
#[test]
fn space_that_was_never_written_takes_a_mebibyte_of_memory_a_tebibyte_at_most() {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    for unit_bytes in [4096, UNIT] {
        let device = open_device(&format!("file:{},size=4T", file.path().display())).expect("opens");
        format(&device, unit_bytes);
        let pool = open(&device);
        let user = User::new(pool.create_volume("v", 4 << 40).expect("creates"));
        user.write((4 << 40) - 4096, &pattern(1, 4096)).expect("writes");
        let info = pool.info();
        assert!(info.memory_bytes <= 4 << 20, "{info:?}");
        drop(user);
        pool.close().expect("closes");
    }
}

/// The file of an open pool is truncated: the data behind its new end is lost, and no later flush succeeds.
#[test]
fn a_pool_whose_file_is_cut_says_so_and_makes_nothing_durable() {
    let directory = tempfile::tempdir_in("/var/tmp").expect("a directory");
    for (round, reads_first) in [true, false].into_iter().enumerate() {
        let path = directory.path().join(format!("p{round}.img"));
        let device = open_device(&format!("file:{},size=64M", path.display())).expect("opens");
        format(&device, UNIT);
        let pool = open(&device);
        let v = User::new(pool.create_volume("v", 32 << 20).expect("creates"));
        (0..400).for_each(|n| v.write(n * UNIT, &pattern(n, UNIT as usize)).expect("writes"));
        v.sync().expect("flushes");
        std::fs::File::options().write(true).open(&path).expect("opens").set_len(8 << 20).expect("is cut");
        if reads_first {
            assert_eq!(v.read(300 * UNIT, 4096), Err(Status::IoErr), "an error of the device, no lack of space");
            assert_eq!(v.read(200 * UNIT, 4096), Err(Status::IoErr), "and so at the second look");
            assert_eq!(v.write(300 * UNIT, &pattern(1, 4096)), Err(Status::IoErr));
        }
        assert_eq!(v.sync(), Err(Status::IoErr), "what was flushed before is gone");
        assert_eq!(v.read(10 * UNIT, 4096).expect("is there"), pattern(10, 4096), "reads of what is left go on");
        assert_eq!(v.write(10 * UNIT, &pattern(1, 4096)), Err(Status::IoErr), "and nothing else");
        let error = pool.sync().expect_err("is refused");
        assert!(matches!(error, PoolError::Degraded { .. }), "{error}");
        assert!(device.notices().iter().any(|notice| notice.contains("shrank to 8388608")), "{:?}", device.notices());
        drop((v, pool));
        let error = Pool::open(&device, &OpenOptions::default()).expect_err("is refused");
        assert!(error.to_string().contains("has shrunk"), "{error}");
    }
}
