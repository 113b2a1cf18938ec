//! Rings on files that are more than a device: blocking work goes to a worker and comes back, and waits for it never
//! deadlock.
#![allow(unsafe_code)] // Raw SQEs.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use sheave_base::status::Status;
use sheave_blk::Device;
use sheave_blk::bio::Op;
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::file::WriteDone;
use sheave_iomap::mapping::{Intent, MapFlags};
use sheave_iomap::{File, Mapping, MappingKind};
use sheave_uring::sqe::{RWF_APPEND, RWF_DSYNC, RWF_NOWAIT, Sqe, opcode};
use sheave_uring::{Fd, Ring, prep};

use crate::support::{Puppet, buf, fsync, nop, push, reaped, ring, run, rw};

/// Time that a worker of a [`Slow`] file takes: longer than any ring spins.
const WORK: Duration = Duration::from_millis(5);

/// A file at 1 MiB of its device that blocks in every call that may block.
#[derive(Debug)]
struct Slow {
    device: Device,
    kind: MappingKind,
    /// True if `map` succeeds. Set by `map_blocking`.
    mapped: Mutex<bool>,
    fails: Mutex<Option<Status>>,
    sync: Option<Result<(), Status>>,
    panics: bool,
    log: Mutex<Vec<&'static str>>,
}

impl Slow {
    fn new(device: &Device, kind: MappingKind, mapped: bool) -> Arc<Slow> {
        Slow { device: device.clone(), kind, mapped: Mutex::new(mapped), ..Slow::default_of(device) }.into()
    }

    fn default_of(device: &Device) -> Slow {
        Slow {
            device: device.clone(),
            kind: MappingKind::Mapped,
            mapped: Mutex::new(true),
            fails: Mutex::new(None),
            sync: None,
            panics: false,
            log: Mutex::new(Vec::new()),
        }
    }

    fn log(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.log.lock().unwrap())
    }

    fn block(&self, what: &'static str) {
        std::thread::sleep(WORK);
        assert!(!self.panics, "as the test wants it");
        self.log.lock().unwrap().push(what);
    }
}

impl File for Slow {
    fn device(&self) -> &Device {
        &self.device
    }

    fn size_bytes(&self) -> u64 {
        1 << 20
    }

    fn map(&self, pos: u64, len: u64, _: Intent) -> Result<Mapping, Status> {
        if !*self.mapped.lock().unwrap() {
            return Err(Status::Again);
        }
        Ok(Mapping::new(self.kind, pos, len, (1 << 20) + pos))
    }

    fn map_blocking(&self, pos: u64, len: u64, intent: Intent, _: &MayBlock) -> Result<Mapping, Status> {
        self.block("map");
        if let Some(status) = *self.fails.lock().unwrap() {
            return Err(status);
        }
        *self.mapped.lock().unwrap() = true;
        self.map(pos, len, intent)
    }

    fn end_write(&self, done: WriteDone<'_>, _: &MayBlock) -> Result<(), Status> {
        self.block("end_write");
        if done.status.is_ok() { Ok(()) } else { Err(done.status) }
    }

    fn sync(&self, _: &MayBlock) -> Option<Result<(), Status>> {
        self.block("sync");
        self.sync
    }
}

fn cached() -> Puppet {
    Puppet::new().caps(|caps| caps.volatile_cache = true)
}

fn ops(puppet: &Puppet) -> Vec<Op> {
    puppet.script().seen.iter().map(|rq| rq.op).collect()
}

fn write(fd: Fd, op_flags: u32, user_data: u64) -> Sqe {
    Sqe { op_flags, ..rw(opcode::WRITE, fd, 0, 1 << 24, 4096, user_data) }
}

