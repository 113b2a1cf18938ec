//! `IOSQE_ASYNC`: a worker does the whole operation without the ring, with the same result as on the ring.
#![allow(unsafe_code)] // Raw SQEs.

use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sheave_base::buf::Buf;
use sheave_base::status::Status;
use sheave_blk::Device;
use sheave_drivers::open_device;
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::mapping::{Intent, MapFlags};
use sheave_iomap::{File, Mapping, MappingKind, SummedDone};
use sheave_uring::prep::{self, Cancel, Entry};
use sheave_uring::sqe::{IOSQE_ASYNC, IOSQE_IO_DRAIN, IOSQE_IO_LINK, RWF_DSYNC, RWF_HIPRI, Sqe, opcode};
use sheave_uring::{IoWq, Ring};

use crate::support::{Puppet, buf, fsync, nop_result, push, reaped, run, rw};

const EALREADY: i32 = -114;
const EIO: i32 = -5;
const PATIENCE: Duration = Duration::from_secs(20);

fn until(what: &str, mut so: impl FnMut() -> bool) {
    let limit = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < limit, "never: {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

#[test]
fn an_async_write_is_in_the_file_without_another_call_of_the_ring() {
    const MIB: usize = 1 << 20;
    let dir = tempfile();
    let path = dir.join("disk.img");
    let device = open_device(&format!("file:{},size=4M", path.display())).expect("a device");
    let mut ring = Ring::builder().entries(8).build().expect("a ring");
    let fd = ring.attach(&device).expect("attached");
    let mut data = buf(MIB);
    data.fill(7);
    ring.push(prep::write(fd, data).offset(MIB as u64).run_async().user_data(1)).expect("room");
    ring.submit().expect("submitted");
    let file = std::fs::File::open(&path).expect("the file");
    until("the write is in the file", || {
        let mut there = vec![0; MIB];
        file.read_exact_at(&mut there, MIB as u64).expect("read");
        there.iter().all(|&byte| byte == 7)
    });
    ring.drain();
    assert_eq!(reaped(&mut ring), [(1, MIB as i32)]);
    std::fs::remove_dir_all(dir).expect("removed");
}

/// Creates a directory for the calling test.
fn tempfile() -> std::path::PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("sheave-offload-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::SeqCst));
    let dir = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&dir).expect("a directory");
    dir
}

#[test]
fn copies_are_the_workers_work() {
    let device = open_device("ram:size=64M").expect("a device");
    let mut ring = Ring::builder().entries(64).build().expect("a ring");
    let fd = ring.attach(&device).expect("attached");
    let memory: Vec<Buf> = (0..32).map(|_| buf(1 << 20)).collect();
    let cpu = |clock| {
        let time = rustix::time::clock_gettime(clock);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    };
    let cpus = || (cpu(rustix::time::ClockId::ThreadCPUTime), cpu(rustix::time::ClockId::ProcessCPUTime));
    // The first round touches the memory. The smallest share of the others counts, because other load only adds to it.
    let mut least = 1.0_f64;
    for round in 0..9 {
        let (thread, process) = cpus();
        let reads = memory.iter().enumerate().map(|(n, memory)| {
            let at = (n as u64) << 20;
            Sqe { flags: IOSQE_ASYNC, ..rw(opcode::READ, fd, at, memory.as_ptr() as u64, 1 << 20, n as u64) }
        });
        push(&mut ring, &reads.collect::<Vec<_>>());
        ring.submit_and_wait(32).expect("submitted");
        assert!(reaped(&mut ring).iter().all(|&(_, res)| res == 1 << 20));
        let now = cpus();
        if round > 0 {
            least = least.min((now.0 - thread) / (now.1 - process));
        }
    }
    assert!(least < 0.25, "the ring's thread had {least} of the CPU time of 32 MiB of copies");
}

