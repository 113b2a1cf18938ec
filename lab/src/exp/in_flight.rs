//! Experiment in-flight: the cost of keeping the number of requests in flight.
//!
//! Owns the sweeps. [`counters`](crate::counters) has the counters, [`counting`] the driver that updates them.
//!
//! | module | holds |
//! |---|---|
//! | [`design`] | the arms and the two kinds of point |
//! | [`counters`](crate::counters) | one pair of counters, a pair per thread, four per node, or none: tags |
//! | [`counting`] | the driver that counts at the start and the end of each request |
//! | [`arm`] | a built arm: threads, and a reader |
//! | [`checks`], [`verdict`] | proofs that the arms differ as described; conclusions from the figures |

use crate::experiment::{ArmRun, Experiment, HeadlineRow, Lab, Sweep, SweepPoint};
use crate::model::{self, counted, machines};
use crate::point::{Parameter, Values};
use crate::report::{ExperimentReport, Known, Prediction, Verdict};
use crate::terms::{ArmInfo, Axis, AxisScale, Check, Metric, Published, Scale, Seed};
use crate::{LabError, Point};
use arm::InFlightArm;
use design::{AFTER, ARMS, BEFORE, PER_THREAD, WITHOUT_READER, in_batches, one_by_one};

pub mod arm;
mod checks;
pub mod counting;
pub mod design;
mod verdict;

/// Published IOPS of 80 jobs on 80 queues, with one pair of counters and with a pair per CPU.
const PUBLISHED: Published = Published { before: 1.5e6, after: 11.4e6, change_percent: 660.0 };

/// Number of jobs, and of CPUs, in the published measurement.
const JOBS: u32 = 80;

const NS_PER_READING: Metric =
    Metric { name: "ns_per_reading", label: "time of a reading", unit: "ns", more_is_better: false };

#[derive(Debug)]
pub struct InFlight;

/// Returns thread counts: powers of two below the number of CPUs, then one, two and four threads per CPU.
fn threads(lab: &Lab) -> Vec<u32> {
    let cpus = lab.cpus.len() as u32;
    let mut threads: Vec<u32> = (0..32).map(|shift| 1 << shift).take_while(|&count| count < cpus).collect();
    threads.extend([cpus, 2 * cpus, 4 * cpus]);
    threads
}

fn thread_sweep(lab: &Lab, name: &'static str, title: &'static str, point: fn(u32) -> Point) -> Sweep {
    let axis = Axis { label: "threads", unit: "", scale: AxisScale::Log2 };
    let threads = match lab.scale {
        Scale::Quick => vec![1, 2 * lab.cpus.len() as u32],
        Scale::Full => threads(lab),
    };
    let points = threads.into_iter().map(|threads| SweepPoint::at(threads, point(threads))).collect();
    Sweep { name, title, axis, points, arms: WITHOUT_READER.into(), metric: None }
}

/// Returns sweeps over readers of 0, 1 and 1000 Hz. They show how much the readers slow down I/O, and how long a
/// reading takes.
fn reader_sweeps(lab: &Lab) -> [Sweep; 2] {
    let threads = lab.cpus.len() as u32;
    let axis = Axis { label: "readings per second", unit: "Hz", scale: AxisScale::Categories };
    let at = |hz: &u64| SweepPoint {
        x: *hz as f64,
        label: format!("{hz} Hz"),
        point: one_by_one(threads).with("readers", *hz),
    };
    let sweep = |name, title, hz: &[u64], metric| {
        let points = hz.iter().map(at).collect();
        Sweep { name, title, axis, points, arms: WITHOUT_READER.into(), metric }
    };
    [
        sweep("readers", "I/O while somebody reads the counts", &[0, 1, 1000], None),
        sweep("readings", "What a reading takes", &[1, 1000], Some(NS_PER_READING)),
    ]
}

/// Returns the sweep over the number of queues. It tests the objection on the mailing list that going through the tags
/// takes longer with each queue.
fn queues() -> Sweep {
    let queues = [1, 2, 4, 8, 16, 32, 64];
    Sweep {
        name: "queues",
        title: "What a reading takes, by queues (a ring each, 1000 readings a second)",
        axis: Axis { label: "queues", unit: "", scale: AxisScale::Log2 },
        points: queues.map(|n| SweepPoint::at(n, one_by_one(n).with("readers", 1000))).into(),
        arms: WITHOUT_READER.into(),
        metric: Some(NS_PER_READING),
    }
}

/// Returns the sweep over the number of queues for the arms whose I/O path reads the counters itself.
fn in_path() -> Sweep {
    Sweep {
        name: "jiffy",
        title: "The reader in the path, once a jiffy, by queues (a ring each)",
        axis: Axis { label: "queues", unit: "", scale: AxisScale::Log2 },
        points: [1, 2, 16, 64].map(|n| SweepPoint::at(n, one_by_one(n))).into(),
        arms: Vec::new(),
        metric: None,
    }
}