#[test]
fn the_same_thread_writes_and_drains_without_reaping() {
    // The completion work of these writes runs on a worker; they end on the ring's thread, which is in `drain`.
    let puppet = cached();
    let file = Slow::new(&puppet.device(), MappingKind::Unwritten, true);
    for spin in [Duration::ZERO, Duration::from_micros(10)] {
        let mut ring = Ring::builder().entries(8).spin(spin).build().unwrap();
        let fd = ring.attach_file(file.clone()).unwrap();
        push(&mut ring, &[write(fd, 0, 1), write(fd, RWF_DSYNC, 2), fsync(fd, 3)]);
        assert_eq!(ring.submit().unwrap(), 3);
        ring.drain();
        assert_eq!(ring.in_flight(), 0);
        let mut ended = reaped(&mut ring);
        ended.sort_unstable();
        assert_eq!(ended, [(1, 4096), (2, 4096), (3, 0)]);
        assert_eq!(file.log().len(), 4, "two writes to finish, two syncs");
    }
}

#[test]
fn a_sync_that_the_file_leaves_to_the_device_is_a_flush() {
    for (sync, flushes, res) in [(None, 1, 0), (Some(Ok(())), 0, 0), (Some(Err(Status::NoSpc)), 0, -28)] {
        let puppet = cached();
        let file = Arc::new(Slow { sync, ..Slow::default_of(&puppet.device()) });
        let mut ring = ring();
        let fd = ring.attach_file(file.clone()).unwrap();
        assert_eq!(run(&mut ring, &[fsync(fd, 1)]), [(1, res)]);
        assert_eq!(ops(&puppet), vec![Op::Flush; flushes]);
        let written = if res == 0 { 4096 } else { res };
        assert_eq!(run(&mut ring, &[write(fd, RWF_DSYNC, 2)]), [(2, written)]);
        assert_eq!(ops(&puppet).len(), flushes + 1 + flushes, "write, then flush");
        assert_eq!(file.log(), ["sync", "sync"], "plain written space has no completion work");
    }
}

/// A file of up to 64 KiB whose end moves with its writes.
#[derive(Debug)]
struct Log {
    device: Device,
    size: AtomicU64,
}

impl File for Log {
    fn device(&self) -> &Device {
        &self.device
    }

    fn size_bytes(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    fn max_bytes(&self) -> Option<u64> {
        Some(65536)
    }

    fn map(&self, pos: u64, len: u64, _: Intent) -> Result<Mapping, Status> {
        assert!(pos + len <= 65536, "nobody asks for what cannot be");
        Ok(Mapping::new(MappingKind::Mapped, pos, len, pos))
    }

    fn end_write(&self, done: WriteDone<'_>, _: &MayBlock) -> Result<(), Status> {
        self.size.fetch_max(done.pos + done.len, Ordering::Relaxed);
        Ok(())
    }
}

#[test]
fn a_file_that_grows_is_extended_by_writes_and_ends_for_readers_where_it_ends() {
    let file = Arc::new(Log { device: Puppet::new().device(), size: AtomicU64::new(8192) });
    let mut ring = ring();
    let fd = ring.attach_file(file.clone()).unwrap();
    let io = |op, pos, len| rw(op, fd, pos, 1 << 24, len, 1);
    let table = [
        (io(opcode::READ, 8192, 4096), 0, 8192),
        (io(opcode::WRITE, 4096, 4096), 4096, 8192),
        (io(opcode::WRITE, 4096, 8192), 8192, 12288),
        (io(opcode::READ, 8192, 8192), 4096, 12288),
        (io(opcode::WRITE, 40960, 4096), 4096, 45056),
        (io(opcode::WRITE, 61440, 8192), 4096, 65536),
        (io(opcode::WRITE, 65536, 4096), -27, 65536),
        (io(opcode::WRITE, 1 << 40, 4096), -27, 65536),
        (Sqe { op_flags: RWF_APPEND, ..io(opcode::WRITE, 0, 4096) }, -95, 65536),
        (io(opcode::READ, 65536, 4096), 0, 65536),
    ];
    for (sqe, res, size) in table {
        assert_eq!(run(&mut ring, &[sqe]), [(1, res)], "{sqe:?}");
        assert_eq!(file.size_bytes(), size, "{sqe:?}");
    }
    // A batch of writes that extend the file, the farthest first.
    file.size.store(0, Ordering::Relaxed);
    let batch: Vec<Sqe> = (0..8).map(|n| rw(opcode::WRITE, fd, (7 - n) * 4096, 1 << 24, 4096, n)).collect();
    assert!(run(&mut ring, &batch).iter().all(|done| done.1 == 4096));
    assert_eq!(file.size_bytes(), 32768);
}

/// A file of written space, whose mappings have the given flags.
#[derive(Debug)]
struct Asks {
    device: Device,
    flags: MapFlags,
    /// Number of calls of `end_write`, all on threads other than the ring's.
    told: AtomicU32,
    ring: ThreadId,
}

impl File for Asks {
    fn device(&self) -> &Device {
        &self.device
    }

