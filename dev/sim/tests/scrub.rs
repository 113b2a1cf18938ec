//! Scrubs of pools in use, through real rings: they name everything that has rotted, and no block that merely changes.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sheave_base::buf::Buf;
use sheave_base::rng::Rng;
use sheave_blk::{Device, linear};
use sheave_drivers::open_device;
use sheave_uring::{Fd, Ring, prep};
use sheave_vol::block_io::{BlockIo, DeviceIo};
use sheave_vol::{
    Checksum, CreateOptions, ExtentKind, FindingKind, OpenOptions, Pool, ScrubClock, ScrubOptions, ScrubPhase,
    ScrubReport, Volume,
};

const BLOCK: usize = 4096;

fn open(device: &Device) -> Pool {
    Pool::open(device, &OpenOptions::default()).expect("the pool opens")
}

fn made(device: &Device, unit_bytes: u64, checksum: Checksum) -> Pool {
    let options = CreateOptions::default()
        .metadata_copies(Some(1))
        .unit_bytes(unit_bytes)
        .checksum(checksum)
        .overwrite(true)
        .journal_bytes(Some(64 << 10));
    Pool::create(device, &options).expect("the pool is made");
    open(device)
}

fn scrub(pool: &Pool) -> ScrubReport {
    let report = pool.scrub(&ScrubOptions::default(), &mut |_| ControlFlow::Continue(())).expect("it scrubs");
    assert!(report.completed);
    report
}

struct User {
    ring: Ring,
    fd: Fd,
    volume: Volume,
}

impl User {
    fn new(volume: Volume) -> User {
        let mut ring = Ring::builder().entries(64).build().expect("a ring");
        let fd = ring.attach_file(Arc::new(volume.clone())).expect("attached");
        User { ring, fd, volume }
    }

    fn run(&mut self, entry: impl prep::Op) -> i32 {
        self.ring.push(entry).map_err(|full| full.error).expect("there is room");
        self.ring.submit_and_wait(1).expect("it ends");
        self.ring.completions().next().expect("one").res
    }

    fn write(&mut self, pos: u64, tag: u8, blocks: usize) {
        let mut buf = Buf::zeroed(blocks * BLOCK, BLOCK).expect("memory");
        buf.fill(tag);
        assert_eq!(self.run(prep::write(self.fd, buf).offset(pos)), (blocks * BLOCK) as i32);
    }

    fn sync(&mut self) {
        assert_eq!(self.run(prep::fsync(self.fd)), 0);
    }

    fn addr(&self, pos: u64) -> u64 {
        let extents = self.volume.extents(pos, BLOCK as u64).expect("extents");
        assert_eq!(extents[0].kind, ExtentKind::Data);
        extents[0].addr + (pos - extents[0].pos)
    }
}

/// Flips a bit on the device, past the pool.
fn rot(io: &DeviceIo, addr: u64) {
    let mut block = vec![0; BLOCK];
    io.read(addr, &mut block).expect("it reads");
    block[1234] ^= 4;
    io.write(addr, &block).expect("it writes");
}

/// Every metadata block that the pool needs is damaged in turn while the pool is open (V19).
#[test]
fn each_damaged_metadata_block_is_named_while_the_pool_is_open() {
    let legs = ["ram:size=24M", "ram:size=24M"].map(|spec| open_device(spec).expect("memory"));
    let device = linear::concatenate("two", &legs).expect("concatenated");
    let pool = made(&device, 65536, Checksum::Crc32c);
    let mut user = User::new(pool.create_volume("v", 8 << 20).expect("a volume"));
    (0..40).for_each(|at| user.write(at * 131_072, at as u8 + 1, 4));
    user.sync();
    pool.snapshot("v", "s").expect("a snapshot");
    user.write(0, 99, 1);
    drop(user);
    pool.close().expect("it closes");
    let pool = open(&device);
    let mut user = User::new(pool.open_volume("v").expect("it is there"));
    for round in 0..2 {
        user.write(round << 20, 100 + round as u8, 1);
        user.sync();
    }
    let clean = scrub(&pool);
    assert!(clean.is_clean(), "{:?}", clean.findings);
    let io = DeviceIo::new(&device).expect("attaches");
    let mut image = vec![0; 48 << 20];
    io.read(0, &mut image).expect("it reads");
    let mut kinds = BTreeSet::new();
    let (mut named, mut stale) = (0, 0);
    for at in (0..image.len()).step_by(BLOCK).filter(|at| image[*at..].starts_with(b"SHVE")) {
        let kind = u16::from_le_bytes([image[at + 4], image[at + 5]]);
        rot(&io, at as u64);
        let report = scrub(&pool);
        rot(&io, at as u64);
        let Some(first) = report.findings.first() else {
            stale += 1;
            continue;
        };
        let map = [FindingKind::MapPage];
        let wanted: &[FindingKind] = match kind {
            1 => &[FindingKind::Superblock],
            2 => &[FindingKind::Journal],
            3 => &map,
            4 => &[FindingKind::MapPage, FindingKind::SumsPage, FindingKind::TablePage],
            5 => &[FindingKind::TablePage],
            6 => &[FindingKind::Label],
            _ => &[FindingKind::SumsPage],
        };
        assert!(wanted.contains(&first.kind), "kind {kind}: {first}");
        for finding in &report.findings {
            assert_eq!(finding.place.address, Some(at as u64), "{finding}");
            assert!(finding.means.contains("checksum"), "the cause is told: {finding}");
            assert_eq!(finding.place.volume.is_some(), finding.kind == FindingKind::MapPage, "{finding}");
        }
        kinds.insert((kind, first.kind.name()));
        named += 1;
    }
    let kinds: Vec<u16> = kinds.into_iter().map(|(kind, _)| kind).collect::<BTreeSet<_>>().into_iter().collect();
    assert_eq!(kinds, [1, 2, 3, 4, 5, 6, 7], "{named} named, {stale} stale");
    let clean = scrub(&pool);
    assert!(clean.is_clean(), "{:?}", clean.findings);
}