#[test]
fn the_device_counts_what_a_worker_has_in_flight() {
    let puppet = Puppet::new().holding();
    let device = puppet.device();
    let mut ring = Ring::builder().entries(8).build().expect("a ring");
    let fd = ring.attach(&device).expect("attached");
    let memory = buf(4096);
    push(&mut ring, &[Sqe { flags: IOSQE_ASYNC, ..rw(opcode::READ, fd, 0, memory.as_ptr() as u64, 4096, 1) }]);
    ring.submit().expect("submitted");
    until("a worker has sent it", || device.in_flight().total() == 1);
    // The device has it: it is not cancelled, and not found a second time.
    assert_eq!(ring.cancel(Cancel::user_data(1)).map_err(|errno| -errno.0), Err(EALREADY));
    assert_eq!(ring.cancel(Cancel::user_data(1)).map_err(|errno| -errno.0), Err(-2));
    puppet.script().finish = u32::MAX;
    ring.drain();
    assert_eq!(reaped(&mut ring), [(1, 4096)]);
    assert_eq!(device.in_flight().total(), 0);
}

/// A device that starts the requests and returns, and ends none until the test releases it.
fn asynchronous() -> Puppet {
    Puppet::new().caps(|caps| caps.asynchronous = true).holding()
}

#[test]
fn async_device_gets_full_queue_depth_without_workers() {
    for len in [4096, 16 << 10, 20 << 10, 64 << 10, 256 << 10] {
        let puppet = asynchronous();
        let device = puppet.device();
        let wq = IoWq::builder().max_workers(1, 1).build().expect("a pool");
        let mut ring = Ring::builder().entries(64).io_wq(&wq).build().expect("a ring");
        let fd = ring.attach(&device).expect("attached");
        ring.register_buffers(vec![buf(len)]).expect("registered");
        let (fixed, _) = ring.buffer_range(0).expect("registered");
        let ops = [opcode::READ, opcode::WRITE, opcode::READ_FIXED, opcode::WRITE_FIXED];
        let each = |n: u64| Sqe { flags: IOSQE_ASYNC, ..rw(ops[n as usize % 4], fd, n << 20, fixed, len as u32, n) };
        push(&mut ring, &(0..32).map(each).collect::<Vec<_>>());
        ring.submit().expect("submitted");
        assert_eq!(device.in_flight().total(), 32, "{len} bytes: all are in flight");
        assert!(wq.counts().iter().all(|acct| acct.created == 0), "{len} bytes: {:?}", wq.counts());
        assert!(ring.cancel(Cancel::user_data(3)).is_err(), "the device has it");
        puppet.script().finish = u32::MAX;
        ring.drain();
        let mut ended = reaped(&mut ring);
        ended.sort_unstable();
        assert_eq!(ended, (0..32).map(|n| (n, len as i32)).collect::<Vec<_>>());
    }
}

#[test]
fn a_device_is_asynchronous_if_nobody_copies_or_waits_where_its_io_begins() {
    let dir = tempfile();
    let file = |more: &str| format!("file:{},size=1M{more}", dir.join("disk.img").display());
    let asynchronous = |spec: &str| {
        let caps = open_device(spec).expect("a device").capabilities();
        (caps.asynchronous, caps.direct_io)
    };
    for (spec, expected) in [
        ("ram:size=1M", false),
        ("null:size=1M", false),
        ("null:size=1M,keep=64K", false),
        ("null:size=1M,latency=10us", true),
        ("null:size=1M,complete=thread", true),
        ("fault:over=null:size=1M,latency=10us", true),
    ] {
        assert_eq!(asynchronous(spec).0, expected, "{spec}");
    }
    assert_eq!(asynchronous(&file(",direct=off")), (false, false), "the host's kernel copies");
    for engine in ["uring", "sync"] {
        let (asynchronous, direct) = asynchronous(&file(&format!(",engine={engine}")));
        assert_eq!(asynchronous, direct, "{engine}");
    }
    std::fs::remove_dir_all(dir).expect("removed");
}