    fn size_bytes(&self) -> u64 {
        1 << 20
    }

    fn map(&self, pos: u64, len: u64, _: Intent) -> Result<Mapping, Status> {
        Ok(Mapping::new(MappingKind::Mapped, pos, len, pos).flags(self.flags))
    }

    fn end_write(&self, done: WriteDone<'_>, _: &MayBlock) -> Result<(), Status> {
        assert_ne!(std::thread::current().id(), self.ring);
        self.told.fetch_add(1, Ordering::Relaxed);
        if done.status.is_ok() { Ok(()) } else { Err(done.status) }
    }
}

#[test]
fn writes_complete_where_the_file_asks() {
    for (flags, in_worker) in [(MapFlags::NONE, 0), (MapFlags::TASK, 0), (MapFlags::WORKER, 6)] {
        let device = Puppet::new().device();
        let ring_thread = std::thread::current().id();
        let file = Arc::new(Asks { device, flags, told: AtomicU32::new(0), ring: ring_thread });
        let mut ring = ring();
        let fd = ring.attach_file(file.clone()).unwrap();
        let ended = run(&mut ring, &(0..6).map(|n| write(fd, 0, n)).collect::<Vec<_>>());
        assert!(ended.len() == 6 && ended.iter().all(|&(_, res)| res == 4096), "{ended:?}");
        assert_eq!(file.told.load(Ordering::Relaxed), in_worker);
        let read = rw(opcode::READ, fd, 0, 1 << 24, 4096, 7);
        assert_eq!(run(&mut ring, &[read]), [(7, 4096)]);
    }
}

/// A file of space without data, whose third write does not complete until `let_go` is set or 5 seconds have passed.
#[derive(Debug)]
struct Held {
    device: Device,
    let_go: AtomicBool,
    ended: Mutex<Vec<u64>>,
}

impl File for Held {
    fn device(&self) -> &Device {
        &self.device
    }

    fn size_bytes(&self) -> u64 {
        1 << 20
    }

    fn map(&self, pos: u64, len: u64, _: Intent) -> Result<Mapping, Status> {
        Ok(Mapping::new(MappingKind::Mapped, pos, len, pos).flags(MapFlags::WORKER))
    }

