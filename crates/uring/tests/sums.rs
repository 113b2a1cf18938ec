//! Rings and files that keep checksums: the memory that the file sees, the thread on which it sees it, and the time for
//! which an I/O counts while a worker checksums it.
#![allow(unsafe_code)] // Raw SQEs.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sheave_base::status::Status;
use sheave_blk::Device;
use sheave_blk::bio::Op;
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::grace::Grace;
use sheave_iomap::mapping::{Intent, MapFlags};
use sheave_iomap::{FallocateMode, File, Mapping, MappingKind, SummedDone, WriteDone};
use sheave_uring::sqe::{Sqe, opcode};
use sheave_uring::{Fd, IoWq, Ring};

use crate::support::{Puppet, push, reaped, ring, run, rw};

const PATIENCE: Duration = Duration::from_secs(20);
const ADDR: u64 = 1 << 24;

/// Calls that a [`Summed`] file received, by the first byte of the I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Begin(u64),
    Abort(u64),
    /// `end_summed_blocking`: on a worker, or on the ring's thread if no worker is available.
    SumBegins(u64),
    SumEnds(u64, Status),
    EndBegins(u64),
    EndEnds(u64, Status),
    /// FALLOCATE waits for a grace.
    Waits,
}

type Hook = Box<dyn Fn(&Summed, u64) -> Result<(), Status> + Send + Sync>;

/// A file with checksums. Its `end_summed` always leaves the work to a worker.
struct Summed {
    device: Device,
    grace: Arc<Grace>,
    kind: MappingKind,
    flags: MapFlags,
    calls: Mutex<Vec<Call>>,
    /// Memory of each call: addresses of the vectors, and their lengths.
    memory: Mutex<Vec<Vec<(u64, usize)>>>,
    /// Runs in `end_summed_blocking`.
    look: Hook,
    /// Runs in `end_write`.
    end: Hook,
}

impl std::fmt::Debug for Summed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Summed")
    }
}

fn nothing() -> Hook {
    Box::new(|_, _| Ok(()))
}

impl Summed {
    /// Makes a file of written space, or of space in which each write is the first.
    fn new(device: &Device, kind: MappingKind, look: Hook, end: Hook) -> Arc<Summed> {
        let flags = MapFlags::SUMMED | if kind == MappingKind::Unwritten { MapFlags::NEW } else { MapFlags::NONE };
        let (grace, calls, memory) = (Arc::new(Grace::new()), Mutex::default(), Mutex::default());
        Arc::new(Summed { device: device.clone(), grace, kind, flags, calls, memory, look, end })
    }

    fn called(&self, call: Call) {
        self.calls.lock().unwrap().push(call);
    }

    fn looks_at(&self, done: &SummedDone<'_>) {
        let vecs = done.memory.segments().iter().map(|vec| (vec.base() as u64, vec.len()));
        self.memory.lock().unwrap().push(vecs.collect());
    }

    fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap().clone()
    }

    fn saw(&self, call: Call) -> bool {
        self.calls.lock().unwrap().contains(&call)
    }
}

impl File for Summed {
    fn device(&self) -> &Device {
        &self.device
    }

    fn size_bytes(&self) -> u64 {
        1 << 20
    }

    fn grace(&self) -> Option<&Arc<Grace>> {
        Some(&self.grace)
    }

    fn map(&self, pos: u64, len: u64, _: Intent) -> Result<Mapping, Status> {
        // No two blocks of the file are adjacent on the device, so each takes a bio.
        let (within, addr) = (pos % 4096, pos * 2);
        Ok(Mapping::new(self.kind, pos, len.min(4096 - within), addr).flags(self.flags))
    }

    fn begin_write(&self, piece: &Mapping) {
        self.called(Call::Begin(piece.offset));
    }

    fn abort_write(&self, piece: &Mapping) {
        self.called(Call::Abort(piece.offset));
    }

    fn end_summed(&self, done: &SummedDone<'_>) -> Result<(), Status> {
        self.looks_at(done);
        Err(Status::Again)
    }

    fn end_summed_blocking(&self, done: &SummedDone<'_>, _: &MayBlock) -> Result<(), Status> {
        self.looks_at(done);
        self.called(Call::SumBegins(done.pos));
        let result = (self.look)(self, done.pos);
        self.called(Call::SumEnds(done.pos, done.status));
        result
    }

    fn end_write(&self, done: WriteDone<'_>, _: &MayBlock) -> Result<(), Status> {
        self.called(Call::EndBegins(done.pos));
        let result = (self.end)(self, done.pos);
        self.called(Call::EndEnds(done.pos, done.status));
        // The data's error is dropped on purpose: a failed write must stay failed even if the file ignores that.
        result
    }

