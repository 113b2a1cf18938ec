//! Failing flushes, through real rings on a disk whose cache drops what a failed flush covered (V3, V25). Data that may
//! be lost is never called durable, reads go on, and the pool durably names the volumes that may have lost data.

use std::sync::Arc;

use sheave_base::buf::Buf;
use sheave_base::rng::Rng;
use sheave_base::status::Status;
use sheave_iomap::File;
use sheave_sim::disk::{DiskOptions, Image, SimDisk};
use sheave_uring::{Fd, Ring, prep};
use sheave_vol::{AddOptions, CheckOptions, CreateOptions, OpenOptions, Pool, PoolError, Volume, check_device};

const BLOCK: usize = 4096;
const UNIT: u64 = 65536;
const EIO: i32 = -5;

fn disk(image: Image, options: DiskOptions) -> SimDisk {
    SimDisk::new(image, DiskOptions { max_delay: 0, ..options })
}

/// Returns a fresh pool on a disk of 32 MiB.
fn fresh(options: DiskOptions) -> (SimDisk, Pool) {
    let disk = disk(Image::new(32 << 20), options);
    let create = CreateOptions::default().overwrite(true).uuid(Some([7; 16]));
    Pool::create(&disk.device(), &create).expect("formats");
    let pool = open(&disk);
    (disk, pool)
}

fn open(disk: &SimDisk) -> Pool {
    Pool::open(&disk.device(), &OpenOptions::default()).expect("opens")
}

/// Opens the pool after a power failure, and checks that all of its metadata is whole.
fn after_crash(crashed: &SimDisk, seed: u64) -> (SimDisk, Pool) {
    let disk = disk(crashed.crash(&mut Rng::new(seed)).0, DiskOptions::default());
    let pool = open(&disk);
    pool.sync().expect("flushes");
    drop(pool);
    let report = check_device(&disk.device(), &CheckOptions::default()).expect("can be checked");
    assert!(report.is_clean(), "{:?}", report.findings);
    let pool = open(&disk);
    (disk, pool)
}

struct User {
    ring: Ring,
    fd: Fd,
    volume: Volume,
}

impl User {
    fn new(volume: Volume) -> User {
        let mut ring = Ring::builder().entries(64).build().expect("a ring");
        let fd = ring.attach_file(Arc::new(volume.clone())).expect("attached");
        User { ring, fd, volume }
    }

    fn run(&mut self, entry: impl prep::Op) -> (i32, Option<Buf>) {
        self.ring.push(entry).map_err(|full| full.error).expect("there is room");
        self.ring.submit_and_wait(1).expect("it ends");
        let done = self.ring.completions().next().expect("one");
        (done.res, done.into_buf())
    }

    fn write(&mut self, unit: u64, tag: u8) -> i32 {
        self.run(prep::write(self.fd, memory(tag)).offset(unit * UNIT)).0
    }

    fn write_durably(&mut self, unit: u64, tag: u8) -> i32 {
        self.run(prep::write(self.fd, memory(tag)).offset(unit * UNIT).dsync()).0
    }

    fn read(&mut self, unit: u64) -> u8 {
        let (res, data) = self.run(prep::read(self.fd, memory(0xaa)).offset(unit * UNIT));
        let data = data.expect("memory comes back");
        assert!(res == BLOCK as i32 && data.iter().all(|byte| *byte == data[0]), "{res}: a block of one write");
        data[0]
    }

    fn sync(&mut self) -> i32 {
        self.run(prep::fsync(self.fd)).0
    }
}

const WRITTEN: i32 = BLOCK as i32;

fn memory(tag: u8) -> Buf {
    let mut memory = Buf::zeroed(BLOCK, BLOCK).expect("memory");
    memory.fill(tag);
    memory
}

/// A flush that fails loses data that the next flush would have reported as durable, and its space holds old data of
/// another volume, which no read may return (V3, V17).
#[test]
fn a_flush_that_failed_is_not_forgotten_by_the_next() {
    let (disk, pool) = fresh(DiskOptions::default());
    let mut secret = User::new(pool.create_volume("secret", 24 << 20).expect("creates"));
    (0..300).for_each(|unit| assert_eq!(secret.write(unit, 77), WRITTEN));
    assert_eq!(secret.sync(), 0);
    drop(secret);
    pool.delete("secret").expect("deletes");
    pool.sync().expect("syncs");
    let mut user = User::new(pool.create_volume("v", 24 << 20).expect("creates"));
    (0..300).for_each(|unit| assert_eq!(user.write(unit, 5), WRITTEN));
    disk.fail_flushes(0, 1);
    assert_eq!(user.sync(), EIO);
    for _ in 0..3 {
        assert_eq!(user.sync(), EIO, "no later flush says that it is durable");
        assert!(pool.sync().is_err());
    }
    assert_eq!(pool.info().degraded, Some(Status::IoErr));
    let (_disk, pool) = after_crash(&disk, 1);
    let mut user = User::new(pool.open_volume("v").expect("is there"));
    (0..300).for_each(|unit| assert_eq!(user.read(unit), 0, "neither written nor, V17, another's"));
    assert_eq!((pool.info().lost, pool.info().degraded), (vec!["v".to_string()], None));
}