impl Experiment for InFlight {
    fn id(&self) -> &'static str {
        "in-flight"
    }

    fn title(&self) -> &'static str {
        "Counting what is in flight"
    }

    fn seed(&self) -> Seed {
        Seed {
            subject: "[dm-devel] [PATCH 1/1] block: Convert hd_struct in_flight from atomic to percpu",
            author: "Brian King, Ming Lei, Jens Axboe",
            date: "2017-06-28",
            message_id: "", // The stored copy of the thread hides it.
            command: "80 fio jobs on one null_blk device with 80 submission queues, irq mode 0 (no job file in the \
                      thread)",
            machine: "a Power system with 80 CPUs or more",
        }
    }

    fn arms(&self) -> &'static [ArmInfo] {
        &ARMS
    }

    fn headline(&self) -> Vec<HeadlineRow> {
        let cpus = sheave_load::cpu::allowed().len() as u32;
        let mut rows = vec![HeadlineRow { label: "1 thread".into(), point: one_by_one(1), published: None }];
        rows.push(HeadlineRow {
            label: format!("{} threads (80 there)", cpus.max(2)),
            point: one_by_one(cpus.max(2)),
            published: Some(PUBLISHED),
        });
        rows
    }

    fn sweeps(&self, lab: &Lab) -> Vec<Sweep> {
        let mut sweeps = vec![thread_sweep(lab, "threads", "Threads, one I/O at a time", one_by_one)];
        let elsewhere = |threads| Point { depth: 16, ..one_by_one(threads) }.with("ends", "elsewhere");
        let [readers, readings] = reader_sweeps(lab);
        sweeps.push(readers);
        if lab.scale == Scale::Quick {
            return sweeps;
        }
        sweeps.extend([
            readings,
            queues(),
            in_path(),
            thread_sweep(lab, "threads-batch", "Threads, batches of 32", in_batches),
            thread_sweep(lab, "threads-elsewhere", "Threads, requests end on another thread (QD 16)", elsewhere),
            Sweep {
                name: "batch",
                title: "I/Os handed over at once (all CPUs, QD 128)",
                axis: Axis { label: "batch", unit: "I/Os", scale: AxisScale::Log2 },
                points: [1, 2, 4, 8, 16, 32, 64, 128]
                    .map(|batch| SweepPoint::at(batch, Point { batch, ..in_batches(lab.cpus.len() as u32) }))
                    .into(),
                arms: WITHOUT_READER.into(),
                metric: None,
            },
        ]);
        sweeps
    }

    fn parameters(&self) -> &'static [Parameter] {
        &[
            Parameter { name: "ends", values: Values::Words(&["here", "elsewhere"]) },
            Parameter { name: "readers", values: Values::Numbers(0, 1_000_000_000) },
        ]
    }

    fn prepare(&self, lab: &Lab, arm: usize, point: &Point) -> Result<Box<dyn ArmRun>, LabError> {
        Ok(Box::new(InFlightArm::new(lab, point, design::counters(arm))?))
    }

    fn check(&self, lab: &Lab) -> Result<Vec<Check>, LabError> {
        checks::run(lab)
    }

    fn instruction_points(&self) -> Vec<Point> {
        vec![one_by_one(1), in_batches(1)]
    }

    fn predictions(&self, report: &ExperimentReport) -> Result<Vec<Prediction>, LabError> {
        let counted = match counted::simulate(self.id()) {
            Ok(counted) => counted,
            Err(why) => return Ok(vec![model::without(why)]),
        };
        let known = |arm: usize, iops, used| Known { arm: ARMS[arm].name.into(), cores: JOBS, iops, used };
        // With counters per CPU no cache line moves between CPUs, so all of an I/O's time counts as private work.
        let there = (f64::from(JOBS) * 1e9 / PUBLISHED.after, "of the thread's 80 jobs with counters for each CPU");
        let published = vec![known(BEFORE, PUBLISHED.before, false), known(PER_THREAD, PUBLISHED.after, true)];
        let mut predictions = vec![model::predict(&machines::POWER, &counted, there, published)];
        let alone = report.headline.first().filter(|row| row.point.threads == 1).and_then(|row| row.arm(AFTER));
        if let Some(alone) = alone.filter(|alone| alone.iops > 0.0) {
            let here = (1e9 / alone.iops, "measured here on one thread, arm \"after\"");
            predictions.push(model::predict(&machines::EPYC, &counted, here, Vec::new()));
        }
        Ok(predictions)
    }

    fn verdict(&self, report: &ExperimentReport) -> Verdict {
        verdict::of(report)
    }
}

#[cfg(test)]
mod tests;
