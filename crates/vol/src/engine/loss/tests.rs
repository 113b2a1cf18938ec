//! A flush of another thread fails while a flush of the pool's own succeeds: data that the latter covered may be lost.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use sheave_base::grace::Grace;
use sheave_blk::Device;
use sheave_drivers::open_device;
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::file::{FallocateMode, WriteDone};
use sheave_iomap::mapping::Intent;
use sheave_iomap::{File, MappingKind};

use super::*;
use crate::device::block_io::{BlockIo, DeviceIo};
use crate::{CreateOptions, OpenOptions, Pool, Volume};

const SUPERBLOCK_BYTES: u64 = 8192;

/// Hooks into the pool's own I/O, and a record of it.
#[derive(Default)]
struct Seen {
    alarm: OnceLock<Arc<FlushAlarm>>,
    /// Called once, before the next write.
    before_write: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    /// Flushes before the one during which another's flush fails; below 0 none fails.
    left: AtomicI64,
    /// Addresses of the pool's writes after that flush.
    written_after: Mutex<Vec<u64>>,
}

/// A device whose own flushes succeed while those of others may fail.
struct Beside {
    io: DeviceIo,
    seen: Arc<Seen>,
}

impl BlockIo for Beside {
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), Status> {
        self.io.read(at, buf)
    }

    fn write(&self, at: u64, buf: &[u8]) -> Result<(), Status> {
        let before = self.seen.before_write.lock().unwrap().take();
        before.into_iter().for_each(|before| before());
        if self.seen.alarm.get().is_some_and(|alarm| alarm.failed().is_some()) {
            self.seen.written_after.lock().unwrap().push(at);
        }
        self.io.write(at, buf)
    }

    fn flush(&self) -> Result<(), Status> {
        self.io.flush()?;
        if self.seen.left.fetch_sub(1, Ordering::SeqCst) == 0 {
            self.seen.alarm.get().unwrap().ring(Status::IoErr);
        }
        Ok(())
    }

    fn discard(&self, at: u64, len: u64) -> Result<(), Status> {
        self.io.discard(at, len)
    }

    fn size_bytes(&self) -> u64 {
        self.io.size_bytes()
    }
}

fn write(volume: &Volume, unit: u64, tag: u8) {
    let (pos, may_block) = (unit << 16, MayBlock::on_worker());
    let mapping = volume.map_blocking(pos, 4096, Intent::Write, &may_block).unwrap();
    DeviceIo::new(volume.device()).unwrap().write(mapping.addr, &[tag; 4096]).unwrap();
    volume.end_write(WriteDone::new(pos, 4096, Status::Ok, &[mapping]), &may_block).unwrap();
}

/// A pool with a volume whose first unit is durable, and whose second is not.
fn pool() -> (Device, Pool, Volume, Arc<Seen>) {
    let device = open_device("ram:size=7M").unwrap();
    Pool::create(&device, &CreateOptions::default()).unwrap();
    let seen = Arc::new(Seen { left: AtomicI64::new(-1), ..Seen::default() });
    let io = Box::new(Beside { io: DeviceIo::new(&device).unwrap(), seen: seen.clone() });
    let pool = Pool::open_through(&device, io, &OpenOptions::default()).unwrap();
    seen.alarm.set(pool.inner.alarm.clone()).unwrap();
    let volume = pool.create_volume("v", 1 << 20).unwrap();
    write(&volume, 0, 1);
    pool.sync().unwrap();
    write(&volume, 1, 2);
    (device, pool, volume, seen)
}

/// Opens the pool again. Returns true if it has the unit as written.
fn is_written(device: &Device, unit: u64) -> bool {
    let pool = Pool::open(device, &OpenOptions::default()).unwrap();
    let volume = pool.open_volume("v").unwrap();
    volume.map(unit << 16, 4096, Intent::Read).unwrap().kind == MappingKind::Mapped
}

/// Checks that no metadata follows a flush during which another flush failed: the device may have reported success
/// after it had lost the data.
fn nothing_follows(commit: impl Fn(&Pool) -> bool, flushes: i64) {
    for flush in 0..flushes {
        let (device, pool, volume, seen) = pool();
        seen.left.store(flush, Ordering::SeqCst);
        assert!(!commit(&pool), "flush {flush}: what follows a flush that failed is not durable (I4 of commits)");
        drop((pool, volume));
        let written = seen.written_after.lock().unwrap();
        assert!(
            written.iter().all(|at| *at < SUPERBLOCK_BYTES),
            "flush {flush}: {written:x?} beside the list of losses"
        );
        assert!(!written.is_empty(), "flush {flush}: the list is written");
        drop(written);
        assert!(is_written(&device, 0), "flush {flush}: what was durable stays");
        if flush == 0 {
            assert!(!is_written(&device, 1), "no metadata may refer to data that may be lost");
        }
    }
}

#[test]
fn no_record_follows_a_flush_during_which_another_failed() {
    nothing_follows(|pool| pool.sync().is_ok(), 2);
}

#[test]
fn no_superblock_follows_a_flush_during_which_another_failed() {
    nothing_follows(|pool| pool.inner.checkpoint().is_ok(), 3);
}

/// Lets a flush of another thread fail. Returns the volumes that the next opening lists as possibly damaged.
fn lost(device: &Device, pool: Pool, volume: Volume, seen: &Seen) -> Vec<String> {
    seen.alarm.get().unwrap().ring(Status::IoErr);
    drop((volume, pool));
    Pool::open(device, &OpenOptions::default()).unwrap().info().lost
}

/// V25, L1: a commit does not cover a write that was in flight when the commit began. The write is an overwrite, so
/// there is no record of it.
#[test]
fn an_epoch_is_not_safe_while_a_write_of_it_is_under_way() {
    for under_way in [false, true] {
        let (device, pool, volume, seen) = pool();
        // A ring has looked up the place, and its write has not ended.
        let seat = Grace::seat(volume.grace().unwrap());
        seat.enter();
        volume.map(0, 4096, Intent::Write).unwrap();
        let phase = seat.count();
        seat.leave();
        if !under_way {
            seat.uncount(phase);
        }
        (0..3).for_each(|_| pool.sync().unwrap());
        if under_way {
            seat.uncount(phase);
        }
        drop(seat);
        let names: &[&str] = if under_way { &["v"] } else { &[] };
        assert_eq!(lost(&device, pool, volume, &seen), names, "under way: {under_way}");
    }
}

/// V25, L2: a hole belongs to the epoch in which its punch ends. A commit during the zeroing of the hole's edge
/// contains nothing of the hole.
#[test]
fn a_hole_that_ends_after_a_commit_may_be_lost_by_the_next() {
    let (device, pool, volume, seen) = pool();
    pool.sync().unwrap();
    let other = pool.clone();
    *seen.before_write.lock().unwrap() = Some(Box::new(move || other.sync().unwrap()));
    let whole = 2 << 16;
    volume.fallocate(FallocateMode::PunchHole, 512, whole - 512, &MayBlock::on_worker()).unwrap();
    assert!(seen.before_write.lock().unwrap().is_none(), "the edge was zeroed");
    assert_eq!(lost(&device, pool, volume, &seen), ["v"]);
    assert!(is_written(&device, 1), "the hole is in no commit");
}
