//! The parts of an experiment: arms that differ in one thing, the points at which they are measured, and the verdict.
//!
//! Owns the types that the experiments share with the runner, and measures nothing itself. An experiment builds arms
//! and judges results; the runner decides when each arm has its turn.
//!
//! * I1. `arms()[0]` is the arm with which the others are compared ("before"). Exactly one arm is [`Role::After`].
//! * I2. Arms of one point differ only in what [`ArmInfo::what`] names; device, ring, threads and CPUs are the same.
//! * I3. A check compares counts and data, never times.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hdrhistogram::Histogram;
use sheave_base::sync::atomic::{AtomicBool, Ordering};

use crate::LabError;
use crate::point::{Parameter, Point};
use crate::report::{ExperimentReport, Prediction, Verdict};
use crate::terms::{ArmInfo, Axis, Check, Metric, Published, Role, Scale, Seed};

pub trait Experiment: Sync {
    /// Returns the name on the command line, for example `bio-cache`.
    fn id(&self) -> &'static str;

    fn title(&self) -> &'static str;

    /// Returns the mailing-list thread with the idea and the published figures.
    fn seed(&self) -> Seed;

    /// Returns the figure that tables and plots show.
    fn metric(&self) -> Metric {
        Metric::IOPS
    }

    /// Returns the arms, in the order of their indices (I1).
    fn arms(&self) -> &'static [ArmInfo];

    /// Returns the rows of the published table: the points of this lab that correspond to its parameters, and the
    /// published figures.
    fn headline(&self) -> Vec<HeadlineRow>;

    /// Returns the index of the arm that corresponds to the published figures at a point.
    fn threads_arm(&self, _point: &Point) -> Option<usize> {
        self.arms().iter().position(|arm| arm.role == Role::Seed)
    }

    /// Returns the rows of the published table that cannot be measured here. The table has gaps for our figures in
    /// these rows.
    fn published_only(&self) -> Vec<PublishedOnly> {
        Vec::new()
    }

    /// Returns the series of points beyond the published table.
    fn sweeps(&self, lab: &Lab) -> Vec<Sweep>;

    /// Returns the parameters of this experiment's points beyond those of every point.
    fn parameters(&self) -> &'static [Parameter] {
        &[]
    }

    /// Returns those parameters of every point that have no meaning in this experiment.
    fn unused(&self) -> &'static [&'static str] {
        &[]
    }

    /// Checks that the experiment can measure at `point`. A parameter that has no meaning in this experiment is
    /// refused, so that no parameter is silently ignored.
    fn admit(&self, point: &Point) -> Result<(), LabError> {
        point.check(self.id(), self.parameters(), self.unused())
    }

    /// Returns false if `arm` has no meaning at `point`. Its column is then left empty.
    fn takes_part(&self, _arm: usize, _point: &Point) -> bool {
        true
    }

    /// Builds rings, threads and devices of an arm; this is not timed. The arm is used and dropped on the calling
    /// thread, which is pinned to `lab.cpus[0]`. The arm pins the threads that it starts, beginning with `lab.cpus[1]`.
    fn prepare(&self, lab: &Lab, arm: usize, point: &Point) -> Result<Box<dyn ArmRun>, LabError>;

    /// Checks that every arm completes its I/O, that data is right, and that the arms differ as described (I3).
    fn check(&self, lab: &Lab) -> Result<Vec<Check>, LabError>;

    /// Returns the points at which the instructions per I/O of each arm are counted.
    fn instruction_points(&self) -> Vec<Point>;

    /// Returns false if the instructions of `arm` cannot be counted, because the kernel does its work.
    fn counts_instructions(&self, _arm: usize) -> bool {
        true
    }

    /// Returns the overhead of `arm` that only the experiment has, such as the call of a hook. Its size is the
    /// difference of two other arms, and is subtracted from this arm's figures.
    fn way(&self, _arm: usize, _point: &Point) -> Option<Way> {
        None
    }

    /// Returns the size of the overhead of each arm. `costs` has the figures per I/O in the order of the arms, in any
    /// unit.
    fn ways(&self, point: &Point, costs: &[Option<f64>]) -> Vec<f64> {
        let of = |arm: usize| costs.get(arm).copied().flatten();
        let cost = |arm: usize| self.way(arm, point).and_then(|way| Some(of(way.alone)? - of(way.without)?));
        (0..costs.len()).map(|arm| cost(arm).unwrap_or(0.0)).collect()
    }

    /// Predicts the figures on machines with more cores than this one, for experiments that have a prediction.
    fn predictions(&self, _report: &ExperimentReport) -> Result<Vec<Prediction>, LabError> {
        Ok(Vec::new())
    }

    /// Computes the verdict from the figures: which conclusions they allow, which they do not, and if the published
    /// claim holds here.
    fn verdict(&self, report: &ExperimentReport) -> Verdict;
}

