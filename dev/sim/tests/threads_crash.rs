//! Crashes under real threads: rings on threads of their own, with real workers, on the simulated disk, while volumes
//! are copied, deleted and resized. Events carry the disk's time, and the run is cut afterwards like one of the
//! simulator. A failure cannot be repeated, because the threads' timing cannot; the model still names what was wrong.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sheave_base::buf::Buf;
use sheave_base::rng::Rng;
use sheave_base::sync::Arc;
use sheave_iomap::File;
use sheave_sim::audit::audit;
use sheave_sim::check::check_image;
use sheave_sim::disk::{DiskOptions, Errors, Image, Media, SimDisk};
use sheave_sim::model::{Change, Event, Model};
use sheave_sim::observe::observe;
use sheave_sim::tag::{Value, fill_all};
use sheave_uring::{Ring, prep};
use sheave_vol::{Checksum, CreateOptions, OpenOptions, Pool, PoolError, WhenFull};

const SEED: u64 = 5;
const BLOCK: u64 = 4096;
const BLOCKS: u64 = 128;
const WRITERS: u64 = 2;
const RUN: Duration = Duration::from_millis(500);
const CUTS: usize = 50;
const VOLUME: u32 = 1;
const SIZE: u64 = 24 << 20;

/// Largest size in blocks of a volume that grows.
const MAX_BLOCKS: u64 = 1500;

/// The events of a run in order, with the disk's time.
struct Story {
    disk: SimDisk,
    events: Mutex<Vec<(usize, Event)>>,
    next: AtomicU64,
    /// Number of the next block to append to a volume that grows.
    end: Option<AtomicU64>,
    stop: AtomicBool,
    /// True if some writes of the journal fail. Every caller that waits for such a commit gets an error and goes on.
    fails: bool,
}

/// Result of a request whose commit failed.
const EIO: i32 = -5;

impl Story {
    /// Records an event. Called before a request is submitted, or after it has ended.
    fn tell(&self, event: Event) {
        let mut events = self.events.lock().expect("nobody panics with it");
        let now = self.disk.time();
        events.push((now, event));
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::SeqCst)
    }

    /// Returns blocks for a writer's next writes: some of its own, or those beyond the end.
    fn blocks(&self, writer: u64, rng: &mut Rng) -> Vec<u64> {
        match &self.end {
            None => {
                let mut blocks: Vec<u64> = (0..BLOCKS / WRITERS).map(|at| at * WRITERS + writer).collect();
                rng.shuffle(&mut blocks);
                blocks.truncate(6);
                blocks
            }
            Some(end) => {
                let mut blocks: Vec<u64> = (0..6).map(|_| end.fetch_add(1, Ordering::SeqCst)).collect();
                blocks.retain(|block| *block < MAX_BLOCKS);
                rng.shuffle(&mut blocks);
                blocks
            }
        }
    }
}

/// Stops the writers, also when the test fails.
struct Stop<'a>(&'a Story);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::SeqCst);
    }
}

/// Writes to blocks of its own, six at a time, and flushes now and then.
fn write(story: &Story, file: Arc<dyn File>, writer: u64, seed: u64) {
    write_to(story, file, (VOLUME, writer), seed, u64::MAX);
}

