//! The ram device through a ring: it keeps its data for any shape of I/O and any ring.

use std::sync::Barrier;

use crate::open_device;
use crate::support::vec_at;
use proptest::prelude::*;
use sheave_base::clock::Clock;
use sheave_base::rng::Rng;
use sheave_base::status::Status;

use super::*;
use sheave_blk::bio::{BIO_FUA, BIO_PREFLUSH, BVec, NO_FIXED_BUF, Op};
use sheave_blk::ctx::{BioSpec, IoCtx, IoCtxOptions};

fn open(spec: &str) -> Device {
    open_device(spec).expect("a good spec")
}

/// Makes a ring of its own on a device.
struct Ring {
    ctx: IoCtx,
    bdev: u16,
    ended: Vec<(u32, Status)>,
}

impl Ring {
    fn on(device: &Device) -> Ring {
        let clock = Clock::real();
        let options = IoCtxOptions { bios: 256, kring_entries: 8, iopoll: false, stats: true, clock };
        let mut ctx = IoCtx::new(options).expect("a ring can be made");
        let bdev = ctx.attach(device).expect("attaches");
        Ring { ctx, bdev, ended: Vec::new() }
    }

    fn submit(&mut self, op: Op, flags: u16, sector: u64, bytes: u32, vecs: &[BVec], owner: u32) {
        let spec = BioSpec { bdev: self.bdev, op, flags, sector, bytes, owner };
        assert!(self.ctx.submit(&spec, vecs, NO_FIXED_BUF), "room for a bio");
    }

    fn drain(&mut self) -> Vec<(u32, Status)> {
        while !self.ctx.is_idle() {
            let ended = &mut self.ended;
            self.ctx.poll(&mut |owner, status| ended.push((owner, status)));
        }
        std::mem::take(&mut self.ended)
    }

    /// Runs one I/O to its end; `cuts` are the places where its memory is cut into vectors.
    fn io(&mut self, op: Op, flags: u16, sector: u64, memory: &mut [u8], cuts: &[usize]) -> Status {
        let vecs = pieces(memory, cuts);
        let bytes = if op == Op::Flush { 0 } else { memory.len() as u32 };
        self.submit(op, flags, sector, bytes, if op.has_data() { &vecs } else { &[] }, 7);
        match self.drain()[..] {
            [(7, status)] => status,
            ref other => panic!("one I/O, one end: {other:?}"),
        }
    }

    fn write(&mut self, sector: u64, data: &[u8]) {
        assert_eq!(self.io(Op::Write, 0, sector, &mut data.to_vec(), &[]), Status::Ok);
    }

    fn read(&mut self, sector: u64, len: usize) -> Vec<u8> {
        let mut data = vec![0xee; len];
        assert_eq!(self.io(Op::Read, 0, sector, &mut data, &[]), Status::Ok);
        data
    }
}

/// Returns the memory as vectors, cut at these places.
fn pieces(memory: &mut [u8], cuts: &[usize]) -> Vec<BVec> {
    let len = memory.len();
    let mut ends: Vec<usize> = cuts.iter().map(|cut| cut % (len + 1)).collect();
    ends.extend([0, len]);
    ends.sort_unstable();
    ends.dedup();
    let base = memory.as_mut_ptr().expose_provenance();
    ends.windows(2).map(|w| vec_at(base + w[0], w[1] - w[0])).collect()
}

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

#[test]
fn a_bad_spec_is_refused_with_cause_and_fix() {
    for (spec, says) in [
        ("ram:size=0", "multiple of the block size"),
        ("ram:size=1000", "multiple of the block size"),
        ("ram:size=6k,bs=4k", "multiple of the block size"),
        ("ram:bs=1000", "power of two"),
        ("ram:size=1P", "the machine has"),
        ("ram:size=7E", "Give a size up to that"),
        ("ram:huge=maybe", "on, off"),
        ("ram:touch=maybe", "on, off"),
        ("ram:depth=0", "from 1 to 4096"),
        ("ram:sise=1M", "'sise' is unknown. Known keys: bs, size, huge, touch, depth"),
        ("ram:/dev/shm", "takes no path"),
    ] {
        let error = open_device(spec).expect_err(spec).to_string();
        assert!(error.contains(says), "{spec}: {error}");
    }
}

#[test]
fn it_is_as_large_as_asked_for_and_takes_any_operation() {
    let device = open("ram:size=3M,bs=4k,depth=8");
    assert_eq!(device.size_bytes(), 3 << 20);
    assert_eq!((device.limits().logical_block, device.limits().queue_depth), (4096, 8));
    let caps = device.capabilities();
    assert!(caps.discard && caps.write_zeroes && caps.fua && !caps.volatile_cache);
    assert_eq!(open("ram:").size_bytes(), 1 << 30);
    let mut ring = Ring::on(&device);
    assert_eq!(ring.io(Op::Flush, 0, 0, &mut [], &[]), Status::Ok);
    let mut data = noise(4096, 1);
    assert_eq!(ring.io(Op::Write, BIO_FUA | BIO_PREFLUSH, 8, &mut data, &[]), Status::Ok);
    assert_eq!(ring.read(8, 4096), data);
}

