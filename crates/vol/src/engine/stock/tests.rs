//! Pools on a disk that allocates space when it is written, and runs out of it.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use sheave_blk::Device;
use sheave_drivers::open_device;
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::file::{FallocateMode, WriteDone};
use sheave_iomap::mapping::Intent;
use sheave_iomap::{File, MappingKind};

use super::*;
use crate::device::block_io::{BlockIo, DeviceIo};
use crate::format::superblock::copy_places;
use crate::{CheckOptions, Checksum, CreateOptions, OpenOptions, Pool, SpaceState, Volume, check_device};

/// Blocks of the disk that have space, and the number of blocks that may still get some.
#[derive(Debug, Default)]
pub(in crate::engine) struct Host {
    pub(in crate::engine) written: HashSet<u64>,
    pub(in crate::engine) room: u64,
    /// A block whose write fails, the number of writes to it that succeed before, and true if the failed write is done
    /// in spite of the error.
    pub(in crate::engine) fails: Option<(u64, u32, bool)>,
}

/// A disk of which some blocks have space on the host.
#[derive(Clone)]
struct Sparse {
    io: Arc<DeviceIo>,
    host: Arc<Mutex<Host>>,
}

impl Sparse {
    fn new(device: &Device, host: &Arc<Mutex<Host>>) -> Sparse {
        Sparse { io: Arc::new(DeviceIo::new(device).unwrap()), host: host.clone() }
    }
}

impl BlockIo for Sparse {
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), Status> {
        self.io.read(at, buf)
    }

    fn write(&self, at: u64, buf: &[u8]) -> Result<(), Status> {
        let mut host = self.host.lock().unwrap();
        for block in (at >> 12)..(at + buf.len() as u64) >> 12 {
            if host.written.contains(&block) {
                continue;
            }
            host.room = host.room.checked_sub(1).ok_or(Status::NoSpc)?;
            host.written.insert(block);
        }
        let blocks = (at >> 12)..(at + buf.len() as u64) >> 12;
        match host.fails.filter(|(block, ..)| blocks.contains(block)) {
            Some((block, left @ 1.., is_done)) => host.fails = Some((block, left - 1, is_done)),
            Some((_, 0, is_done)) => {
                host.fails = None;
                if is_done {
                    self.io.write(at, buf)?;
                }
                return Err(Status::IoErr);
            }
            None => {}
        }
        self.io.write(at, buf)
    }

    fn flush(&self) -> Result<(), Status> {
        self.io.flush()
    }

    fn discard(&self, at: u64, len: u64) -> Result<(), Status> {
        let mut host = self.host.lock().unwrap();
        let before = host.written.len();
        host.written.retain(|block| !((at >> 12)..(at + len) >> 12).contains(block));
        host.room += (before - host.written.len()) as u64;
        drop(host);
        self.io.discard(at, len)
    }

    fn size_bytes(&self) -> u64 {
        self.io.size_bytes()
    }

    fn is_sparse(&self) -> bool {
        true
    }
}

/// Returns the numbers of the blocks of the superblock's copies.
fn copies() -> impl Iterator<Item = u64> {
    copy_places(64 << 20, 4096).into_iter().flatten().map(|at| at >> 12)
}

/// A pool of 64 MiB on a host with less space.
pub(in crate::engine) struct Rig {
    pub(in crate::engine) device: Device,
    pub(in crate::engine) host: Arc<Mutex<Host>>,
    io: Sparse,
    unit: u64,
}

impl Rig {
    pub(in crate::engine) fn new(room_bytes: u64, checksum: Checksum) -> Rig {
        Rig::with_units(1 << 16, room_bytes, checksum)
    }

