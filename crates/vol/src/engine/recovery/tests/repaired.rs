//! Pools with checksums after a repair: marked blocks stay bad, rot is reported, and written data is never taken for
//! bad (contract V16).

use sheave_base::status::Status;
use sheave_blk::Device;
use sheave_drivers::open_device;
use sheave_iomap::File;
use sheave_iomap::mapping::Intent;

use super::super::newest_superblock;
use super::sums::{read, write};
use crate::device::block_io::DeviceIo;
use crate::format::block::{Head, identify};
use crate::format::journal::Ring;
use crate::format::{BLOCK, kind};
use crate::{BlockIo, CheckOptions, CheckReport, Checksum, CreateOptions, OpenOptions, Pool, Volume, check_device};

const BYTES: u64 = BLOCK as u64;
const POOL_BYTES: u64 = 128 << 20;
/// Number of units of the volume in which a block is written: more than fit the regions that one intent opens.
const UNITS: u64 = 600;

/// Returns the first block of a unit.
const fn block(unit: u64) -> u64 {
    unit * 16
}

const BAD: Result<u8, Status> = Err(Status::Protection);

/// A pool of two members, and its expected content.
struct Made {
    device: Device,
    pool: Option<Pool>,
    /// The expected result of reading the first block of each unit.
    wanted: Vec<Result<u8, Status>>,
}

impl Made {
    /// Makes the pool. All regions are closed, and in the newest checkpoint.
    fn new() -> Made {
        let device = open_device("linear:over=ram:size=64M+ram:size=64M").unwrap();
        let options = CreateOptions { checksum: Checksum::Crc32c, ..CreateOptions::default() };
        Pool::create(&device, &options).unwrap();
        let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
        let other = pool.create_volume("other", 1 << 20).unwrap();
        write(&other, 0, 7);
        let volume = pool.create_volume("v", UNITS << 16).unwrap();
        (0..UNITS).for_each(|unit| write(&volume, block(unit), 1));
        drop((volume, other));
        let made = Made { device, pool: Some(pool), wanted: vec![Ok(1); UNITS as usize] };
        made.checkpoints();
        made
    }

    fn io(&self) -> DeviceIo {
        DeviceIo::new(&self.device).unwrap()
    }

    fn volume(&self) -> Volume {
        self.pool.as_ref().unwrap().open_volume("v").unwrap()
    }

    /// Makes as many checkpoints as it takes to close every region without writes.
    fn checkpoints(&self) {
        (0..6).for_each(|_| self.volume().pool().checkpoint().unwrap());
    }

    fn place(&self, unit: u64) -> u64 {
        self.volume().map(block(unit) * BYTES, BYTES, Intent::Read).unwrap().addr
    }

    fn region(&self, unit: u64) -> u64 {
        self.volume().pool().sums.as_ref().unwrap().region_at(self.place(unit))
    }

    fn is_open(&self, unit: u64) -> bool {
        let place = self.place(unit);
        self.volume().pool().lock().sums.as_ref().unwrap().is_intended(place >> 16)
    }

    /// Makes the block rot, so that a read reports it as bad, and then restores its old content.
    fn tell_bad(&mut self, unit: u64) {
        let place = self.place(unit);
        self.io().write(place, &[9; BLOCK]).unwrap();
        assert_eq!(read(&self.volume(), block(unit)), BAD);
        self.io().write(place, &[1; BLOCK]).unwrap();
        self.wanted[unit as usize] = BAD;
    }

    fn write(&mut self, unit: u64, tag: u8) {
        write(&self.volume(), block(unit), tag);
        self.wanted[unit as usize] = Ok(tag);
    }

    /// Closes the pool, or cuts it off. Then these units rot.
    fn end(&mut self, close: bool, rotten: &[u64]) {
        let places: Vec<u64> = rotten.iter().map(|unit| self.place(*unit)).collect();
        let pool = self.pool.take().unwrap();
        if close {
            pool.close().unwrap();
        } else {
            drop(pool);
        }
        places.iter().for_each(|place| self.io().write(*place, &[9; BLOCK]).unwrap());
        rotten.iter().for_each(|unit| self.wanted[*unit as usize] = BAD);
    }

