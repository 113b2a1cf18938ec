//! Free units are discarded, used ones are not, and nobody gets a unit while it is being discarded.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use sheave_base::status::Status;
use sheave_blk::Device;
use sheave_drivers::open_device;

use crate::block_io::DeviceIo;
use crate::{BlockIo, CreateOptions, OpenOptions, Pool, PoolError};

pub(in crate::ops) const UNIT: u64 = 65536;

/// Function that runs during each discard.
pub(in crate::ops) type Job = Box<dyn FnMut() + Send>;

/// A device that records its discards, and during which a job may run.
struct Watched {
    io: DeviceIo,
    discards: Arc<Mutex<Vec<(u64, u64)>>>,
    meanwhile: Arc<Mutex<Option<Job>>>,
    fails: Arc<Mutex<bool>>,
}

impl BlockIo for Watched {
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), Status> {
        self.io.read(at, buf)
    }

    fn write(&self, at: u64, buf: &[u8]) -> Result<(), Status> {
        self.io.write(at, buf)
    }

    fn flush(&self) -> Result<(), Status> {
        self.io.flush()
    }

    fn discard(&self, at: u64, len: u64) -> Result<(), Status> {
        if let Some(job) = &mut *self.meanwhile.lock().unwrap() {
            job();
        }
        if *self.fails.lock().unwrap() {
            return Err(Status::IoErr);
        }
        self.discards.lock().unwrap().push((at, len));
        // Writes garbage, which a device may return after a discard: a read of a discarded unit that is in use would
        // show it.
        (at..at + len).step_by(UNIT as usize).try_for_each(|at| self.io.write(at, &[0xdc; UNIT as usize]))
    }

    fn size_bytes(&self) -> u64 {
        self.io.size_bytes()
    }
}

pub(in crate::ops) struct Bench {
    pub(in crate::ops) device: Device,
    pub(in crate::ops) pool: Pool,
    pub(in crate::ops) discards: Arc<Mutex<Vec<(u64, u64)>>>,
    pub(in crate::ops) meanwhile: Arc<Mutex<Option<Job>>>,
    pub(in crate::ops) fails: Arc<Mutex<bool>>,
}

fn bench() -> Bench {
    bench_with(false, false)
}

/// Creates a pool that is set to discard if `discard` is true, with a thread for it if `discard_thread` is true.
pub(in crate::ops) fn bench_with(discard: bool, discard_thread: bool) -> Bench {
    let device = open_device("ram:size=160M").unwrap();
    Pool::create(&device, &CreateOptions { discard, ..CreateOptions::default() }).unwrap();
    let (discards, meanwhile, fails) = (Arc::default(), Arc::default(), Arc::default());
    let io = Watched {
        io: DeviceIo::of_owner(&device).unwrap(),
        discards: Arc::clone(&discards),
        meanwhile: Arc::clone(&meanwhile),
        fails: Arc::clone(&fails),
    };
    let options = OpenOptions { discard_thread, ..OpenOptions::default() };
    let pool = Pool::open_through(&device, Box::new(io), &options).unwrap();
    Bench { device, pool, discards, meanwhile, fails }
}

pub(in crate::ops) fn write(pool: &Pool, name: &str, units: u64, tag: u8) {
    use sheave_iomap::completion_plan::MayBlock;
    use sheave_iomap::file::WriteDone;
    use sheave_iomap::mapping::Intent;
    use sheave_iomap::{File, Mapping};
    let volume = pool.open_volume(name).unwrap();
    for unit in 0..units {
        let may_block = MayBlock::on_worker();
        let piece: Mapping = volume.map_blocking(unit * UNIT, UNIT, Intent::Write, &may_block).unwrap();
        volume.pool().io.write(piece.addr, &[tag; UNIT as usize]).unwrap();
        volume.end_write(WriteDone::new(unit * UNIT, UNIT, Status::Ok, &[piece]), &may_block).unwrap();
    }
    pool.sync().unwrap();
}