/// Runs in a process of its own, because it reads the memory usage of the whole process, which other tests change.
#[test]
fn touched_memory_is_there_from_the_start() {
    const ALONE: &str = "SHEAVE_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let mut alone = std::process::Command::new(std::env::current_exe().expect("this program"));
        alone.args(["--exact", "ram::tests::touched_memory_is_there_from_the_start"]).env(ALONE, "1");
        let output = alone.output().expect("starts");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let resident = || {
        let statm = std::fs::read_to_string("/proc/self/statm").expect("procfs");
        let pages: u64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("pages");
        pages * rustix::param::page_size() as u64
    };
    let before = resident();
    let device = open("ram:size=64M,touch=on");
    assert!(resident() >= before + (48 << 20), "{before} bytes before, {} after", resident());
    let mut ring = Ring::on(&device);
    assert_eq!(ring.read(0, 4096), vec![0; 4096]);
}

#[test]
fn what_was_never_written_reads_as_zeroes_and_the_last_block_is_there() {
    for spec in ["ram:size=9M", "ram:size=9M,huge=off", "ram:size=512"] {
        let device = open(spec);
        let mut ring = Ring::on(&device);
        let last = device.size_bytes() / 512 - 1;
        assert_eq!(ring.read(last, 512), [0; 512]);
        let data = noise(512, 2);
        ring.write(last, &data);
        assert_eq!(ring.read(last, 512), data);
        let mut beyond = vec![0xee; 1024];
        assert_eq!(ring.io(Op::Read, 0, last, &mut beyond, &[]), Status::IoErr);
        assert_eq!(beyond, [0xee; 1024]);
    }
}

#[test]
fn a_queue_that_claims_more_than_there_is_gives_errors_beyond_it() {
    let device = open("ram:size=1M");
    let mut ring = Ring::on(&device);
    device.whole_queue().expect("one queue").set_capacity(2 << 20);
    let mut data = noise(4096, 3);
    for op in [Op::Read, Op::Write, Op::Discard, Op::WriteZeroes] {
        assert_eq!(ring.io(op, 0, 2048 - 7, &mut data, &[]), Status::IoErr, "{op:?} across the end");
        assert_eq!(ring.io(op, 0, 2048, &mut data, &[]), Status::IoErr, "{op:?} beyond the end");
        assert_eq!(ring.io(op, 0, 2048 - 8, &mut data, &[]), Status::Ok, "{op:?} before the end");
    }
}

#[test]
fn its_memory_is_what_rings_read_and_nothing_beyond() {
    let device = open("ram:size=64K");
    let mut ring = Ring::on(&device);
    let data = noise(65536, 5);
    ring.write(0, &data);
    let memory = RamMemory::of(&device).expect("a ram device has one");
    for (pos, len, inside) in [
        (0, 65536, true),
        (1000, 77, true),
        (65536, 0, true),
        (65535, 1, true),
        (65535, 2, false),
        (u64::MAX, 1, false),
    ] {
        let mut into = vec![0; len];
        assert_eq!(memory.read(pos, &mut into), inside, "{len} bytes at {pos}");
        let found = if inside { &data[pos as usize..][..len] } else { &vec![0; len] };
        assert_eq!(into, found, "{len} bytes at {pos}");
    }
    for spec in ["null:", "fault:over=ram:size=64K"] {
        assert!(RamMemory::of(&open(spec)).is_none(), "{spec} has something between, or nothing");
    }
}

#[test]
fn vectors_of_any_shape_and_merged_bios_carry_the_bytes_in_order() {
    let device = open("ram:size=4M");
    let mut ring = Ring::on(&device);
    let mut data = noise(64 << 10, 4);
    let want = data.clone();
    let cuts = [1, 100, 101, 4096, 5000, 9999, 40_000, 65_535];
    assert_eq!(ring.io(Op::Write, 0, 3, &mut data, &cuts), Status::Ok);
    let mut got = vec![0xee; 64 << 10];
    assert_eq!(ring.io(Op::Read, 0, 3, &mut got, &[7, 511, 512, 33_333]), Status::Ok);
    assert!(got == want);
    // Adjacent bios of one plug become one request, and each reads its own bytes.
    got.fill(0xee);
    let vecs = pieces(&mut got, &(1..16).map(|at| at * 4096).collect::<Vec<_>>());
    ring.ctx.start_plug(16);
    for (at, vec) in (0u32..).zip(&vecs) {
        ring.submit(Op::Read, 0, 3 + u64::from(at) * 8, 4096, std::slice::from_ref(vec), at);
    }
    ring.ctx.finish_plug();
    assert_eq!(ring.drain().len(), 16);
    assert!(got == want);
    assert!(device.stats().op(Op::Read).merges > 0);
}

