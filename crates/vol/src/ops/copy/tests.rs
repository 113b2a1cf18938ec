//! Copies that are made together, and names of snapshots per volume.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use sheave_base::grace::Grace;
use sheave_base::status::Status;
use sheave_blk::Device;
use sheave_drivers::open_device;
use sheave_iomap::File;
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::file::WriteDone;
use sheave_iomap::mapping::Intent;

use super::MAX_TOGETHER;
use crate::device::block_io::{BlockIo, DeviceIo};
use crate::{CheckOptions, CopyOptions, CreateOptions, OpenOptions, Pool, PoolError, Volume, check_device};

fn device() -> Device {
    let device = open_device("ram:size=32M").unwrap();
    Pool::create(&device, &CreateOptions::default()).unwrap();
    device
}

fn open(device: &Device) -> Pool {
    Pool::open(device, &OpenOptions::default()).unwrap()
}

/// Creates a pool with these volumes.
fn pool(volumes: &[&str]) -> (Device, Pool) {
    let device = device();
    let pool = open(&device);
    volumes.iter().for_each(|name| drop(pool.create_volume(name, 1 << 20).unwrap()));
    (device, pool)
}

fn names(pool: &Pool) -> Vec<String> {
    pool.volumes().into_iter().map(|info| info.name).collect()
}

fn origin(pool: &Pool, name: &str) -> Option<String> {
    pool.volume_info(name).unwrap().origin
}

/// Closes the pool, and verifies that it is clean on the device.
fn clean(device: &Device, pool: Pool) {
    pool.close().unwrap();
    let report = check_device(device, &CheckOptions::default()).unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
}

/// Writes a unit in the map only, without data.
fn write(volume: &Volume, unit: u64) -> Result<(), Status> {
    let may_block = MayBlock::on_worker();
    let mapping = volume.map_blocking(unit << 16, 4096, Intent::Write, &may_block)?;
    volume.end_write(WriteDone::new(unit << 16, 4096, Status::Ok, &[mapping]), &may_block)
}

#[test]
fn each_volume_has_names_of_its_own() {
    let (device, pool) = pool(&["vm1", "vm2"]);
    for volume in ["vm1", "vm2"] {
        pool.snapshot(volume, &format!("{volume}@monday")).unwrap();
        assert_eq!(origin(&pool, &format!("{volume}@monday")).as_deref(), Some(volume));
    }
    pool.snapshot("vm1", "monday").unwrap();
    pool.snapshot("vm1@monday", "vm1@again").unwrap();
    let all = ["monday", "vm1", "vm1@again", "vm1@monday", "vm2", "vm2@monday"];
    assert_eq!(names(&pool), all);
    let taken = pool.snapshot("vm1", "vm1@monday").unwrap_err();
    assert!(matches!(&taken, PoolError::Exists { name } if name == "vm1@monday"), "{taken}");
    clean(&device, pool);
    assert_eq!(names(&open(&device)), all, "on the device too");
}

/// A1 and A2 of `names`.
#[test]
fn a_name_says_whose_snapshot_it_is_or_it_is_refused() {
    let (_device, pool) = pool(&["vm1", "vm2"]);
    pool.snapshot("vm1", "vm1@monday").unwrap();
    let refused = |done: Result<(), PoolError>, words: &str| {
        let error = done.unwrap_err();
        assert!(matches!(error, PoolError::Invalid { .. }) && error.to_string().contains(words), "{error}");
    };
    refused(pool.snapshot("vm1", "vm2@monday"), "'vm1@monday'");
    refused(pool.snapshot("vm1@monday", "vm2@tuesday"), "'vm1@tuesday'");
    refused(pool.clone_volume("vm1", "vm1@clone"), "without '@'");
    refused(pool.create_volume("vm3@new", 1 << 20).map(drop), "without '@'");
    refused(pool.rename("vm2", "vm2@x"), "without '@'");
    refused(pool.rename("vm1@monday", "vm2@monday"), "'vm1@monday'");
    for bad in ["vm1@", "@monday", "vm1@a@b", "vm1@-a", "vm1@.a", "vm1@a b", &format!("vm1@{}", "x".repeat(252))] {
        refused(pool.snapshot("vm1", bad), "Use 1 to 255");
    }
    pool.snapshot("vm1", &format!("vm1@{}", "x".repeat(251))).unwrap();
    pool.rename("vm1@monday", "vm1@tuesday").unwrap();
    pool.rename("vm1@tuesday", "friday").unwrap();
    pool.rename("friday", "vm1@friday").unwrap();
    // Snapshots of a clone are the clone's own.
    pool.clone_volume("vm1@friday", "try-it").unwrap();
    pool.snapshot("try-it", "try-it@friday").unwrap();
    assert_eq!(origin(&pool, "try-it").as_deref(), Some("vm1@friday"));
}

