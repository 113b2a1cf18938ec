//! Experiment bio-cache: the source of the next bio is a slab of the thread, malloc, a cache per CPU, or the ring's own
//! cache.
//!
//! Owns the points. Each arm is a ring with its own bound of the bio cache ([`RingBuilder::bio_cache`]) and its own
//! store behind the cache ([`stores`]). Calling a store takes time, and only this experiment calls stores. The arm
//! `hook` measures the call alone; its time is subtracted from the arms that call a store.
//!
//! | module | holds |
//! |---|---|
//! | [`design`] | the arms, and the claim of the mailing-list thread |
//! | [`stores`] | the stores behind the cache |
//! | [`arm`] | a built arm, ready for turns |
//! | [`checks`], [`verdict`] | proofs that the arms differ as described; conclusions from the figures |
//!
//! [`RingBuilder::bio_cache`]: sheave::RingBuilder::bio_cache

use crate::experiment::{ArmRun, Experiment, HeadlineRow, Lab, Sweep, SweepPoint, Way};
use crate::point::{Parameter, Values};
use crate::report::{ExperimentReport, Verdict};
use crate::terms::{ArmInfo, Axis, AxisScale, Check, Published, Scale, Seed};
use crate::{LabError, Point};
use design::{AFTER, ARMS, CLAIMED, DEEP, HOOK, ROW};

pub mod arm;
mod checks;
mod design;
pub mod stores;
mod verdict;

#[derive(Debug)]
pub struct BioCache;

fn sweep(name: &'static str, title: &'static str, label: &'static str, points: Vec<SweepPoint>) -> Sweep {
    let axis = Axis { label, unit: if label == "threads" { "" } else { "I/Os" }, scale: AxisScale::Log2 };
    Sweep { name, title, axis, points, arms: Vec::new(), metric: None }
}

/// Returns the sweep over the context that ends an I/O: the polling ring, the submitting ring, another thread.
fn ends() -> Sweep {
    let points = [
        ("polled", Point::default()),
        ("not polled", Point::default().with("ends", "unpolled")),
        ("another thread", Point::default().with("ends", "thread")),
    ];
    let points = points.into_iter().enumerate();
    Sweep {
        name: "ends",
        title: "Who ends an I/O (QD 128, batch 32)",
        axis: Axis { label: "who ends an I/O", unit: "", scale: AxisScale::Categories },
        points: points.map(|(n, (label, point))| SweepPoint { x: n as f64, label: label.into(), point }).collect(),
        arms: Vec::new(),
        metric: None,
    }
}

impl Experiment for BioCache {
    fn id(&self) -> &'static str {
        "bio-cache"
    }

    fn title(&self) -> &'static str {
        "Bio recycling for polled I/O"
    }

    fn seed(&self) -> Seed {
        Seed {
            subject: "[PATCHSET v3 0/5] Enable bio recycling for polled IO",
            author: "Jens Axboe",
            date: "2021-08-10",
            message_id: "20210810163728.265939-1-axboe@kernel.dk",
            command: "taskset -c 0 t/io_uring -b512 -d128 -s32 -c32 -p1 -F1 -B1 /dev/nvme3n1",
            machine: "an AMD machine, one core, one NVMe drive",
        }
    }

    fn arms(&self) -> &'static [ArmInfo] {
        &ARMS
    }

    fn headline(&self) -> Vec<HeadlineRow> {
        let published = Published { before: 3_111_520.0, after: 3_417_120.0, change_percent: CLAIMED };
        vec![HeadlineRow { label: ROW.into(), point: Point::default(), published: Some(published) }]
    }

    fn sweeps(&self, lab: &Lab) -> Vec<Sweep> {
        if lab.scale == Scale::Quick {
            return vec![ends()];
        }
        let doublings = |most: u32| (0..).map(|n| 1_u32 << n).take_while(move |&n| n <= most);
        let batches = doublings(128).map(|batch| SweepPoint::at(batch, Point { batch, ..Point::default() }));
        let depths = doublings(256)
            .map(|depth| SweepPoint::at(depth, Point { depth, batch: depth.min(32), ..Point::default() }));
        let cores = lab.cpus.len() as u32;
        let mut threads: Vec<u32> = doublings(cores).collect();
        if threads.last() != Some(&cores) {
            threads.push(cores);
        }
        let threads = threads.into_iter().map(|threads| SweepPoint::at(threads, Point { threads, ..Point::default() }));
        vec![
            ends(),
            sweep("batch", "I/Os handed over at once (QD 128)", "batch", batches.collect()),
            sweep("depth", "Queue depth (batch 32, or the depth)", "queue depth", depths.collect()),
            sweep("threads", "Threads, a ring each (QD 128, batch 32)", "threads", threads.collect()),
        ]
    }

    fn parameters(&self) -> &'static [Parameter] {
        &[Parameter { name: "ends", values: Values::Words(&["polled", "unpolled", "thread"]) }]
    }

    fn prepare(&self, lab: &Lab, arm: usize, point: &Point) -> Result<Box<dyn ArmRun>, LabError> {
        Ok(Box::new(arm::BioArm::new(lab, arm, point)?))
    }

    fn check(&self, lab: &Lab) -> Result<Vec<Check>, LabError> {
        checks::run(lab)
    }

    fn instruction_points(&self) -> Vec<Point> {
        vec![Point::default(), Point { depth: DEEP, batch: DEEP, ..Point::default() }]
    }

    fn way(&self, arm: usize, point: &Point) -> Option<Way> {
        let ends = design::Ends::of(point).ok()?;
        design::takes_the_way(arm, ends).then_some(Way { alone: HOOK, without: AFTER })
    }

    fn verdict(&self, report: &ExperimentReport) -> Verdict {
        verdict::of(report)
    }
}

#[cfg(test)]
mod tests;
