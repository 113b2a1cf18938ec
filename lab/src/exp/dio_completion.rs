//! Experiment dio-completion: a direct write completes in a worker, in the issuer's task, or where it is reaped.
//!
//! Owns the sweeps. [`subject`] has the file and the layers between it and the ring, [`arm`] runs an arm.
//!
//! | module | holds |
//! |---|---|
//! | [`design`] | the arms, the points of the published tables, and the points that can be measured |
//! | [`extents`] | a file in memory: written, unwritten, shared, extending |
//! | [`demoted`] | a wrapper of any file whose overwrites complete later than they need to |
//! | [`cached`] | a device with a volatile cache, with FUA or without |
//! | [`subject`] | device, file and cell of a point |
//! | [`arm`] | a built arm, ready for turns |
//! | [`pwrite`] | the engine of synchronous writes, which post no completion on a ring |
//! | [`checks`], [`verdict`] | proofs that the arms differ as described; conclusions from the figures |

use crate::experiment::{ArmRun, Experiment, HeadlineRow, Lab, Sweep, SweepPoint};
use crate::point::Parameter;
use crate::report::{ExperimentReport, Verdict};
use crate::terms::{ArmInfo, Axis, AxisScale, Check, Published, Scale, Seed};
use crate::{LabError, Point};
use arm::DioArm;
use design::{
    AFTER, ARMS, DEPTHS, INLINE, KINDS, ON_RINGS_CPU, PLACEMENT, SEED, SYNC, interrupted, overwrites, row_label,
};
use subject::Cell;

pub mod arm;
pub mod cached;
mod checks;
pub mod demoted;
mod design;
pub mod extents;
pub mod pwrite;
pub mod subject;
mod verdict;

/// Published figures with polling, for each queue depth: IOPS in a worker, IOPS inline, change in percent.
const POLLED: [Option<(f64, f64, f64)>; 5] = [
    Some((180e3, 201e3, 11.0)),
    Some((356e3, 394e3, 10.0)),
    Some((608e3, 650e3, 7.0)),
    Some((827e3, 831e3, 0.5)),
    None,
];

/// Published figures with interrupts, for each queue depth: IOPS in a worker, IOPS in the issuer's task, change in
/// percent.
const INTERRUPTS: [Option<(f64, f64, f64)>; 5] = [
    Some((155e3, 162e3, 4.5)),
    Some((290e3, 313e3, 7.9)),
    Some((533e3, 597e3, 12.0)),
    Some((604e3, 827e3, 36.9)),
    Some((615e3, 845e3, 37.4)),
];

#[derive(Debug)]
pub struct DioCompletion;

fn category(n: usize, label: &str, point: Point) -> SweepPoint {
    SweepPoint { x: n as f64, label: label.into(), point }
}

/// Returns a sweep over queue depths beyond the published ones.
fn depth_sweep(name: &'static str, title: &'static str, scale: Scale, point: fn(u32) -> Point) -> Sweep {
    let depths: &[u32] = match scale {
        Scale::Quick => &[1, 32],
        Scale::Full => &[1, 2, 4, 8, 16, 32, 64, 128, 256],
    };
    let points = depths.iter().map(|&depth| SweepPoint::at(depth, point(depth))).collect();
    let axis = Axis { label: "queue depth", unit: "I/Os", scale: AxisScale::Log2 };
    Sweep { name, title, axis, points, arms: Vec::new(), metric: None }
}

fn categories(name: &'static str, title: &'static str, label: &'static str, points: Vec<SweepPoint>) -> Sweep {
    let axis = Axis { label, unit: "", scale: AxisScale::Categories };
    Sweep { name, title, axis, points, arms: Vec::new(), metric: None }
}

/// Returns the sweeps over the kinds of write, on a file in memory and on a volume.
fn cell_sweeps() -> [Sweep; 2] {
    let points = |cells: &[Cell], file: &str| {
        let point = |cell: &Cell| overwrites(16).with("cell", cell.name()).with("file", file);
        cells.iter().enumerate().map(|(n, cell)| category(n, cell.name(), point(cell))).collect()
    };
    let of_volumes = [Cell::Overwrite, Cell::Unwritten, Cell::DsyncFua, Cell::DsyncFlush];
    [
        categories("cells", "What the write finds (file in memory, QD 16)", "cell", points(&Cell::ALL, "memory")),
        categories("volume", "What the write finds (thin volume, QD 16)", "cell", points(&of_volumes, "volume")),
    ]
}

/// Returns the sweep of a synchronous write and async ones, one at a time: the comparison for which the patch series
/// was written.
fn synchronous_sweep() -> Sweep {
    let points = design::one_at_a_time().into_iter().enumerate().map(|(n, (label, point))| category(n, label, point));
    categories("sync", "A synchronous write beside async ones (QD 1)", "write", points.collect())
}