#[test]
fn a_batch_is_carried_out_in_its_order() {
    let device = open("ram:size=1M");
    let mut ring = Ring::on(&device);
    let mut data: Vec<Vec<u8>> = (0..60).map(|seed| noise(512, 100 + seed)).collect();
    let mut seen = vec![vec![0xee; 512]; 60];
    ring.ctx.start_plug(180);
    for (at, (data, seen)) in data.iter_mut().zip(&mut seen).enumerate() {
        let owner = 3 * at as u32;
        ring.submit(Op::Write, 0, 5, 512, &pieces(data, &[]), owner);
        ring.submit(Op::Read, 0, 5, 512, &pieces(seen, &[]), owner + 1);
        ring.submit(Op::WriteZeroes, 0, 5, 512, &[], owner + 2);
    }
    ring.ctx.finish_plug();
    let ended = ring.drain();
    assert_eq!(ended, (0..180).map(|owner| (owner, Status::Ok)).collect::<Vec<_>>());
    assert!(seen == data);
    assert_eq!(ring.read(5, 512), [0; 512]);
}

#[derive(Clone, Debug)]
struct Step {
    op: Op,
    sector: u64,
    sectors: u64,
    cuts: Vec<usize>,
    seed: u64,
}

const MODEL_SECTORS: u64 = 256;

fn step() -> impl Strategy<Value = Step> {
    let op = prop_oneof![
        4 => Just(Op::Write),
        3 => Just(Op::Read),
        2 => Just(Op::Discard),
        2 => Just(Op::WriteZeroes),
        1 => Just(Op::Flush),
    ];
    // A quarter of the I/Os may be many pages long.
    let sectors = prop_oneof![3 => 1..16u64, 1 => 1..MODEL_SECTORS];
    let cuts = prop::collection::vec(any::<usize>(), 0..12);
    (op, 0..MODEL_SECTORS, sectors, cuts, any::<u64>()).prop_map(|(op, sector, sectors, cuts, seed)| Step {
        op,
        sector,
        sectors: sectors.min(MODEL_SECTORS - sector),
        cuts,
        seed,
    })
}

proptest! {
    #[test]
    fn it_holds_what_a_vector_of_bytes_would(steps in prop::collection::vec(step(), 1..60), huge in any::<bool>()) {
        let device = open(if huge { "ram:size=128k" } else { "ram:size=128k,huge=off" });
        let mut ring = Ring::on(&device);
        let mut model = vec![0u8; 128 << 10];
        for step in &steps {
            let range = (step.sector * 512) as usize..((step.sector + step.sectors) * 512) as usize;
            let mut data = noise(range.len(), step.seed);
            prop_assert_eq!(ring.io(step.op, 0, step.sector, &mut data, &step.cuts), Status::Ok);
            match step.op {
                Op::Write => model[range].copy_from_slice(&data),
                Op::Read => prop_assert!(data == model[range], "{:?}", step),
                Op::Discard | Op::WriteZeroes => model[range].fill(0),
                _ => {}
            }
        }
        prop_assert!(ring.read(0, 128 << 10) == model);
    }
}

#[test]
fn two_rings_on_two_threads_share_the_bytes() {
    const BLOCKS: u64 = 64;
    let device = open("ram:size=1M");
    let barrier = Barrier::new(2);
    std::thread::scope(|scope| {
        for me in [0u8, 1] {
            let (device, barrier) = (&device, &barrier);
            scope.spawn(move || {
                let mut ring = Ring::on(device);
                barrier.wait();
                for round in 0..200u8 {
                    // Each thread has every second block of the first half; both write block 0 of the second half.
                    let block = u64::from(round) % (BLOCKS / 2) * 2 + u64::from(me);
                    let mine = vec![round.wrapping_mul(2) | me; 4096];
                    ring.write(block * 8, &mine);
                    ring.write(1024, &[0x10 + me; 4096]);
                    let shared = ring.read(1024, 4096);
                    assert!(shared.iter().all(|byte| matches!(byte, 0x10 | 0x11)), "old or new, never else");
                    assert_eq!(ring.read(block * 8, 4096), mine);
                }
                barrier.wait();
                // The blocks that the other thread has written are visible here.
                let theirs = u64::from(1 - me);
                for block in (theirs..BLOCKS).step_by(2) {
                    assert!(ring.read(block * 8, 4096).iter().all(|byte| u64::from(byte & 1) == theirs));
                }
            });
        }
    });
    assert_eq!(device.in_flight().total(), 0);
}

#[test]
fn the_device_lives_as_long_as_a_ring_uses_it() {
    let device = open("ram:size=1M");
    let mut ring = Ring::on(&device);
    drop(device);
    let data = noise(4096, 9);
    ring.write(16, &data);
    assert_eq!(ring.read(16, 4096), data);
}

#[test]
fn a_kernel_without_huge_pages_is_told_of() {
    let notice = |switch: Option<&str>| huge_pages_notice(switch.map(String::from));
    assert_eq!(notice(Some("always [madvise] never\n")), None);
    assert_eq!(notice(Some("[always] madvise never\n")), None);
    assert!(notice(Some("always madvise [never]\n")).is_some_and(|text| text.contains("echo madvise >")));
    assert!(notice(None).is_some_and(|text| text.contains("not built into")));
}