/// Same as `write`, to volume number `volume`, for `times` rounds.
fn write_to(story: &Story, file: Arc<dyn File>, (volume, writer): (u32, u64), seed: u64, times: u64) {
    let mut ring = Ring::builder().entries(32).build().expect("a ring");
    let fd = ring.attach_file(file).expect("attached");
    let mut rng = Rng::new(seed).fork(writer + u64::from(volume));
    for _ in 0..times {
        if story.stop.load(Ordering::SeqCst) {
            return;
        }
        let mut sent: Vec<(u64, bool)> = Vec::new();
        let blocks = story.blocks(writer, &mut rng);
        if blocks.is_empty() {
            return;
        }
        for block in blocks {
            let op = story.number();
            let hole = rng.percent(10) && story.end.is_none();
            let (value, dsync) = (op as Value, rng.percent(10));
            let value = if hole { 0 } else { value };
            let event = Event::Write { op, volume, sector: block * 8, sectors: 8, value, dsync: dsync && !hole };
            story.tell(event);
            let mut buf = Buf::zeroed(BLOCK as usize, 4096).expect("memory");
            fill_all(SEED, value, volume, block * 8, &mut buf);
            let entry: prep::Entry = match (hole, dsync) {
                (true, _) => prep::punch_hole(fd, block * BLOCK, BLOCK).into(),
                (false, true) => prep::write(fd, buf).offset(block * BLOCK).dsync().into(),
                (false, false) => prep::write(fd, buf).offset(block * BLOCK).into(),
            };
            ring.push(entry.user_data(op)).expect("room");
            sent.push((op, false));
        }
        if rng.percent(30) {
            let op = story.number();
            story.tell(Event::Sync { op });
            ring.push(prep::fsync(fd).user_data(op)).expect("room");
            sent.push((op, true));
        }
        ring.submit_and_wait(sent.len() as u32).expect("submitted");
        for done in ring.completions() {
            let (op, ok) = (done.user_data, done.res >= 0);
            assert!(ok || story.fails && done.res == EIO, "request {op} gave {}", done.res);
            let sync = sent.iter().any(|&(sent, sync)| sent == op && sync);
            story.tell(if sync { Event::Synced { op, ok } } else { Event::Wrote { op, ok } });
        }
    }
}

/// Copies, deletes and resizes while the writers write. Returns the number of calls that failed for want of space.
fn change(story: &Story, pool: &Pool, seed: u64, resizes: bool) -> u32 {
    let mut rng = Rng::new(seed).fork(77);
    let mut copies: Vec<String> = Vec::new();
    let (mut id, until, mut full) = (VOLUME, Instant::now() + RUN, 0);
    // The loop ends with deletes, which free space for the writers that wait for some.
    while Instant::now() < until || !copies.is_empty() {
        id += 1;
        full += u32::from(pool.info().free_bytes == 0);
        let (mut made, mut snapshots) = (None, copies.iter().filter(|name| name.starts_with("snap")));
        let (change, result) = if copies.len() > 3 || Instant::now() >= until {
            let name = copies.swap_remove(rng.below(copies.len() as u64) as usize);
            begin(story, Change::Delete { name: name.clone() }, || pool.delete(&name))
        } else if rng.percent(20) && resizes {
            // The size is larger than the end of any write, so that no I/O is cut off.
            let (name, size) = ("v".to_string(), (BLOCKS + rng.below(600)) * BLOCK);
            begin(story, Change::Resize { name, size }, || pool.resize("v", size))
        } else if let Some(snapshot) = snapshots.next().filter(|_| story.fails && rng.percent(20)) {
            let change = Change::Rollback { name: "v".into(), snapshot: snapshot.clone() };
            begin(story, change, || pool.rollback("v", snapshot))
        } else {
            let snapshot = rng.percent(60);
            let (source, name) = ("v".to_string(), format!("{}-{id}", if snapshot { "snap" } else { "clone" }));
            made = Some((name.clone(), snapshot));
            let change = Change::Copy { source, name: name.clone(), id, snapshot };
            begin(story, change, || match snapshot {
                true => pool.snapshot("v", &name).map(drop),
                false => pool.clone_volume("v", &name).map(drop),
            })
        };
        let done = settle(story, pool, &change, result);
        if let Some((name, snapshot)) = made.filter(|_| done) {
            if story.fails && !snapshot {
                let file: Arc<dyn File> = Arc::new(pool.open_volume(&name).expect("it is there"));
                write_to(story, file, (id, 0), seed, 3);
            }
            copies.push(name);
        }
        std::thread::sleep(Duration::from_millis(rng.below(8)));
    }
    full
}