/// Rotten data is found in volumes and snapshots (V16).
#[test]
fn rotten_data_is_named_in_each_volume_that_has_it() {
    let device = open_device("ram:size=64M").expect("memory");
    let pool = made(&device, 65536, Checksum::Crc32c);
    let io = DeviceIo::new(&device).expect("attaches");
    let mut user = User::new(pool.create_volume("v", 8 << 20).expect("a volume"));
    user.write(1 << 20, 7, 64);
    pool.snapshot("v", "s").expect("a snapshot");
    user.write(3 << 20, 8, 1);
    let before = scrub(&pool);
    assert_eq!((before.data_bytes, before.found, before.busy_bytes), (65 * BLOCK as u64, 0, 0), "shared data once");
    let pos = (1 << 20) + 5 * BLOCK as u64;
    let addr = user.addr(pos);
    rot(&io, addr);
    rot(&io, addr + BLOCK as u64);
    let report = scrub(&pool);
    let two = 2 * BLOCK as u64;
    assert_eq!((report.found, report.bad_bytes), (2, two), "told twice, counted once: {:?}", report.findings);
    assert_eq!(report.data_bytes, before.data_bytes);
    for (finding, name) in report.findings.iter().zip(["v", "s"]) {
        assert_eq!((finding.kind, finding.place.address), (FindingKind::Data, Some(addr)), "{finding}");
        assert_eq!((finding.place.volume.as_deref(), finding.place.range), (Some(name), Some((pos, two))), "{finding}");
        assert!(finding.means.contains("does not match its checksum"), "{finding}");
    }
    // The volume's block is good again once it is overwritten; the snapshot's stays bad until the snapshot is deleted.
    user.write(pos, 9, 2);
    let report = scrub(&pool);
    assert_eq!((report.found, report.bad_bytes), (1, two), "{:?}", report.findings);
    assert_eq!(report.findings[0].place.volume.as_deref(), Some("s"));
    pool.delete("s").expect("it goes");
    assert!(scrub(&pool).is_clean());
    assert!(!ScrubReport::default().verified_data() && report.verified_data());
}

#[test]
fn without_checksums_data_is_read_and_cannot_be_verified() {
    let device = open_device("ram:size=64M").expect("memory");
    let pool = made(&device, 65536, Checksum::None);
    let mut user = User::new(pool.create_volume("v", 8 << 20).expect("a volume"));
    user.write(0, 7, 16);
    rot(&DeviceIo::new(&device).expect("attaches"), user.addr(0));
    let report = scrub(&pool);
    assert!(report.is_clean() && !report.verified_data());
    assert_eq!(report.data_bytes, 16 * BLOCK as u64);
}

/// A clock that advances only by sleeping.
#[derive(Debug, Default)]
struct Still(Mutex<Duration>);

impl ScrubClock for Still {
    fn now(&self) -> Duration {
        *self.0.lock().expect("no panic")
    }

    fn sleep(&self, span: Duration) {
        assert!(span <= Duration::from_millis(100), "a cancel is heard: {span:?}");
        *self.0.lock().expect("no panic") += span;
    }
}

