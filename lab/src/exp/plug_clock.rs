//! Experiment plug-clock: the clock is read either for the stamp of each request, or once for all requests of a batch.
//!
//! Owns the points. Each arm is a ring with its own bound on the age of a shared stamp ([`RingBuilder::stamp_age`]), or
//! one that reads the clock for each request and discards the result. So the arms differ only in the readings. Each
//! batch of completions has one stamp in all arms, like in the kernel before and after the patch.
//!
//! | module | holds |
//! |---|---|
//! | [`design`] | the arms, and the claim of the mailing-list thread |
//! | [`arm`] | a built arm, ready for turns |
//! | [`watch`] | a file and a device that measure the age of stamps |
//! | [`checks`], [`verdict`] | proofs that the arms differ as described; conclusions from the figures |
//!
//! [`RingBuilder::stamp_age`]: sheave::RingBuilder::stamp_age

use crate::experiment::{ArmRun, Experiment, HeadlineRow, Lab, Sweep, SweepPoint};
use crate::point::{Parameter, Values};
use crate::report::{ExperimentReport, Verdict};
use crate::terms::{ArmInfo, Axis, AxisScale, Check, Metric, Published, Scale, Seed};
use crate::{LabError, Point};
use design::{ARMS, ROW};

pub mod arm;
mod checks;
mod design;
mod verdict;
pub mod watch;

/// Medians of the published I/Os a second, before and after.
const PUBLISHED: (f64, f64) = (108.40e6, 115.555e6);

/// The 99th percentile of the age of stamps.
const AGE_P99: Metric =
    Metric { name: "stamp_age_p99_ns", label: "age of the stamp, 99 %", unit: "ns", more_is_better: false };

#[derive(Debug)]
pub struct PlugClock;

/// Returns a point at which the file takes `work_ns` to map each request.
fn slow(work_ns: u32) -> Point {
    Point::default().with("work", u64::from(work_ns))
}

/// Returns the sweep of stamp ages over the time that each request takes to make.
fn ages(scale: Scale) -> Sweep {
    let works: &[u32] = match scale {
        Scale::Quick => &[100, 10_000],
        Scale::Full => &[100, 1_000, 3_000, 10_000, 30_000],
    };
    Sweep {
        name: "age",
        title: "Age of a request's stamp, by the time it takes to make one (QD 128, batch 32)",
        axis: Axis { label: "time for each request", unit: "ns", scale: AxisScale::Log2 },
        points: works.iter().map(|&work| SweepPoint::at(work, slow(work))).collect(),
        arms: Vec::new(),
        metric: Some(AGE_P99),
    }
}

fn batches(scale: Scale) -> Sweep {
    let batches: &[u32] = match scale {
        Scale::Quick => &[1, 8],
        Scale::Full => &[1, 2, 4, 8, 16, 32, 64, 128],
    };
    Sweep {
        name: "batch",
        title: "I/Os handed over at once (QD 128)",
        axis: Axis { label: "batch", unit: "I/Os", scale: AxisScale::Log2 },
        points: batches.iter().map(|&batch| SweepPoint::at(batch, Point { batch, ..Point::default() })).collect(),
        arms: Vec::new(),
        metric: None,
    }
}

fn threads(lab: &Lab) -> Sweep {
    let cores = lab.cpus.len() as u32;
    let mut counts: Vec<u32> = (0..).map(|n| 1 << n).take_while(|&n| n <= cores).collect();
    if counts.last() != Some(&cores) {
        counts.push(cores);
    }
    Sweep {
        name: "threads",
        title: "Threads, a ring each (QD 128, batch 32)",
        axis: Axis { label: "threads", unit: "", scale: AxisScale::Log2 },
        points: counts.iter().map(|&threads| SweepPoint::at(threads, Point { threads, ..Point::default() })).collect(),
        arms: Vec::new(),
        metric: None,
    }
}

impl Experiment for PlugClock {
    fn id(&self) -> &'static str {
        "plug-clock"
    }

    fn title(&self) -> &'static str {
        "Cached time in the plug"
    }

    fn seed(&self) -> Seed {
        Seed {
            subject: "[PATCH 2/2] block: cache current nsec time in struct blk_plug",
            author: "Jens Axboe",
            date: "2024-01-15",
            message_id: "20240115215840.54432-3-axboe@kernel.dk",
            command: "\"a basic peak IOPS test case with iostats enabled\"; by its output t/io_uring, 512 B, batch 32",
            machine: "not named; 108 million IOPS are many drives and threads",
        }
    }

    fn arms(&self) -> &'static [ArmInfo] {
        &ARMS
    }

    fn headline(&self) -> Vec<HeadlineRow> {
        let (before, after) = PUBLISHED;
        let published = Published { before, after, change_percent: (after / before - 1.0) * 100.0 };
        vec![HeadlineRow { label: ROW.into(), point: Point::default(), published: Some(published) }]
    }

    fn sweeps(&self, lab: &Lab) -> Vec<Sweep> {
        match lab.scale {
            Scale::Quick => vec![batches(lab.scale), ages(lab.scale)],
            Scale::Full => vec![batches(lab.scale), threads(lab), ages(lab.scale)],
        }
    }

    fn parameters(&self) -> &'static [Parameter] {
        &[Parameter { name: "work", values: Values::Numbers(0, 1_000_000_000) }]
    }

    fn admit(&self, point: &Point) -> Result<(), LabError> {
        point.check(self.id(), self.parameters(), self.unused())?;
        if point.number("work").is_some() && point.threads != 1 {
            return Err(LabError::usage(format!("work= is for one thread, but the point is {point}"))
                .fix("leave threads= or work= out"));
        }
        Ok(())
    }

    fn prepare(&self, lab: &Lab, arm: usize, point: &Point) -> Result<Box<dyn ArmRun>, LabError> {
        match point.number("work") {
            None => Ok(Box::new(arm::ClockArm::new(lab, arm, point)?)),
            Some(work) => Ok(Box::new(watch::WatchedArm::new(lab, arm, point, work)?)),
        }
    }

    fn check(&self, lab: &Lab) -> Result<Vec<Check>, LabError> {
        checks::run(lab)
    }

    fn instruction_points(&self) -> Vec<Point> {
        vec![Point::default(), Point { batch: 1, ..Point::default() }]
    }

    fn verdict(&self, report: &ExperimentReport) -> Verdict {
        verdict::of(report)
    }
}

#[cfg(test)]
mod tests;
