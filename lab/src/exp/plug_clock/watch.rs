//! Measures the age of stamps. A file records the time at which each request is made, and a device under it compares
//! that time with the stamp of the request.
//!
//! The age of a stamp is its error: statistics count a latency from the stamp, not from the request.
//!
//! * W1. A request is identified by its first sector, because the file maps each offset to the same offset of the
//!   device and nothing is merged.
//! * W2. Ring, file and device use the same clock.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;
use sheave::{Capabilities, Device, DeviceError, Ring};
use sheave_base::clock::{Clock, CoarseTs, VirtualClock};
use sheave_base::status::Status;
use sheave_blk::driver::{Driver, HctxOpen, HwEnv, HwQueue, NextEvent, TimedOut};
use sheave_blk::limits::Limits;
use sheave_blk::request::{DoneList, RqList, RqTable};
use sheave_iomap::mapping::Intent;
use sheave_iomap::{File, Mapping, MappingKind};
use sheave_load::SheaveEngine;
use sheave_load::live::report_histogram;

use super::design::aged;
use crate::drive::{self, Drive, until};
use crate::experiment::{ArmRun, Lab, Turn, TurnEnd};
use crate::meter::Meter;
use crate::{LabError, Point};

/// Size of the device in bytes: so large that a batch rarely has neighbours, which would be merged.
const SIZE: u64 = 1 << 40;

/// The clock of a run, and the way in which time passes while the file makes a request.
#[derive(Clone, Debug)]
pub enum Time {
    /// The processor's clock. The file spins until the given time has passed.
    Real,
    /// A virtual clock that the file advances by the given time.
    Virtual(Clock, VirtualClock),
}

impl Time {
    fn clock(&self) -> Clock {
        match self {
            Time::Real => Clock::real(),
            Time::Virtual(clock, _) => clock.clone(),
        }
    }
}

/// What the file and the device record about requests, shared by both.
#[derive(Debug)]
struct Seen {
    /// Time at which the file mapped each request that has not reached the device yet, by first sector.
    made: HashMap<u64, CoarseTs>,
    ages: Histogram<u64>,
    /// Number of requests that reached the device and have no entry in `made`.
    unknown: u64,
}

type SeenByAll = Arc<Mutex<Seen>>;

fn lock(seen: &SeenByAll) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file that maps every offset to itself, takes `work` for each mapping, and records the time.
#[derive(Debug)]
struct Slow {
    device: Device,
    seen: SeenByAll,
    clock: Clock,
    time: Time,
    work: Duration,
}

impl File for Slow {
    fn device(&self) -> &Device {
        &self.device
    }

    fn size_bytes(&self) -> u64 {
        SIZE
    }

    fn map(&self, pos: u64, len: u64, _: Intent) -> Result<Mapping, Status> {
        match &self.time {
            Time::Virtual(_, hand) => hand.advance(self.work),
            Time::Real => {
                let (start, span) = (self.clock.cycles(), self.clock.ns_to_cycles(self.work.as_nanos() as u64));
                while self.clock.cycles().wrapping_sub(start) < span {
                    std::hint::spin_loop();
                }
            }
        }
        lock(&self.seen).made.insert(pos >> 9, self.clock.coarse());
        Ok(Mapping::new(MappingKind::Mapped, pos, len, pos))
    }
}

/// A device that ends each request on submission, like `null:` does, and records the age of its stamp.
#[derive(Debug)]
struct Watching(SeenByAll);

#[allow(unsafe_code)] // An unsafe trait: its implementer vouches for the memory of the requests.
// SAFETY: D7: its queues accept all requests that its limits allow.
unsafe impl Driver for Watching {
    fn limits(&self) -> Limits {
        Limits::default().logical_block(512).queue_depth(1024)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default().polled(true).direct_io(true)
    }

    fn size_bytes(&self) -> u64 {
        SIZE
    }

    fn open_hctx(&self, _: &mut HctxOpen<'_>) -> Result<Box<dyn HwQueue>, DeviceError> {
        Ok(Box::new(Watching(self.0.clone())))
    }
}

