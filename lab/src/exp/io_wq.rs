//! Experiment io-wq: the time that workers lose on the locks of their queue.
//!
//! Owns the sweeps. [`design`] has the arms and the points, [`flood`](mod@flood) drives an arm, [`check`] proves that
//! the arms differ, and [`verdict`] judges. The pools are in [`crate::wq`], which `sheave-lab wq` measures too.
//!
//! A point has these parameters: `threads` is the number of submitters; `depth` and `batch` are those of each
//! submitter. `workers` (default 2) is the maximum of the pool, `work` the work of an item (`nop`, or for example
//! `sleep:100us`). `cpus=1` keeps all threads on the first CPU. `stepped=1` runs without worker threads, for counting
//! instructions.

use crate::LabError;
use crate::experiment::{ArmRun, Experiment, HeadlineRow, Lab, PublishedOnly, Sweep, SweepPoint};
use crate::model::counted::ONE_TASK;
use crate::model::{self, Task, counted, machines};
use crate::point::{Parameter, Point};
use crate::report::{ExperimentReport, Prediction, Verdict};
use crate::terms::{ArmInfo, Axis, AxisScale, Check, Metric, Published, Scale, Seed};
use design::{
    AFTER, ARMS, BEFORE, BLOCKING, KERNEL, RING, SEED, SERVING, SHARDED, SIDES, SOME, blocking, flood, serving,
};

mod check;
pub mod design;
mod flood;
mod verdict;

pub struct IoWq;

/// The gauge of the published table.
pub(super) const WAITING: Metric = Metric {
    name: "lock_wait_percent",
    label: "time waiting for the pool's locks, in % of CPU time",
    unit: "%",
    more_is_better: false,
};

/// Published share of CPU time in the lock before the patch, in percent.
const PUBLISHED_SHARE: f64 = 38.86;
/// Maximum of workers that stands for the "dozens of io-wq threads" of the published measurement.
const DOZENS: u64 = 64;

impl Experiment for IoWq {
    fn id(&self) -> &'static str {
        design::ID
    }

    fn title(&self) -> &'static str {
        "What workers lose on the locks of their queue"
    }

    fn seed(&self) -> Seed {
        Seed {
            subject: "[PATCH 4/8] io_uring/io-wq: cache work->flags in variable",
            author: "Max Kellermann",
            date: "2025-01-28",
            message_id: "20250128133927.3989681-5-max.kellermann@ionos.com",
            command: "a flood of IORING_OP_NOP with IOSQE_ASYNC, under perf: share of CPU time in \
                      queued_spin_lock_slowpath",
            machine: "AMD EPYC 9654P (96 cores), dozens of io-wq threads",
        }
    }

    fn metric(&self) -> Metric {
        WAITING
    }

    fn arms(&self) -> &'static [ArmInfo] {
        &ARMS
    }

    fn headline(&self) -> Vec<HeadlineRow> {
        let published =
            Some(Published { before: PUBLISHED_SHARE, after: PUBLISHED_SHARE - 1.49, change_percent: -1.49 });
        let row = |label: &str, point| HeadlineRow { label: label.into(), point, published: None };
        vec![
            HeadlineRow { published, ..row("NOP flood, IOSQE_ASYNC", flood(DOZENS)) },
            row(BLOCKING, blocking(SOME)),
            row(SERVING, serving(SOME)),
        ]
    }

    fn published_only(&self) -> Vec<PublishedOnly> {
        let row = |label, before, change| PublishedOnly {
            label,
            published: Published { before, after: before + change, change_percent: change },
            why: "a web server on the kernel's io_uring: nothing of ours takes part; a row above has its shape",
        };
        vec![row("HTTP, static file", 42.79, -2.77), row("HTTP, PHP", 35.03, -1.80)]
    }

    fn sweeps(&self, lab: &Lab) -> Vec<Sweep> {
        let quick = lab.scale == Scale::Quick;
        let some = |all: &'static [u32], few: &'static [u32]| if quick { few } else { all };
        let along = |places: &[u32], point: &dyn Fn(u32) -> Point| -> Vec<SweepPoint> {
            places.iter().map(|&x| SweepPoint::at(x, point(x))).collect()
        };
        let axis = |label, unit| Axis { label, unit, scale: AxisScale::Log2 };
        let workers = some(&[1, 2, 4, 8, 16, 32, 64], &[1, 64]);
        let sweep = |name, title, axis, points| Sweep { name, title, axis, points, arms: Vec::new(), metric: None };
        let of = |metric, sweep| Sweep { metric: Some(metric), ..sweep };
        let mut sweeps = vec![
            of(
                Metric::IOPS,
                sweep(
                    "workers",
                    "Most workers, items a second",
                    axis("workers", "threads"),
                    along(workers, &|x| flood(x.into())),
                ),
            ),
            of(
                Metric::IOPS,
                sweep(
                    "batch",
                    "Items handed over at once, items a second",
                    axis("batch", "items"),
                    along(some(&[1, 2, 4, 8, 16, 32, 64, 128], &[1]), &|batch| Point { batch, ..flood(2) }),
                ),
            ),
        ];
        sweeps.extend(working(quick));
        if !quick {
            sweeps.push(sweep(
                "waiting",
                "Most workers, waiting for locks",
                axis("workers", "threads"),
                along(workers, &|x| flood(x.into())),
            ));
            sweeps.push(of(
                Metric::IOPS,
                sweep(
                    "submitters",
                    "Threads that submit, items a second",
                    axis("submitters", "threads"),
                    along(&[1, 2, 4, 8], &|threads| Point { threads, ..flood(16) }),
                ),
            ));
        }
        sweeps
    }

    fn parameters(&self) -> &'static [Parameter] {
        design::PARAMETERS
    }

    fn unused(&self) -> &'static [&'static str] {
        design::UNUSED
    }

    /// The arms `ring` and `kernel` run only NOPs: a ring has no operation that sleeps, and the kernel has none of a
    /// given length.
    fn takes_part(&self, arm: usize, point: &Point) -> bool {
        !(matches!(arm, RING | KERNEL) && point.extra.contains_key("work"))
    }

    fn prepare(&self, lab: &Lab, arm: usize, point: &Point) -> Result<Box<dyn ArmRun>, LabError> {
        flood::prepare(lab, SIDES[arm], point)
    }

    fn check(&self, lab: &Lab) -> Result<Vec<Check>, LabError> {
        check::check(lab)
    }

    fn instruction_points(&self) -> Vec<Point> {
        vec![flood(1).with("stepped", 1), Point { batch: 1, depth: 1, ..flood(1) }.with("stepped", 1)]
    }

    fn counts_instructions(&self, arm: usize) -> bool {
        arm != KERNEL
    }

    fn predictions(&self, report: &ExperimentReport) -> Result<Vec<Prediction>, LabError> {
        let counted = match counted::simulate(self.id()) {
            Ok(counted) => counted,
            Err(why) => return Ok(vec![model::without(why)]),
        };
        let of = |arm: usize| report.headline.first().and_then(|row| row.arm(arm)).map(|arm| arm.cpu_ns_per_io);
        let Some(ours) = of(AFTER).filter(|ns| *ns > 0.0) else { return Ok(Vec::new()) };
        let private = (ours, "CPU time of an item, measured here, arm \"after\"");
        let (one_task, pairs): (Vec<_>, Vec<_>) = counted.into_iter().partition(|counted| counted.arm == ONE_TASK);
        let mut prediction = model::predict(&machines::EPYC_ONE, &pairs, private, Vec::new());
        // The published point was measured on the kernel, so the prediction uses the kernel's rules and the time of its
        // item.
        let kernels = of(KERNEL).filter(|ns| *ns > 0.0);
        if let Some((most, item_ns)) = one_task.last().zip(kernels) {
            let input = "CPU time of a NOP in the kernel's io-wq, measured here, for the lock's share";
            prediction.inputs.push((input.into(), item_ns, "ns"));
            prediction.against.push(told_share(most, item_ns));
        }
        prediction.counts.extend(one_task);
        Ok(vec![prediction])
    }

    fn verdict(&self, report: &ExperimentReport) -> Verdict {
        verdict::verdict(report)
    }
}