    pub(in crate::engine) fn with_units(unit: u64, room_bytes: u64, checksum: Checksum) -> Rig {
        let device = open_device("ram:size=64M").unwrap();
        Pool::create(&device, &CreateOptions { checksum, unit_bytes: unit, ..CreateOptions::default() }).unwrap();
        // Creating a pool writes the superblocks, their copies and the journal.
        let journal = 2 + (64 << 20) / 256 / 4096;
        let host = Host { written: (0..journal).chain(copies()).collect(), room: room_bytes >> 12, fails: None };
        let host = Arc::new(Mutex::new(host));
        Rig { io: Sparse::new(&device, &host), device, host, unit }
    }

    pub(in crate::engine) fn open(&self) -> Result<Pool, PoolError> {
        self.open_with(&OpenOptions::default())
    }

    pub(in crate::engine) fn open_with(&self, options: &OpenOptions) -> Result<Pool, PoolError> {
        Pool::open_through(&self.device, Box::new(self.io.clone()), options)
    }

    /// Opens the pool on its disk after `wrap` has wrapped that disk.
    pub(in crate::engine) fn open_on(&self, wrap: impl FnOnce(Box<dyn BlockIo>) -> Box<dyn BlockIo>) -> Pool {
        let io = wrap(Box::new(self.io.clone()));
        Pool::open_through(&self.device, io, &OpenOptions::default()).unwrap()
    }

    pub(in crate::engine) fn set_room(&self, blocks: u64) {
        self.host.lock().unwrap().room = blocks;
    }

    /// Writes a whole unit as a ring does, and passes the result of the device to the volume.
    pub(in crate::engine) fn write(&self, volume: &Volume, unit: u64, tag: u8) -> Result<(), Status> {
        let (pos, len, may_block) = (unit * self.unit, self.unit, MayBlock::on_worker());
        let mapping = volume.map_blocking(pos, len, Intent::Write, &may_block)?;
        volume.begin_write(&mapping);
        let status = self.io.write(mapping.addr, &vec![tag; len as usize]).err().unwrap_or(Status::Ok);
        if !status.is_ok() {
            volume.abort_write(&mapping);
        }
        volume.end_write(WriteDone::new(pos, len, status, &[mapping]), &may_block)
    }

    pub(in crate::engine) fn read(&self, volume: &Volume, unit: u64) -> u8 {
        let mapping = volume.map(unit * self.unit, 4096, Intent::Read).unwrap();
        let mut data = [0; 4096];
        if mapping.kind == MappingKind::Mapped {
            self.io.read(mapping.addr, &mut data).unwrap();
        }
        data[7]
    }

    pub(in crate::engine) fn is_clean(&self) {
        let report = check_device(&self.device, &CheckOptions::default()).unwrap();
        assert!(report.is_clean(), "{:?}", report.findings);
    }
}

fn punch(rig: &Rig, volume: &Volume, unit: u64) {
    volume.fallocate(FallocateMode::PunchHole, unit * rig.unit, rig.unit, &MayBlock::on_worker()).unwrap();
}

/// Writes units that are `stride` apart until there is no space. Returns the number written.
fn fill(rig: &Rig, volume: &Volume, stride: u64, tag: u8) -> u64 {
    let mut done = 0;
    while let Ok(()) = rig.write(volume, done * stride, tag).inspect_err(|status| assert_eq!(*status, Status::NoSpc)) {
        done += 1;
    }
    done
}