#[test]
fn the_rate_is_kept_by_the_clock() {
    let device = open_device("ram:size=64M").expect("memory");
    let pool = made(&device, 65536, Checksum::Crc32c);
    let mut user = User::new(pool.create_volume("v", 32 << 20).expect("a volume"));
    (0..200).for_each(|at| user.write(at * 131_072, 3, 16));
    let rate = 1 << 20;
    let clock = Arc::new(Still::default());
    let options = ScrubOptions::default().bytes_per_sec(Some(rate)).clock(clock.clone());
    let (mut last, mut told) = (0, 0);
    let report = pool.scrub(&options, &mut |progress| {
        let allowed = clock.now().as_secs_f64() * rate as f64;
        // A scrub may exceed its budget by one piece: the pages of one parent, or a quarter of a second of data.
        assert!(progress.done_bytes as f64 <= allowed + (1 << 20) as f64 + 1.0, "{progress:?}");
        assert!(progress.done_bytes >= last && progress.done_bytes <= progress.total_bytes, "{progress:?}");
        (last, told) = (progress.done_bytes, told + 1);
        ControlFlow::Continue(())
    });
    let report = report.expect("it scrubs");
    assert_eq!(report.data_bytes, 200 << 16);
    assert_eq!(last, report.metadata_bytes + report.data_bytes);
    let took = clock.now().as_secs_f64();
    let least = (last - (1 << 20)) as f64 / rate as f64;
    assert!((least..least + 1.5).contains(&took), "{took} s for {last} bytes");
    assert!(told > 100, "{told} looks at whether to go on");
}

#[test]
fn a_cancel_ends_it_also_while_it_waits() {
    let device = open_device("ram:size=64M").expect("memory");
    let pool = made(&device, 65536, Checksum::Crc32c);
    let mut user = User::new(pool.create_volume("v", 32 << 20).expect("a volume"));
    (0..200).for_each(|at| user.write(at * 131_072, 3, 16));
    for rate in [None, Some(1)] {
        let clock = Arc::new(Still::default());
        let options = ScrubOptions::default().bytes_per_sec(rate).clock(clock);
        let mut calls = 0;
        let report = pool.scrub(&options, &mut |_| {
            calls += 1;
            if calls == 5 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let report = report.expect("a cancel is no error");
        assert!(!report.completed && report.is_clean());
        assert_eq!(calls, 5, "it is not asked again");
        assert!(report.data_bytes < 200 << 16);
    }
    // A cancelled scrub holds back no grace period, so the call of `snapshot`, which waits for one, returns.
    user.write(0, 4, 1);
    pool.snapshot("v", "s").expect("graces end");
}

/// Stops the other threads, also when the test fails.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Scrubs find nothing while writers, discards, snapshots, clones, rollbacks, deletes and checkpoints run without a
/// break.
#[test]
fn a_scrub_under_load_finds_nothing_that_is_not_there() {
    for seed in sheave_testkit::seeds(2) {
        let device = open_device("ram:size=96M").expect("memory");
        let pool = made(&device, if seed % 2 == 0 { 4096 } else { 65536 }, Checksum::Crc32c);
        for name in ["a", "b"] {
            pool.create_volume(name, 4 << 20).expect("a volume");
        }
        let (stop, writes) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let _stop = StopOnDrop(&stop);
            for (at, name) in ["a", "b"].into_iter().enumerate() {
                let (volume, stop, writes) = (pool.open_volume(name).expect("it is there"), &stop, &writes);
                scope.spawn(move || churn(volume, seed * 7 + at as u64 + 1, stop, writes));
            }
            let (pool, stop) = (&pool, &stop);
            scope.spawn(move || {
                for round in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let (snapshot, clone) = (format!("s{round}"), format!("c{round}"));
                    pool.snapshot(["a", "b"][round % 2], &snapshot).expect("a snapshot");
                    pool.clone_volume(&snapshot, &clone).expect("a clone");
                    pool.rollback(&clone, &snapshot).expect("back");
                    pool.delete(&snapshot).expect("it goes");
                    pool.delete(&clone).expect("it goes");
                }
            });
            let mut scrubs = 0;
            while scrubs < 20 || writes.load(Ordering::Relaxed) < 20_000 {
                let report = pool.scrub(&ScrubOptions::default(), &mut |progress| {
                    if progress.phase == ScrubPhase::Metadata {
                        std::thread::yield_now();
                    }
                    ControlFlow::Continue(())
                });
                let report = report.expect("it scrubs");
                assert!(report.is_clean(), "seed {seed}, scrub {scrubs}: {:?}", report.findings);
                scrubs += 1;
            }
        });
        let quiet = scrub(&pool);
        assert_eq!((quiet.found, quiet.busy_bytes, pool.info().checksum_errors), (0, 0, 0));
        let generation = pool.info().generation;
        assert!(generation > 40, "checkpoints went by: {generation}");
    }
}

fn churn(volume: Volume, seed: u64, stop: &AtomicBool, writes: &AtomicU64) {
    let mut user = User::new(volume);
    let mut rng = Rng::new(seed);
    while !stop.load(Ordering::Relaxed) {
        let pos = rng.below(1000) * BLOCK as u64;
        match rng.below(16) {
            0 => user.sync(),
            1 => assert_eq!(user.run(prep::punch_hole(user.fd, pos, (rng.below(20) + 1) * BLOCK as u64)), 0),
            _ => user.write(pos, rng.draw() as u8, (rng.below(20) + 1) as usize),
        }
        writes.fetch_add(1, Ordering::Relaxed);
    }
}