#[test]
fn chains_drains_and_guards_hold_for_what_its_own_ring_begins() {
    let puppet = asynchronous();
    let device = puppet.device();
    let mut ring = Ring::builder().entries(16).build().expect("a ring");
    let fd = ring.attach(&device).expect("attached");
    let memory = buf(64 << 10);
    let read = |n: u64, flags: u8| Sqe {
        flags: IOSQE_ASYNC | flags,
        ..rw(opcode::READ, fd, n << 20, memory.as_ptr() as u64, 64 << 10, n)
    };
    push(&mut ring, &[read(0, IOSQE_IO_LINK), read(1, 0), read(2, 0), read(3, IOSQE_IO_DRAIN)]);
    ring.submit().expect("submitted");
    assert_eq!(device.in_flight().total(), 2, "the head of the chain, and what neither waits nor drains");
    puppet.script().finish = 2;
    until("the rest of the chain", || {
        ring.reap();
        device.in_flight().total() == 1 && ring.in_flight() == 2
    });
    puppet.script().finish = u32::MAX;
    ring.drain();
    let ended = reaped(&mut ring);
    assert_eq!((ended.len(), ended[3]), (4, (3, 64 << 10)), "the drain was last");
    assert!(ended.iter().position(|end| end.0 == 0) < ended.iter().position(|end| end.0 == 1));
}

/// A file on an asynchronous device: a worker must map its units first, and checksum the memory of each I/O.
#[derive(Debug)]
struct Blocks {
    device: Device,
    known: Mutex<Vec<u64>>,
    /// Threads that called `map_blocking`, and threads that called `end_summed_blocking`.
    mapped_by: Mutex<Vec<std::thread::ThreadId>>,
    looked_by: Mutex<Vec<std::thread::ThreadId>>,
}

impl File for Blocks {
    fn device(&self) -> &Device {
        &self.device
    }

    fn size_bytes(&self) -> u64 {
        1 << 30
    }

    fn map(&self, pos: u64, len: u64, _: Intent) -> Result<Mapping, Status> {
        if !self.known.lock().unwrap().contains(&pos) {
            return Err(Status::Again);
        }
        Ok(Mapping::new(MappingKind::Mapped, pos, len, pos).flags(MapFlags::SUMMED))
    }

    fn map_blocking(&self, pos: u64, len: u64, intent: Intent, _: &MayBlock) -> Result<Mapping, Status> {
        self.mapped_by.lock().unwrap().push(std::thread::current().id());
        self.known.lock().unwrap().push(pos);
        self.map(pos, len, intent)
    }

    fn end_summed(&self, done: &SummedDone<'_>) -> Result<(), Status> {
        self.end_summed_blocking(done, &MayBlock::on_worker())
    }

    fn end_summed_blocking(&self, _: &SummedDone<'_>, _: &MayBlock) -> Result<(), Status> {
        self.looked_by.lock().unwrap().push(std::thread::current().id());
        Ok(())
    }
}

#[test]
fn workers_map_and_checksum_but_do_not_wait_for_device() {
    let puppet = asynchronous();
    let device = puppet.device();
    let (known, mapped_by, looked_by) = (Mutex::default(), Mutex::default(), Mutex::default());
    let file = Arc::new(Blocks { device: device.clone(), known, mapped_by, looked_by });
    let wq = IoWq::builder().max_workers(1, 1).build().expect("a pool");
    let mut ring = Ring::builder().entries(64).io_wq(&wq).build().expect("a ring");
    let fd = ring.attach_file(file.clone()).expect("attached");
    let memory = buf(64 << 10);
    let read = |n: u64| rw(opcode::READ, fd, n << 20, memory.as_ptr() as u64, 64 << 10, n);
    push(&mut ring, &(0..16).map(|n| Sqe { flags: IOSQE_ASYNC, ..read(n) }).collect::<Vec<_>>());
    ring.submit().expect("submitted");
    until("one worker has mapped all, and all are in flight", || {
        ring.reap();
        device.in_flight().total() == 16
    });
    puppet.script().finish = u32::MAX;
    ring.drain();
    assert!(reaped(&mut ring).iter().all(|end| end.1 == 64 << 10));
    let here = std::thread::current().id();
    for by in [&file.mapped_by, &file.looked_by] {
        let by = std::mem::take(&mut *by.lock().unwrap());
        assert!(by.len() == 16 && by.iter().all(|&thread| thread != here), "by workers alone");
    }
    assert_eq!(run(&mut ring, &[read(0)]), [(0, 64 << 10)]);
    assert_eq!(*file.looked_by.lock().unwrap(), [here], "without the flag the ring looks");
}

