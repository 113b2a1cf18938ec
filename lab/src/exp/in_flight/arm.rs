//! One arm at one point: threads with a ring each on one device that counts, and a reader.
//!
//! * A1. The threads are a [`Crew`]: they begin a turn together, and the turn ends when no thread has anything in
//!   flight any more.
//! * A2. A reading below 0 or above the number of requests that can be in flight is impossible, and is counted as such.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sheave::Device;
use sheave::open_device;
use sheave_base::sync::atomic::{AtomicBool, Ordering};
use sheave_load::{SheaveEngine, cpu};

use super::counting;
use crate::counters::{Counters, Reading};
use crate::crew::{Crew, MakeDrive};
use crate::drive::{self, Drive};
use crate::exp::elsewhere::{Elsewhere, MakeOnEnd, OnEnd, Settings};
use crate::experiment::Lab;
use crate::{ArmRun, LabError, Point, Turn, TurnEnd};

const SIZE: u64 = 1 << 40;

/// A built arm.
pub struct InFlightArm {
    crew: Crew,
    watched: Watched,
    /// The CPU of the reader: the first one after those of the loops.
    reader_cpu: usize,
    hz: u64,
    elsewhere: Option<Elsewhere>,
}

/// The counters and the device that a reader reads.
#[derive(Clone)]
pub struct Watched {
    counters: Arc<Counters>,
    device: Device,
    /// Largest number of requests that can be in flight.
    most: i64,
}

impl Watched {
    /// Returns the numbers of requests in flight according to the counters of the arm.
    pub fn read(&self) -> Reading {
        self.counters.read(&self.device)
    }

    /// Returns the number of requests in flight according to the busy tags.
    pub fn by_tags(&self) -> u32 {
        self.device.in_flight().total()
    }

    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}

/// Results of the readings of a turn.
#[derive(Clone, Copy, Debug, Default)]
struct Readings {
    count: u64,
    ns: u64,
    /// Number of readings below 0 or above the possible maximum (A2).
    impossible: u64,
}

impl InFlightArm {
    /// Builds an arm on the calling thread.
    pub fn new(lab: &Lab, point: &Point, counters: Arc<Counters>) -> Result<InFlightArm, LabError> {
        let hz = point.number("readers").unwrap_or(0);
        let (lower, elsewhere) = lower(lab, point, &counters)?;
        let device = counting::over(&lower, &counters, elsewhere.is_none());
        let most = i64::from(point.threads) * i64::from(point.depth);
        let watched = Watched { counters, device, most };
        let (device, place) = (watched.device.clone(), point.clone());
        let make: MakeDrive = Arc::new(move |index| {
            let opts = drive::opts(&place, device.capabilities().polled);
            let engine = SheaveEngine::new(|ring| ring.attach(&device), 1, &opts)?;
            Ok(Drive::new(engine, &place, SIZE, index as u64))
        });
        let crew = Crew::new(lab, point, &make)?;
        watched.counters.watch(Some(&watched.device));
        let reader_cpu = lab.cpu(point.threads as usize);
        Ok(InFlightArm { crew, watched, reader_cpu, hz, elsewhere })
    }

    pub fn watched(&self) -> &Watched {
        &self.watched
    }

    /// Adds the readings in the I/O path since `before`, and the requests that they saw, to the gauges of the turn.
    fn note_in_path(&self, before: (u64, u64), turn: &mut Turn) {
        let (readings, seen) = self.watched.counters.readings_in_path();
        if readings > before.0 {
            let count = (readings - before.0) as f64;
            turn.gauges.insert("readings_in_path", count);
            turn.gauges.insert("seen_in_path", (seen - before.1) as f64 / count);
        }
    }

    /// Runs a turn of the threads. The CPU time in its result is without that of the device's own threads.
    fn run_turn(&mut self, end: TurnEnd) -> Result<Turn, LabError> {
        let device_ns = |elsewhere: &Option<Elsewhere>| elsewhere.as_ref().map_or(0, Elsewhere::cpu_ns);
        let before = device_ns(&self.elsewhere);
        let mut turn = self.crew.turn(end)?;
        turn.cpu_ns = turn.cpu_ns.saturating_sub(device_ns(&self.elsewhere) - before);
        Ok(turn)
    }
}

