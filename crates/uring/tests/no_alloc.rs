//! No allocation on submit or complete once a ring is warm: a counting allocator checks every kind of I/O, typed and
//! raw, through registered buffers and others, one at a time and in batches.
#![allow(unsafe_code)] // Raw SQEs carry addresses.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use sheave_base::buf::Buf;
use sheave_base::status::Status;
use sheave_blk::Device;
use sheave_drivers::open_device;
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::grace::Grace;
use sheave_iomap::mapping::{Intent, MapFlags};
use sheave_iomap::{FallocateMode, File, Mapping, MappingKind, RawFile};
use sheave_testkit::allocations::{Counting, allocations};
use sheave_uring::prep::{self, Entry};
use sheave_uring::sqe::{
    IOSQE_ASYNC, IOSQE_CQE_SKIP_SUCCESS, IOSQE_FIXED_FILE, IOSQE_IO_DRAIN, IOSQE_IO_HARDLINK, IOSQE_IO_LINK, RWF_DSYNC,
    Sqe, opcode,
};
use sheave_uring::{Fd, Ring, RingBuilder};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const BLOCK: usize = 4096;
const BATCH: usize = 32;
/// Number of blocks of the device.
const BLOCKS: u64 = 256;

/// Operation of a batch.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Read,
    Write,
    Dsync,
    Fsync,
    Zero,
}

const KINDS: [Kind; 5] = [Kind::Read, Kind::Write, Kind::Dsync, Kind::Fsync, Kind::Zero];

struct Bench {
    ring: Ring,
    fd: Fd,
    /// Memory for typed operations while the ring does not have it.
    bufs: Vec<Buf>,
    /// Memory for raw operations.
    raw: Buf,
    /// Vectors for READV and WRITEV.
    vecs: Box<[[usize; 2]]>,
    block: u64,
}

impl Bench {
    fn with(builder: RingBuilder, device: &Device) -> Bench {
        Bench::on(builder, Arc::new(RawFile::new(device.clone())))
    }

    fn on(builder: RingBuilder, file: Arc<dyn File>) -> Bench {
        let mut ring = builder.entries(BATCH as u32).build().unwrap();
        let fd = ring.attach_file(file).unwrap();
        ring.register_buffers(vec![Buf::zeroed(BATCH * BLOCK, 4096).unwrap()]).unwrap();
        ring.register_files(&[fd]).unwrap();
        let bufs = (0..BATCH).map(|_| Buf::zeroed(BLOCK, 4096).unwrap()).collect();
        let mut raw = Buf::zeroed(BATCH * BLOCK, 4096).unwrap();
        let base = raw.as_mut_ptr() as usize;
        let vecs = (0..3).map(|n| [base + 2 * n * BLOCK, BLOCK]).collect();
        Bench { ring, fd, bufs, raw, vecs, block: 0 }
    }

    fn next_offset(&mut self) -> u64 {
        // Not adjacent: merged requests would hide allocations of unmerged ones.
        self.block = (self.block + 7) % (BLOCKS - 4);
        self.block * BLOCK as u64
    }

    /// Waits for the batch and takes the memory back. Returns the number of CQEs.
    fn finish(&mut self, wanted: usize) -> usize {
        let mut seen = 0;
        self.ring.submit_and_wait(wanted as u32).unwrap();
        while seen < wanted {
            for completion in self.ring.completions() {
                assert!(completion.res >= 0, "{completion:?}");
                self.bufs.extend(completion.into_buf());
                seen += 1;
            }
            if seen < wanted {
                let _ = self.ring.wait((wanted - seen) as u32, None);
            }
        }
        seen
    }