fn begin<T>(story: &Story, change: Change, call: impl FnOnce() -> T) -> (Change, T) {
    story.tell(Event::Change(change.clone()));
    let result = call();
    (change, result)
}

/// Returns true if a change was made. The next flush of the pool undoes a change that failed, or makes it durable
/// (V27).
fn settle(story: &Story, pool: &Pool, change: &Change, result: Result<(), PoolError>) -> bool {
    let ok = match result {
        Ok(()) => true,
        Err(error @ (PoolError::NotDurable { .. } | PoolError::Io { .. })) if story.fails => loop {
            let op = story.number();
            story.tell(Event::Sync { op });
            let synced = pool.sync().is_ok();
            story.tell(Event::Synced { op, ok: synced });
            if synced {
                break matches!(error, PoolError::NotDurable { .. });
            }
        },
        Err(error) => panic!("{change}: {error}"),
    };
    story.tell(Event::Changed { ok, sizes: Vec::new() });
    ok
}

/// Cuts the run at random steps, and compares what each crash leaves.
fn cut(story: &Story, base: &Image, from: usize, created: &Model, seed: u64) {
    let (log, events) = (story.disk.log(), story.events.lock().expect("all have ended"));
    let mut rng = Rng::new(seed).fork(3);
    let mut steps: Vec<usize> = (0..CUTS).map(|_| rng.between(from as u64, log.len() as u64) as usize).collect();
    steps.sort_unstable();
    let (mut media, mut model) = (Media::new(base.clone(), None), created.clone());
    let (mut taken, mut happened) = (0, 0);
    for at in steps {
        log[taken..at].iter().for_each(|step| media.step(step));
        taken = at;
        while let Some((time, event)) = events.get(happened)
            && *time <= at
        {
            model.apply(event);
            happened += 1;
        }
        let (image, cut) = media.crash(&mut rng);
        let disk = SimDisk::new(image, DiskOptions::default());
        let fail = |why: String| -> ! { panic!("seed {seed}, cut at step {at} of {}, {cut}: {why}", log.len()) };
        let pool = Pool::open(&disk.device(), &OpenOptions::default());
        let pool = pool.unwrap_or_else(|error| fail(error.to_string()));
        let found = observe(&pool, &disk.image(), SEED).unwrap_or_else(|why| fail(why));
        model.settle(&found).unwrap_or_else(|why| fail(why));
        audit(&pool).unwrap_or_else(|why| fail(why));
        let report = check_image(&disk.image()).unwrap_or_else(|error| fail(error.to_string()));
        assert!(report.is_clean(), "seed {seed}, cut at step {at}, {cut}: {:?}", report.findings);
    }
}

fn run(seed: u64, unit_bytes: u64) {
    run_on(seed, unit_bytes, SIZE, &OpenOptions::default(), false);
}

/// Runs on a disk on which a fifth of the journal's writes fail. Returns the number of failures.
fn run_failing(seed: u64, unit_bytes: u64, checksum: Checksum) -> u64 {
    let options = CreateOptions::default().unit_bytes(unit_bytes).journal_bytes(Some(64 << 10)).checksum(checksum);
    let errors = Errors { journal: 200, ..Errors::default() };
    run_with(seed, SIZE, &OpenOptions::default(), false, (options, errors)).1
}

/// Runs threads on a pool and cuts the run. Returns the number of calls that failed for want of space.
fn run_on(seed: u64, unit_bytes: u64, pool_bytes: u64, how: &OpenOptions, grows: bool) -> u32 {
    let options = CreateOptions::default().unit_bytes(unit_bytes).journal_bytes(Some(64 << 10));
    run_with(seed, pool_bytes, how, grows, (options, Errors::default())).0
}