/// An overwrite changes no map, so its flush goes to the device alone, without a commit (V3, V25).
#[test]
fn the_flush_of_an_overwrite_is_heard_of_too() {
    for (fua, by_dsync) in [(true, false), (false, false), (false, true)] {
        let (disk, pool) = fresh(DiskOptions { fua, ..DiskOptions::default() });
        let mut user = User::new(pool.create_volume("v", 8 << 20).expect("creates"));
        let mut other = User::new(pool.create_volume("other", 8 << 20).expect("creates"));
        for user in [&mut user, &mut other] {
            assert_eq!((user.write(0, 1), user.write(1, 1), user.sync()), (WRITTEN, WRITTEN, 0));
        }
        assert!(!user.volume.needs_sync() && !other.volume.needs_sync());
        assert_eq!((user.write(0, 2), user.read(0)), (WRITTEN, 2));
        disk.fail_flushes(0, 1);
        assert_eq!(if by_dsync { user.write_durably(1, 3) } else { user.sync() }, EIO);
        // Requests of this ring and of another, to this volume and to another, all fail.
        for user in [&mut user, &mut other] {
            assert!(user.volume.needs_sync());
            assert_eq!((user.sync(), user.write(0, 9), user.write(5, 9)), (EIO, EIO, EIO));
            assert_eq!(user.write_durably(1, 9), EIO);
        }
        assert_eq!((user.read(0), other.read(0)), (2, 1), "reads go on");
        drop((user, other, pool));
        let (_disk, pool) = after_crash(&disk, 2);
        assert_eq!(pool.info().lost, ["v"], "only it was written to, FUA {fua}, dsync {by_dsync}");
        let mut user = User::new(pool.open_volume("v").expect("is there"));
        assert_eq!((user.read(0), user.read(1)), (1, 1));
        assert_eq!((user.write(0, 4), user.sync()), (WRITTEN, 0), "all is well again");
    }
}

/// Even if no ring sends another flush, every loss is reported: dropping the pool writes the list (V25).
#[test]
fn the_list_is_written_when_the_pool_is_dropped() {
    let (disk, pool) = fresh(DiskOptions::default());
    let mut user = User::new(pool.create_volume("v", 8 << 20).expect("creates"));
    assert_eq!((user.write(0, 1), user.sync(), user.write(0, 2)), (WRITTEN, 0, WRITTEN));
    disk.fail_flushes(0, 1);
    assert_eq!(user.sync(), EIO);
    drop((pool, user));
    assert_eq!(after_crash(&disk, 3).1.info().lost, ["v"]);
}

/// The list has exactly the volumes that may have lost data, under their current names, until it is acknowledged (V25).
#[test]
fn the_list_has_those_that_may_have_lost_something_and_no_others() {
    let (disk, pool) = fresh(DiskOptions::default());
    let names = ["flushed", "first", "over", "read", "idle", "punched", "source", "gone"];
    let mut users: Vec<User> =
        names.iter().map(|name| User::new(pool.create_volume(name, 8 << 20).expect("creates"))).collect();
    (0..8).for_each(|at| assert_eq!(users[at].write(0, 1), WRITTEN));
    assert_eq!(users[0].sync(), 0);
    pool.snapshot("source", "snap").expect("snapshots");
    assert_eq!(users[1].write(3, 2), WRITTEN);
    assert_eq!(users[2].write(0, 2), WRITTEN);
    assert_eq!(users[3].read(0), 1);
    let punched = prep::punch_hole(users[5].fd, 0, UNIT);
    assert_eq!(users[5].run(punched).0, 0);
    assert_eq!(users[7].write(2, 3), WRITTEN);
    drop(users);
    disk.fail_flushes(0, 1);
    // The volume comes back, because its delete is not durable.
    assert!(matches!(pool.delete("gone"), Err(PoolError::Degraded { .. })));
    drop(pool);
    let (disk, pool) = after_crash(&disk, 4);
    assert_eq!(pool.info().lost, ["first", "gone", "over", "punched"]);
    pool.rename("first", "renamed").expect("renames");
    pool.delete("punched").expect("deletes");
    assert_eq!(pool.info().lost, ["gone", "over", "renamed"]);
    pool.close().expect("closes");
    let pool = open(&disk);
    assert_eq!(pool.info().lost, ["gone", "over", "renamed"], "a close says nothing of it");
    // Another failure adds to the list.
    let mut user = User::new(pool.open_volume("idle").expect("is there"));
    assert_eq!(user.write(0, 4), WRITTEN);
    disk.fail_flushes(0, 1);
    assert!(matches!(pool.acknowledge_loss(), Err(PoolError::Degraded { .. })));
    drop((user, pool));
    let (disk, pool) = after_crash(&disk, 5);
    assert_eq!(pool.info().lost, ["gone", "idle", "over", "renamed"]);
    pool.acknowledge_loss().expect("acknowledges");
    assert!(pool.info().lost.is_empty());
    drop(pool);
    assert!(after_crash(&disk, 6).1.info().lost.is_empty(), "that is durable");
}