    fn typed(&mut self, kind: Kind, fixed: bool, batch: usize) {
        for n in 0..batch {
            let (fd, offset) = (self.fd, self.next_offset());
            let range = n * BLOCK..(n + 1) * BLOCK;
            let mut buf = || self.bufs.pop().expect("one for each");
            let entry: Entry = match (kind, fixed) {
                (Kind::Read, false) => prep::read(fd, buf()).offset(offset).into(),
                (Kind::Read, true) => prep::read_fixed(fd, 0, range).offset(offset).into(),
                (Kind::Write, false) => prep::write(fd, buf()).offset(offset).into(),
                (Kind::Write, true) => prep::write_fixed(fd, 0, range).offset(offset).into(),
                (Kind::Dsync, false) => prep::write(fd, buf()).offset(offset).dsync().into(),
                (Kind::Dsync, true) => prep::write_fixed(fd, 0, range).offset(offset).dsync().into(),
                (Kind::Fsync, _) => prep::fsync(fd).into(),
                (Kind::Zero, _) => prep::zero_range(fd, offset, BLOCK as u64).into(),
            };
            self.ring.push(entry).unwrap();
        }
        self.finish(batch);
    }

    fn sqe(&mut self, kind: Kind, fixed: bool, n: usize) -> Sqe {
        let at = (n * BLOCK) as u64;
        let addr = if fixed { self.ring.buffer_range(0).unwrap().0 + at } else { self.raw.as_ptr() as u64 + at };
        let plain = Sqe { fd: self.fd.raw(), addr, len: BLOCK as u32, off: self.next_offset(), ..Sqe::default() };
        match (kind, fixed) {
            (Kind::Read, false) => Sqe { opcode: opcode::READ, ..plain },
            (Kind::Read, true) => Sqe { opcode: opcode::READ_FIXED, fd: 0, flags: IOSQE_FIXED_FILE, ..plain },
            (Kind::Write, false) => Sqe { opcode: opcode::WRITE, ..plain },
            (Kind::Write, true) => Sqe { opcode: opcode::WRITE_FIXED, fd: 0, flags: IOSQE_FIXED_FILE, ..plain },
            (Kind::Dsync, _) => Sqe { op_flags: RWF_DSYNC, ..self.sqe(Kind::Write, fixed, n) },
            (Kind::Fsync, _) => Sqe { opcode: opcode::FSYNC, fd: self.fd.raw(), ..Sqe::default() },
            (Kind::Zero, _) => Sqe { opcode: opcode::FALLOCATE, addr: BLOCK as u64, len: 0x10, ..plain },
        }
    }

    fn push(&mut self, sqe: Sqe) {
        // SAFETY: the memory is the bench's or the ring's own, and lives as long as the ring.
        assert!(unsafe { self.ring.push_sqe(&sqe) });
    }

    fn raw(&mut self, kind: Kind, fixed: bool, batch: usize) {
        for n in 0..batch {
            let sqe = self.sqe(kind, fixed, n);
            self.push(sqe);
        }
        self.finish(batch);
    }

    /// Runs chains, drains, skips, vectors, and refused operations.
    fn odd(&mut self) {
        for flag in [IOSQE_IO_LINK, IOSQE_IO_HARDLINK, IOSQE_IO_DRAIN] {
            for n in 0..BATCH {
                let sqe = self.sqe(if n % 2 == 0 { Kind::Write } else { Kind::Fsync }, false, n);
                self.push(Sqe { flags: if n % 4 == 3 { 0 } else { flag }, ..sqe });
            }
            self.finish(BATCH);
        }
        // Through the workers and back.
        for n in 0..BATCH {
            let sqe = self.sqe(if n % 2 == 0 { Kind::Write } else { Kind::Read }, false, n);
            self.push(Sqe { flags: IOSQE_ASYNC, ..sqe });
        }
        self.finish(BATCH);
        let (addr, len) = (self.vecs.as_ptr() as u64, self.vecs.len() as u32);
        for opcode in [opcode::READV, opcode::WRITEV] {
            for _ in 0..BATCH {
                let off = self.next_offset();
                self.push(Sqe { opcode, fd: self.fd.raw(), addr, len, off, ..Sqe::default() });
            }
            self.finish(BATCH);
        }
        self.push(Sqe { opcode: 99, ..Sqe::default() });
        self.push(Sqe { off: 1, ..self_read(self.fd, self.raw.as_ptr() as u64) });
        self.ring.submit_and_wait(2).unwrap();
        assert_eq!(self.ring.completions().filter(|c| c.res == -22).count(), 2);
    }

