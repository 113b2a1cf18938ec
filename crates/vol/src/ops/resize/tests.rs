//! Cuts that meet a commit of another thread in their middle, with a crash right after it, or the copy of a shared unit
//! for a write.

use std::ops::ControlFlow;
use std::sync::{Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use sheave_blk::Device;
use sheave_drivers::open_device;
use sheave_iomap::File;
use sheave_iomap::file::WriteDone;
use sheave_iomap::mapping::Intent;

use super::*;
use crate::device::block_io::{BlockIo, DeviceIo};
use crate::engine::change::core_of;
use crate::{CheckOptions, CreateOptions, OpenOptions, Pool, ScrubOptions, check_device};

const BYTES: usize = 8 << 20;
const UNIT: u64 = 8192;

fn device() -> Device {
    open_device(&format!("ram:size={BYTES}")).expect("opens")
}

#[test]
fn a_commit_before_anything_is_cut_off_leaves_nothing_beyond_the_end() {
    let first = device();
    Pool::create(&first, &CreateOptions { unit_bytes: UNIT, ..CreateOptions::default() }).expect("makes");
    let pool = Pool::open(&first, &OpenOptions::default()).expect("opens");
    let (volume, may_block) = (pool.create_volume("v", 60 * UNIT).expect("creates"), MayBlock::on_worker());
    for pos in (0..50).map(|unit| unit * UNIT) {
        let mapping = volume.map_blocking(pos, UNIT, Intent::Write, &may_block).expect("maps");
        volume.end_write(WriteDone::new(pos, UNIT, Status::Ok, &[mapping]), &may_block).expect("ends");
    }
    // Goes as far as `resize_map` does under its first hold of the lock.
    let (inner, size) = (volume.pool(), 10 * UNIT + UNIT / 2);
    let core = core_of(&inner.lock(), "v").expect("is there");
    let mut state = inner.settle(inner.lock(), core.id, Some(core.id));
    core.set_size(size);
    state.table.set_cutting(core.id, true);
    inner.record(&mut state, Record::Resize { volume: core.id, size });
    drop(state);
    inner.commit().expect("commits");
    // The power fails.
    let (after, mut bytes) = (device(), vec![0; BYTES]);
    DeviceIo::new(&first).expect("attaches").read(0, &mut bytes).expect("reads");
    DeviceIo::new(&after).expect("attaches").write(0, &bytes).expect("writes");
    let report = check_device(&after, &CheckOptions::default()).expect("checks");
    assert!(report.is_clean(), "{:?}", report.findings);
    let pool = Pool::open(&after, &OpenOptions::default()).expect("opens");
    assert_eq!((pool.volume_info("v").expect("is there").size_bytes, pool.info().data_bytes), (size, 11 * UNIT));
    inner.settled(&mut inner.lock(), core.id);
}

/// Gate at which reads of a device wait while it is shut.
#[derive(Default)]
struct Gate {
    /// True while it is shut, and the number of reads that wait.
    state: Mutex<(bool, u32)>,
    changed: Condvar,
}

impl Gate {
    fn shut(&self) {
        self.state.lock().expect("no panic").0 = true;
    }

    fn open(&self) {
        self.state.lock().expect("no panic").0 = false;
        self.changed.notify_all();
    }

    fn wait_for_a_read(&self) {
        let state = self.state.lock().expect("no panic");
        let (_state, waited) = self
            .changed
            .wait_timeout_while(state, Duration::from_secs(10), |(_, waiting)| *waiting == 0)
            .expect("no panic");
        assert!(!waited.timed_out(), "nobody reads");
    }

    fn pass(&self) {
        let mut state = self.state.lock().expect("no panic");
        state.1 += 1;
        self.changed.notify_all();
        let mut state = self.changed.wait_while(state, |(shut, _)| *shut).expect("no panic");
        state.1 -= 1;
    }
}

struct Gated {
    io: DeviceIo,
    gate: Arc<Gate>,
}

impl BlockIo for Gated {
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), Status> {
        self.gate.pass();
        self.io.read(at, buf)
    }

    fn write(&self, at: u64, buf: &[u8]) -> Result<(), Status> {
        self.io.write(at, buf)
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

/// A write copies a unit that a snapshot shares, and meanwhile the volume is cut before that unit: the cut waits for
/// the copy. Otherwise the unit would lose an owner twice, and the snapshot's data would become free.
#[test]
fn a_cut_waits_for_the_copy_of_a_shared_unit() {
    let device = device();
    Pool::create(&device, &CreateOptions { unit_bytes: UNIT, ..CreateOptions::default() }).expect("makes");
    let gate = Arc::new(Gate::default());
    let io = Gated { io: DeviceIo::of_owner(&device).expect("attaches"), gate: Arc::clone(&gate) };
    let pool = Pool::open_through(&device, Box::new(io), &OpenOptions::default()).expect("opens");
    let volume = pool.create_volume("v", 60 * UNIT).expect("creates");
    let may_block = MayBlock::on_worker();
    for pos in (0..50).map(|unit| unit * UNIT) {
        let mapping = volume.map_blocking(pos, UNIT, Intent::Write, &may_block).expect("maps");
        volume.pool().io.write(mapping.addr, &[7; UNIT as usize]).expect("writes");
        volume.end_write(WriteDone::new(pos, UNIT, Status::Ok, &[mapping]), &may_block).expect("ends");
    }
    pool.snapshot("v", "s").expect("a snapshot");
    gate.shut();
    thread::scope(|scope| {
        let writer = scope.spawn(|| volume.map_blocking(40 * UNIT, UNIT, Intent::Write, &MayBlock::on_worker()));
        gate.wait_for_a_read();
        let resize = scope.spawn(|| pool.resize("v", 10 * UNIT));
        let begun = Instant::now();
        while !resize.is_finished() && begun.elapsed() < Duration::from_millis(200) {
            thread::sleep(Duration::from_millis(1));
        }
        let early = resize.is_finished();
        gate.open();
        // The writer got its unit before the cut, or found itself beyond the end after it.
        let written = writer.join().expect("no panic");
        assert!(matches!(written, Ok(_) | Err(Status::NoSpc)), "{written:?}");
        resize.join().expect("no panic").expect("cuts");
        assert!(!early, "the cut returned while the unit was being copied");
    });
    pool.sync().expect("syncs");
    let info = pool.info();
    assert_eq!((info.data_bytes, info.pending_bytes), (50 * UNIT, 0), "what the snapshot has, and nothing else");
    // A volume that takes all space takes none of the snapshot's.
    let other = pool.create_volume("other", 1 << 30).expect("creates");
    let mut taken = 0;
    while let Ok(mapping) = other.map_blocking(taken, UNIT, Intent::Write, &may_block) {
        volume.pool().io.write(mapping.addr, &[9; UNIT as usize]).expect("writes");
        taken += UNIT;
    }
    assert!(taken > 100 * UNIT, "{taken}");
    let snapshot = pool.open_volume("s").expect("is there");
    for pos in (0..50).map(|unit| unit * UNIT) {
        let mapping = snapshot.map(pos, UNIT, Intent::Read).expect("maps");
        let mut bytes = vec![0; UNIT as usize];
        snapshot.pool().io.read(mapping.addr, &mut bytes).expect("reads");
        assert!(bytes.iter().all(|byte| *byte == 7), "another volume's data at {pos}");
    }
    let report = pool.scrub(&ScrubOptions::default(), &mut |_| ControlFlow::Continue(())).expect("scrubs");
    assert!(report.is_clean(), "{:?}", report.findings);
}