    /// Flips a bit of all blocks of metadata that `which` selects.
    fn damage(&self, which: impl Fn(&Head) -> bool) {
        let mut bytes = vec![0; POOL_BYTES as usize];
        self.io().read(0, &mut bytes).unwrap();
        let (blocks, _) = bytes.as_chunks_mut::<BLOCK>();
        let is_wanted = |block: &[u8; BLOCK]| identify(block).is_ok_and(|(head, _)| which(&head));
        let wanted: Vec<_> = (0..).step_by(BLOCK).zip(blocks).filter(|(_, block)| is_wanted(block)).collect();
        assert!(!wanted.is_empty());
        for (at, block) in wanted {
            block[2000] ^= 1;
            self.io().write(at, block).unwrap();
        }
    }

    fn repair(&self) -> CheckReport {
        let report = check_device(&self.device, &CheckOptions::default().repair(true)).unwrap();
        assert!(report.repaired, "{:?}", report.findings);
        report
    }

    /// Opens the pool and checks its content. Returns the number of checksums that were computed anew and changed.
    fn holds_what_it_should(&self) -> u64 {
        let pool = Pool::open(&self.device, &OpenOptions::default()).unwrap();
        let volume = pool.open_volume("v").unwrap();
        for (unit, wanted) in (0..).zip(&self.wanted) {
            assert_eq!(read(&volume, block(unit)), *wanted, "unit {unit}");
        }
        pool.info().rebuilt_checksums
    }
}

#[test]
fn a_repair_of_something_else_forgets_no_checksum_and_no_mark() {
    for (what, owner) in [(kind::LABEL, 0), (kind::LEAF, 1)] {
        let mut made = Made::new();
        made.tell_bad(3);
        made.end(true, &[10, 200, 550]);
        made.damage(|head| (head.kind, head.owner) == (what, owner));
        made.repair();
        assert_eq!(made.holds_what_it_should(), 0, "kind {what}");
    }
}

/// The regions and the marks are named only in the journal.
#[test]
fn a_repair_of_a_pool_that_was_cut_off_knows_what_may_have_been_written() {
    let mut made = Made::new();
    made.tell_bad(3);
    made.tell_bad(4);
    made.checkpoints();
    made.write(3, 2);
    made.write(5, 2);
    made.tell_bad(20);
    made.tell_bad(590);
    made.pool.as_ref().unwrap().sync().unwrap();
    assert!(made.is_open(3) && made.is_open(20) && !made.is_open(590) && !made.is_open(580));
    made.end(false, &[580]);
    made.damage(|head| head.kind == kind::LABEL);
    made.repair();
    assert!(made.holds_what_it_should() > 0);
}

#[test]
fn a_damaged_page_of_checksums_costs_those_of_its_region() {
    let mut made = Made::new();
    made.tell_bad(3);
    made.tell_bad(300);
    let region = made.region(300);
    assert!(![3, 10, 550].map(|unit| made.region(unit)).contains(&region));
    made.end(true, &[10, 301, 550]);
    made.damage(|head| (head.kind, head.index) == (kind::SUMS, region));
    let report = made.repair();
    assert_eq!(report.findings.len(), 1, "{:?}", report.findings);
    // Without that page, these blocks are accepted as the disk has them.
    (made.wanted[300], made.wanted[301]) = (Ok(1), Ok(9));
    made.holds_what_it_should();
    // With all pages gone, only marks in the journal are left: those of 10 and 550, which were read just now.
    made.damage(|head| (head.kind, head.owner) == (kind::INDEX, 0));
    made.repair();
    made.wanted[3] = Ok(1);
    made.holds_what_it_should();
}

/// A damaged block of the journal may have said that a region was opened: data written there must not be taken for
/// rotten.
#[test]
fn a_repair_of_a_damaged_journal_trusts_all_but_marked_blocks() {
    let mut made = Made::new();
    made.tell_bad(4);
    made.checkpoints();
    let (sb, _) = newest_superblock(&made.io()).unwrap();
    // The intent of this write is recorded in the first commit after that checkpoint.
    made.write(5, 2);
    made.pool.as_ref().unwrap().sync().unwrap();
    made.tell_bad(590);
    made.tell_bad(591);
    made.end(false, &[580]);
    let at = Ring::of(&sb).address(sb.replay_seq);
    made.damage(|head| (head.kind, head.address) == (kind::JOURNAL, at));
    let report = made.repair();
    assert_eq!(report.findings.len(), 1, "{:?}", report.findings);
    made.wanted[580] = Ok(9);
    made.holds_what_it_should();
}