pub(in crate::ops) fn holds(pool: &Pool, name: &str, tag: u8) -> bool {
    let volume = pool.open_volume(name).unwrap();
    let mut bytes = vec![0; UNIT as usize];
    volume.extents(0, u64::MAX).unwrap().iter().filter(|extent| extent.addr != 0).all(|extent| {
        (0..extent.len).step_by(UNIT as usize).all(|at| {
            volume.pool().io.read(extent.addr + at, &mut bytes).unwrap();
            bytes.iter().all(|byte| *byte == tag)
        })
    })
}

fn all(pool: &Pool) -> crate::TrimProgress {
    pool.trim(&mut |_| ControlFlow::Continue(())).unwrap()
}

#[test]
fn what_is_free_goes_back_and_what_is_used_stays() {
    let bench = bench();
    let pool = &bench.pool;
    drop(pool.create_volume("v", 32 << 20).unwrap());
    drop(pool.create_volume("w", 16 << 20).unwrap());
    write(pool, "v", 200, 1);
    write(pool, "w", 100, 2);
    pool.snapshot("w", "s").unwrap();
    let before = pool.info();
    let done = all(pool);
    assert!(done.completed && done.left_bytes == 0, "{done:?}");
    // All free units, including those of the reserve.
    assert_eq!(done.trimmed_bytes, before.free_bytes + before.reserve_bytes, "{done:?}");
    assert_eq!(pool.info(), crate::PoolInfo { generation: pool.info().generation, ..before.clone() });
    pool.delete("v").unwrap();
    pool.delete("w").unwrap();
    bench.discards.lock().unwrap().clear();
    let done = all(pool);
    assert!(done.trimmed_bytes >= before.free_bytes + (200 << 16), "{done:?}");
    let sum: u64 = bench.discards.lock().unwrap().iter().map(|(_, len)| *len).sum();
    assert_eq!(sum, done.trimmed_bytes);
    assert!(holds(pool, "s", 2), "what a snapshot has");
    let Bench { device, pool, .. } = bench;
    drop(pool);
    // The same after a crash.
    let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
    assert!(holds(&pool, "s", 2) && pool.volumes().len() == 1);
    pool.close().unwrap();
    assert!(crate::check_device(&device, &crate::CheckOptions::default()).unwrap().is_clean());
}

#[test]
fn what_is_deleted_or_written_meanwhile_is_never_discarded() {
    let bench = bench();
    let pool = bench.pool.clone();
    for name in ["v", "w"] {
        drop(pool.create_volume(name, 32 << 20).unwrap());
    }
    write(&pool, "v", 100, 1);
    let mut round = 0;
    *bench.meanwhile.lock().unwrap() = Some(Box::new(move || {
        // First writes and a delete come while units are being discarded: these units have no owner.
        round += 1;
        match round {
            1 => write(&pool, "w", 50, 2),
            2 => pool.delete("v").unwrap(),
            _ => {}
        }
    }));
    let done = all(&bench.pool);
    assert!(done.completed, "{done:?}");
    *bench.meanwhile.lock().unwrap() = None;
    assert!(holds(&bench.pool, "w", 2));
    assert_eq!(bench.pool.info().pending_bytes, 0);
    assert!(all(&bench.pool).trimmed_bytes >= 900 << 16);
    assert!(holds(&bench.pool, "w", 2));
}

#[test]
fn a_failed_or_broken_off_trim_leaks_no_units() {
    let bench = bench();
    let before = bench.pool.info();
    *bench.fails.lock().unwrap() = true;
    let error = bench.pool.trim(&mut |_| ControlFlow::Continue(())).unwrap_err();
    assert!(matches!(error, PoolError::Io { .. }), "{error}");
    assert_eq!(bench.pool.info().free_bytes, before.free_bytes);
    *bench.fails.lock().unwrap() = false;
    let done = bench.pool.trim(&mut |_| ControlFlow::Break(())).unwrap();
    assert!(!done.completed && done.trimmed_bytes > 0, "{done:?}");
    assert_eq!(bench.pool.info().free_bytes, before.free_bytes);
    // A device without discards is reported as such.
    let device = open_device("null:size=64M,keep=64M").unwrap();
    if device.limits().max_discard_sectors == 0 {
        Pool::create(&device, &CreateOptions::default()).unwrap();
        let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
        let error = pool.trim(&mut |_| ControlFlow::Continue(())).unwrap_err();
        assert!(error.to_string().contains("cannot take space back"), "{error}");
    }
}