/// Makes the device under the counters. If I/O ends elsewhere, the device counts the ends on its own threads.
fn lower(lab: &Lab, point: &Point, counters: &Arc<Counters>) -> Result<(Device, Option<Elsewhere>), LabError> {
    match point.text("ends").unwrap_or("here") {
        "here" => {
            let device = open_device(&format!("null:size={SIZE}")).map_err(|err| LabError::run(err.to_string()))?;
            Ok((device, None))
        }
        "elsewhere" => {
            let counters = counters.clone();
            let on_end: MakeOnEnd = Box::new(move || {
                // The seat is made on the ring's thread, and then used only on the device's thread.
                let mut seat = counters.seat();
                Box::new(move |op| seat.end(op)) as OnEnd
            });
            let threads = point.threads as usize;
            let cpus: Vec<usize> = (0..threads).map(|index| lab.cpu(threads + index)).collect();
            let alone = lab.cpus.len() >= 2 * threads;
            let settings = Settings { size: SIZE, latency: Duration::ZERO, cpus, alone, on_end };
            let elsewhere = Elsewhere::new(settings);
            Ok((elsewhere.device.clone(), Some(elsewhere)))
        }
        other => Err(LabError::usage(format!("ends={other} in the point {point}")).fix("ends= is here or elsewhere")),
    }
}

/// Reads `hz` times a second until `stop` is set.
fn read_at(watched: &Watched, hz: u64, cpu: usize, stop: &AtomicBool) -> Readings {
    let mut seen = Readings::default();
    // If the pin is refused, the reader runs on another CPU, where its readings are as valid.
    let _ = cpu::pin(cpu);
    let period = Duration::from_nanos(1_000_000_000 / hz.max(1));
    let mut due = Instant::now();
    loop {
        let start = Instant::now();
        if start >= due {
            let total = watched.read().total();
            seen.ns += start.elapsed().as_nanos() as u64;
            seen.count += 1;
            seen.impossible += u64::from(total < 0 || total > watched.most);
            due += period;
        }
        // Relaxed: the flag carries nothing but itself. It is tested after a reading, so that even the shortest turn
        // has one.
        if stop.load(Ordering::Relaxed) {
            return seen;
        }
        std::thread::park_timeout(due.saturating_duration_since(Instant::now()));
    }
}

impl Drop for InFlightArm {
    fn drop(&mut self) {
        // The device holds the counters, so without this the counters and the device would keep each other alive.
        self.watched.counters.watch(None);
    }
}

impl ArmRun for InFlightArm {
    fn turn(&mut self, end: TurnEnd) -> Result<Turn, LabError> {
        let (hz, watched, stop, cpu) = (self.hz, self.watched.clone(), AtomicBool::new(false), self.reader_cpu);
        let in_path = self.watched.counters.readings_in_path();
        let (turn, seen) = std::thread::scope(|scope| {
            let reader = (hz > 0).then(|| scope.spawn(|| read_at(&watched, hz, cpu, &stop)));
            let turn = self.run_turn(end);
            // Relaxed: the flag carries nothing but itself; `read_at` loads it.
            stop.store(true, Ordering::Relaxed);
            let seen = reader.and_then(|reader| {
                reader.thread().unpark();
                reader.join().ok()
            });
            (turn, seen)
        });
        let mut turn = turn?;
        self.note_in_path(in_path, &mut turn);
        if let Some(seen) = seen.filter(|seen| seen.count > 0) {
            turn.gauges.insert("ns_per_reading", seen.ns as f64 / seen.count as f64);
            turn.gauges.insert("readings", seen.count as f64);
            turn.gauges.insert("impossible_readings", seen.impossible as f64);
        }
        Ok(turn)
    }
}
