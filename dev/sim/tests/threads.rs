//! Real threads: rings on threads of their own write to one volume while it is snapshotted, cloned, punched and
//! flushed. The simulator runs one thread at a time, so it cannot have calls that run truly in parallel.
//!
//! Each writer has blocks of its own and writes rising versions to them; some versions are holes. It publishes the
//! versions that it has issued and those that have ended. A snapshot must have the versions that had ended before the
//! call, and none that was issued after the call returned.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use sheave_base::buf::Buf;
use sheave_base::rng::{Rng, mix};
use sheave_base::sync::Arc;
use sheave_drivers::open_device;
use sheave_iomap::File;
use sheave_sim::audit::audit;
use sheave_sim::disk::SECTOR;
use sheave_sim::tag::{Value, fill_all, identify};
use sheave_uring::{Ring, prep};
use sheave_vol::{CheckOptions, CreateOptions, OpenOptions, Pool, check_device};

const BLOCK: u64 = 4096;
const WRITERS: usize = 3;
const BLOCKS_EACH: usize = 96;
const BLOCKS: usize = WRITERS * BLOCKS_EACH;
const DEPTH: usize = 8;
const RUN: Duration = Duration::from_millis(2500);
const SEED: u64 = 77;

/// The versions of each block that the writers have issued, and those that have ended.
struct Board {
    issued: Vec<AtomicU32>,
    ended: Vec<AtomicU32>,
    stop: AtomicBool,
}

impl Board {
    fn new() -> Board {
        let zeroes = || (0..BLOCKS).map(|_| AtomicU32::new(0)).collect();
        Board { issued: zeroes(), ended: zeroes(), stop: AtomicBool::new(false) }
    }

    fn read(versions: &[AtomicU32]) -> Vec<Value> {
        versions.iter().map(|one| one.load(Ordering::SeqCst)).collect()
    }
}

/// Returns true if this version of the block is a hole.
fn is_hole(block: usize, version: Value) -> bool {
    version == 0 || mix(block as u64 ^ u64::from(version) << 20).is_multiple_of(12)
}

/// Returns true if a block with contents `found` may have a version from `low` to `high`.
fn fits(block: usize, found: Value, low: Value, high: Value) -> bool {
    match found {
        0 => (low..=high).any(|version| is_hole(block, version)),
        found => (low..=high).contains(&found) && !is_hole(block, found),
    }
}

/// Stops the writers, also when the test fails.
struct Stop<'a>(&'a Board);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::SeqCst);
    }
}

/// Writes to every third block. At most one write to a block is under way, and writes to several blocks at once are.
fn write(file: Arc<dyn File>, board: &Board, writer: usize, seed: u64) {
    let mut ring = Ring::builder().entries(32).build().expect("a ring");
    let fd = ring.attach_file(file).expect("attached");
    let mut rng = Rng::new(seed).fork(writer as u64);
    let mut busy = vec![false; BLOCKS];
    let mut flying = 0;
    while flying > 0 || !board.stop.load(Ordering::SeqCst) {
        while flying < DEPTH && !board.stop.load(Ordering::SeqCst) {
            let block = rng.below(BLOCKS_EACH as u64) as usize * WRITERS + writer;
            if busy[block] {
                break;
            }
            let version = board.issued[block].fetch_add(1, Ordering::SeqCst) + 1;
            let mut buf = Buf::zeroed(BLOCK as usize, 4096).expect("memory");
            fill_all(SEED, version, 1, block as u64 * 8, &mut buf);
            let at = block as u64 * BLOCK;
            let entry: prep::Entry = match is_hole(block, version) {
                true => prep::punch_hole(fd, at, BLOCK).into(),
                false if rng.percent(3) => prep::write(fd, buf).offset(at).dsync().into(),
                false => prep::write(fd, buf).offset(at).into(),
            };
            ring.push(entry.user_data(block as u64)).expect("room");
            busy[block] = true;
            flying += 1;
        }
        ring.submit_and_wait(1).expect("submitted");
        for done in ring.completions() {
            let block = done.user_data as usize;
            let version = board.issued[block].load(Ordering::SeqCst);
            let wanted = if is_hole(block, version) { 0 } else { BLOCK as i32 };
            assert_eq!(done.res, wanted, "version {version} of block {block} succeeds");
            board.ended[block].store(version, Ordering::SeqCst);
            busy[block] = false;
            flying -= 1;
        }
    }
}