/// V3, V11, V13, V15, V18: operations that take no new data succeed, whatever maps wait for a checkpoint.
#[test]
fn a_pool_whose_host_is_full_flushes_deletes_closes_and_opens() {
    let (none, crc) = (Checksum::None, Checksum::Crc32c);
    let shapes = [(1, 0, none), (256, 0, none), (256, 7, none), (1 << 14, 0, none), (1 << 14, 3, none), (256, 7, crc)];
    for (stride, sync_each, checksum) in shapes {
        for crash in [false, true] {
            let what = format!("stride {stride}, sync each {sync_each}, crash {crash}");
            let rig = Rig::new(12 << 20, checksum);
            let pool = rig.open().unwrap();
            let (other, volume) =
                (pool.create_volume("other", 1 << 30).unwrap(), pool.create_volume("v", 1 << 40).unwrap());
            (0..16).for_each(|unit| rig.write(&other, unit, 3).unwrap());
            let mut done = 0;
            while rig.write(&volume, done * stride, 1).is_ok() {
                done += 1;
                if sync_each > 0 && done % sync_each == 0 {
                    pool.sync().unwrap();
                }
            }
            assert!(done > 30, "{what}: {done}");
            let info = pool.info();
            assert!(info.host_full && info.state == SpaceState::Ok && info.free_bytes > 30 << 20, "{what}: {info:?}");
            // Reads, overwrites and flushes.
            pool.sync().unwrap();
            rig.write(&volume, 0, 2).unwrap();
            assert_eq!((rig.read(&volume, 0), rig.read(&volume, stride)), (2, 1), "{what}");
            pool.sync().unwrap();
            // Other volumes use the space that a discard and a delete give back.
            punch(&rig, &volume, stride * (done - 5));
            drop(other);
            pool.delete("other").unwrap();
            pool.sync().unwrap();
            drop(volume);
            if crash {
                drop(pool);
            } else {
                pool.close().unwrap();
            }
            rig.is_clean();
            let pool = rig.open().unwrap_or_else(|error| panic!("{what}: {error}"));
            let volume = pool.open_volume("v").unwrap();
            let expect = |at: u64| if at == 0 { 2 } else { u8::from(at != done - 5) };
            (0..done).for_each(|at| assert_eq!(rig.read(&volume, at * stride), expect(at), "{what}"));
            assert!(pool.volume_info("other").is_err());
            // The host has space again.
            rig.set_room(1 << 20);
            rig.write(&volume, stride * done + 1, 9).unwrap();
            assert!(!pool.info().host_full, "{what}");
            pool.sync().unwrap();
            drop(volume);
            pool.close().unwrap();
            rig.is_clean();
        }
    }
}

/// V15: an operation that is refused names the host in its error, and has changed nothing.
#[test]
fn errors_for_want_of_space_name_the_host() {
    let rig = Rig::new(8 << 20, Checksum::None);
    let pool = rig.open().unwrap();
    let volume = pool.create_volume("v", 1 << 40).unwrap();
    fill(&rig, &volume, 256, 1);
    let mut made = 0;
    let error = loop {
        match pool.create_volume(&format!("{made}{}", "x".repeat(240)), 1 << 20) {
            Ok(_) => made += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, PoolError::HostFull { .. }), "{error}");
    assert!(error.to_string().contains("file system that holds ram"), "{error}");
    assert_eq!(pool.volumes().len(), made + 1);
    // All volumes can be deleted, one by one, each durably.
    for info in pool.volumes().into_iter().filter(|info| info.name != "v") {
        pool.delete(&info.name).unwrap();
    }
    drop(volume);
    pool.delete("v").unwrap();
    pool.close().unwrap();
    rig.is_clean();
    assert!(rig.open().unwrap().volumes().is_empty());
}

/// A pool is opened after a crash on a full host, with maps to recover.
#[test]
fn what_a_crash_left_is_recovered_on_a_full_host() {
    for checksum in [Checksum::None, Checksum::Crc32c] {
        for stride in [1, 256, 1 << 14] {
            let rig = Rig::new(30 << 20, checksum);
            let pool = rig.open().unwrap();
            let volume = pool.create_volume("v", 1 << 40).unwrap();
            (0..40).for_each(|at| rig.write(&volume, at * stride, 1).unwrap());
            // The records are in the journal alone.
            pool.sync().unwrap();
            drop((volume, pool));
            rig.set_room(0);
            for _ in 0..3 {
                let pool = rig.open().unwrap_or_else(|error| panic!("{checksum:?}, stride {stride}: {error}"));
                let volume = pool.open_volume("v").unwrap();
                (0..40).for_each(|at| assert_eq!(rig.read(&volume, at * stride), 1));
                pool.sync().unwrap();
            }
            rig.is_clean();
        }
    }
}