    /// Runs timeouts that are counted, removed, cancelled, and that limit a read; messages.
    fn timers(&mut self, me: Fd) {
        let time = [1000_i64, 0];
        let plain = Sqe { fd: -1, ..Sqe::default() };
        let timeout = Sqe { opcode: opcode::TIMEOUT, addr: time.as_ptr() as u64, len: 1, ..plain };
        self.push(Sqe { off: 1, user_data: 1, ..timeout });
        self.push(plain);
        self.push(Sqe { user_data: 2, ..timeout });
        self.push(Sqe { opcode: opcode::TIMEOUT_REMOVE, addr: 2, ..plain });
        self.push(Sqe { user_data: 3, ..timeout });
        self.push(Sqe { opcode: opcode::ASYNC_CANCEL, addr: 3, ..plain });
        self.push(Sqe { flags: IOSQE_IO_LINK, ..self_read(self.fd, self.raw.as_ptr() as u64) });
        self.push(Sqe { opcode: opcode::LINK_TIMEOUT, ..timeout });
        self.push(Sqe { opcode: opcode::MSG_RING, fd: me.raw(), len: 7, ..plain });
        let mut left = 10;
        while left > 0 {
            self.ring.submit_and_wait(1).unwrap();
            left -= self.ring.completions().count();
        }
        assert_eq!(self.ring.in_flight(), 0);
    }

    fn skips(&mut self) {
        for n in 0..BATCH {
            let sqe = self.sqe(Kind::Write, n % 2 == 0, n);
            self.push(Sqe { flags: sqe.flags | IOSQE_CQE_SKIP_SUCCESS, ..sqe });
        }
        self.ring.submit().unwrap();
        self.ring.drain();
        assert_eq!(self.ring.completions().count(), 0);
    }

    fn everything(&mut self) {
        for batch in [1, BATCH] {
            for kind in KINDS {
                for fixed in [false, true] {
                    for _ in 0..3 {
                        self.typed(kind, fixed, batch);
                        self.raw(kind, fixed, batch);
                    }
                }
            }
        }
    }
}

fn self_read(fd: Fd, addr: u64) -> Sqe {
    Sqe { opcode: opcode::READ, fd: fd.raw(), addr, len: BLOCK as u32, ..Sqe::default() }
}

/// A file with units of every state, some of which need completion work, syncs, or a worker to be mapped.
#[derive(Debug)]
struct Units {
    device: Device,
    unit: u64,
    /// End of the first unit. Unless it is a multiple of a block, blocks cross units.
    skew: u64,
    grace: Arc<Grace>,
    asked: AtomicU32,
}

impl File for Units {
    fn device(&self) -> &Device {
        &self.device
    }

    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    fn grace(&self) -> Option<&Arc<Grace>> {
        Some(&self.grace)
    }

    fn map(&self, pos: u64, len: u64, intent: Intent) -> Result<Mapping, Status> {
        let place = pos + self.unit - self.skew;
        let (unit, within) = (place / self.unit, place % self.unit);
        let (kind, flags) = match unit % 16 {
            0 if intent == Intent::Read => (MappingKind::Hole, MapFlags::NONE),
            0 | 1 => (MappingKind::Unwritten, MapFlags::DIRTY),
            2 => (MappingKind::Mapped, MapFlags::DIRTY),
            3 if self.asked.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) => return Err(Status::Again),
            _ => (MappingKind::Mapped, MapFlags::NONE),
        };
        Ok(Mapping::new(kind, pos, len.min(self.unit - within), pos).flags(flags))
    }

    fn map_blocking(&self, pos: u64, len: u64, _: Intent, _: &MayBlock<'_>) -> Result<Mapping, Status> {
        Ok(Mapping::new(MappingKind::Mapped, pos, len, pos))
    }

    fn fallocate(&self, _: FallocateMode, _: u64, _: u64, _: &MayBlock<'_>) -> Result<(), Status> {
        Ok(())
    }
}

