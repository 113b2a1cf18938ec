//! Opens pools of which one superblock cannot be read, once, for a while, or ever again. All acknowledged changes are
//! there, also after the superblock can be read again.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use sheave_base::status::Status;
use sheave_blk::Device;
use sheave_drivers::open_device;

use super::super::{Unsure, mend_superblock, read_superblock};
use crate::device::block_io::DeviceIo;
use crate::device::reader::READS;
use crate::format::superblock::{Superblock, choose};
use crate::format::{BLOCK, SUPERBLOCKS};
use crate::{BlockIo, CheckOptions, CreateOptions, OpenOptions, Pool, PoolError, check, check_device};

const SIZE: usize = 4 << 20;
const EVER: u64 = u64::MAX;

/// A disk that cannot read one block. When it loses its power, it loses everything that was not flushed.
struct Disk {
    io: DeviceIo,
    /// The block that cannot be read, and the number of reads of it that fail.
    bad: u64,
    fails: AtomicU64,
    /// True if writing the block repairs it.
    mends: bool,
    /// Number of writes and flushes until the power goes.
    left: AtomicU64,
    /// Ranges written since the last flush, with their former content.
    undo: Mutex<Vec<(u64, Vec<u8>)>>,
}

impl Disk {
    fn new(device: &Device) -> Disk {
        let (bad, fails, left) = (EVER, AtomicU64::new(0), AtomicU64::new(EVER));
        Disk { io: DeviceIo::new(device).unwrap(), bad, fails, mends: true, left, undo: Mutex::default() }
    }

    fn unreadable(device: &Device, bad: u64, fails: u64) -> Disk {
        Disk { bad, fails: AtomicU64::new(fails), ..Disk::new(device) }
    }

    fn step(&self) -> Result<(), Status> {
        let less = |left: u64| if left == EVER { Some(EVER) } else { left.checked_sub(1) };
        self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).map(drop).map_err(|_| Status::IoErr)
    }

    /// Undoes everything that was not flushed.
    fn forget(&self) {
        self.undo.lock().unwrap().drain(..).rev().for_each(|(at, bytes)| self.io.write(at, &bytes).unwrap());
    }
}

impl BlockIo for Disk {
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), Status> {
        let hit = (at..at + buf.len() as u64).contains(&self.bad);
        let less = |left: u64| if left == EVER { Some(EVER) } else { left.checked_sub(1) };
        if hit && self.fails.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok() {
            return Err(Status::Medium);
        }
        self.io.read(at, buf)
    }

    fn write(&self, at: u64, buf: &[u8]) -> Result<(), Status> {
        self.step()?;
        if self.mends && (at..at + buf.len() as u64).contains(&self.bad) {
            self.fails.store(0, Ordering::SeqCst);
        }
        let mut before = vec![0; buf.len()];
        self.io.read(at, &mut before)?;
        self.undo.lock().unwrap().push((at, before));
        self.io.write(at, buf)
    }

    fn flush(&self) -> Result<(), Status> {
        self.step()?;
        self.undo.lock().unwrap().clear();
        Ok(())
    }

    fn discard(&self, _: u64, _: u64) -> Result<(), Status> {
        Ok(())
    }

    fn size_bytes(&self) -> u64 {
        self.io.size_bytes()
    }
}

fn empty() -> Device {
    open_device(&format!("ram:size={SIZE}")).unwrap()
}

fn copy(device: &Device) -> Device {
    let (mut bytes, copy) = (vec![0; SIZE], empty());
    DeviceIo::new(device).unwrap().read(0, &mut bytes).unwrap();
    DeviceIo::new(&copy).unwrap().write(0, &bytes).unwrap();
    copy
}

fn formatted() -> Device {
    let device = empty();
    Pool::create(&device, &CreateOptions { unit_bytes: 4096, ..CreateOptions::default() }).unwrap();
    device
}

fn open(device: &Device, disk: Arc<Disk>) -> Result<Pool, PoolError> {
    Pool::open_through(device, Box::new(disk), &OpenOptions::default())
}

fn names(pool: &Pool) -> BTreeSet<String> {
    pool.volumes().into_iter().map(|vol| vol.name).collect()
}

/// Makes a volume in a commit that is a checkpoint: no journal block has it.
fn create(pool: &Pool, name: &str) -> Result<(), PoolError> {
    pool.inner.lock().next.require();
    pool.create_volume(name, 1 << 20).map(drop)
}

