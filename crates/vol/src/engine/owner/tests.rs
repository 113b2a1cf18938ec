//! Two pools opened over the same memory: the first stops, and leaves the pool of the second alone (contract V30).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use sheave_blk::Device;
use sheave_drivers::open_device;
use sheave_iomap::File;
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::file::WriteDone;
use sheave_iomap::mapping::Intent;

use super::*;
use crate::device::block_io::{BlockIo, DeviceIo};
use crate::{CheckOptions, CreateOptions, OpenOptions, Pool, PoolError, Volume, check_device};

const SIZE: usize = 16 << 20;

/// Faults of the memory.
#[derive(Default)]
struct Faults {
    /// Number of reads of superblocks.
    looks: AtomicU64,
    blind: AtomicBool,
    flushless: AtomicBool,
}

struct Shared {
    io: DeviceIo,
    faults: std::sync::Arc<Faults>,
}

impl BlockIo for Shared {
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), Status> {
        if at < 8192 {
            self.faults.looks.fetch_add(1, Ordering::SeqCst);
            if self.faults.blind.load(Ordering::SeqCst) {
                return Err(Status::Medium);
            }
        }
        self.io.read(at, buf)
    }

    fn write(&self, at: u64, buf: &[u8]) -> Result<(), Status> {
        self.io.write(at, buf)
    }

    fn flush(&self) -> Result<(), Status> {
        if self.faults.flushless.load(Ordering::SeqCst) { Err(Status::IoErr) } else { self.io.flush() }
    }

    fn discard(&self, at: u64, len: u64) -> Result<(), Status> {
        self.io.discard(at, len)
    }

    fn size_bytes(&self) -> u64 {
        self.io.size_bytes()
    }
}

/// Memory over which any number of pools are opened, by claims that do not exclude each other.
struct Rig {
    memory: Device,
}

impl Rig {
    fn new() -> Rig {
        let memory = open_device("ram:size=16M").expect("opens");
        Pool::create(&memory, &CreateOptions::default().discard(true).journal_bytes(Some(1 << 20))).expect("formats");
        Rig { memory }
    }

    fn open_with(&self, every: Duration) -> (Pool, std::sync::Arc<Faults>) {
        let device = open_device("ram:size=16M").expect("opens");
        let faults = std::sync::Arc::new(Faults::default());
        let io = Shared { io: DeviceIo::new(&self.memory).expect("attaches"), faults: faults.clone() };
        let options = OpenOptions::default().discard_thread(false).longest_idle(Duration::MAX).owner_every(every);
        (Pool::open_through(&device, Box::new(io), &options).expect("opens"), faults)
    }

    fn open(&self, every: Duration) -> Pool {
        self.open_with(every).0
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; SIZE];
        DeviceIo::new(&self.memory).expect("attaches").read(0, &mut bytes).expect("reads");
        bytes
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        DeviceIo::new(&self.memory).expect("attaches").write(at, bytes).expect("writes");
    }

    fn superblock(&self) -> Superblock {
        let bytes = self.bytes();
        let slot = |at: u64| Superblock::decode(bytes[at as usize..][..BLOCK].try_into().unwrap(), at, u64::MAX);
        choose(SUPERBLOCKS.map(slot)).expect("intact").0
    }
}

fn write(volume: &Volume, unit: u64, tag: u8) -> Result<(), Status> {
    let (pos, may_block) = (unit << 16, MayBlock::on_worker());
    let mapping = match volume.map(pos, 4096, Intent::Write) {
        Ok(mapping) => mapping,
        Err(Status::Again) => volume.map_blocking(pos, 4096, Intent::Write, &may_block)?,
        Err(status) => return Err(status),
    };
    volume.pool().io.write(mapping.addr, &[tag; 4096])?;
    volume.end_write(WriteDone::new(pos, 4096, Status::Ok, &[mapping]), &may_block)
}

fn has(volume: &Volume, unit: u64, tag: u8) -> bool {
    let mapping = volume.map_blocking(unit << 16, 4096, Intent::Read, &MayBlock::on_worker()).expect("maps");
    let mut block = [0; 4096];
    volume.pool().io.read(mapping.addr, &mut block).expect("reads");
    block == [tag; 4096]
}

/// Checks that everything the second owner made is there, and that its pool is clean.
fn goes_on(rig: &Rig, second: Pool) {
    let volume = second.open_volume("second").expect("is there");
    assert!((0..8).all(|unit| has(&volume, unit, 7)));
    write(&volume, 9, 9).expect("writes");
    second.sync().expect("it is its own");
    second.check_owner().expect("it is its own");
    drop(volume);
    second.close().expect("closes");
    let report = check_device(&rig.memory, &CheckOptions::default()).expect("checks");
    assert!(report.is_clean(), "{:?}", report.findings);
}