/// Same as `run_on`. Returns the number of calls that failed for want of space, and the number of writes that failed.
fn run_with(
    seed: u64,
    pool_bytes: u64,
    how: &OpenOptions,
    grows: bool,
    (options, errors): (CreateOptions, Errors),
) -> (u32, u64) {
    let base = Image::new(pool_bytes);
    let disk = DiskOptions { seed, errors, journal: 64 << 10, ..DiskOptions::default() };
    let disk = SimDisk::new(base.clone(), disk);
    Pool::create(&disk.device(), &options).expect("made");
    let pool = Pool::open(&disk.device(), how).expect("opened");
    let (size, max) = if grows { (0, Some(MAX_BLOCKS * BLOCK)) } else { (BLOCKS * BLOCK, None) };
    let volume = match max {
        Some(max) => pool.create_growing_volume("v", size, max),
        None => pool.create_volume("v", size),
    };
    let volume: Arc<dyn File> = Arc::new(volume.expect("created"));
    let mut model = Model::new();
    model.apply(&Event::Change(Change::Create { name: "v".into(), id: VOLUME, size, max }));
    model.apply(&Event::Changed { ok: true, sizes: Vec::new() });
    let (from, events) = (disk.time(), Mutex::new(Vec::new()));
    let (next, end, stop) = (AtomicU64::new(1), grows.then(AtomicU64::default), AtomicBool::new(false));
    disk.hold(true); // Errors come from here on.
    let story = Story { disk, events, next, end, stop, fails: errors.any() };
    let full = std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (story, file) = (&story, Arc::clone(&volume));
            scope.spawn(move || write(story, file, writer, seed));
        }
        let _stop = Stop(&story);
        change(&story, &pool, seed, pool_bytes == SIZE && !grows)
    });
    drop((volume, pool));
    cut(&story, &base, from, &model, seed);
    (full, story.disk.failures().writes)
}

#[test]
fn small_units() {
    sheave_testkit::seeds(2).for_each(|seed| run(seed, 4 << 10));
}

#[test]
fn middling_units() {
    sheave_testkit::seeds(2).for_each(|seed| run(20 + seed, 16 << 10));
}

#[test]
fn large_units() {
    sheave_testkit::seeds(2).for_each(|seed| run(40 + seed, 64 << 10));
}

/// Commits fail while other threads copy volumes, roll them back and write to copies. Each caller gets an error, and
/// all acknowledged data is there (V2, V3, V27).
#[test]
fn commits_that_fail_small_units() {
    let failed: u64 = sheave_testkit::seeds(2).map(|seed| run_failing(100 + seed, 4 << 10, Checksum::None)).sum();
    assert!(failed > 0, "no commit has failed");
}

#[test]
fn commits_that_fail_large_units_with_checksums() {
    let failed: u64 = sheave_testkit::seeds(2).map(|seed| run_failing(120 + seed, 64 << 10, Checksum::Crc32c)).sum();
    assert!(failed > 0, "no commit has failed");
}

/// Several threads append while copies are made. A crash leaves no size whose data is missing, and no copy with the
/// size of another moment (V23, V24).
#[test]
fn a_volume_that_grows() {
    for (seed, unit_bytes) in sheave_testkit::seeds(4).zip([4 << 10, 64 << 10].into_iter().cycle()) {
        run_on(80 + seed, unit_bytes, SIZE, &OpenOptions::default(), true);
    }
}

/// A pool is full most of the time, and its writers wait for space. None of them fails or waits for ever, and a crash
/// at any moment leaves all acknowledged data (V15).
#[test]
fn writers_that_wait_for_room() {
    let how = OpenOptions::default().when_full(WhenFull::Pause(Duration::from_secs(60)));
    // Enough space for the volume and for a part of what its copies need.
    let pool_bytes = 3 << 19;
    let full: u32 = sheave_testkit::seeds(2).map(|seed| run_on(60 + seed, 4 << 10, pool_bytes, &how, false)).sum();
    assert!(full > 0, "it was never full");
}
