//! Latency of overwrites of a thin volume while its pool is busy. The overwrites go to 4 KiB at random places, at a
//! fixed rate. Meanwhile the pool makes checkpoints, punched holes, and a snapshot each second.
//!
//! ```sh
//! cargo run --release --example pauses -- ram:size=4G 50000 10
//! ```
//!
//! The latency of an overwrite counts from the moment when it was due, not from its submission, so that a pause counts
//! for each I/O that should have begun in it. The first write to a unit after a snapshot copies the unit; it is counted
//! separately, as are the writes to that unit until the copy has ended.
//!
//! * P1: one thread sends the overwrites and polls for them; nothing else runs on it.
//! * P2: copying overwrites have a ring, entries and buffers of their own, so that no other ever waits for an entry of
//!   a copy. An overwrite that finds no free entry waits in a queue of its ring, and its time continues.

use std::collections::VecDeque;
use std::error::Error;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use sheave::volumes::{CreateOptions, LowWater, OpenOptions, Pool, Volume};
use sheave::{Buf, Fd, Ring, op, open_device};
use sheave_base::rng::Rng;
use sheave_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const USAGE: &str = "usage: pauses SPEC [RATE] [SECONDS]    such as: pauses ram:size=4G 50000 10";
const BLOCK: u64 = 4096;
const UNIT: u64 = 65536;
/// Bytes of the overwritten range: 4,096 units, each of which is copied after a snapshot.
const RANGE: u64 = 256 << 20;
/// Bytes after that range in which holes are punched.
const HOLES: u64 = 64 << 20;
const DEPTH: usize = 256;
const SNAPSHOT_EVERY: Duration = Duration::from_secs(1);
const CHECKPOINT_EVERY: Duration = Duration::from_millis(100);
const PUNCH_EVERY: Duration = Duration::from_millis(10);

/// An overwrite.
#[derive(Clone, Copy)]
struct Flight {
    due: Instant,
    pos: u64,
    /// Number of the newest snapshot if the unit was not copied since that snapshot, so that the overwrite copies the
    /// unit or waits for its copy; else 0.
    copies: u64,
}

impl Flight {
    fn unit(&self) -> usize {
        (self.pos / UNIT) as usize
    }
}

/// Latencies, in nanoseconds.
#[derive(Default)]
struct Latencies(Vec<u64>);

impl Latencies {
    fn share(&mut self, share: f64) -> Duration {
        self.0.sort_unstable();
        let at = (self.0.len() as f64 * share) as usize;
        Duration::from_nanos(self.0.get(at.min(self.0.len().saturating_sub(1))).copied().unwrap_or(0))
    }

    fn print(&mut self, what: &str) {
        let [half, p99, p999, worst] = [0.5, 0.99, 0.999, 1.0].map(|share| self.share(share));
        println!("{what:34} {:>9}  {half:>10.1?}  {p99:>10.1?}  {p999:>10.1?}  {worst:>10.1?}", self.0.len());
    }
}

struct Shared {
    pool: Pool,
    volume: Volume,
    /// Number of snapshots that have begun.
    snapshots: AtomicU64,
    stop: AtomicBool,
}

impl Shared {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    /// Runs a job at fixed times until the end. Returns the time that each run took.
    fn every(&self, period: Duration, mut job: impl FnMut(u64) -> Result<(), Box<dyn Error>>) -> Latencies {
        let (begun, mut took) = (Instant::now(), Latencies::default());
        for number in 1.. {
            let due = begun + period * number as u32;
            while self.goes_on() && Instant::now() < due {
                thread::sleep((due - Instant::now()).min(Duration::from_millis(5)));
            }
            if !self.goes_on() {
                break;
            }
            let start = Instant::now();
            if let Err(error) = job(number) {
                eprintln!("pauses: {error}");
                self.stop.store(true, Ordering::Relaxed);
            }
            took.0.push(start.elapsed().as_nanos() as u64);
        }
        took
    }
}

fn ring_of(volume: &Volume) -> Result<(Ring, Fd), Box<dyn Error>> {
    let mut ring = Ring::builder().entries(DEPTH as u32).polled(true).build()?;
    let fd = ring.attach_file(Arc::new(volume.clone()))?;
    Ok((ring, fd))
}

/// Writes the whole range once, so that later writes are overwrites.
fn fill(volume: &Volume) -> Result<(), Box<dyn Error>> {
    let (mut ring, fd) = ring_of(volume)?;
    for unit in 0..(RANGE / UNIT) {
        ring.push(op::write(fd, Buf::zeroed(UNIT as usize, 4096)?).offset(unit * UNIT))?;
        ring.submit_and_wait(1)?;
        ring.completions().try_for_each(|done| done.result().map(drop))?;
    }
    Ok(())
}

/// Overwrites of one kind, with a ring of their own (P2).
struct Lane {
    ring: Ring,
    fd: Fd,
    bufs: Vec<Buf>,
    flights: Vec<Option<Flight>>,
    free: Vec<usize>,
    /// Overwrites that are due and have no entry yet.
    waiting: VecDeque<Flight>,
    found: Latencies,
}

impl Lane {
    fn new(volume: &Volume) -> Result<Lane, Box<dyn Error>> {
        let (ring, fd) = ring_of(volume)?;
        let bufs = (0..DEPTH).map(|_| Buf::zeroed(BLOCK as usize, 4096)).collect::<Result<_, _>>()?;
        let (flights, free) = (vec![None; DEPTH], (0..DEPTH).collect());
        Ok(Lane { ring, fd, bufs, flights, free, waiting: VecDeque::new(), found: Latencies::default() })
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.free.len() == DEPTH
    }

