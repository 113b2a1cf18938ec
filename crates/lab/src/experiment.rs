//! What an experiment is: arms that differ in one thing, the points at which they are measured, and what they prove.
//!
//! Owns the types that the experiments and the runner meet in; measures nothing itself. An experiment makes arms ready
//! and judges results; the runner decides when each arm has its turn.
//!
//! * I1. `arms()[0]` is what the others are compared with ("before"); exactly one arm is [`Role::After`].
//! * I2. Arms of one point differ in the one thing that [`ArmInfo::what`] names; device, ring, threads and CPUs are the
//!   same.
//! * I3. A check compares counts and data, never times.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hdrhistogram::Histogram;
use sheave::base::sync::atomic::{AtomicBool, Ordering};

use crate::LabError;
use crate::point::Point;
use crate::report::{ExperimentReport, Prediction, Verdict};

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

    /// Rows of its table that cannot be measured here: shown with a gap in the place of ours.
    fn published_only(&self) -> Vec<PublishedOnly> {
        Vec::new()
    }

    /// What the thread only hints at.
    fn sweeps(&self, lab: &Lab) -> Vec<Sweep>;

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

    /// More cores than this machine has, if the experiment has a model for that.
    fn prediction(&self, _lab: &Lab, _report: &ExperimentReport) -> Result<Option<Prediction>, LabError> {
        Ok(None)
    }

    /// What the figures show, what they do not, and whether the thread's claim holds here: worked out from them.
    fn verdict(&self, report: &ExperimentReport) -> Verdict;
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

/// What an arm is to the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The mechanism is off.
    Before,
    /// The mechanism as the thread had it.
    Seed,
    /// The mechanism as Sheave has it.
    After,
    /// One more way to do it.
    Other,
}

/// An arm.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct ArmInfo {
    /// Short, for tables and legends: `before`, `seed`, `after`, `shared pool`. Also its name on the command line, with
    /// `-` for spaces.
    pub name: &'static str,
    /// Its role.
    pub role: Role,
    /// One sentence: the one thing that is changed.
    pub what: &'static str,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Metric {
    /// `iops`, or the name of a gauge.
    pub name: &'static str,
    /// For an axis: `I/O per second`, `share of CPU time in the lock`.
    pub label: &'static str,
    /// For figures: `IOPS`, `%`.
    pub unit: &'static str,
    /// Whether more is better.
    pub more_is_better: bool,
}

impl Metric {
    /// I/Os a second.
    pub const IOPS: Self = Self { name: "iops", label: "I/O per second", unit: "IOPS", more_is_better: true };

    /// For an axis or a heading, with the unit where the label does not say it.
    pub fn title(&self) -> String {
        if self.name == Self::IOPS.name { self.label.into() } else { format!("{} ({})", self.label, self.unit) }
    }

    /// Whether it is a percentage itself, whose change is told in points.
    pub fn in_points(&self) -> bool {
        self.unit == "%"
    }
}

/// Where the idea and the published figures come from.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Seed {
    /// Subject of the thread.
    pub subject: &'static str,
    /// Who sent it.
    pub author: &'static str,
    /// When: `2021-08-10`.
    pub date: &'static str,
    /// Message-ID of its first mail.
    pub message_id: &'static str,
    /// The command that it measured with.
    pub command: &'static str,
    /// The machine that it measured on, as far as it says so.
    pub machine: &'static str,
}

/// A row of the thread's table.
#[derive(Clone, Debug)]
pub struct HeadlineRow {
    /// What the row is: `QD 16, interrupts`.
    pub label: String,
    /// The same parameters here.
    pub point: Point,
    /// What the thread published, in the unit of the experiment's metric.
    pub published: Option<Published>,
}

/// Published figures.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Published {
    /// Without the patches.
    pub before: f64,
    /// With them.
    pub after: f64,
    /// The change as the thread gives it.
    pub change_percent: f64,
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

/// An axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Axis {
    /// `queue depth`.
    pub label: &'static str,
    /// `I/Os`, or nothing.
    pub unit: &'static str,
    /// How places lie on it.
    pub scale: AxisScale,
}

/// How places lie on an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AxisScale {
    /// Evenly.
    Linear,
    /// Each doubling as wide as the last.
    Log2,
    /// Side by side, without an order: bars.
    Categories,
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

/// A check's outcome.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Check {
    /// What must be: `after allocates nothing per I/O`.
    pub name: String,
    /// Whether it is.
    pub ok: bool,
    /// The figures that it was decided by.
    pub detail: String,
}

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// All five within two minutes: few points, short turns.
    Quick,
    /// Everything.
    Full,
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