/// An overhead that only the experiment has: the difference of two arms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// Index of the arm with the overhead, but without the mechanism behind it.
    pub alone: usize,
    /// Index of the same arm without the overhead.
    pub without: usize,
}

/// A built arm. It is dropped when its point has been measured.
pub trait ArmRun {
    /// Does I/O until `end`. Afterwards nothing is in flight.
    fn turn(&mut self, end: TurnEnd) -> Result<Turn, LabError>;
}

/// End of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnEnd {
    Time(Duration),
    /// The turn ends after this number of I/Os of all threads together.
    Ios(u64),
}

/// Result of a turn.
#[derive(Clone, Debug, Default)]
pub struct Turn {
    pub ios: u64,
    pub wall_ns: u64,
    /// CPU time in ns of all threads that took part.
    pub cpu_ns: u64,
    /// Number of voluntary and involuntary context switches of these threads.
    pub context_switches: u64,
    /// Latencies in ns.
    pub latency: Option<Histogram<u64>>,
    /// Counts of this turn, shown per I/O. Examples: `allocator_calls`, `clock_reads`.
    pub counters: BTreeMap<&'static str, f64>,
    /// Figures that are shown unchanged, not per I/O. Examples: `workers`, `lock_share_percent`.
    pub gauges: BTreeMap<&'static str, f64>,
}

/// A row of the published table.
#[derive(Clone, Debug)]
pub struct HeadlineRow {
    /// Label of the row, for example `QD 16, interrupts`.
    pub label: String,
    /// The point of this lab that corresponds to the row's parameters.
    pub point: Point,
    /// Published figures, in the unit of the experiment's metric.
    pub published: Option<Published>,
}

/// A row of the published table that is not measured here.
#[derive(Clone, Copy, Debug)]
pub struct PublishedOnly {
    pub label: &'static str,
    pub published: Published,
    /// The reason why the row is not measured.
    pub why: &'static str,
}

#[derive(Clone, Debug)]
pub struct Sweep {
    /// Name on the command line, for example `depth`, `batch`, `threads`, `readers` or `cells`.
    pub name: &'static str,
    pub title: &'static str,
    pub axis: Axis,
    pub points: Vec<SweepPoint>,
    /// Indices of the arms that take part; empty for all.
    pub arms: Vec<usize>,
    /// The figure to draw; `None` for the experiment's metric.
    pub metric: Option<Metric>,
}

#[derive(Clone, Debug)]
pub struct SweepPoint {
    /// Position on the axis. For categories it is the index.
    pub x: f64,
    /// Label at the axis.
    pub label: String,
    pub point: Point,
}

impl SweepPoint {
    /// Makes a position at a number, which is also its label.
    pub fn at(x: u32, point: Point) -> Self {
        Self { x: f64::from(x), label: x.to_string(), point }
    }
}

/// The extent of a run, and the CPUs it uses.
#[derive(Clone, Debug)]
pub struct Lab {
    pub scale: Scale,
    /// CPUs to place threads on, in order; never empty. More threads than CPUs share them.
    pub cpus: Vec<usize>,
    /// Set by Ctrl-C. Long loops test it and end their turn early.
    pub stop: Arc<AtomicBool>,
}

impl Lab {
    pub fn stopped(&self) -> bool {
        // Relaxed: the flag carries nothing but itself; the signal handler sets it.
        self.stop.load(Ordering::Relaxed)
    }

    pub fn cpu(&self, index: usize) -> usize {
        self.cpus[index % self.cpus.len()]
    }
}
