//! What an experiment is: arms that differ in one thing, the points at which they are measured, and what they prove.
//!
//! Owns the types that the experiments and the runner meet in; measures nothing itself. An experiment makes arms ready
//! and judges results; the runner decides when each arm has its turn.
//!
//! * I1. `arms()[0]` is what the others are compared with ("before"); exactly one arm is
//!   [`Role::After`].
//! * I2. Arms of one point differ in the one thing that [`ArmInfo::what`] names; device, ring, threads and CPUs are the
//!   same.
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

/// One experiment.
pub trait Experiment: Sync {
    /// The name on the command line, as `bio-cache`.
    fn id(&self) -> &'static str;

    /// A heading.
    fn title(&self) -> &'static str;

    /// Where the idea and the published figures come from.
    fn seed(&self) -> Seed;

    /// What is measured in the tables and drawn in the plots.
    fn metric(&self) -> Metric {
        Metric::IOPS
    }

    /// The arms (I1).
    fn arms(&self) -> &'static [ArmInfo];

    /// The thread's own table: its parameters, with the figures that it published.
    fn headline(&self) -> Vec<HeadlineRow>;

    /// The arm that is the thread's at a point, by index: the one that its published figures stand beside.
    fn threads_arm(&self, _point: &Point) -> Option<usize> {
        self.arms().iter().position(|arm| arm.role == Role::Seed)
    }

    /// Rows of its table that cannot be measured here: shown with a gap in the place of ours.
    fn published_only(&self) -> Vec<PublishedOnly> {
        Vec::new()
    }

    /// What the thread only hints at.
    fn sweeps(&self, lab: &Lab) -> Vec<Sweep>;

    /// Parameters of its points beyond those that every point has.
    fn parameters(&self) -> &'static [Parameter] {
        &[]
    }

    /// Of those that every point has, the ones that it has no use for.
    fn unused(&self) -> &'static [&'static str] {
        &[]
    }

    /// Whether it can measure there: a point with a parameter that means nothing here is refused, not half obeyed.
    fn admit(&self, point: &Point) -> Result<(), LabError> {
        point.check(self.id(), self.parameters(), self.unused())
    }

    /// Whether an arm does what it stands for at a point that the others can do; where not, its place stays empty.
    fn takes_part(&self, _arm: usize, _point: &Point) -> bool {
        true
    }

    /// Builds rings, threads and devices of an arm; not timed. Runs and ends on the thread that calls it, which is
    /// pinned to `lab.cpus[0]`; threads that the arm starts are pinned by the arm, to `lab.cpus[1..]` first.
    fn prepare(&self, lab: &Lab, arm: usize, point: &Point) -> Result<Box<dyn ArmRun>, LabError>;

    /// That every arm completes, that data is right, and that the arms really differ (I3).
    fn check(&self, lab: &Lab) -> Result<Vec<Check>, LabError>;

    /// Where instructions per I/O are counted, for each arm.
    fn instruction_points(&self) -> Vec<Point>;

    /// Whether an arm can be counted there: not if its work is done by the kernel.
    fn counts_instructions(&self, _arm: usize) -> bool {
        true
    }

    /// An arm may reach what it stands for by a way that only the experiment has. What that way costs by itself is the
    /// difference of two other arms, and is taken out of this one's figures.
    fn way(&self, _arm: usize, _point: &Point) -> Option<Way> {
        None
    }

    /// What the ways of the arms cost, in the unit of `costs`, which are per I/O and in the order of the arms.
    fn ways(&self, point: &Point, costs: &[Option<f64>]) -> Vec<f64> {
        let of = |arm: usize| costs.get(arm).copied().flatten();
        let cost = |arm: usize| self.way(arm, point).and_then(|way| Some(of(way.alone)? - of(way.without)?));
        (0..costs.len()).map(|arm| cost(arm).unwrap_or(0.0)).collect()
    }

    /// What more cores than this machine has would do, for each machine that the experiment has a prediction for.
    fn predictions(&self, _report: &ExperimentReport) -> Result<Vec<Prediction>, LabError> {
        Ok(Vec::new())
    }

    /// What the figures show, what they do not, and whether the thread's claim holds here: worked out from them.
    fn verdict(&self, report: &ExperimentReport) -> Verdict;
}