/// Returns pools whose power went at each write of three checkpoints, with and without the writes that were not
/// flushed; and the volumes that were acknowledged.
fn cut_off() -> Vec<(Device, BTreeSet<String>)> {
    let (mut pools, mut all) = (Vec::new(), false);
    for left in 0.. {
        for forgets in [false, true] {
            let device = formatted();
            let disk = Arc::new(Disk::new(&device));
            let pool = open(&device, disk.clone()).unwrap();
            create(&pool, "a").unwrap();
            disk.left.store(left, Ordering::SeqCst);
            let made = ["b", "c", "d"].into_iter().filter(|name| create(&pool, name).is_ok()).count();
            all = made == 3;
            disk.left.store(0, Ordering::SeqCst);
            drop(pool);
            if forgets {
                disk.forget();
            }
            pools.push((device, ["a", "b", "c", "d"].into_iter().take(1 + made).map(str::to_string).collect()));
        }
        if all {
            return pools;
        }
    }
    unreachable!()
}

/// Checks that the pool has these volumes, and at most one more that was not acknowledged, that it works, and is clean.
fn holds(device: &Device, disk: Arc<Disk>, names: &BTreeSet<String>, what: &str) {
    let pool = open(device, disk).unwrap_or_else(|error| panic!("{what}: {error}"));
    let found = self::names(&pool);
    assert!(found.is_superset(names) && found.len() <= names.len() + 1, "{what}: {found:?} and not {names:?}");
    create(&pool, "later").unwrap();
    drop(pool);
    let report = check_device(device, &CheckOptions::default()).unwrap();
    assert!(report.is_clean(), "{what}: {:?}", report.findings);
    let pool = Pool::open(device, &OpenOptions::default()).unwrap();
    assert!(self::names(&pool).is_superset(names) && self::names(&pool).contains("later"), "{what}");
}

#[test]
fn what_was_acknowledged_is_there_without_either_superblock() {
    let mut newest = BTreeSet::new();
    for (at, (device, names)) in cut_off().into_iter().enumerate() {
        newest.insert(slots(&device).map(|sb| sb.map_or(0, |sb| sb.generation)).is_sorted());
        for (bad, fails) in SUPERBLOCKS.into_iter().flat_map(|bad| [1, READS as u64, EVER].map(|fails| (bad, fails))) {
            for mends in [true, false] {
                let device = copy(&device);
                let disk = Disk { mends, ..Disk::unreadable(&device, bad, fails) };
                let what = format!("crash {at}, {fails} reads of byte {bad} fail, mends: {mends}");
                holds(&device, Arc::new(disk), &names, &what);
            }
        }
    }
    assert_eq!(newest.len(), 2, "either slot was the newest");
}

/// Returns the pools of `cut_off` whose superblocks differ in content, and one of those whose superblocks do not.
fn between_superblocks() -> impl Iterator<Item = (Device, BTreeSet<String>)> {
    let mut others = 0;
    cut_off().into_iter().filter(move |(device, _)| match slots(device) {
        [Some(a), Some(b)] if a.table == b.table => {
            others += 1;
            others == 1
        }
        _ => true,
    })
}

/// The newest superblock cannot be read when the pool is opened, and that opening is cut off at each of its writes.
/// Then the superblock can be read, and everything that it needs must be there.
#[test]
fn a_superblock_that_can_be_read_again_finds_what_it_needs() {
    for (at, (device, names)) in between_superblocks().enumerate() {
        for bad in SUPERBLOCKS {
            for left in 0.. {
                let device = copy(&device);
                let disk = Arc::new(Disk { mends: false, ..Disk::unreadable(&device, bad, EVER) });
                disk.left.store(left, Ordering::SeqCst);
                let opened = open(&device, disk.clone()).map(drop);
                holds(&device, Arc::new(Disk::new(&device)), &names, &format!("crash {at}, byte {bad}, cut at {left}"));
                if opened.is_ok() {
                    break;
                }
            }
        }
    }
}

fn slots(device: &Device) -> [Option<Superblock>; 2] {
    let io = DeviceIo::new(device).unwrap();
    SUPERBLOCKS.map(|at| {
        let mut block = [0; BLOCK];
        io.read(at, &mut block).unwrap();
        Superblock::decode(&block, at, EVER).ok()
    })
}

/// Makes the superblocks like those of an older program. Older programs acknowledged changes that only one superblock
/// had. They copy `compat` as it is.
fn by_an_older_program(device: &Device, clean: bool) {
    let io = DeviceIo::new(device).unwrap();
    for sb in slots(device).into_iter().flatten() {
        let sb = Superblock { incarnation: sb.incarnation + 1, clean, ..sb };
        assert!(!sb.keeps_twins());
        let mut block = [0; BLOCK];
        io.write(sb.encode(&mut block), &block).unwrap();
    }
}