/// V15: a write to a shared unit copies neighbouring units too, if there is space. If the host has space for one more
/// unit, that is the unit of the write, wherever in the group it is, and the neighbours stay in place.
#[test]
fn the_last_room_of_a_host_is_for_the_unit_that_is_written_to() {
    for wanted in 0..4 {
        let rig = Rig::new(30 << 20, Checksum::None);
        let pool = rig.open().unwrap();
        let volume = pool.create_volume("v", 1 << 30).unwrap();
        (0..4).for_each(|unit| rig.write(&volume, unit, 1).unwrap());
        pool.clone_volume("v", "clone").unwrap();
        let clone = pool.open_volume("clone").unwrap();
        pool.sync().unwrap();
        rig.set_room(16);
        rig.write(&clone, wanted, 2).unwrap_or_else(|status| panic!("unit {wanted}: {status:?}"));
        assert_eq!(rig.host.lock().unwrap().room, 0, "unit {wanted} got all of it");
        assert_eq!(rig.write(&clone, (wanted + 1) % 4, 3), Err(Status::NoSpc), "there is no more");
        let is_as_written = |pool: &Pool| {
            let tags = |name| {
                let volume = pool.open_volume(name).unwrap();
                (0..4).map(|unit| rig.read(&volume, unit)).collect::<Vec<u8>>()
            };
            let of_clone: Vec<u8> = (0..4).map(|unit| if unit == wanted { 2 } else { 1 }).collect();
            assert_eq!((tags("v"), tags("clone")), (vec![1; 4], of_clone));
            assert_eq!(pool.volume_info("clone").unwrap().unique_bytes, 1 << 16, "its neighbours stayed");
        };
        is_as_written(&pool);
        pool.sync().unwrap();
        drop((volume, clone, pool));
        rig.is_clean();
        is_as_written(&rig.open().unwrap());
    }
}

/// M3, M4: operations that free space succeed when operations that take space do not, also in units of one page.
#[test]
fn discards_go_on_where_writes_do_not() {
    let rig = Rig::with_units(4096, 3 << 20, Checksum::None);
    let pool = rig.open().unwrap();
    let volume = pool.create_volume("v", 1 << 40).unwrap();
    let done = fill(&rig, &volume, 1 << 16, 1);
    assert!(done > 100, "{done}");
    assert!(pool.create_volume("w", 4096).is_err());
    let state = volume.pool().lock();
    let most = |who| (0..10_000).take_while(|more| state.can_pay(*more, who)).count();
    let (write, discard, end) = (most(Spender::Write), most(Spender::Discard), most(Spender::EndOfWrite));
    assert!(write < discard && discard < end, "{write} pages for writes, {discard} for discards, {end} for what must");
    drop(state);
    (0..done).for_each(|at| punch(&rig, &volume, at << 16));
    pool.sync().unwrap();
    drop(volume);
    pool.close().unwrap();
    rig.is_clean();
}

/// H2: the volume table is longer than all other metadata, and data takes all space that becomes free.
#[test]
fn data_takes_no_space_that_the_next_checkpoint_needs() {
    let rig = Rig::new(20 << 20, Checksum::None);
    let pool = rig.open().unwrap();
    for number in 0..1000 {
        pool.create_volume(&format!("{number:0>200}"), 1 << 20).unwrap();
    }
    let volume = pool.create_volume("v", 1 << 40).unwrap();
    rig.set_room(300);
    for round in 0..10 {
        fill(&rig, &volume, 1, round);
        volume.pool().checkpoint().unwrap();
    }
    drop(volume);
    pool.delete(&format!("{:0>200}", 7)).unwrap();
    pool.close().unwrap();
    rig.is_clean();
    assert_eq!(rig.open().unwrap().volumes().len(), 1000);
}