/// Returns the sweep over the CPU of the workers: another CPU, for which the ring spins, or the ring's own, for which
/// it sleeps. With interrupts the device uses the second CPU, so the workers need a third.
fn placement(lab: &Lab) -> Sweep {
    let at = |worker: &str, point: Point| point.with("worker", worker);
    let mut points = vec![
        ("QD 1, other CPU", overwrites(1)),
        (ON_RINGS_CPU, at("same", overwrites(1))),
        ("QD 16, other CPU", overwrites(16)),
        ("QD 16, ring's CPU", at("same", overwrites(16))),
        ("QD 128, other CPU", Point { batch: 32, ..overwrites(128) }),
    ];
    if lab.cpus.len() > 2 {
        points.push(("QD 16, interrupts, other CPU", at("other", interrupted(16))));
        points.push(("QD 16, interrupts, ring's CPU", interrupted(16)));
    }
    let points = points.into_iter().enumerate().map(|(n, (label, point))| category(n, label, point));
    categories(PLACEMENT, "The CPU of the workers", "workers", points.collect())
}

impl Experiment for DioCompletion {
    fn id(&self) -> &'static str {
        design::ID
    }

    fn title(&self) -> &'static str {
        "Where a direct write completes"
    }

    fn seed(&self) -> Seed {
        Seed {
            subject: "[PATCHSET 0/5] Improve async iomap DIO performance",
            author: "Jens Axboe",
            date: "2023-07-11",
            message_id: "", // The stored copy of the thread hides it.
            command: "fio --name=polled-dio-write --filename=/data1/file --time_based=1 --runtime=10 --bs=4096 \
                      --rw=randwrite --norandommap --buffered=0 --cpus_allowed=4 --ioengine=io_uring \
                      --iodepth=$depth --hipri=1",
            machine: "XFS, one CPU for the job; the thread does not name the device",
        }
    }

    fn arms(&self) -> &'static [ArmInfo] {
        &ARMS
    }

    fn headline(&self) -> Vec<HeadlineRow> {
        let row = |depth: u32, ends: &str, point: Point, published: Option<(f64, f64, f64)>| HeadlineRow {
            label: row_label(depth, ends),
            point,
            published: published.map(|(before, after, change_percent)| Published { before, after, change_percent }),
        };
        let polled = DEPTHS.iter().zip(POLLED).map(|(&depth, seen)| row(depth, "polled", overwrites(depth), seen));
        let interrupts =
            DEPTHS.iter().zip(INTERRUPTS).map(|(&depth, seen)| row(depth, "interrupts", interrupted(depth), seen));
        polled.chain(interrupts).collect()
    }

    /// The published arm is `inline` for polled writes (first patch), and completion in the issuer's task for others
    /// (last patch).
    fn threads_arm(&self, point: &Point) -> Option<usize> {
        Some(if subject::is_polled(point).unwrap_or(true) { INLINE } else { SEED })
    }

    fn sweeps(&self, lab: &Lab) -> Vec<Sweep> {
        let devices = [
            ("5 us", overwrites(16)),
            ("ram", overwrites(16).with("device", "ram")),
            ("null", overwrites(16).with("device", "null")),
        ];
        let devices = devices.into_iter().enumerate().map(|(n, (label, point))| category(n, label, point));
        let mut sweeps = Vec::from(cell_sweeps());
        sweeps.push(synchronous_sweep());
        if lab.scale == Scale::Quick {
            return sweeps;
        }
        sweeps.extend([
            depth_sweep("depth", "Queue depth, polled", lab.scale, overwrites),
            depth_sweep("depth-interrupts", "Queue depth, interrupts", lab.scale, interrupted),
            Sweep {
                name: "batch",
                title: "I/Os handed over at once (QD 128, polled)",
                axis: Axis { label: "batch", unit: "I/Os", scale: AxisScale::Log2 },
                points: [1, 2, 4, 8, 16, 32, 64, 128]
                    .map(|batch| SweepPoint::at(batch, Point { batch, ..overwrites(128) }))
                    .into(),
                arms: Vec::new(),
                metric: None,
            },
            categories("devices", "What is under the file (QD 16, polled)", "device", devices.collect()),
        ]);
        sweeps.extend((lab.cpus.len() > 1).then(|| placement(lab)));
        sweeps
    }

    fn parameters(&self) -> &'static [Parameter] {
        &subject::PARAMETERS
    }

    fn admit(&self, point: &Point) -> Result<(), LabError> {
        design::admit(point)
    }

    fn takes_part(&self, arm: usize, point: &Point) -> bool {
        arm != SYNC || design::is_synchronous(point)
    }

    fn prepare(&self, lab: &Lab, arm: usize, point: &Point) -> Result<Box<dyn ArmRun>, LabError> {
        if arm == SYNC {
            return Ok(Box::new(DioArm::synchronous(lab, point)?));
        }
        Ok(Box::new(DioArm::new(lab, point, KINDS[arm.min(AFTER)])?))
    }

    fn check(&self, lab: &Lab) -> Result<Vec<Check>, LabError> {
        checks::run(lab)
    }

    fn instruction_points(&self) -> Vec<Point> {
        // The workers share the CPU of the ring, because a ring whose workers have another CPU spins and valgrind would
        // count the spins.
        [1, 16].map(|depth| overwrites(depth).with("device", "null").with("worker", "same")).into()
    }

    fn verdict(&self, report: &ExperimentReport) -> Verdict {
        verdict::of(report)
    }
}

#[cfg(test)]
mod tests;
