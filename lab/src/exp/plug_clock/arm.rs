//! One arm at one point: threads with a ring each on a null device. The arm sets the bound on the age of a stamp.
//!
//! * A1. Device, ring and loop are the same in every arm except for the bound on the age of a stamp and the reading for
//!   each request.
//! * A2. Readings of the clock are counted before the first turn, on a ring with a counting clock. The measured rings
//!   have the real clock.

use std::sync::Arc;

use sheave::{Ring, open_device};
use sheave_base::clock::Clock;
use sheave_load::SheaveEngine;

use super::design::aged;
use super::watch;
use crate::crew::{Crew, MakeDrive};
use crate::drive::{self, Drive, until};
use crate::experiment::{ArmRun, Lab, Turn, TurnEnd};
use crate::{LabError, Point};

/// Number of I/Os whose readings are counted, after the same number of I/Os that warm up.
const COUNTED: u64 = 8192;
const DEVICE: &str = "null:size=1T";

/// Numbers of readings of the clock per I/O.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reads {
    /// Number of readings for time stamps, of requests and of batches of completions.
    pub clock: f64,
    /// Number of readings of the cycle counter that check the age of a stamp.
    pub age: f64,
}

/// A built arm.
pub struct ClockArm {
    crew: Crew,
    reads: Reads,
    ages: watch::Ages,
}

impl ClockArm {
    /// Builds an arm on the calling thread.
    pub fn new(lab: &Lab, arm: usize, point: &Point) -> Result<ClockArm, LabError> {
        let reads = count(lab, arm, point)?;
        // This measures the age of stamps with no added work per request.
        let mut watched = watch::WatchedArm::new(lab, arm, point, 0)?;
        watched.turn(TurnEnd::Ios(COUNTED))?;
        let ages = watched.ages();
        drop(watched);
        let device = open_device(DEVICE).map_err(|err| LabError::run(err.to_string()))?;
        let place = point.clone();
        let make: MakeDrive = Arc::new(move |index| {
            let opts = drive::opts(&place, true);
            let attach = |ring: &mut Ring| ring.attach(&device);
            let engine = SheaveEngine::built(aged(opts.ring(1), arm), attach, &opts)?;
            Ok(Drive::new(engine, &place, device.size_bytes(), 1 + index as u64))
        });
        Ok(ClockArm { crew: Crew::new(lab, point, &make)?, reads, ages })
    }
}

impl ArmRun for ClockArm {
    fn turn(&mut self, end: TurnEnd) -> Result<Turn, LabError> {
        let mut turn = self.crew.turn(end)?;
        let ios = turn.ios as f64;
        turn.counters.insert("clock_reads", self.reads.clock * ios);
        turn.counters.insert("age_looks", self.reads.age * ios);
        self.ages.show(&mut turn);
        Ok(turn)
    }
}

/// Counts the readings of an arm per I/O (A2).
pub fn count(lab: &Lab, arm: usize, point: &Point) -> Result<Reads, LabError> {
    let (clock, time) = Clock::virtual_clock();
    let device = open_device(DEVICE).map_err(|err| LabError::run(err.to_string()))?;
    let opts = drive::opts(point, true);
    let attach = |ring: &mut Ring| ring.attach(&device);
    let engine = SheaveEngine::built(aged(opts.ring(1), arm).clock(clock), attach, &opts)?;
    let mut drive = Drive::new(engine, point, device.size_bytes(), 1);
    let until = until(lab, TurnEnd::Ios(COUNTED), 1);
    drive.run(&until)?;
    let before = (time.reads(), time.looks());
    let ios = drive.run(&until)? as f64;
    Ok(Reads { clock: (time.reads() - before.0) as f64 / ios, age: (time.looks() - before.1) as f64 / ios })
}