#[allow(unsafe_code)] // An unsafe trait: its implementer vouches for the memory of the requests.
// SAFETY: D1 to D6: each request ends once, where it came, and its memory is not touched afterwards.
unsafe impl HwQueue for Watching {
    fn queue_rqs(&mut self, list: &mut RqList, rqs: &mut RqTable<'_>, _: &mut HwEnv<'_>, done: &mut DoneList) {
        let mut seen = lock(&self.0);
        while let Some(rq) = list.pop() {
            let (sector, stamp) = (rqs.get(&rq).sector, rqs.get(&rq).issued_at());
            match seen.made.remove(&sector) {
                Some(made) => seen.ages.saturating_record(made.ns_since(stamp)),
                None => seen.unknown += 1,
            }
            done.push(rq, Status::Ok);
        }
    }

    fn poll(&mut self, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) {}

    fn next_event(&self) -> NextEvent {
        NextEvent::Idle
    }

    fn timed_out(&mut self, _: u16, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) -> TimedOut {
        TimedOut::Waiting
    }

    fn shutdown(&mut self, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) {}
}

/// Ages of stamps, in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ages {
    /// Median.
    pub p50: u64,
    /// 99th percentile.
    pub p99: u64,
    /// Maximum.
    pub max: u64,
    /// Number of stamps.
    pub count: u64,
}

impl Ages {
    /// Adds the ages to the gauges of a turn.
    pub fn show(self, turn: &mut Turn) {
        turn.gauges.insert("stamp_age_p50_ns", self.p50 as f64);
        turn.gauges.insert("stamp_age_p99_ns", self.p99 as f64);
        turn.gauges.insert("stamp_age_max_ns", self.max as f64);
    }
}

/// An arm that measures the age of its stamps.
pub struct WatchedArm {
    drive: Drive,
    seen: SeenByAll,
    lab: Lab,
}

impl WatchedArm {
    /// Builds an arm in which making a request takes `work` ns longer, in real time.
    pub fn new(lab: &Lab, arm: usize, point: &Point, work: u64) -> Result<WatchedArm, LabError> {
        WatchedArm::in_time(lab, arm, point, Duration::from_nanos(work), Time::Real)
    }

    /// Builds an arm in which making a request takes `work` longer, in real or virtual time.
    pub fn in_time(lab: &Lab, arm: usize, point: &Point, work: Duration, time: Time) -> Result<WatchedArm, LabError> {
        let seen = Seen { made: HashMap::new(), ages: report_histogram(), unknown: 0 };
        let seen = Arc::new(Mutex::new(seen));
        let device = Device::from_driver("watching", Box::new(Watching(seen.clone())));
        let clock = time.clock();
        let file = Arc::new(Slow { device, seen: seen.clone(), clock: clock.clone(), time, work });
        let opts = drive::opts(point, true);
        let attach = |ring: &mut Ring| ring.attach_file(file.clone());
        let engine = SheaveEngine::built(aged(opts.ring(1), arm).clock(clock), attach, &opts)?;
        Ok(WatchedArm { drive: Drive::new(engine, point, SIZE, 1), seen, lab: lab.clone() })
    }

    /// Returns the ages of the last turn's stamps.
    pub fn ages(&self) -> Ages {
        let seen = lock(&self.seen);
        let at = |share| seen.ages.value_at_quantile(share);
        Ages { p50: at(0.5), p99: at(0.99), max: seen.ages.max(), count: seen.ages.len() }
    }

    /// Returns the number of requests that reached the device and that the file had not recorded. W1 makes that 0.
    pub fn unknown(&self) -> u64 {
        lock(&self.seen).unknown
    }
}

impl ArmRun for WatchedArm {
    fn turn(&mut self, end: TurnEnd) -> Result<Turn, LabError> {
        lock(&self.seen).ages.reset();
        let mut turn = Turn::default();
        self.drive.reset();
        let meter = Meter::start();
        turn.ios = self.drive.run(&until(&self.lab, end, 1))?;
        meter.add(&mut turn);
        self.ages().show(&mut turn);
        Ok(turn)
    }
}