/// H3: opening finds space only beyond the place where it looks first.
#[test]
fn opening_looks_for_space_that_the_host_has_given() {
    let rig = Rig::new(60 << 20, Checksum::None);
    let pool = rig.open().unwrap();
    let volume = pool.create_volume("v", 1 << 30).unwrap();
    (0..100).for_each(|unit| rig.write(&volume, unit, 1).unwrap());
    pool.sync().unwrap();
    drop(volume);
    pool.delete("v").unwrap();
    let used = volume_pages(&pool);
    pool.close().unwrap();
    // Takes the space of all other units: it is as if metadata had only ever had the units in which it has pages.
    let mut host = rig.host.lock().unwrap();
    host.written.retain(|block| block >> 4 < 200 || used.contains(&(block >> 4)) || copies().any(|at| at == *block));
    host.room = 0;
    drop(host);
    let pool = rig.open().unwrap();
    pool.create_volume("w", 1 << 20).unwrap();
    pool.sync().unwrap();
    pool.close().unwrap();
    rig.is_clean();
}

/// Returns the units that hold pages of the volume table.
fn volume_pages(pool: &Pool) -> HashSet<u64> {
    let volume = pool.create_volume("probe", 4096).unwrap();
    volume.pool().checkpoint().unwrap();
    let state = volume.pool().lock();
    let used = (0..1024).filter(|unit| state.tree.units.is_meta(*unit));
    // Leaves out metadata units that have no page of the table.
    used.filter(|unit| state.table.pages.leaves.iter().any(|leaf| leaf.page.address >> 16 == *unit)).collect()
}

/// M4: the stock takes no space from data: only units that data cannot take anyway stay metadata.
#[test]
fn the_stock_takes_no_space_from_data() {
    let space = |sparse: bool| {
        let rig = Rig::new(64 << 20, Checksum::None);
        let pool = if sparse { rig.open() } else { Pool::open(&rig.device, &OpenOptions::default()) }.unwrap();
        let volume = pool.create_volume("v", 1 << 30).unwrap();
        fill(&rig, &volume, 1, 1)
    };
    let (with, without) = (space(true), space(false));
    assert!(with + 2 >= without, "{with} units with pages that have space, {without} without");
}

/// H1. A process that ended may have left data in a cache that the next one reads. After a power failure, units that
/// this one has found free could be in use again.
#[test]
fn an_opening_makes_durable_what_it_has_read_before_it_writes_anything() {
    struct Order {
        io: Box<dyn BlockIo>,
        steps: Arc<Mutex<Vec<&'static str>>>,
    }
    impl BlockIo for Order {
        fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), Status> {
            self.io.read(at, buf)
        }
        fn write(&self, at: u64, buf: &[u8]) -> Result<(), Status> {
            self.steps.lock().unwrap().push("write");
            self.io.write(at, buf)
        }
        fn flush(&self) -> Result<(), Status> {
            self.steps.lock().unwrap().push("flush");
            self.io.flush()
        }
        fn discard(&self, at: u64, len: u64) -> Result<(), Status> {
            self.steps.lock().unwrap().push("write");
            self.io.discard(at, len)
        }
        fn size_bytes(&self) -> u64 {
            self.io.size_bytes()
        }
        fn is_sparse(&self) -> bool {
            self.io.is_sparse()
        }
    }
    for checksum in [Checksum::None, Checksum::Crc32c] {
        let rig = Rig::new(16 << 20, checksum);
        let pool = rig.open().unwrap();
        drop(pool.create_volume("v", 1 << 20).unwrap());
        drop(pool);
        let steps = Arc::new(Mutex::new(Vec::new()));
        let pool = rig.open_on(|io| Box::new(Order { io, steps: Arc::clone(&steps) }));
        assert_eq!(steps.lock().unwrap()[..2], ["flush", "write"], "{checksum:?}");
        drop(pool);
    }
}