    fn end_write(&self, done: WriteDone<'_>, _: &MayBlock) -> Result<(), Status> {
        let give_up = Instant::now() + Duration::from_secs(30);
        while done.pos == 2 << 13 && !self.let_go.load(Ordering::Acquire) && Instant::now() < give_up {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.ended.lock().unwrap().push(done.pos >> 13);
        if done.pos == 1 << 13 { Err(Status::NoSpc) } else { Ok(()) }
    }
}

#[test]
fn a_slow_end_of_a_write_holds_back_none_that_has_ended_before() {
    let (device, let_go) = (Puppet::new().device(), AtomicBool::new(false));
    let file = Arc::new(Held { device, let_go, ended: Mutex::default() });
    let mut ring = ring();
    let fd = ring.attach_file(file.clone()).unwrap();
    let sqes: Vec<Sqe> = (0..5).map(|n| rw(opcode::WRITE, fd, n << 13, 1 << 24, 4096, n)).collect();
    push(&mut ring, &sqes);
    ring.submit_and_wait(2).unwrap();
    assert_eq!(reaped(&mut ring), [(0, 4096), (1, -28)], "the third write has not ended");
    // The slots of the first two writes serve other requests while their batch is in progress.
    push(&mut ring, &[rw(opcode::READ, fd, 0, 1 << 24, 4096, 7), rw(opcode::WRITE, fd, 5 << 13, 1 << 24, 4096, 5)]);
    ring.submit_and_wait(1).unwrap();
    assert_eq!(reaped(&mut ring), [(7, 4096)]);
    file.let_go.store(true, Ordering::Release);
    ring.submit_and_wait(4).unwrap();
    assert_eq!(reaped(&mut ring), [(2, 4096), (3, 4096), (4, 4096), (5, 4096)]);
    assert_eq!(*file.ended.lock().unwrap(), [0, 1, 2, 3, 4, 5], "the file sees the ends in order");
}

#[test]
fn a_mapping_that_blocks_is_made_by_a_worker() {
    let puppet = cached();
    for op in [opcode::READ, opcode::WRITE] {
        let file = Slow::new(&puppet.device(), MappingKind::Mapped, false);
        let mut ring = ring();
        let fd = ring.attach_file(file.clone()).unwrap();
        let io = rw(op, fd, 0, 1 << 24, 4096, 1);
        assert_eq!(run(&mut ring, &[Sqe { op_flags: RWF_NOWAIT, ..io }]), [(1, -11)]);
        assert_eq!(file.log(), [""; 0], "who does not wait is told at once");
        assert_eq!(run(&mut ring, &[io]), [(1, 4096)]);
        assert_eq!(file.log(), ["map"]);
        assert_eq!(run(&mut ring, &[io, io]), [(1, 4096), (1, 4096)]);
        assert_eq!(file.log(), [""; 0], "now it knows");
        *file.mapped.lock().unwrap() = false;
        *file.fails.lock().unwrap() = Some(Status::IoErr);
        assert_eq!(run(&mut ring, &[io]), [(1, -5)]);
    }
}

/// A file in pieces of 4 KiB, each of which blocks until it was mapped.
#[derive(Debug)]
struct Pieces {
    device: Device,
    mapped: Mutex<Vec<u64>>,
}

impl File for Pieces {
    fn device(&self) -> &Device {
        &self.device
    }

    fn size_bytes(&self) -> u64 {
        1 << 20
    }

    fn map(&self, pos: u64, len: u64, _: Intent) -> Result<Mapping, Status> {
        if !self.mapped.lock().unwrap().contains(&(pos / 4096)) {
            return Err(Status::Again);
        }
        let len = len.min(4096 - pos % 4096);
        Ok(Mapping::new(MappingKind::Mapped, pos, len, pos))
    }