/// A3 of `names`, and the snapshots of a volume that is deleted.
#[test]
fn snapshots_follow_their_volume_and_no_other_of_its_name() {
    let (device, pool) = pool(&["vm1", "vm2"]);
    pool.snapshot("vm1", "vm1@a").unwrap();
    pool.snapshot("vm1", "vm1@b").unwrap();
    pool.snapshot("vm1", "plain").unwrap();
    let identity = pool.volume_info("vm1@a").unwrap().identity;
    pool.rename("vm1", "web").unwrap();
    assert_eq!(names(&pool), ["plain", "vm2", "web", "web@a", "web@b"]);
    assert_eq!(
        (origin(&pool, "web@a").as_deref(), pool.volume_info("web@a").unwrap().identity),
        (Some("web"), identity)
    );
    // The volume goes, but its snapshots stay: another volume of its name does not get them.
    pool.delete("web").unwrap();
    drop(pool.create_volume("web", 1 << 20).unwrap());
    assert_eq!(origin(&pool, "web@a"), None);
    assert!(matches!(pool.snapshot("web", "web@a"), Err(PoolError::Exists { .. })));
    assert!(pool.rollback("web", "web@a").is_err(), "they are no relatives");
    pool.snapshot("web", "web@c").unwrap();
    pool.rename("web", "db").unwrap();
    let all = ["db", "db@c", "plain", "vm2", "web@a", "web@b"];
    assert_eq!(names(&pool), all);
    // One of the new names is taken, so nothing is renamed.
    pool.rename("db@c", "db@a").unwrap();
    let taken = pool.rename("db", "web").unwrap_err();
    assert!(matches!(&taken, PoolError::Exists { name } if name == "web@a"), "{taken}");
    pool.rename("db@a", &format!("db@{}", "x".repeat(252))).unwrap();
    assert!(matches!(pool.rename("db", "longer"), Err(PoolError::Invalid { .. })), "a name would be too long");
    assert!(names(&pool).iter().any(|name| name == "db"));
    pool.rename(&format!("db@{}", "x".repeat(252)), "db@c").unwrap();
    drop(pool);
    let pool = open(&device);
    assert_eq!(names(&pool), all, "as the journal has it");
    clean(&device, pool);
}

#[test]
fn several_volumes_are_frozen_or_none_is() {
    let (device, pool) = pool(&["a", "b", "c"]);
    let all = [("a", "a@monday"), ("b", "b@monday"), ("c", "c@monday")];
    pool.snapshot("b", "b@monday").unwrap();
    let before = names(&pool);
    let taken = pool.snapshot_together(&all).unwrap_err();
    assert!(matches!(&taken, PoolError::Exists { name } if name == "b@monday"), "{taken}");
    let missing = pool.snapshot_together(&[("a", "a@x"), ("nobody", "nobody@x")]).unwrap_err();
    assert!(matches!(&missing, PoolError::NoVolume { name } if name == "nobody"), "{missing}");
    for twice in [[("a", "a@x"), ("a", "a@y")], [("a", "x"), ("b", "x")]] {
        assert!(matches!(pool.snapshot_together(&twice), Err(PoolError::Invalid { .. })));
    }
    let many = vec![("a", "a@x"); MAX_TOGETHER + 1];
    for wrong in [&many[..], &[]] {
        assert!(matches!(pool.snapshot_together(wrong), Err(PoolError::Limit { .. })));
    }
    assert_eq!(names(&pool), before);
    assert_eq!(pool.inner.lock().table.iter().find(|vol| vol.settling.is_some()).map(|vol| vol.id), None);
    pool.delete("b@monday").unwrap();
    pool.snapshot_together(&all).unwrap();
    let made: Vec<_> = all.iter().map(|(_, name)| pool.volume_info(name).unwrap()).collect();
    assert!(made.iter().all(|info| info.snapshot && info.created == made[0].created));
    assert!(made[0].identity != made[1].identity, "each is itself");
    let after = names(&pool);
    drop(pool);
    let pool = open(&device);
    assert_eq!(names(&pool), after, "it was durable");
    clean(&device, pool);
}