    /// Sends waiting overwrites while there are entries.
    fn send(&mut self) -> Result<(), Box<dyn Error>> {
        let mut sent = false;
        while !self.waiting.is_empty()
            && let (Some(slot), Some(buf)) = (self.free.pop(), self.bufs.pop())
            && let Some(flight) = self.waiting.pop_front()
        {
            self.flights[slot] = Some(flight);
            self.ring.push(op::write(self.fd, buf).offset(flight.pos).user_data(slot as u64))?;
            sent = true;
        }
        if sent {
            self.ring.submit()?;
        }
        Ok(())
    }

    /// Takes completions, and calls `seen` with each overwrite.
    fn reap(&mut self, mut seen: impl FnMut(&Flight)) -> Result<(), Box<dyn Error>> {
        self.ring.reap();
        let ended = Instant::now();
        for done in self.ring.completions() {
            done.result()?;
            let slot = done.user_data as usize;
            let flight = self.flights[slot].take().ok_or("a completion of nothing")?;
            self.found.0.push((ended - flight.due).as_nanos() as u64);
            seen(&flight);
            self.free.push(slot);
            self.bufs.extend(done.into_buf());
        }
        Ok(())
    }
}

/// Runs `rate` overwrites a second for `length`. Returns the latencies of overwrites that copy nothing, and of all
/// others.
fn overwrite(shared: &Shared, rate: u64, length: Duration) -> Result<[Latencies; 2], Box<dyn Error>> {
    let mut lanes = [Lane::new(&shared.volume)?, Lane::new(&shared.volume)?];
    // Number of the newest snapshot that each unit was copied for.
    let mut copied = vec![0; (RANGE / UNIT) as usize];
    let (mut rng, start, total) = (Rng::new(1), Instant::now(), rate * length.as_secs());
    let due = |number: u64| start + Duration::from_nanos((number as f64 * 1e9 / rate as f64) as u64);
    let mut next = 0;
    while (next < total && shared.goes_on()) || !lanes.iter().all(Lane::is_idle) {
        let now = Instant::now();
        while next < total && due(next) <= now {
            let mut flight = Flight { due: due(next), pos: rng.below(RANGE / BLOCK) * BLOCK, copies: 0 };
            let newest = shared.snapshots.load(Ordering::Relaxed);
            if copied[flight.unit()] < newest {
                flight.copies = newest;
            }
            lanes[usize::from(flight.copies > 0)].waiting.push_back(flight);
            next += 1;
        }
        for lane in &mut lanes {
            lane.send()?;
            lane.reap(|flight| copied[flight.unit()] = flight.copies.max(copied[flight.unit()]))?;
        }
    }
    Ok(lanes.map(|lane| lane.found))
}

/// Repeatedly writes a unit after the range, and punches it out again.
fn punch(shared: &Shared) -> Result<Latencies, Box<dyn Error>> {
    let (mut ring, fd) = ring_of(&shared.volume)?;
    Ok(shared.every(PUNCH_EVERY, |number| {
        let pos = RANGE + number * UNIT % HOLES;
        ring.push(op::write(fd, Buf::zeroed(UNIT as usize, 4096)?).offset(pos).link())?;
        ring.push(op::punch_hole(fd, pos, UNIT))?;
        ring.submit_and_wait(2)?;
        Ok(ring.completions().try_for_each(|done| done.result().map(drop))?)
    }))
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let spec = args.first().ok_or(USAGE)?;
    let number = |at: usize, or: u64| args.get(at).map_or(Ok(or), |text| text.parse().map_err(|_| USAGE));
    let (rate, seconds) = (number(1, 50_000)?.max(1), number(2, 10)?);
    let device = open_device(spec)?;
    Pool::create(&device, &CreateOptions::default())?;
    let pool = Pool::open(&device, &OpenOptions::default())?;
    let volume = pool.create_volume("v", RANGE + HOLES)?;
    fill(&volume)?;
    pool.sync()?;
    let shared = Shared { pool, volume, snapshots: AtomicU64::new(0), stop: AtomicBool::new(false) };
    let (found, beside) = thread::scope(|scope| {
        let shared = &shared;
        let snapshots = scope.spawn(|| {
            shared.every(SNAPSHOT_EVERY, |number| {
                shared.snapshots.fetch_add(1, Ordering::Relaxed);
                shared.pool.snapshot("v", &format!("s{number}"))?;
                if number > 1 {
                    shared.pool.delete(&format!("s{}", number - 1))?;
                }
                Ok(())
            })
        });
        let checkpoints = scope.spawn(|| {
            // A new mark changes the superblock, which takes a checkpoint.
            shared.every(CHECKPOINT_EVERY, |number| Ok(shared.pool.set_low_water(LowWater::Bytes(4096 * number))?))
        });
        let holes = scope.spawn(|| punch(shared).map_err(|error| error.to_string()));
        let found = overwrite(shared, rate, Duration::from_secs(seconds)).map_err(|error| error.to_string());
        shared.stop.store(true, Ordering::Relaxed);
        (found, (snapshots.join(), checkpoints.join(), holes.join()))
    });
    let [mut plain, mut copies] = found?;
    let failed = |_| "a thread has panicked";
    println!("{:34} {:>9}  {:>10}  {:>10}  {:>10}  {:>10}", "", "count", "median", "p99", "p99.9", "worst");
    plain.print("overwrites");
    copies.print("overwrites that copy, or wait for it");
    beside.0.map_err(failed)?.print("snapshot, and a delete");
    beside.1.map_err(failed)?.print("checkpoint");
    beside.2.map_err(failed)??.print("write of 64 KiB, and a hole");
    Ok(())
}