    fn map_blocking(&self, pos: u64, len: u64, intent: Intent, _: &MayBlock) -> Result<Mapping, Status> {
        self.mapped.lock().unwrap().push(pos / 4096);
        self.map(pos, len, intent)
    }
}

#[test]
fn every_piece_of_an_io_is_mapped_by_the_worker() {
    let puppet = cached();
    for op in [opcode::READ, opcode::WRITE] {
        let file = Arc::new(Pieces { device: puppet.device(), mapped: Mutex::new(Vec::new()) });
        let mut ring = ring();
        let fd = ring.attach_file(file.clone()).unwrap();
        assert_eq!(run(&mut ring, &[rw(op, fd, 8192, 1 << 24, 5 * 4096, 1)]), [(1, 5 * 4096)]);
        assert_eq!(*file.mapped.lock().unwrap(), [2, 3, 4, 5, 6], "each once");
    }
}

#[test]
fn a_chain_goes_on_after_work_that_blocks() {
    let puppet = cached();
    let file = Slow::new(&puppet.device(), MappingKind::Unwritten, false);
    let mut ring = Ring::builder().entries(8).spin(Duration::ZERO).build().unwrap();
    let fd = ring.attach_file(file.clone()).unwrap();
    let link = sheave_uring::sqe::IOSQE_IO_LINK;
    let head = Sqe { flags: link, ..write(fd, RWF_DSYNC, 1) };
    let sync = Sqe { flags: link, ..fsync(fd, 2) };
    assert_eq!(run(&mut ring, &[head, sync, nop(3, 0)]), [(1, 4096), (2, 0), (3, 0)]);
    assert_eq!(file.log(), ["map", "end_write", "sync", "sync"]);
    assert_eq!(ops(&puppet), [Op::Write, Op::Flush, Op::Flush]);
}

#[test]
fn unsupported_fallocate_does_not_reach_device() {
    let puppet = cached();
    let file = Slow::new(&puppet.device(), MappingKind::Mapped, true);
    let mut ring = ring();
    let fd = ring.attach_file(file).unwrap();
    ring.push(prep::zero_range(fd, 0, 4096).user_data(1)).unwrap();
    ring.push(prep::punch_hole(fd, 0, 4096).user_data(2)).unwrap();
    ring.submit_and_wait(2).unwrap();
    assert_eq!(reaped(&mut ring), [(1, -95), (2, -95)]);
    assert_eq!(ops(&puppet), []);
}

#[test]
fn a_file_that_panics_in_a_worker_gives_an_error_and_hangs_nobody() {
    let device = cached().device();
    let file = Arc::new(Slow { panics: true, mapped: Mutex::new(false), ..Slow::default_of(&device) });
    let mut ring = ring();
    let (bad, good) = (
        ring.attach_file(file.clone()).unwrap(),
        ring.attach_file(Slow::new(&device, MappingKind::Unwritten, true)).unwrap(),
    );
    assert_eq!(run(&mut ring, &[write(bad, 0, 1)]), [(1, -5)], "while it maps");
    *file.mapped.lock().unwrap() = true;
    assert_eq!(run(&mut ring, &[write(bad, RWF_DSYNC, 2)]), [(2, -5)], "while it syncs");
    // Two workers may run them, so they end in any order.
    let mut ended = run(&mut ring, &[fsync(bad, 3), write(good, 0, 4)]);
    ended.sort_unstable();
    assert_eq!(ended, [(3, -5), (4, 4096)], "the worker goes on");
}

#[test]
fn a_ring_dropped_while_workers_have_its_requests_waits_for_them() {
    for mapped in [false, true] {
        let puppet = cached();
        let file = Slow::new(&puppet.device(), MappingKind::Unwritten, mapped);
        let mut ring = ring();
        let fd = ring.attach_file(file.clone()).unwrap();
        ring.push(prep::write(fd, buf(4096)).dsync()).unwrap();
        ring.push(prep::write(fd, buf(4096)).offset(8192)).unwrap();
        ring.submit().unwrap();
        ring.reap();
        drop(ring);
        assert_eq!(Arc::strong_count(&file), 1, "no worker holds the file any more");
    }
}

#[test]
fn the_position_of_a_file_moves_by_what_was_moved_and_not_after_a_failure() {
    let puppet = Puppet::new();
    let mut ring = ring();
    let fd = ring.attach(&puppet.device()).unwrap();
    let at_pos = |op, len| rw(op, fd, u64::MAX, 1 << 24, len, 1);
    let sectors = |puppet: &Puppet| puppet.sectors_seen().last().copied();
    assert_eq!(run(&mut ring, &[at_pos(opcode::READ, 4096)]), [(1, 4096)]);
    for op in [opcode::READ, opcode::WRITE] {
        puppet.script().fail = vec![(Op::Read, Status::Medium), (Op::Write, Status::Medium)];
        assert_eq!(run(&mut ring, &[at_pos(op, 8192)]), [(1, -61)]);
        assert_eq!(sectors(&puppet), Some(8), "behind the first read");
    }
    // The position does not move either for a request refused before it was sent.
    assert_eq!(run(&mut ring, &[at_pos(opcode::READ, 100)]), [(1, -22)]);
    puppet.script().fail.clear();
    assert_eq!(run(&mut ring, &[at_pos(opcode::WRITE, 8192)]), [(1, 8192)]);
    assert_eq!(sectors(&puppet), Some(8));
    assert_eq!(run(&mut ring, &[at_pos(opcode::READ, 4096)]), [(1, 4096)]);
    assert_eq!(sectors(&puppet), Some(24));
}