/// V25.
#[test]
fn a_degraded_pool_refuses_every_change_with_the_cause_and_reads() {
    let spare = 8 << 20;
    let (disk, pool) = fresh(DiskOptions { spare, ..DiskOptions::default() });
    let mut user = User::new(pool.create_volume("v", 8 << 20).expect("creates"));
    let growing = pool.create_growing_volume("g", 0, 1 << 20).expect("creates");
    drop(pool.create_volume("w", 8 << 20).expect("creates"));
    pool.snapshot("v", "s").expect("snapshots");
    assert_eq!(user.write(0, 1), WRITTEN);
    disk.fail_flushes(0, 1);
    assert_eq!(user.sync(), EIO);
    let add = || pool.add_member(&disk.spare().expect("there is one"), &AddOptions::default());
    let refused: Vec<(&str, Result<(), PoolError>)> = vec![
        ("create", pool.create_volume("x", 1 << 20).map(drop)),
        ("create growing", pool.create_growing_volume("x", 0, 1 << 20).map(drop)),
        ("snapshot", pool.snapshot("v", "t")),
        ("clone", pool.clone_volume("s", "c")),
        ("rollback", pool.rollback("v", "s")),
        ("rename", pool.rename("v", "u")),
        ("resize", pool.resize("v", 4 << 20)),
        ("limit", pool.set_max_size("g", 2 << 20)),
        ("delete", pool.delete("w")),
        ("mark", pool.set_low_water(sheave_vol::LowWater::Off)),
        ("grow", pool.grow().map(drop)),
        ("add", add().map(drop)),
        ("acknowledge", pool.acknowledge_loss()),
        ("sync", pool.sync()),
        ("close", pool.clone().close()),
    ];
    for (what, result) in refused {
        let error = result.expect_err(what);
        let words = error.to_string();
        assert!(matches!(error, PoolError::Degraded { cause: Status::IoErr, .. }), "{what}: {words}");
        assert!(words.contains("flush of the pool's device has failed (I/O error)"), "{words}");
        assert!(words.contains("open the pool again"), "{words}");
    }
    assert_eq!(pool.volumes().len(), 4, "nothing has changed");
    let mut growing = User::new(growing);
    assert_eq!((growing.write(0, 1), growing.volume.size_bytes()), (EIO, 0));
    let punch = prep::punch_hole(user.fd, 0, UNIT);
    assert_eq!((user.run(punch).0, user.write(0, 2), user.read(0)), (EIO, EIO, 1));
    assert_eq!(User::new(pool.open_volume("s").expect("opens")).read(0), 0);
}

/// The values that a unit may have after a power failure.
#[derive(Clone, Debug, Default)]
struct Cell {
    durable: u8,
    /// Values that were acknowledged since the last flush, in order.
    since: Vec<u8>,
    /// The value of a write that failed after it had begun.
    in_doubt: Option<u8>,
}

impl Cell {
    fn newest(&self) -> u8 {
        self.since.last().copied().unwrap_or(self.durable)
    }
}

fn flushed(units: &mut [Cell]) {
    for cell in units {
        *cell = Cell { durable: cell.newest(), ..Cell::default() };
    }
}