#[test]
fn a_ring_that_goes_takes_what_its_workers_wait_for_out_of_the_device() {
    let puppet = Puppet::new().holding();
    let device = puppet.device();
    // Fewer workers than operations, so that some have begun and others not.
    let wq = IoWq::builder().max_workers(2, 2).build().expect("a pool");
    let mut ring = Ring::builder().entries(16).io_wq(&wq).build().expect("a ring");
    let fd = ring.attach(&device).expect("attached");
    for n in 0..8 {
        let len = if n % 2 == 0 { 4096 } else { 65536 };
        ring.push(prep::read(fd, buf(len)).offset(n << 16).run_async().user_data(n)).expect("room");
    }
    ring.submit().expect("submitted");
    until("some are in flight", || device.in_flight().total() >= 2);
    drop(ring);
    assert_eq!(device.in_flight().total(), 0);
    let mut other = Ring::builder().entries(8).io_wq(&wq).build().expect("a ring");
    puppet.script().finish = u32::MAX;
    let fd = other.attach(&device).expect("attached");
    other.push(prep::read(fd, buf(4096)).run_async().user_data(9)).expect("room");
    other.drain();
    other.submit_and_wait(1).expect("submitted");
    assert_eq!(reaped(&mut other), [(9, 4096)], "the workers are there for others");
}

/// Returns all operations with all their possible errors, on a file of 1 MiB.
fn programs(fd: i32, fixed: u64, memory: &Buf, vecs: &[[u64; 2]]) -> Vec<Sqe> {
    let at = memory.as_ptr() as u64;
    let vectored = |op, off| Sqe { len: vecs.len() as u32, ..rw(op, fd, off, vecs.as_ptr() as u64, 0, 0) };
    let plain = |op, off, len| rw(op, fd, off, at, len, 0);
    let (mib, minus_one) = (1 << 20, u64::MAX);
    vec![
        plain(opcode::WRITE, 0, 4096),
        plain(opcode::READ, 0, 4096),
        plain(opcode::READ, 4096, 65536),
        plain(opcode::WRITE, 65536, 65536),
        Sqe { op_flags: RWF_DSYNC, ..plain(opcode::WRITE, 8192, 4096) },
        Sqe { op_flags: RWF_HIPRI, ..plain(opcode::READ, 0, 4096) },
        Sqe { op_flags: 1 << 20, ..plain(opcode::READ, 0, 4096) },
        vectored(opcode::WRITEV, 0),
        vectored(opcode::READV, 12288),
        Sqe { buf_index: 0, addr: fixed, ..plain(opcode::WRITE_FIXED, 16384, 8192) },
        Sqe { buf_index: 0, addr: fixed, ..plain(opcode::READ_FIXED, 0, 8192) },
        Sqe { buf_index: 3, addr: fixed, ..plain(opcode::READ_FIXED, 0, 8192) },
        Sqe { buf_index: 0, addr: fixed + (1 << 20), ..plain(opcode::READ_FIXED, 0, 8192) },
        // Use the position of the file, and move it.
        plain(opcode::READ, minus_one, 4096),
        plain(opcode::WRITE, minus_one, 8192),
        plain(opcode::READ, minus_one, 4096),
        // Across the end, at it, beyond it, not in blocks, negative, empty.
        plain(opcode::READ, mib - 4096, 8192),
        plain(opcode::READ, mib, 4096),
        plain(opcode::WRITE, mib, 4096),
        plain(opcode::READ, 7, 4096),
        plain(opcode::READ, u64::MAX - 5, 4096),
        plain(opcode::READ, 0, 0),
        fsync(fd, 0),
        Sqe { op_flags: 1, ..fsync(fd, 0) },
        Sqe { opcode: opcode::FALLOCATE, addr: 8192, len: 0x10, ..rw(0, fd, 4096, 0, 0, 0) },
        Sqe { opcode: opcode::FALLOCATE, addr: 8192, len: 0x03, ..rw(0, fd, 0, 0, 0, 0) },
        Sqe { opcode: opcode::FALLOCATE, addr: 8192, len: 0x10, ..rw(0, fd, 2 << 20, 0, 0, 0) },
        nop_result(0, 0, 0),
        nop_result(0, 0, 17),
        nop_result(0, 0, EIO),
        Sqe { opcode: opcode::READ, ..nop_result(0, 0, 0) },
        // Operations on the ring itself.
        Sqe { opcode: opcode::ASYNC_CANCEL, addr: 99, ..crate::support::nop(0, 0) },
        Sqe { opcode: opcode::TIMEOUT_REMOVE, addr: 99, ..crate::support::nop(0, 0) },
    ]
}