    fn fallocate(&self, _: FallocateMode, _: u64, _: u64, _: &MayBlock) -> Result<(), Status> {
        let ticket = self.grace.start();
        self.called(Call::Waits);
        if self.grace.wait(ticket, PATIENCE) { Ok(()) } else { Err(Status::Timeout) }
    }
}

fn read(fd: Fd, pos: u64, user_data: u64) -> Sqe {
    rw(opcode::READ, fd, pos, ADDR, 4096, user_data)
}

fn write(fd: Fd, pos: u64, user_data: u64) -> Sqe {
    rw(opcode::WRITE, fd, pos, ADDR, 4096, user_data)
}

fn until(what: &str, mut so: impl FnMut() -> bool) {
    let limit = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < limit, "never: {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Makes a hook that waits until the flag is set.
fn gate(open: &Arc<AtomicBool>) -> Hook {
    let open = Arc::clone(open);
    Box::new(move |_, _| {
        until("the gate opens", || open.load(Ordering::SeqCst));
        Ok(())
    })
}

fn sorted(mut ended: Vec<(u64, i32)>) -> Vec<(u64, i32)> {
    ended.sort_unstable();
    ended
}

#[test]
fn a_ring_that_goes_is_counted_until_workers_have_ended_its_writes() {
    for kind in [MappingKind::Mapped, MappingKind::Unwritten] {
        let open = Arc::new(AtomicBool::new(false));
        let puppet = Puppet::new();
        let file = Summed::new(&puppet.device(), kind, gate(&open), nothing());
        let mut ring = ring();
        let fd = ring.attach_file(file.clone()).unwrap();
        push(&mut ring, &[write(fd, 0, 1)]);
        ring.submit().unwrap();
        until("a worker looks at the memory", || {
            ring.reap();
            file.saw(Call::SumBegins(0))
        });
        let ticket = file.grace.start();
        let waiter = {
            let (file, open) = (file.clone(), Arc::clone(&open));
            std::thread::spawn(move || {
                // Waits for the grace as a freeing of space would, while the ring is dropped.
                let over = file.grace.wait(ticket, Duration::from_millis(150));
                open.store(true, Ordering::SeqCst);
                assert!(file.grace.wait(ticket, PATIENCE), "and it ends with the write");
                (over, file.calls())
            })
        };
        drop(ring);
        let (over, calls) = waiter.join().unwrap();
        assert!(!over, "{kind:?}: the grace ended while a worker was still at the write");
        let last = match kind {
            MappingKind::Unwritten => Call::EndEnds(0, Status::Ok),
            _ => Call::SumEnds(0, Status::Ok),
        };
        assert!(calls.contains(&last), "{kind:?}: {calls:?}");
        assert_eq!(file.grace.seats(), 0);
    }
}

#[test]
fn a_ring_that_goes_has_each_write_summed_and_ended_whatever_became_of_its_data() {
    for (finished, kind) in [0, 2, 4].into_iter().flat_map(|n| [(n, MappingKind::Mapped), (n, MappingKind::Unwritten)])
    {
        let puppet = Puppet::new().holding();
        let file = Summed::new(&puppet.device(), kind, nothing(), nothing());
        let mut ring = ring();
        let fd = ring.attach_file(file.clone()).unwrap();
        push(&mut ring, &(0..4).map(|n| write(fd, n * 4096, n)).collect::<Vec<_>>());
        if kind == MappingKind::Mapped {
            push(&mut ring, &[read(fd, 5 * 4096, 5)]);
        }
        ring.submit().unwrap();
        puppet.script().finish = finished;
        ring.reap();
        drop(ring);
        let calls = file.calls();
        for n in 0..4 {
            let mine = |pos: u64| {
                let of = |status| [Call::SumEnds(pos, status), Call::EndEnds(pos, status)];
                let ended = of(Status::Ok).into_iter().chain(of(Status::Offline));
                ended.filter(|call| calls.contains(call)).count()
            };
            let expected = if kind == MappingKind::Unwritten { 2 } else { 1 };
            assert_eq!(mine(n * 4096), expected, "{kind:?}, {finished} finished, write {n}: {calls:?}");
        }
        let good = calls.iter().filter(|call| matches!(call, Call::SumEnds(_, Status::Ok))).count();
        assert_eq!(good, finished as usize, "{calls:?}");
        assert_eq!((file.grace.seats(), Arc::strong_count(&file)), (0, 1));
    }
}

#[test]
fn a_ring_that_goes_waits_for_reads_that_workers_look_at_and_starts_none() {
    let open = Arc::new(AtomicBool::new(false));
    let puppet = Puppet::new();
    let file = Summed::new(&puppet.device(), MappingKind::Mapped, gate(&open), nothing());
    let wq = IoWq::builder().max_workers(1, 1).build().unwrap();
    let mut ring = Ring::builder().entries(8).io_wq(&wq).build().unwrap();
    let fd = ring.attach_file(file.clone()).unwrap();
    push(&mut ring, &[read(fd, 0, 1), read(fd, 4096, 2)]);
    ring.submit().unwrap();
    until("a worker looks", || {
        ring.reap();
        file.calls().iter().any(|call| matches!(call, Call::SumBegins(_)))
    });
    let ticket = file.grace.start();
    let waiter = {
        let file = file.clone();
        std::thread::spawn(move || {
            let over = file.grace.wait(ticket, Duration::from_millis(100));
            open.store(true, Ordering::SeqCst);
            over
        })
    };
    drop(ring);
    assert!(!waiter.join().unwrap(), "the worker may read the old place again");
    assert_eq!(file.calls().len(), 2, "the one that no worker had begun is not begun: {:?}", file.calls());
}

#[test]
fn dropped_ring_leaves_grace_despite_cancelled_read_checksums() {
    let puppet = Puppet::new();
    let file = Summed::new(&puppet.device(), MappingKind::Mapped, nothing(), nothing());
    let mut ring = Ring::builder().entries(8).polled(true).build().unwrap();
    let fd = ring.attach_file(file.clone()).unwrap();
    push(&mut ring, &[read(fd, 0, 1)]);
    ring.push(sheave_uring::prep::punch_hole(fd, 8192, 4096)).unwrap();
    ring.submit().unwrap();
    until("a worker waits for the read", || file.saw(Call::Waits));
    let before = Instant::now();
    drop(ring);
    assert!(before.elapsed() < PATIENCE / 4, "the ring waits for the worker, and the worker for the ring's read");
    assert_eq!(file.calls(), [Call::Waits], "nobody is left to tell of the read");
}

#[test]
fn completion_work_of_summed_writes_is_one_at_a_time_too() {
    let (inside, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let end: Hook = {
        let (inside, most) = (Arc::clone(&inside), Arc::clone(&most));
        Box::new(move |_, _| {
            most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(2));
            inside.fetch_sub(1, Ordering::SeqCst);
            Ok(())
        })
    };
    let look: Hook = Box::new(|_, _| {
        std::thread::sleep(Duration::from_millis(2));
        Ok(())
    });
    let puppet = Puppet::new();
    let file = Summed::new(&puppet.device(), MappingKind::Unwritten, look, end);
    let wq = IoWq::builder().max_workers(8, 1).build().unwrap();
    let mut ring = Ring::builder().entries(16).io_wq(&wq).build().unwrap();
    let fd = ring.attach_file(file.clone()).unwrap();
    for drops in [false, true] {
        push(&mut ring, &(0..16).map(|n| write(fd, n * 4096, n)).collect::<Vec<_>>());
        ring.submit().unwrap();
        if !drops {
            ring.drain();
            assert_eq!(reaped(&mut ring).iter().filter(|done| done.1 == 4096).count(), 16);
        }
    }
    drop(ring);
    let ended = file.calls().iter().filter(|call| matches!(call, Call::EndEnds(..))).count();
    assert_eq!((ended, most.load(Ordering::SeqCst)), (32, 1));
}

#[test]
fn checksum_error_survives_successful_completion_work() {
    for kind in [MappingKind::Mapped, MappingKind::Unwritten] {
        for (look, end, res) in [
            (Ok(()), Ok(()), 4096),
            (Err(Status::Medium), Ok(()), -61),
            (Err(Status::Medium), Err(Status::NoSpc), -61),
            (Ok(()), Err(Status::NoSpc), if kind == MappingKind::Mapped { 4096 } else { -28 }),
        ] {
            let puppet = Puppet::new();
            let file = Summed::new(&puppet.device(), kind, Box::new(move |_, _| look), Box::new(move |_, _| end));
            let mut ring = ring();
            let fd = ring.attach_file(file.clone()).unwrap();
            assert_eq!(run(&mut ring, &[write(fd, 0, 1)]), [(1, res)], "{kind:?} {look:?} {end:?}");
            let heard = look.err().unwrap_or(Status::Ok);
            assert_eq!(file.saw(Call::EndEnds(0, heard)), kind == MappingKind::Unwritten, "{:?}", file.calls());
            assert!(file.grace.is_over(file.grace.start()));
        }
    }
}

#[test]
fn a_read_beside_a_write_is_read_again_and_a_write_is_not_written_again() {
    let again = Arc::new(AtomicU32::new(3));
    let look: Hook = {
        let again = Arc::clone(&again);
        Box::new(move |_, _| {
            let left = again.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
            if left.is_ok() { Err(Status::Again) } else { Ok(()) }
        })
    };
    let puppet = Puppet::new();
    let file = Summed::new(&puppet.device(), MappingKind::Mapped, look, nothing());
    let mut ring = ring();
    let fd = ring.attach_file(file.clone()).unwrap();
    let sent = |op: Op| puppet.script().seen.iter().filter(|rq| rq.op == op).count();
    assert_eq!(run(&mut ring, &[read(fd, 4096, 1)]), [(1, 4096)]);
    assert_eq!(sent(Op::Read), 4, "once more for each time that it was told to");
    assert_eq!(again.swap(1, Ordering::SeqCst), 0);
    assert_eq!(run(&mut ring, &[write(fd, 4096, 2)]), [(2, -11)]);
    assert_eq!(sent(Op::Write), 1, "its memory may have been changed since");
    assert!(file.grace.is_over(file.grace.start()), "each time it was counted and uncounted");
}

#[test]
fn all_vectors_of_an_io_are_looked_at_here_and_in_a_worker() {
    let puppet = Puppet::new();
    let file = Summed::new(&puppet.device(), MappingKind::Mapped, nothing(), nothing());
    let mut ring = ring();
    let fd = ring.attach_file(file.clone()).unwrap();
    let vecs: [u64; 6] = [ADDR, 4096, ADDR + (1 << 16), 8192, ADDR + (2 << 16), 4096];
    for opcode in [opcode::WRITEV, opcode::READV] {
        let entry = rw(opcode, fd, 4096, vecs.as_ptr() as u64, 3, 1);
        assert_eq!(run(&mut ring, &[entry]), [(1, 16384)]);
        let seen = std::mem::take(&mut *file.memory.lock().unwrap());
        let whole: Vec<_> = vecs.chunks(2).map(|vec| (vec[0], vec[1] as usize)).collect();
        assert_eq!(seen, [whole.clone(), whole], "the quick look, then a worker's");
    }
}

#[test]
fn completion_work_that_panics_is_an_error_of_its_write() {
    let end: Hook = Box::new(|_, pos| {
        std::thread::sleep(Duration::from_millis(1));
        assert_ne!(pos, 4096, "on purpose");
        Ok(())
    });
    let puppet = Puppet::new();
    let file = Summed::new(&puppet.device(), MappingKind::Unwritten, nothing(), end);
    let mut ring = ring();
    let fd = ring.attach_file(file.clone()).unwrap();
    let ended = sorted(run(&mut ring, &(0..4).map(|n| write(fd, n * 4096, n)).collect::<Vec<_>>()));
    assert_eq!(ended[1], (1, -5), "{ended:?}");
    let heard = |n: u64| file.saw(Call::EndEnds(n * 4096, Status::Ok));
    assert!(ended.iter().all(|&(n, res)| res == if heard(n) { 4096 } else { -5 }), "{ended:?} {:?}", file.calls());
    assert!(file.grace.is_over(file.grace.start()));
    assert_eq!(run(&mut ring, &[write(fd, 8192, 7)]), [(7, 4096)], "and the next is served");
}

#[test]
fn begins_and_aborts_are_even_when_bios_run_out() {
    let puppet = Puppet::new().holding();
    let file = Summed::new(&puppet.device(), MappingKind::Mapped, nothing(), nothing());
    let mut ring = ring();
    let fd = ring.attach_file(file.clone()).unwrap();
    // Each write takes several bios, until none is left for the last, which needs one.
    let mut sqes: Vec<Sqe> = (0..7).map(|n| rw(opcode::WRITE, fd, n * 65536, ADDR, 65536, n)).collect();
    sqes.push(write(fd, 7 * 65536, 7));
    push(&mut ring, &sqes);
    ring.submit().unwrap();
    let first = |call: &Call| matches!(call, Call::Abort(pos) if *pos == 7 * 65536);
    assert!(file.calls().iter().any(first), "{:?}", file.calls());
    puppet.script().finish = u32::MAX;
    ring.drain();
    let ended = reaped(&mut ring);
    assert!(ended.len() == 8 && ended.iter().all(|&(_, res)| res > 0), "{ended:?}");
    let blocks: i32 = ended.iter().map(|&(_, res)| res / 4096).sum();
    let count = |of: fn(&Call) -> bool| file.calls().iter().filter(|call| of(call)).count();
    let (begun, aborted) = (count(|call| matches!(call, Call::Begin(_))), count(|call| matches!(call, Call::Abort(_))));
    assert_eq!(begun - aborted, blocks as usize, "each block that was sent has begun once");
}
