//! One arm at one point: threads with a ring each on one device that counts, and a reader.
//!
//! * A1. The first loop runs on the thread that calls, the others on threads of their own, each pinned to its CPU; all
//!   begin a turn together.
//! * A2. A reading below 0 or above what can be in flight is impossible, and counted.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use sheave::Device;
use sheave::base::sync::atomic::{AtomicBool, Ordering};
use sheave::open_device;
use sheave_load::live::report_histogram;
use sheave_load::{SheaveEngine, cpu};

use super::counters::{Counters, Reading, Way};
use super::counting;
use crate::drive::{self, Drive, until};
use crate::exp::elsewhere::{Elsewhere, MakeOnEnd, OnEnd, Settings};
use crate::experiment::Lab;
use crate::meter::Meter;
use crate::{ArmRun, LabError, Point, Turn, TurnEnd};

/// Bytes of the device.
const SIZE: u64 = 1 << 40;

/// What a thread did in a turn.
struct Done {
    ios: u64,
    latency: Histogram<u64>,
}

/// An arm that is ready.
pub struct InFlightArm {
    drive: Drive,
    crew: Vec<Mate>,
    start: Arc<Barrier>,
    lab: Lab,
    watched: Watched,
    hz: u64,
    elsewhere: Option<Elsewhere>,
}

/// What a reader looks at.
#[derive(Clone)]
pub struct Watched {
    counters: Arc<Counters>,
    device: Device,
    /// Requests that can be in flight.
    most: i64,
}

impl Watched {
    /// What is in flight, as the arm tells it.
    pub fn read(&self) -> Reading {
        self.counters.read(&self.device)
    }

    /// What the tags say.
    pub fn by_tags(&self) -> u32 {
        self.device.in_flight().total()
    }

    /// The counters.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}

/// What readers have seen in a turn.
#[derive(Clone, Copy, Debug, Default)]
struct Readings {
    count: u64,
    ns: u64,
    /// A2.
    impossible: u64,
}

impl InFlightArm {
    /// Builds it on the calling thread.
    pub fn new(lab: &Lab, point: &Point, way: Way) -> Result<InFlightArm, LabError> {
        let hz = point.number("readers").unwrap_or(0);
        let counters = Counters::new(way);
        let (lower, elsewhere) = lower(lab, point, &counters)?;
        let device = counting::over(&lower, &counters, elsewhere.is_none());
        let most = i64::from(point.threads) * i64::from(point.depth);
        let watched = Watched { counters, device, most };
        let start = Arc::new(Barrier::new(point.threads as usize));
        let drive = drive(&watched.device, point, 0)?;
        let mates = (1..point.threads as usize).map(|index| Mate::start(lab, point, &watched, &start, index));
        let crew = mates.collect::<Result<Vec<_>, _>>()?;
        Ok(InFlightArm { drive, crew, start, lab: lab.clone(), watched, hz, elsewhere })
    }

    /// What its readers look at.
    pub fn watched(&self) -> &Watched {
        &self.watched
    }