/// A file with mappings, which `map` returns at once, or only `map_blocking`.
#[derive(Debug)]
struct Mapped {
    device: Device,
    blocks: bool,
    known: AtomicBool,
    /// Threads that mapped.
    by: Mutex<Vec<std::thread::ThreadId>>,
    panics: AtomicBool,
}

impl Mapped {
    fn new(spec: &str, blocks: bool) -> Arc<Mapped> {
        let device = open_device(spec).expect("a device");
        let (known, by) = (AtomicBool::new(false), Mutex::new(Vec::new()));
        Arc::new(Mapped { device, blocks, known, by, panics: AtomicBool::new(false) })
    }
}

impl File for Mapped {
    fn device(&self) -> &Device {
        &self.device
    }

    fn size_bytes(&self) -> u64 {
        1 << 20
    }

    fn map(&self, pos: u64, len: u64, _: Intent) -> Result<Mapping, Status> {
        self.by.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(std::thread::current().id());
        assert!(!self.panics.load(Ordering::SeqCst), "as asked");
        if self.blocks && !self.known.swap(false, Ordering::SeqCst) {
            return Err(Status::Again);
        }
        Ok(Mapping::new(MappingKind::Mapped, pos, len, pos))
    }

    fn map_blocking(
        &self,
        pos: u64,
        len: u64,
        intent: Intent,
        _: &sheave_iomap::completion_plan::MayBlock,
    ) -> Result<Mapping, Status> {
        self.known.store(true, Ordering::SeqCst);
        let mapping = self.map(pos, len, intent);
        self.known.store(true, Ordering::SeqCst);
        mapping
    }
}

/// Returns a pool on one CPU, to which this thread is bound as well.
fn pool_on_this_cpu() -> IoWq {
    let cpu = rustix::thread::sched_getcpu();
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).expect("this thread's own CPU");
    IoWq::builder().cpus(&[cpu]).build().expect("a pool")
}

#[test]
fn every_operation_ends_as_it_does_without_the_flag() {
    for (what, polled) in
        [("a device", false), ("a device", true), ("a file", false), ("a file that blocks", false), ("one CPU", false)]
    {
        let wq = if what == "one CPU" { pool_on_this_cpu() } else { IoWq::builder().build().expect("a pool") };
        let results = [0, IOSQE_ASYNC].map(|flags| {
            let mut ring = Ring::builder().entries(64).polled(polled).io_wq(&wq).build().expect("a ring");
            let fd = match what {
                "a device" | "one CPU" => {
                    ring.attach(&open_device("ram:size=1M").expect("a device")).expect("attached")
                }
                _ => ring.attach_file(Mapped::new("ram:size=1M", what == "a file that blocks")).expect("attached"),
            };
            let mut memory = buf(1 << 17);
            memory.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at / 512) as u8);
            ring.register_buffers(vec![buf(1 << 16)]).expect("registered");
            let fixed = ring.buffer_range(0).expect("registered").0;
            let base = memory.as_ptr() as u64;
            let vecs = [[base, 4096], [base + 8192, 4096], [base + 4096, 4096]];
            let mut ended = Vec::new();
            for (n, sqe) in programs(fd.raw(), fixed, &memory, &vecs).into_iter().enumerate() {
                ended.extend(run(&mut ring, &[Sqe { user_data: n as u64, flags, ..sqe }]));
                if what == "one CPU" && flags != 0 {
                    // Puts a worker into its nap, during which the ring runs short operations.
                    ended.extend(
                        run(&mut ring, &[nop_result(n as u64, 0, 0), crate::support::nop(n as u64, flags)]).drain(2..),
                    );
                }
            }
            let all = rw(opcode::READ, fd, 0, base, 1 << 17, 1000);
            ended.extend(run(&mut ring, &[all]));
            (ended, memory.to_vec())
        });
        let [(without, data), (with, data_with)] = results;
        assert_eq!(with, without, "{what}, polled {polled}");
        if what == "one CPU" {
            // Proves that the ring did run operations here. On a busy machine a nap may end before the ring waits.
            until("the ring has run an operation itself", || {
                let mut ring = Ring::builder().entries(8).io_wq(&wq).build().expect("a ring");
                (0..8).for_each(|n| assert_eq!(run(&mut ring, &[crate::support::nop(n, IOSQE_ASYNC)]), [(n, 0)]));
                wq.counts()[0].helped > 0
            });
        }
        assert!(data == data_with, "{what}: what was written differs");
    }
}