/// Returns sweeps over the number of workers, with items that do some work.
fn working(quick: bool) -> Vec<Sweep> {
    let workers: &[u64] = if quick { &[16] } else { &[1, 4, 16, 64] };
    let of = |name, title, point: fn(u64) -> Point| Sweep {
        name,
        title,
        axis: Axis { label: "workers", unit: "threads", scale: AxisScale::Log2 },
        points: workers.iter().map(|&x| SweepPoint::at(x as u32, point(x))).collect(),
        arms: vec![BEFORE, SEED, SHARDED, AFTER],
        metric: Some(Metric::IOPS),
    };
    let mut sweeps = vec![of("blocking", "Items that sleep 1 ms, items a second", blocking)];
    if !quick {
        let title = "Like a web server: of 8 items one waits 50 us, the others take 2 us; items a second";
        sweeps.push(of("http", title, serving));
    }
    sweeps
}

/// Share of an item's CPU time that the submitting task takes: low, middle, high. Queueing an item and reaping it takes
/// about as long as taking and running it.
const OF_TASK: [f64; 3] = [1.0 / 3.0, 1.0 / 2.0, 2.0 / 3.0];

/// Predicts the lock's share of CPU time under the kernel's rules: one task, and a new worker for each item that finds
/// none free. Compares the prediction with the published share.
fn told_share(most: &counted::Counted, item_ns: f64) -> String {
    let depth = flood(DOZENS).depth;
    let share = |of_task: f64, factor: f64| {
        100.0 * model::share_at_lock(&machines::EPYC_ONE, most, Task { depth, item_ns, of_task }, factor)
    };
    let middle = share(OF_TASK[1], 1.0);
    let all = OF_TASK.iter().flat_map(|&of_task| [1.0 / machines::BAND, machines::BAND].map(|hop| share(of_task, hop)));
    let (low, high) = all.fold((middle, middle), |(low, high), share| (low.min(share), high.max(share)));
    let verdict = match PUBLISHED_SHARE >= low && PUBLISHED_SHARE <= high {
        true => format!("within the band, the middle {:+.0} points off", middle - PUBLISHED_SHARE),
        false => format!("MISSED: the middle is {:+.0} points off", middle - PUBLISHED_SHARE),
    };
    format!(
        "before by the kernel's rules, one task and {} workers: published {PUBLISHED_SHARE:.1} % of CPU time in the \
         lock with dozens of workers, predicted {middle:.1} % ({low:.1} to {high:.1}, by hops and by the task's part \
         of an item's {item_ns:.0} ns): {verdict}",
        most.threads - 1
    )
}

#[cfg(test)]
mod tests;