    fn run_turn(&mut self, end: TurnEnd, turn: &mut Turn) -> Result<Vec<Done>, LabError> {
        let until = until(&self.lab, end, 1 + self.crew.len() as u32);
        for mate in &self.crew {
            mate.begin(end)?;
        }
        let device_ns = self.elsewhere.as_ref().map_or(0, Elsewhere::cpu_ns);
        self.drive.reset();
        let meter = Meter::start();
        self.start.wait();
        let ran = self.drive.run(&until);
        let others: Vec<_> = self.crew.iter().map(Mate::end).collect();
        meter.add(turn);
        let device_ns = self.elsewhere.as_ref().map_or(0, Elsewhere::cpu_ns) - device_ns;
        turn.cpu_ns = turn.cpu_ns.saturating_sub(device_ns);
        let mut all = vec![done(&self.drive, ran?)];
        for other in others {
            all.push(other?);
        }
        Ok(all)
    }
}

/// The device under the counters. One that completes elsewhere counts the ends on its threads.
fn lower(lab: &Lab, point: &Point, counters: &Arc<Counters>) -> Result<(Device, Option<Elsewhere>), LabError> {
    match point.text("ends").unwrap_or("here") {
        "here" => {
            let device = open_device(&format!("null:size={SIZE}")).map_err(|err| LabError::run(err.to_string()))?;
            Ok((device, None))
        }
        "elsewhere" => {
            let counters = counters.clone();
            let on_end: MakeOnEnd = Box::new(move || {
                // Taken on the ring's thread, used on the device's alone.
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

fn drive(device: &Device, point: &Point, index: usize) -> Result<Drive, LabError> {
    let opts = drive::opts(point, device.capabilities().polled);
    let engine = SheaveEngine::new(|ring| ring.attach(device), 1, &opts)?;
    Ok(Drive::new(engine, point, SIZE, index as u64))
}

fn done(drive: &Drive, ios: u64) -> Done {
    let mut latency = report_histogram();
    drive.add_latency(&mut latency);
    Done { ios, latency }
}

/// A thread of the arm's own.
struct Mate {
    begin: Option<Sender<TurnEnd>>,
    end: Receiver<Result<Done, LabError>>,
    thread: Option<JoinHandle<()>>,
}

impl Mate {
    /// Starts it; it is ready when this returns.
    fn start(
        lab: &Lab,
        point: &Point,
        watched: &Watched,
        start: &Arc<Barrier>,
        index: usize,
    ) -> Result<Mate, LabError> {
        let (begin, turns) = channel::<TurnEnd>();
        let (tell, end) = channel();
        let (lab, point, device, start) = (lab.clone(), point.clone(), watched.device.clone(), start.clone());
        let work = move || {
            let made = cpu::pin(lab.cpu(index)).and_then(|()| drive(&device, &point, index));
            let mut drive = match made {
                Ok(drive) => drive,
                Err(err) => return drop(tell.send(Err(err))),
            };
            if tell.send(Ok(done(&drive, 0))).is_err() {
                return;
            }
            for turn in turns {
                let until = until(&lab, turn, point.threads);
                drive.reset();
                start.wait();
                let ran = drive.run(&until).map(|ios| done(&drive, ios));
                if tell.send(ran).is_err() {
                    return;
                }
            }
        };
        let started = std::thread::Builder::new().name(format!("lab-{index}")).spawn(work);
        let thread = started.map_err(|err| LabError::run(format!("cannot start thread {index}: {err}")))?;
        let mate = Mate { begin: Some(begin), end, thread: Some(thread) };
        mate.end()?;
        Ok(mate)
    }

    fn begin(&self, end: TurnEnd) -> Result<(), LabError> {
        let sent = self.begin.as_ref().map(|begin| begin.send(end));
        sent.and_then(Result::ok).ok_or_else(|| LabError::run("a thread of the experiment has gone"))
    }

    fn end(&self) -> Result<Done, LabError> {
        self.end.recv().unwrap_or_else(|_| Err(LabError::run("a thread of the experiment has gone")))
    }
}

impl Drop for Mate {
    fn drop(&mut self) {
        self.begin = None;
        if let Some(thread) = self.thread.take() {
            // What it had to say it has said.
            let _ = thread.join();
        }
    }
}

/// Reads at a rate until told to stop.
fn read_at(watched: &Watched, hz: u64, cpu: usize, stop: &AtomicBool) -> Readings {
    let mut seen = Readings::default();
    // On another CPU it reads as right.
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
        // Relaxed: the flag carries nothing but itself. After a reading, so that there is one in the shortest turn.
        if stop.load(Ordering::Relaxed) {
            return seen;
        }
        std::thread::park_timeout(due.saturating_duration_since(Instant::now()));
    }
}

impl ArmRun for InFlightArm {
    fn turn(&mut self, end: TurnEnd) -> Result<Turn, LabError> {
        let mut turn = Turn::default();
        let (hz, watched, stop) = (self.hz, self.watched.clone(), AtomicBool::new(false));
        let cpu = self.lab.cpu(1 + self.crew.len());
        let (all, seen) = std::thread::scope(|scope| {
            let reader = (hz > 0).then(|| scope.spawn(|| read_at(&watched, hz, cpu, &stop)));
            let all = self.run_turn(end, &mut turn);
            // Relaxed: the flag carries nothing but itself; `read_at` loads it.
            stop.store(true, Ordering::Relaxed);
            let seen = reader.and_then(|reader| {
                reader.thread().unpark();
                reader.join().ok()
            });
            (all, seen)
        });
        let mut latency = report_histogram();
        for done in all? {
            turn.ios += done.ios;
            // The same bounds, so nothing is lost.
            let _ = latency.add(&done.latency);
        }
        turn.latency = Some(latency);
        if let Some(seen) = seen.filter(|seen| seen.count > 0) {
            turn.gauges.insert("ns_per_reading", seen.ns as f64 / seen.count as f64);
            turn.gauges.insert("readings", seen.count as f64);
            turn.gauges.insert("impossible_readings", seen.impossible as f64);
        }
        Ok(turn)
    }
}