#[test]
fn a_file_is_mapped_and_read_on_the_worker_alone_which_never_holds_it_last() {
    for blocks in [false, true] {
        let file = Mapped::new("ram:size=1M", blocks);
        let mut ring = Ring::builder().entries(64).build().expect("a ring");
        let fd = ring.attach_file(file.clone()).expect("attached");
        for round in 0..50 {
            let reads =
                (0..8).map(|n| Entry::from(prep::read(fd, buf(4096)).offset(n * 4096)).run_async().user_data(n));
            reads.for_each(|read| ring.push(read).expect("room"));
            ring.submit_and_wait(8).expect("submitted");
            assert!(ring.completions().all(|c| c.res == 4096));
            assert_eq!(Arc::strong_count(&file), 2, "round {round}: the test and the ring have it");
        }
        let here = std::thread::current().id();
        assert!(file.by.lock().unwrap().iter().all(|&thread| thread != here), "the ring's thread has mapped nothing");
    }
}

#[test]
fn a_file_that_panics_on_a_worker_ends_its_operation_and_the_worker_goes_on() {
    let (bad, good) = (Mapped::new("ram:size=1M", false), open_device("ram:size=1M").expect("a device"));
    bad.panics.store(true, Ordering::SeqCst);
    let wq = IoWq::builder().max_workers(1, 1).build().expect("a pool");
    let mut ring = Ring::builder().entries(16).io_wq(&wq).build().expect("a ring");
    let (bad, good) = (ring.attach_file(bad).expect("attached"), ring.attach(&good).expect("attached"));
    for round in 0..3 {
        ring.push(prep::read(bad, buf(4096)).run_async().user_data(1)).expect("room");
        ring.push(prep::read(good, buf(4096)).run_async().user_data(2)).expect("room");
        ring.submit_and_wait(2).expect("submitted");
        let mut ended = reaped(&mut ring);
        ended.sort_unstable();
        assert_eq!(ended, [(1, EIO), (2, 4096)], "round {round}");
    }
}

#[test]
fn a_registered_buffer_that_is_replaced_stays_until_the_worker_is_done() {
    let puppet = Puppet::new().holding();
    let device = puppet.device();
    let mut ring = Ring::builder().entries(8).build().expect("a ring");
    let fd = ring.attach(&device).expect("attached");
    ring.register_buffers(vec![buf(8192)]).expect("registered");
    let (base, _) = ring.buffer_range(0).expect("registered");
    push(&mut ring, &[Sqe { flags: IOSQE_ASYNC, ..rw(opcode::READ_FIXED, fd, 0, base, 4096, 1) }]);
    ring.submit().expect("submitted");
    until("a worker has sent it", || device.in_flight().total() == 1);
    assert!(ring.buffer(0).is_none(), "in use");
    assert!(ring.update_buffer(0, Some(buf(4096))).expect("replaced").is_none(), "the old one is in use");
    puppet.script().finish = u32::MAX;
    ring.drain();
    assert_eq!(reaped(&mut ring), [(1, 4096)]);
}

#[test]
fn an_async_timeout_runs_from_its_submission() {
    let mut ring = Ring::builder().entries(8).build().expect("a ring");
    ring.push(prep::timeout(Duration::from_millis(20)).run_async().user_data(1)).expect("room");
    ring.submit().expect("submitted");
    std::thread::sleep(Duration::from_millis(40));
    ring.reap();
    assert_eq!(reaped(&mut ring), [(1, -62)], "it was due");
}