fn check(spec: &str) {
    let device = open_device(spec).unwrap_or_else(|error| panic!("{spec}: {error}"));
    check_file(spec, Arc::new(RawFile::new(device)));
}

fn check_file(spec: &str, file: Arc<dyn File>) {
    for polled in [false, true] {
        let mut bench = Bench::on(Ring::builder().polled(polled), file.clone());
        (0..2).for_each(|_| bench.everything());
        for batch in [1, BATCH] {
            for kind in KINDS {
                for fixed in [false, true] {
                    let typed = allocations(|| (0..3).for_each(|_| bench.typed(kind, fixed, batch)));
                    let raw = allocations(|| (0..3).for_each(|_| bench.raw(kind, fixed, batch)));
                    assert_eq!((typed, raw), (0, 0), "{spec}: {kind:?}, fixed {fixed}, batch {batch}, polled {polled}");
                }
            }
        }
        (0..2).for_each(|_| bench.odd());
        assert_eq!(allocations(|| bench.odd()), 0, "{spec}: chains, drains, vectors, refusals");
        let me = bench.ring.attach_ring(&bench.ring.handle()).unwrap();
        (0..2).for_each(|_| bench.timers(me));
        assert_eq!(allocations(|| bench.timers(me)), 0, "{spec}: timeouts, cancels, messages");
        bench.skips();
        assert_eq!(allocations(|| bench.skips()), 0, "{spec}: skips");
        assert_eq!(bench.bufs.len(), BATCH, "all memory has come back");
    }
}

#[test]
fn the_allocator_counts() {
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(1)))), 1);
    assert_eq!(allocations(|| drop(std::hint::black_box(Buf::zeroed(512, 512)))), 1);
    assert_eq!(allocations(|| ()), 0);
}

#[test]
fn a_warm_ring_over_null_allocates_nothing() {
    for options in ["", ",complete=timer", ",latency=10us", ",complete=thread", ",depth=8", ",host_depth=9"] {
        check(&format!("null:size=1M{options}"));
    }
}

#[test]
fn the_first_sleep_for_a_tag_allocates_nothing() {
    let device = open_device("null:size=1M,host_depth=4,latency=10us").unwrap();
    // It spins in waits, so it is warm without ever having slept; a drain sleeps.
    let mut bench = Bench::with(Ring::builder().spin(Duration::from_secs(60)), &device);
    (0..2).for_each(|_| bench.everything());
    let count = allocations(|| {
        for n in 0..BATCH {
            let sqe = bench.sqe(Kind::Read, false, n);
            bench.push(sqe);
        }
        bench.ring.submit().unwrap();
        bench.ring.drain();
    });
    assert_eq!((count, bench.ring.completions().count()), (0, BATCH));
}

#[test]
fn a_warm_ring_over_files_with_mappings_allocates_nothing() {
    for (spec, unit, skew) in
        [("null:size=1M", 1 << 16, 1 << 16), ("null:size=1M", 8192, 512), ("ram:size=1M", 4096, 1024)]
    {
        let device = open_device(spec).unwrap();
        let (grace, asked) = (Arc::new(Grace::new()), AtomicU32::new(0));
        let file = Units { device, unit, skew, grace, asked };
        check_file(&format!("{spec} in units of {unit} from {skew}"), Arc::new(file));
    }
}

#[test]
fn a_warm_ring_over_memory_allocates_nothing() {
    check("ram:size=1M");
    check("ram:size=1M,depth=8");
}

#[test]
fn a_warm_ring_over_a_file_allocates_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let spec = format!("file:{},size=1M", dir.path().join("image").display());
    if let Err(error) = open_device(&spec) {
        return sheave_testkit::skip(&format!("no file device here: {error}"));
    }
    check(&spec);
    check(&format!("{spec},direct=off"));
}