/// Writes, flushes and takes snapshots, and goes on after a refusal. Returns the number of refusals.
fn live(pool: &Pool, user: &mut User, units: &mut [Cell]) -> u32 {
    let mut refused = 0;
    for tag in 1..40u8 {
        let unit = usize::from(tag) * 5 % units.len();
        let at = unit as u64;
        if tag % 4 == 0 {
            let res = user.write_durably(at, tag);
            assert!(res == WRITTEN && refused == 0 || res == EIO, "{res} after {refused}");
            match (res, refused) {
                (WRITTEN, _) => units[unit] = Cell { durable: tag, ..Cell::default() },
                // The data was written before the flush failed, or not at all.
                (_, 0) => units[unit].in_doubt = Some(tag),
                _ => {}
            }
            refused += u32::from(res != WRITTEN);
        } else {
            let res = user.write(at, tag);
            assert_eq!(res, if refused == 0 { WRITTEN } else { EIO });
            units[unit].since.extend((res == WRITTEN).then_some(tag));
        }
        if tag % 3 == 0 {
            let res = user.sync();
            assert!(res == 0 && refused == 0 || res == EIO, "{res} after {refused}");
            refused += u32::from(res != 0);
            (res == 0).then(|| flushed(units));
        }
        if tag % 13 == 0 {
            let made = pool.snapshot("v", &format!("s{tag}"));
            assert!(made.is_err() || refused == 0, "V6 promises that it is durable");
            refused += u32::from(made.is_err());
            made.is_ok().then(|| flushed(units));
        }
    }
    refused
}

/// A flush fails at any point of a run, which goes on until the failure is reported; then a crash follows (V1, V3, V17,
/// V25).
#[test]
fn whichever_flush_fails_what_was_flushed_before_is_there() {
    let mut told = 0;
    for (good, round) in (0..32).flat_map(|good| (0..4).map(move |round| (good, round))) {
        let (disk, pool) = fresh(DiskOptions { fua: round % 2 == 0, ..DiskOptions::default() });
        let mut user = User::new(pool.create_volume("v", 8 << 20).expect("creates"));
        disk.fail_flushes(good, 1 + round / 2);
        let mut units = vec![Cell::default(); 12];
        let refused = live(&pool, &mut user, &mut units);
        drop((user, pool));
        let (_disk, pool) = after_crash(&disk, u64::from(good));
        let lost = pool.info().lost;
        assert!(refused > 0 || lost.is_empty(), "the {good}th: {lost:?}");
        told += lost.len();
        let mut user = User::new(pool.open_volume("v").expect("is there"));
        for (unit, cell) in units.iter().enumerate() {
            let found = user.read(unit as u64);
            let may_be = found == cell.durable || cell.since.contains(&found) || Some(found) == cell.in_doubt;
            assert!(may_be, "the {good}th: {found}, not {cell:?}");
            let is_newest = found == cell.newest() || Some(found) == cell.in_doubt;
            assert!(is_newest || lost == ["v"], "the {good}th: {found} is old, {cell:?}, and nobody is told");
        }
    }
    assert!(told > 60, "{told}");
}

/// On a disk on which every flush fails, the list cannot be written either. The durable data can be read all the same
/// (V25).
#[test]
fn a_disk_that_never_flushes_again_loses_the_list_and_nothing_durable() {
    let (disk, pool) = fresh(DiskOptions::default());
    let mut user = User::new(pool.create_volume("v", 8 << 20).expect("creates"));
    assert_eq!((user.write(0, 1), user.sync(), user.write(0, 2)), (WRITTEN, 0, WRITTEN));
    disk.fail_flushes(0, u32::MAX);
    assert_eq!((user.sync(), user.sync()), (EIO, EIO));
    // Flushes succeed again, and the next one writes the list.
    let (_, dead) = after_crash(&disk, 7);
    assert!(dead.info().lost.is_empty());
    drop(dead);
    disk.fail_flushes(0, 0);
    assert_eq!(user.sync(), EIO);
    let (_disk, pool) = after_crash(&disk, 8);
    assert_eq!(pool.info().lost, ["v"]);
    assert_eq!(User::new(pool.open_volume("v").expect("is there")).read(0), 1);
}

/// The failure of a flush on either of two disks degrades the pool, also if the disk was added while the pool was open
/// (V22, V25).
#[test]
fn a_member_that_fails_degrades_the_pool() {
    let spare = 8 << 20;
    let (mut disk, pool) = fresh(DiskOptions { spare, ..DiskOptions::default() });
    let mut user = User::new(pool.create_volume("v", 8 << 20).expect("creates"));
    pool.add_member(&disk.spare().expect("there is one"), &AddOptions::default()).expect("adds");
    disk.has_grown();
    assert_eq!((user.write(0, 1), user.sync(), user.write(0, 2)), (WRITTEN, 0, WRITTEN));
    // The flush goes to both members; the second flush that arrives fails.
    disk.fail_flushes(1, 1);
    assert_eq!((user.sync(), user.sync(), user.write(0, 3)), (EIO, EIO, EIO));
    assert_eq!(pool.info().degraded, Some(Status::IoErr));
}
