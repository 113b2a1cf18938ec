//! A real process that writes to a pool in a real file is killed at random moments, 50 times in all. Afterwards all
//! data that it reported as flushed is there, all data that is there was written by it, and snapshots are unchanged.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use sheave_base::buf::Buf;
use sheave_base::rng::Rng;
use sheave_base::sync::Arc;
use sheave_drivers::open_device;
use sheave_iomap::File;
use sheave_sim::disk::SECTOR;
use sheave_sim::tag::{Value, identify};
use sheave_sim::writer::{self, POOL_BYTES, VOLUME, VOLUME_BYTES, planned};
use sheave_uring::{Ring, prep};
use sheave_vol::{CheckOptions, OpenOptions, Pool, check_device};

const ROUNDS: u64 = 25;
/// Longest time in milliseconds that the process lives after it has started to write.
const MAX_LIFE_MS: u64 = 400;

/// A pool that is written by one short-lived process after another.
struct Killed {
    seed: u64,
    spec: String,
    /// Number of the write that each sector held after the last kill.
    found: Vec<Value>,
    /// For each snapshot, keyed by the write after which it was taken, the number of the write in each sector.
    snapshots: BTreeMap<Value, Vec<Value>>,
    /// The number of the next process's first write.
    next: Value,
}

impl Killed {
    fn new(seed: u64, path: &Path) -> Killed {
        let spec = format!("file:{},size={POOL_BYTES}", path.display());
        writer::format(&spec).expect("a pool can be made");
        let found = vec![0; VOLUME_BYTES as usize / SECTOR];
        Killed { seed, spec, found, snapshots: BTreeMap::new(), next: 1 }
    }

    /// Lets a process write for `life`, and kills it. Returns the last write that it reported as flushed.
    fn round(&self, life: Duration) -> Value {
        let mut child = Command::new(env!("CARGO_BIN_EXE_sheave-sim"))
            .args(["--write", &self.spec, "--seed", &self.seed.to_string(), "--from", &self.next.to_string()])
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("the process starts");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let first = lines.next().expect("it says something").expect("in words");
        assert_eq!(first, "started");
        let reader = std::thread::spawn(move || {
            let mut flushed = None;
            for line in lines.map_while(Result::ok) {
                // The kill may have cut the last line, which then has no number.
                flushed = line.strip_prefix("flushed ").and_then(|text| text.parse().ok()).or(flushed);
            }
            flushed
        });
        std::thread::sleep(life);
        child.kill().expect("it lives until then");
        let status = child.wait().expect("and then no longer");
        assert!(!status.success(), "it never ends by itself");
        reader.join().expect("the reader does not panic").unwrap_or(self.next - 1)
    }

    /// Returns the number of the write that each sector holds after a process has done everything up to write `last`.
    fn after(&self, last: Value) -> Vec<Value> {
        let mut sectors = self.found.clone();
        for value in self.next..=last {
            let write = planned(self.seed, value);
            let first = (write.pos / SECTOR as u64) as usize;
            sectors[first..first + (write.len as usize / SECTOR)].fill(value);
        }
        sectors
    }

    /// Reads everything and compares it. The contents found must stay from now on.
    fn verify(&mut self, flushed: Value) {
        let device = open_device(&self.spec).expect("the file is there");
        let pool = Pool::open(&device, &OpenOptions::default()).expect("the pool opens");
        let found = self.read(&pool, VOLUME);
        for (at, (&value, &least)) in found.iter().zip(&self.after(flushed)).enumerate() {
            assert!(value >= least, "sector {at} holds write {value}; write {least} was flushed");
        }
        self.verify_snapshots(&pool, flushed);
        pool.close().expect("it closes");
        let report = check_device(&device, &CheckOptions::default()).expect("the pool can be checked");
        assert!(report.is_clean(), "check after the kill: {:?}", report.findings);
        self.next = found.iter().copied().max().unwrap_or(0).max(flushed) + 1;
        self.found = found;
    }

    /// Checks that a snapshot holds exactly the writes before it, now and later.
    fn verify_snapshots(&mut self, pool: &Pool, flushed: Value) {
        let mut there = Vec::new();
        for info in pool.volumes().iter().filter(|info| info.snapshot) {
            let made: Value = info.name.strip_prefix("after-").and_then(|text| text.parse().ok()).expect("our name");
            if !self.snapshots.contains_key(&made) {
                assert!(made >= self.next, "snapshot {made} was not there before");
                self.snapshots.insert(made, self.after(made));
            }
            let found = self.read(pool, &info.name);
            let differs = found.iter().zip(&self.snapshots[&made]).position(|(found, wanted)| found != wanted);
            assert_eq!(differs, None, "sector of '{}' that is not what it was", info.name);
            there.push(made);
        }
        let newest = (self.next..=flushed).rev().find(|&value| planned(self.seed, value).snapshot);
        assert!(newest.is_none_or(|newest| there.contains(&newest)), "snapshot {newest:?} is gone: {there:?}");
    }

    /// Returns the number of the write that each sector of a volume holds.
    fn read(&self, pool: &Pool, name: &str) -> Vec<Value> {
        let bytes = read_all(pool, name);
        let value = |(at, sector): (usize, &[u8])| {
            let seen = identify(self.seed, sector);
            seen.value_at(at as u64).unwrap_or_else(|| panic!("'{name}', sector {at}: {seen}"))
        };
        bytes.chunks(SECTOR).enumerate().map(value).collect()
    }
}

fn read_all(pool: &Pool, name: &str) -> Vec<u8> {
    let file: Arc<dyn File> = Arc::new(pool.open_volume(name).expect("it is there"));
    let mut ring = Ring::builder().entries(8).build().expect("a ring");
    let fd = ring.attach_file(file).expect("attached");
    let mut all = Vec::new();
    while all.len() < VOLUME_BYTES as usize {
        let buf = Buf::zeroed(256 << 10, 4096).expect("memory");
        ring.push(prep::read(fd, buf).offset(all.len() as u64)).expect("room");
        ring.submit_and_wait(1).expect("it is read");
        let done = ring.completions().next().expect("one completion");
        let len = done.result().expect("reads succeed") as usize;
        all.extend_from_slice(&done.into_buf().expect("its buffer")[..len]);
    }
    all
}

/// Runs and kills writers of one pool, and verifies the pool after each.
fn rounds(seed: u64) {
    let dir = tempfile::tempdir().expect("a directory");
    let mut killed = Killed::new(seed, &dir.path().join("pool"));
    let mut rng = Rng::new(seed);
    for _ in 0..ROUNDS {
        let flushed = killed.round(Duration::from_millis(rng.below(MAX_LIFE_MS)));
        killed.verify(flushed);
    }
    assert!(killed.next > 50, "the processes got somewhere: to write {}", killed.next);
}

#[test]
fn a_writer_is_killed_at_random_moments_a() {
    sheave_testkit::seeds(1).for_each(|seed| rounds(100 + seed));
}

#[test]
fn a_writer_is_killed_at_random_moments_b() {
    sheave_testkit::seeds(1).for_each(|seed| rounds(200 + seed));
}