/// Returns the version in each block of a volume. All of a block must come from one write.
fn versions(pool: &Pool, name: &str) -> Vec<Value> {
    let file: Arc<dyn File> = Arc::new(pool.open_volume(name).expect("it is there"));
    let mut ring = Ring::builder().entries(8).build().expect("a ring");
    let fd = ring.attach_file(file).expect("attached");
    let mut bytes = Vec::new();
    while bytes.len() < BLOCKS * BLOCK as usize {
        let rest = Buf::zeroed(BLOCKS * BLOCK as usize - bytes.len(), 4096).expect("memory");
        ring.push(prep::read(fd, rest).offset(bytes.len() as u64)).expect("room");
        ring.submit_and_wait(1).expect("read");
        let done = ring.completions().next().expect("one");
        // The read may be short if the ring had too few bios for its pieces.
        let len = done.result().expect("reads succeed") as usize;
        assert!(len > 0 && len.is_multiple_of(BLOCK as usize));
        bytes.extend_from_slice(&done.into_buf().expect("its buffer")[..len]);
    }
    let sector = |at: usize| {
        let seen = identify(SEED, &bytes[at * SECTOR..(at + 1) * SECTOR]);
        seen.value_at(at as u64).unwrap_or_else(|| panic!("'{name}', sector {at}: {seen}"))
    };
    let block = |block: usize| {
        let first = sector(block * 8);
        assert!((1..8).all(|at| sector(block * 8 + at) == first), "'{name}', block {block} is torn");
        first
    };
    (0..BLOCKS).map(block).collect()
}

/// Takes snapshots and clones while the writers write, and judges each.
fn snapshots(pool: &Pool, board: &Board, seed: u64) -> usize {
    let mut rng = Rng::new(seed).fork(99);
    let mut kept: Vec<(String, Vec<Value>)> = Vec::new();
    let until = Instant::now() + RUN;
    let mut made = 0;
    while Instant::now() < until {
        let name = format!("copy-{made}");
        made += 1;
        let before = Board::read(&board.ended);
        let copied = if rng.percent(70) { pool.snapshot("v", &name) } else { pool.clone_volume("v", &name) };
        copied.unwrap_or_else(|error| panic!("{name}: {error}"));
        let after = Board::read(&board.issued);
        let found = versions(pool, &name);
        for (block, &value) in found.iter().enumerate() {
            assert!(
                fits(block, value, before[block], after[block]),
                "{name}, block {block}: version {value}; {} had ended before the call, {} was issued before its return",
                before[block],
                after[block]
            );
        }
        kept.push((name, found));
        if kept.len() > 4 {
            let (name, found) = kept.swap_remove(rng.below(kept.len() as u64) as usize);
            assert_eq!(versions(pool, &name), found, "{name} is not what it was");
            pool.delete(&name).unwrap_or_else(|error| panic!("deleting {name}: {error}"));
        }
        if rng.percent(30) {
            pool.sync().unwrap_or_else(|error| panic!("flushing: {error}"));
        }
    }
    made
}

fn run(seed: u64, unit_bytes: u64) {
    let device = open_device("ram:size=64M").expect("memory");
    let options = CreateOptions::default().unit_bytes(unit_bytes).journal_bytes(Some(128 << 10));
    Pool::create(&device, &options).expect("made");
    let pool = Pool::open(&device, &OpenOptions::default()).expect("opened");
    let volume: Arc<dyn File> = Arc::new(pool.create_volume("v", BLOCKS as u64 * BLOCK).expect("created"));
    let board = Board::new();
    let made = std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (volume, board) = (Arc::clone(&volume), &board);
            scope.spawn(move || write(volume, board, writer, seed));
        }
        let _stop = Stop(&board);
        snapshots(&pool, &board, seed)
    });
    drop(volume);
    assert!(made > 3, "{made} copies were made");
    let (found, ended) = (versions(&pool, "v"), Board::read(&board.ended));
    let differs = (0..BLOCKS).find(|&block| !fits(block, found[block], ended[block], ended[block]));
    assert_eq!(differs, None, "in the end all is there");
    pool.sync().expect("flushed");
    audit(&pool).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    pool.close().expect("closed");
    let report = check_device(&device, &CheckOptions::default()).expect("checked");
    assert!(report.is_clean(), "{:?}", report.findings);
}

#[test]
fn snapshots_under_load_small_units() {
    sheave_testkit::seeds(1).for_each(|seed| run(seed, 8 << 10));
}

#[test]
fn snapshots_under_load_large_units() {
    sheave_testkit::seeds(1).for_each(|seed| run(100 + seed, 64 << 10));
}