fn second(rig: &Rig, every: Duration) -> Pool {
    let second = rig.open(every);
    let volume = second.create_volume("second", 1 << 20).expect("creates");
    (0..8).for_each(|unit| write(&volume, unit, 7).expect("writes"));
    second.sync().expect("syncs");
    second
}

/// V30: after another opening has taken the pool, the first owner writes nothing, whatever operation is tried, and its
/// errors say why.
#[test]
fn who_has_lost_the_pool_writes_nothing() {
    type Try = (&'static str, fn(&Pool, &mut Option<Volume>) -> bool);
    let tries: [Try; 9] = [
        ("a flush", |pool, _| pool.sync().is_err()),
        ("a new volume", |pool, _| pool.create_volume("more", 1 << 20).is_err()),
        ("a snapshot", |pool, _| pool.snapshot("first", "copy").is_err()),
        ("a write to new space", |_, volume| write(volume.as_ref().unwrap(), 5, 5) == Err(Status::IoErr)),
        ("a write to what a snapshot shares", |_, volume| write(volume.as_ref().unwrap(), 0, 5) == Err(Status::IoErr)),
        ("a discard of what is free", |pool, _| pool.discard_freed().is_ok_and(|bytes| bytes == 0)),
        ("a trim", |pool, _| pool.trim(&mut |_| std::ops::ControlFlow::Continue(())).is_err()),
        ("a close", |pool, volume| {
            *volume = None;
            pool.clone().close().is_err()
        }),
        ("the end of the process", |_, _| true),
    ];
    for (what, attempt) in tries {
        let rig = Rig::new();
        let first = rig.open(Duration::ZERO);
        let volume = first.create_volume("first", 1 << 20).expect("creates");
        write(&volume, 0, 1).expect("writes");
        first.create_volume("gone", 1 << 20).map(|gone| write(&gone, 0, 1).expect("writes")).expect("creates");
        first.delete("gone").expect("deletes");
        first.snapshot("first", "kept").expect("snapshots");
        write(&volume, 1, 1).expect("writes");
        let second = second(&rig, Duration::ZERO);
        let before = rig.bytes();
        let mut volume = Some(volume);
        assert!(attempt(&first, &mut volume), "{what}");
        if what != "the end of the process" {
            if let Some(volume) = &volume {
                let said = first.sync();
                assert_eq!(write(volume, 1, 3), Err(Status::IoErr), "{what}: in place too, from then on: {said:?}");
            }
            let error = first.rename("first", "other").expect_err("it has lost the pool");
            assert!(matches!(error, PoolError::Taken { .. }), "{what}: {error}");
            for word in ["opened for writing elsewhere (opening 3, this one is 2)", "loop device", "Let go of the pool"]
            {
                assert!(error.to_string().contains(word), "{what}: {error}");
            }
            let info = first.info();
            assert!(info.taken_by.is_some() && info.degraded.is_none() && first.check_owner().is_err(), "{what}");
        }
        drop((volume, first));
        assert!(rig.bytes() == before, "{what}: wrote to a pool that is another's");
        goes_on(&rig, second);
    }
}

/// V30: commits between two looks succeed without a look. A checkpoint always looks first.
#[test]
fn a_checkpoint_looks_before_it_writes() {
    let rig = Rig::new();
    let (first, faults) = rig.open_with(Duration::MAX);
    let volume = first.create_volume("first", 1 << 20).expect("creates");
    let looks = faults.looks.load(Ordering::SeqCst);
    for round in 0..20 {
        write(&volume, round % 16, 1).expect("writes");
        first.sync().expect("syncs");
    }
    assert_eq!(faults.looks.load(Ordering::SeqCst), looks, "commits cost no look before it is due");
    write(&volume, 3, 2).expect("writes");
    let second = second(&rig, Duration::MAX);
    let before = rig.bytes();
    assert_eq!(first.inner.checkpoint(), Err(Status::IoErr));
    assert!(rig.bytes() == before);
    drop((volume, first));
    assert!(rig.bytes() == before);
    goes_on(&rig, second);
}

/// V30: two openings at the same moment have the same incarnation, and one of them still has the pool.
#[test]
fn openings_of_the_same_moment_are_told_apart() {
    let rig = Rig::new();
    let other = Rig::new();
    other.put(0, &rig.bytes());
    let first = rig.open(Duration::ZERO);
    let second = second(&other, Duration::ZERO);
    rig.put(0, &other.bytes());
    assert_eq!(first.inner.lock().sb.incarnation, second.inner.lock().sb.incarnation);
    assert!(first.sync().is_err());
    let error = first.create_volume("more", 1 << 20).expect_err("it has lost the pool").to_string();
    assert!(error.contains("at the same moment"), "{error}");
}

/// V30: an opening by an older program, or one that was stopped for a while, writes its superblocks over those of the
/// newer opening.
#[test]
fn an_older_opening_that_goes_on_is_told() {
    let rig = Rig::new();
    drop(rig.open(Duration::MAX));
    let stale = rig.bytes();
    let pool = rig.open(Duration::ZERO);
    pool.create_volume("v", 1 << 20).expect("creates");
    rig.put(0, &stale[..8192]);
    let error = pool.create_volume("more", 1 << 20).expect_err("it has lost the pool").to_string();
    assert!(error.contains("an older opening goes on writing"), "{error}");
}

/// V30, V25: a list of losses is not written into the superblocks of another opening.
#[test]
fn a_list_of_losses_is_not_written_to_the_pool_of_another() {
    let rig = Rig::new();
    let (first, faults) = rig.open_with(Duration::MAX);
    let volume = first.create_volume("first", 1 << 20).expect("creates");
    write(&volume, 3, 2).expect("writes");
    let second = second(&rig, Duration::MAX);
    let before = rig.bytes();
    faults.flushless.store(true, Ordering::SeqCst);
    assert!(first.sync().is_err());
    faults.flushless.store(false, Ordering::SeqCst);
    let error = first.create_volume("more", 1 << 20).expect_err("it has lost the pool");
    assert!(matches!(error, PoolError::Taken { .. }), "{error}");
    drop((volume, first));
    assert!(rig.bytes() == before);
    goes_on(&rig, second);
}

/// A look that can read nothing is an error for its caller, and the next one looks again.
#[test]
fn a_look_that_cannot_read_is_an_error() {
    let rig = Rig::new();
    let (pool, faults) = rig.open_with(Duration::ZERO);
    let volume = pool.create_volume("v", 1 << 20).expect("creates");
    write(&volume, 0, 1).expect("writes");
    faults.blind.store(true, Ordering::SeqCst);
    let before = rig.bytes();
    assert_eq!(pool.inner.commit(), Err(Status::Medium));
    assert_eq!(pool.inner.checkpoint(), Err(Status::Medium));
    assert!(rig.bytes() == before);
    faults.blind.store(false, Ordering::SeqCst);
    pool.sync().expect("it is its own");
    drop(volume);
    pool.close().expect("closes");
}

/// Superblocks that rot under an open pool are no sign of another owner: the next checkpoint rewrites them.
#[test]
fn superblocks_that_rot_are_no_other_owner() {
    for slots in [&[0u64][..], &[1], &[0, 1]] {
        let rig = Rig::new();
        let pool = rig.open(Duration::ZERO);
        let volume = pool.create_volume("v", 1 << 20).expect("creates");
        slots.iter().for_each(|slot| rig.put(SUPERBLOCKS[*slot as usize], &[0xee; 4096]));
        write(&volume, 0, 1).expect("writes");
        pool.sync().expect("syncs");
        drop(volume);
        pool.close().expect("closes");
        assert!(check_device(&rig.memory, &CheckOptions::default()).expect("checks").is_clean());
    }
}

/// A pool of an older program has no owner numbers. Successive openings are still distinguished, and an upgrade adds
/// the numbers.
/// the numbers.
#[test]
fn a_pool_without_numbers_knows_later_openings() {
    let rig = Rig::new();
    for at in SUPERBLOCKS {
        let mut block: [u8; BLOCK] = rig.bytes()[at as usize..][..BLOCK].try_into().unwrap();
        let old = Superblock::decode(&block, at, u64::MAX).expect("intact");
        Superblock { owner: [0; 16], ..old }.encode(&mut block);
        rig.put(at, &block);
    }
    let first = rig.open(Duration::ZERO);
    let volume = first.create_volume("first", 1 << 20).expect("creates");
    write(&volume, 0, 1).expect("writes");
    first.sync().expect("it is its own");
    assert_eq!(rig.superblock().owner, [0; 16], "opening is no upgrade");
    let second = second(&rig, Duration::ZERO);
    assert!(first.sync().is_err());
    drop((volume, first));
    assert_eq!(second.upgrade().expect("upgrades").len(), 1);
    let owner = rig.superblock().owner;
    assert!(owner != [0; 16] && second.upgrades().is_empty());
    goes_on(&rig, second);
    let third = rig.open(Duration::ZERO);
    assert!(![[0; 16], owner].contains(&rig.superblock().owner), "each opening has its own");
    third.close().expect("closes");
}