/// A way that only the experiment has, as the difference of two arms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// The arm that goes that way and does nothing at its end.
    pub alone: usize,
    /// The arm that is the same otherwise and does not go it.
    pub without: usize,
}

/// An arm that is ready. It is dropped when its point is done.
pub trait ArmRun {
    /// Does I/O until `end`; nothing is in flight afterwards.
    fn turn(&mut self, end: TurnEnd) -> Result<Turn, LabError>;
}

/// What ends a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnEnd {
    /// A time.
    Time(Duration),
    /// A number of I/Os, of all threads together.
    Ios(u64),
}

/// What a turn took.
#[derive(Clone, Debug, Default)]
pub struct Turn {
    /// I/Os done.
    pub ios: u64,
    /// Time.
    pub wall_ns: u64,
    /// CPU time of all threads that took part.
    pub cpu_ns: u64,
    /// Context switches of those, both kinds.
    pub context_switches: u64,
    /// Latencies in ns.
    pub latency: Option<Histogram<u64>>,
    /// Counted in this turn, shown per I/O: `allocator_calls`, `clock_reads`.
    pub counters: BTreeMap<&'static str, f64>,
    /// Not per I/O, shown as they are: `workers`, `lock_share_percent`.
    pub gauges: BTreeMap<&'static str, f64>,
}

/// A row of the thread's table.
#[derive(Clone, Debug)]
pub struct HeadlineRow {
    /// What the row is: `QD 16, interrupts`.
    pub label: String,
    /// The parameters of this lab that stand for those of the row.
    pub point: Point,
    /// What the thread published, in the unit of the experiment's metric.
    pub published: Option<Published>,
}

/// A row of the thread's table that is not measured here.
#[derive(Clone, Copy, Debug)]
pub struct PublishedOnly {
    /// What the row is.
    pub label: &'static str,
    /// What the thread published.
    pub published: Published,
    /// Why not.
    pub why: &'static str,
}

/// A series of points along one axis.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// On the command line: `depth`, `batch`, `threads`, `readers`, `cells`.
    pub name: &'static str,
    /// A heading.
    pub title: &'static str,
    /// The axis.
    pub axis: Axis,
    /// Along it.
    pub points: Vec<SweepPoint>,
    /// Which arms take part; all when empty.
    pub arms: Vec<usize>,
    /// What is drawn; the experiment's metric when `None`.
    pub metric: Option<Metric>,
}

/// A place on an axis.
#[derive(Clone, Debug)]
pub struct SweepPoint {
    /// Where.
    pub x: f64,
    /// The tick's text.
    pub label: String,
    /// What is measured there.
    pub point: Point,
}

impl SweepPoint {
    /// At a number, which is also its label.
    pub fn at(x: u32, point: Point) -> Self {
        Self { x: f64::from(x), label: x.to_string(), point }
    }
}

/// Where and how much a run measures.
#[derive(Clone, Debug)]
pub struct Lab {
    /// How much.
    pub scale: Scale,
    /// CPUs to place threads on, in order; never empty. More threads than CPUs share them.
    pub cpus: Vec<usize>,
    /// Set by Ctrl-C. Long loops look at it and end their turn early.
    pub stop: Arc<AtomicBool>,
}

impl Lab {
    /// Whether it shall end.
    pub fn stopped(&self) -> bool {
        // Relaxed: the flag carries nothing but itself; the signal handler sets it.
        self.stop.load(Ordering::Relaxed)
    }

    /// The CPU of the `index`-th thread.
    pub fn cpu(&self, index: usize) -> usize {
        self.cpus[index % self.cpus.len()]
    }
}