/// I/O to one of the volumes does not end: no snapshot is made, and no source stays held up.
#[test]
fn a_volume_whose_io_goes_on_keeps_all_from_being_frozen() {
    let (device, pool) = pool(&["a", "b", "c"]);
    pool.close().unwrap();
    let options = OpenOptions::default().longest_wait(Duration::from_millis(50));
    let pool = Pool::open(&device, &options).unwrap();
    let [a, b, c] = ["a", "b", "c"].map(|name| pool.open_volume(name).unwrap());
    [&a, &b, &c].into_iter().for_each(|volume| write(volume, 3).unwrap());
    let seat = Grace::seat(b.grace().unwrap());
    seat.enter();
    let phase = seat.count();
    seat.leave();
    let together = [("a", "a@x"), ("b", "b@x"), ("c", "c@x")];
    let busy = pool.snapshot_together(&together).unwrap_err();
    assert!(matches!(&busy, PoolError::Busy { what, .. } if what.contains("'b'")), "{busy}");
    assert_eq!(names(&pool), ["a", "b", "c"]);
    [&a, &c].into_iter().for_each(|volume| write(volume, 3).unwrap());
    seat.uncount(phase);
    pool.snapshot_together(&together).unwrap();
    drop((a, b, c, seat));
    clean(&device, pool);
}

#[test]
fn a_diff_that_is_imported_makes_a_snapshot_of_its_volume() {
    let (_device, pool) = pool(&["copy", "other"]);
    pool.snapshot("copy", "copy@a").unwrap();
    drop(pool.clone_with("copy@a", "copy.import-diff", &CopyOptions::default()).unwrap());
    let options = CopyOptions::default().origin(Some("copy".into()));
    drop(pool.snapshot_with("copy.import-diff", "copy@b", &options).unwrap());
    assert_eq!(origin(&pool, "copy@b").as_deref(), Some("copy"));
    assert!(pool.snapshot_with("copy.import-diff", "other@b", &options).is_err());
    assert!(pool.snapshot("copy.import-diff", "copy@c").is_err(), "it counts as none of that");
}

/// A device whose power fails after a number of blocks that the pool itself has written.
struct Cut {
    io: DeviceIo,
    left: Arc<AtomicI64>,
}

impl BlockIo for Cut {
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), Status> {
        self.io.read(at, buf)
    }

    fn write(&self, at: u64, buf: &[u8]) -> Result<(), Status> {
        (at..).step_by(4096).zip(buf.chunks(4096)).try_for_each(|(at, block)| {
            if self.left.fetch_sub(1, Ordering::SeqCst) > 0 { self.io.write(at, block) } else { Err(Status::IoErr) }
        })
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

/// V34, S6: for a commit of several blocks, and for one that is a checkpoint.
#[test]
fn a_crash_leaves_all_snapshots_of_one_moment_or_none() {
    const VOLUMES: usize = 40;
    let long = "n".repeat(200);
    for checkpoint in [false, true] {
        let mut seen = [0; 2];
        for blocks in 0.. {
            let device = device();
            let left = Arc::new(AtomicI64::new(i64::MAX));
            let io = Box::new(Cut { io: DeviceIo::new(&device).unwrap(), left: Arc::clone(&left) });
            let pool = Pool::open_through(&device, io, &OpenOptions::default()).unwrap();
            let volumes: Vec<_> = (0..VOLUMES).map(|number| format!("v{number}")).collect();
            volumes.iter().for_each(|name| drop(pool.create_volume(name, 1 << 20).unwrap()));
            (0..3).for_each(|unit| write(&pool.open_volume("v7").unwrap(), unit).unwrap());
            if checkpoint {
                pool.inner.lock().next.require();
            }
            left.store(blocks, Ordering::SeqCst);
            let names: Vec<_> = volumes.iter().map(|name| format!("{name}@{long}")).collect();
            let pairs: Vec<_> = volumes.iter().map(String::as_str).zip(names.iter().map(String::as_str)).collect();
            let done = pool.snapshot_together(&pairs);
            let needed = left.swap(0, Ordering::SeqCst) >= 0;
            drop(pool);
            let pool = open(&device);
            let found = self::names(&pool).iter().filter(|name| name.contains('@')).count();
            assert!(found == 0 || found == VOLUMES, "{blocks} blocks: {found} of {VOLUMES}");
            assert!(done.is_err() || found == VOLUMES, "{blocks} blocks: it was told to be durable");
            seen[usize::from(found > 0)] += 1;
            clean(&device, pool);
            if done.is_ok() && needed {
                break;
            }
        }
        assert!(seen[0] > 2 && seen[1] > 0, "of several blocks: {seen:?}");
    }
}