#[test]
fn a_superblock_of_an_older_program_that_cannot_be_read_refuses_what_was_not_closed() {
    for bad in SUPERBLOCKS {
        let device = formatted();
        let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
        create(&pool, "a").unwrap();
        drop(pool);
        by_an_older_program(&device, false);
        for read_only in [false, true] {
            let disk = Disk::unreadable(&device, bad, EVER);
            let error = Pool::open_through(&device, Box::new(disk), &OpenOptions { read_only, ..Default::default() });
            let text = error.unwrap_err().to_string();
            assert!(text.contains("check --repair") && text.contains("older program"), "{text}");
        }
        let names = BTreeSet::from(["a".to_string()]);
        let told = check(&Disk::unreadable(&device, bad, EVER), &CheckOptions::default()).unwrap();
        assert!(told.findings[0].means.contains("older program"), "{:?}", told.findings);
        let whole = copy(&device);
        holds(&whole, Arc::new(Disk::unreadable(&whole, bad, READS as u64 - 1)), &names, "the error passes");
        let mended = copy(&device);
        let disk = Disk::unreadable(&mended, bad, EVER);
        assert!(check(&disk, &CheckOptions { repair: true }).unwrap().repaired);
        assert!(choose(slots(&mended).map(Option::unwrap).map(Ok)).unwrap().0.keeps_twins());
        holds(&mended, Arc::new(Disk::new(&mended)), &names, "repaired");
        by_an_older_program(&device, true);
        holds(&device, Arc::new(Disk::unreadable(&device, bad, EVER)), &names, "closed");
    }
}

/// A repair that is cut off anywhere leaves a pool that opens when the superblock can be read again.
#[test]
fn a_repair_that_is_cut_off_takes_nothing_with_it() {
    for (at, (device, names)) in between_superblocks().enumerate() {
        for bad in SUPERBLOCKS {
            for left in 0.. {
                let device = copy(&device);
                let disk = Disk::unreadable(&device, bad, EVER);
                disk.left.store(left, Ordering::SeqCst);
                let repaired = check(&disk, &CheckOptions { repair: true });
                if let ([Some(a), Some(b)], 2) = (slots(&device), left) {
                    // The slot was written first, and flushed.
                    let (old, new) = if a.generation < b.generation { (a, b) } else { (b, a) };
                    assert_eq!((old.slot(), &old), (bad, &new.stand_by()), "crash {at}");
                }
                holds(&device, Arc::new(Disk::new(&device)), &names, &format!("crash {at}, byte {bad}, cut at {left}"));
                if repaired.is_ok_and(|report| report.repaired) {
                    break;
                }
            }
        }
    }
}

/// Each opening has an incarnation of its own, and its superblocks state that both have all acknowledged changes.
#[test]
fn a_pool_in_use_that_crashed_opens_with_one_superblock_alone() {
    let device = formatted();
    let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
    drop(pool.create_volume("v", 1 << 20).unwrap());
    pool.sync().unwrap();
    let crashed = copy(&device);
    drop(pool);
    for slot in SUPERBLOCKS {
        let device = copy(&crashed);
        let disk = Disk { mends: false, ..Disk::unreadable(&device, slot, EVER) };
        let options = OpenOptions { read_only: true, ..OpenOptions::default() };
        let pool = Pool::open_through(&device, Box::new(disk), &options).unwrap();
        assert!(pool.open_volume("v").is_ok(), "without the superblock at byte {slot}");
    }
}

/// A damaged superblock is rewritten and flushed before any other write: a crash right after that finds two good ones.
#[test]
fn a_damaged_superblock_is_mended_before_anything_else_is_written() {
    let device = formatted();
    Pool::open(&device, &OpenOptions::default()).unwrap().close().unwrap();
    for slot in SUPERBLOCKS {
        let device = copy(&device);
        let io = DeviceIo::new(&device).unwrap();
        io.write(slot, &[0xaa; BLOCK]).unwrap();
        // The power goes after one write and one flush.
        let disk = Arc::new(Disk { left: AtomicU64::new(2), ..Disk::new(&device) });
        let opened = Pool::open_through(&device, Box::new(disk.clone()), &OpenOptions::default());
        assert!(opened.is_err(), "the power went");
        drop(opened);
        disk.forget();
        for at in SUPERBLOCKS {
            let mut block = [0; BLOCK];
            io.read(at, &mut block).unwrap();
            assert!(Superblock::decode(&block, at, u64::MAX).is_ok(), "that at byte {at}, when {slot} was damaged");
        }
    }
}

/// The mended superblock is durable, so the next write may follow at once.
#[test]
fn a_superblock_that_was_mended_is_durable() {
    let device = formatted();
    let disk = Disk::new(&device);
    let (mut sb, _) = read_superblock(&disk, &mut Unsure::new(false)).unwrap();
    let at = sb.stand_by().encode(&mut [0; BLOCK]);
    disk.io.write(at, &[0xaa; BLOCK]).unwrap();
    mend_superblock(&disk, &mut sb).unwrap();
    disk.forget();
    let mut block = [0; BLOCK];
    disk.io.read(at, &mut block).unwrap();
    assert!(Superblock::decode(&block, at, u64::MAX).is_ok());
}
