//! Results of a run: the contents of `--json` and of the page, and the input of verdicts.
//!
//! Owns the types and the look-ups in them. Figures are medians over rounds; a change is computed from pairs of turns
//! of one round.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::interval;
pub use crate::interval::Change;
use crate::machine::Machine;
use crate::model::counted::Counted;
use crate::peer::Peer;
use crate::point::Point;
use crate::serial;
use crate::terms::{ArmInfo, Axis, Check, Metric, Published, Role, Scale, Seed};

/// Largest half width, in percent, of the 99 % interval between two runs of the same arm. On a machine with a wider
/// interval, times do not count.
pub const TELLS: f64 = 2.0;

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct LabReport {
    #[serde(deserialize_with = "serial::word")]
    pub version: &'static str,
    /// Command line of the run.
    pub command: String,
    /// Start of the run, for example `2026-01-31 12:00 UTC`.
    pub began: String,
    /// Duration of the run in seconds.
    pub seconds: f64,
    pub machine: Machine,
    /// CPUs that threads were placed on, in order.
    pub cpus: Vec<usize>,
    pub scale: Scale,
    /// Smallest number of rounds over which a figure is the median.
    pub rounds: u32,
    pub turn_ms: f64,
    pub experiments: Vec<ExperimentReport>,
    /// Comparison of the first arms with themselves, for all experiments together.
    pub same_arms_twice: SameArmsTwice,
    /// True if Ctrl-C ended the run before all was measured.
    pub interrupted: bool,
}

/// Comparison of the first arms of all experiments with themselves, and the conclusion about the machine.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct SameArmsTwice {
    /// The difference, with its 99 % interval.
    pub change: Option<Change>,
    /// True if the interval contains 0 and is within [`TELLS`] percent, so that times count on this machine.
    pub tells: bool,
    /// A sentence about the difference and the machine.
    pub says: String,
}

impl LabReport {
    /// Compares the first arms with themselves, in all experiments together. Returns the change with its 99 % interval.
    pub fn control(&self) -> Option<Change> {
        let rows = self.experiments.iter().flat_map(|experiment| &experiment.headline);
        let ratios: Vec<f64> = rows.flat_map(|row| row.control.iter().copied()).collect();
        interval::of_ratios(&ratios, interval::OF_CONTROLS)
    }

    /// Returns true if times count on this machine: the interval between two runs of the same arm contains 0 and is
    /// within [`TELLS`] percent.
    pub fn machine_tells(&self) -> bool {
        let tells = |control: Change| control.low <= 0.0 && control.high >= 0.0 && control.half_width() <= TELLS;
        self.control().is_some_and(tells)
    }

    /// Returns the failed checks, with the names of their experiments.
    pub fn failed_checks(&self) -> Vec<(&'static str, &Check)> {
        let checks = self.experiments.iter().flat_map(|exp| exp.checks.iter().map(|check| (exp.id, check)));
        checks.filter(|(_, check)| !check.ok).collect()
    }
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ExperimentReport {
    #[serde(deserialize_with = "serial::word")]
    pub id: &'static str,
    #[serde(deserialize_with = "serial::word")]
    pub title: &'static str,
    /// The mailing-list thread of the idea.
    pub seed: Seed,
    /// The compared figure.
    pub metric: Metric,
    /// The arms, in the order of every list `arms` below.
    pub arms: Vec<ArmInfo>,
    /// The published table, with our figures.
    pub headline: Vec<Row>,
    /// Result of fio on the job file of the run, if one was given.
    pub peer: Option<Peer>,
    pub sweeps: Vec<SweepReport>,
    pub instructions: Vec<InstructionRow>,
    /// Checks that the arms differ as described.
    pub checks: Vec<Check>,
    /// Predictions for more cores than this machine has.
    pub predictions: Vec<Prediction>,
    /// Comparison of the first arm with itself, with the 99 % interval, over all rows of the published table.
    pub control: Option<Change>,
    /// Changes on which a verdict would be based and which the end of the run does not repeat.
    #[serde(default)]
    pub strays: Vec<Stray>,
    pub verdict: Option<Verdict>,
    /// True if Ctrl-C ended the experiment before all points were measured.
    pub interrupted: bool,
}

impl ExperimentReport {
    /// Computes `control` from the measured rows.
    pub fn work_out_control(&mut self) {
        let ratios: Vec<f64> = self.headline.iter().flat_map(|row| row.control.iter().copied()).collect();
        self.control = interval::of_ratios(&ratios, interval::OF_CONTROLS);
    }

    /// Returns true if times of this run can decide a verdict, which requires that two runs of the same arm do not
    /// differ clearly.
    pub fn tells_time(&self) -> bool {
        self.control.is_some_and(|control| control.is_measurable() && !control.is_clear())
    }

    /// Returns a copy whose changes in time count as not measurable. Instructions remain.
    pub fn without_times(&self) -> Self {
        let mut report = self.clone();
        let rows = report.headline.iter_mut().chain(report.sweeps.iter_mut().flat_map(|sweep| &mut sweep.rows));
        for arm in rows.flat_map(|row| row.arms.iter_mut().flatten()) {
            arm.change = arm.change.map(Change::blinded);
            arm.cpu_change = arm.cpu_change.map(Change::blinded);
        }
        report
    }

    /// Returns the options that follow experiment and point in the command that repeats one row.
    pub fn options(&self) -> String {
        let rows = self.headline.iter().chain(self.sweeps.iter().flat_map(|sweep| &sweep.rows));
        let of = |row: &Row| {
            let before = format!("sheave-lab {} --point {}", self.id, row.point);
            row.command.strip_prefix(&before).map(str::to_owned)
        };
        rows.filter_map(of).next().unwrap_or_default()
    }

    /// Finds a row of the published table by its label.
    pub fn row(&self, label: &str) -> Option<&Row> {
        self.headline.iter().find(|row| row.label == label)
    }

    pub fn sweep(&self, name: &str) -> Option<&SweepReport> {
        self.sweeps.iter().find(|sweep| sweep.name == name)
    }

    /// Returns the index of the arm with this name.
    pub fn arm(&self, name: &str) -> Option<usize> {
        self.arms.iter().position(|arm| arm.name == name)
    }

    /// Returns true if the published table was measured again at the end of the run.
    pub fn is_repeated(&self) -> bool {
        self.headline.iter().any(|row| !row.again.is_empty())
    }

    /// Returns the index of the arm with Sheave like it ships.
    pub fn after(&self) -> usize {
        self.arms.iter().position(|arm| arm.role == Role::After).unwrap_or(0)
    }

    /// Returns the row that a verdict is about, and the index of the arm that corresponds to the published one. If
    /// there is no such arm, the index is that of Sheave's arm.
    pub fn judged(&self) -> Option<(&Row, usize)> {
        let row = self.best_known()?;
        let seed = self.arms.iter().position(|arm| arm.role == Role::Seed);
        Some((row, row.threads_arm.or(seed).unwrap_or(self.after())))
    }

    /// Returns the measured row with the largest published change, for which the mailing-list thread is best known.
    pub fn best_known(&self) -> Option<&Row> {
        let change = |row: &&Row| row.published.map_or(0.0, |published| published.change_percent.abs());
        let measured = self.headline.iter().filter(|row| row.arms.iter().any(Option::is_some));
        measured.max_by(|a, b| change(a).total_cmp(&change(b)))
    }

    /// Returns the gain of an arm in instructions at a row's point, in percent. If the instructions were not counted
    /// there, returns the gain at a point with the same I/Os, together with that point.
    pub fn gain_near(&self, row: &Row, arm: usize) -> Option<(f64, Option<&Point>)> {
        let alike = |counted: &&InstructionRow| counted.point.has_ios_of(&row.point);
        let near = || {
            let counted = self.instructions.iter().find(alike)?;
            Some((counted.gain_percent(arm)?, Some(&counted.point)))
        };
        self.gain(row, arm).map(|gain| (gain, None)).or_else(near)
    }

    /// Returns the gain of an arm in instructions at a row's point, in percent.
    pub fn gain(&self, row: &Row, arm: usize) -> Option<f64> {
        self.instructions.iter().find(|counted| counted.point == row.point)?.gain_percent(arm)
    }
}

/// Header of a table that is shown row by row: the published table, or a sweep.
pub struct Part<'a> {
    pub heading: &'a str,
    /// Axis of the rows; `None` for the published table.
    pub axis: Option<Axis>,
    pub metric: Metric,
}

/// Results of all arms at one point.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Row {
    pub label: String,
    /// Position on the axis of a sweep.
    pub x: f64,
    pub point: Point,
    /// Published figures of the row.
    pub published: Option<Published>,
    /// Our figures, in the order of the experiment's arms; `None` for arms that took no part.
    pub arms: Vec<Option<ArmResult>>,
    /// Index of the arm that corresponds to the published figures, if there are any.
    pub threads_arm: Option<usize>,
    /// Results at the end of the run, in the order of the arms; empty if the row was measured once.
    #[serde(default)]
    pub again: Vec<Option<Again>>,
    /// A/A control: for each round, the ratio of the throughput of arm 0 in its second turn to that in its first.
    pub control: Vec<f64>,
    pub command: String,
}

impl Row {
    pub fn arm(&self, index: usize) -> Option<&ArmResult> {
        self.arms.get(index)?.as_ref()
    }
}

/// Result of an arm at the end of the run (`repeat`).
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub struct Again {
    #[serde(deserialize_with = "serial::number")]
    pub value: f64,
    /// Change of the metric against the first arm, which was measured again at the end too.
    pub change: Option<Change>,
}

/// A change in the published table that the end of the run contradicts: their intervals do not meet.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Stray {
    pub row: String,
    pub arm: String,
    /// Change at the beginning of the run.
    pub first: Change,
    /// Change at the end of the run; not measurable if too few rounds ran for an interval.
    pub again: Change,
}

/// Result of one arm at one point.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ArmResult {
    /// Median of the metric over rounds. I/Os a second do not include the experiment's overhead (`Way`).
    #[serde(deserialize_with = "serial::number")]
    pub value: f64,
    /// Lowest and highest value among the rounds.
    #[serde(deserialize_with = "serial::range")]
    pub range: [f64; 2],
    /// Median of the I/Os a second, including the experiment's overhead.
    #[serde(deserialize_with = "serial::number")]
    pub iops: f64,
    /// Median of the CPU time per I/O of all threads, without the experiment's overhead.
    #[serde(deserialize_with = "serial::number")]
    pub cpu_ns_per_io: f64,
    #[serde(deserialize_with = "serial::number")]
    pub switches_per_io: f64,
    /// Change of the metric against the first arm; `None` for that arm itself.
    pub change: Option<Change>,
    /// Change of the CPU time per I/O against the first arm.
    pub cpu_change: Option<Change>,
    /// Latencies of all rounds taken together.
    pub latency: Option<Latency>,
    /// The arm's own counters, per I/O.
    #[serde(deserialize_with = "serial::figures")]
    pub counters: BTreeMap<&'static str, f64>,
    /// Medians of the arm's own gauges.
    #[serde(deserialize_with = "serial::figures")]
    pub gauges: BTreeMap<&'static str, f64>,
    /// Number of rounds that were measured in full.
    pub rounds: u32,
}

impl From<&ArmResult> for Again {
    fn from(arm: &ArmResult) -> Self {
        Self { value: arm.value, change: arm.change }
    }
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Latency {
    pub p50: u64,
    pub p99: u64,
    pub p999: u64,
    pub max: u64,
    /// Histogram for plots: the start of each bucket in ns, and its share of the I/Os. There are twelve buckets per
    /// doubling; empty ones are left out.
    pub shares: Vec<[f64; 2]>,
}

impl Latency {
    /// Number of buckets per doubling: as many as a plot can show, and no finer than the recorded histogram.
    pub const PER_DOUBLING: f64 = 12.0;

    /// Extracts the figures of a histogram.
    pub fn of(histogram: &Histogram<u64>) -> Self {
        let at = |share| histogram.value_at_quantile(share);
        Self { p50: at(0.5), p99: at(0.99), p999: at(0.999), max: histogram.max(), shares: shares(histogram) }
    }
}

/// Returns the share of the I/Os in each bucket. Buckets have equal width on a logarithmic axis.
fn shares(histogram: &Histogram<u64>) -> Vec<[f64; 2]> {
    let mut buckets: BTreeMap<i32, u64> = BTreeMap::new();
    for bucket in histogram.iter_recorded() {
        let place = (bucket.value_iterated_to().max(1) as f64).log2() * Latency::PER_DOUBLING;
        *buckets.entry(place.floor() as i32).or_default() += bucket.count_at_value();
    }
    let all = histogram.len().max(1) as f64;
    let to_ns = |place: i32| (f64::from(place) / Latency::PER_DOUBLING).exp2();
    buckets.iter().map(|(&place, &count)| [to_ns(place), count as f64 / all]).collect()
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct SweepReport {
    #[serde(deserialize_with = "serial::word")]
    pub name: &'static str,
    #[serde(deserialize_with = "serial::word")]
    pub title: &'static str,
    pub axis: Axis,
    /// The figure that is drawn.
    pub metric: Metric,
    pub rows: Vec<Row>,
}

/// Instructions per I/O of each arm at one point, counted under valgrind.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct InstructionRow {
    pub point: Point,
    /// Counts in the order of the arms, including the experiment's overhead.
    pub per_io: Vec<Option<f64>>,
    /// Part of `per_io` that is the experiment's overhead; 0 for an arm without one.
    pub way: Vec<f64>,
    /// Number of lines of 64 bytes fetched into a first-level cache of 32 KiB, according to valgrind's model of a
    /// cache.
    pub lines_per_io: Vec<Option<f64>>,
    /// Functions in which arms differ, sorted by the size of the difference, largest first.
    pub functions: Vec<FunctionRow>,
    /// Commands that repeat the counting, in the order of the arms.
    pub commands: Vec<String>,
}

/// Instructions per I/O in one function, in the order of the arms.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct FunctionRow {
    pub name: String,
    /// Counts; `None` for arms that were not counted.
    pub per_io: Vec<Option<f64>>,
}

impl FunctionRow {
    /// Returns the difference between the largest and the smallest count.
    pub fn spread(&self) -> f64 {
        let [least, most] = self.range();
        most - least
    }

    /// Returns the smallest and the largest count.
    pub fn range(&self) -> [f64; 2] {
        let least = self.per_io.iter().flatten().copied().fold(f64::INFINITY, f64::min);
        let most = self.per_io.iter().flatten().copied().fold(f64::NEG_INFINITY, f64::max);
        [least, most]
    }
}

impl InstructionRow {
    /// Returns the instructions per I/O of an arm without the experiment's overhead.
    pub fn net(&self, arm: usize) -> Option<f64> {
        Some((*self.per_io.get(arm)?)? - self.way.get(arm).copied().unwrap_or(0.0))
    }

    /// Returns the gain of an arm in percent: the excess of the first arm's instructions over those of this arm. It
    /// would be the gain in I/Os a second if all instructions took the same time.
    pub fn gain_percent(&self, arm: usize) -> Option<f64> {
        let (before, this) = (self.net(0)?, self.net(arm)?);
        (this > 0.0).then(|| (before / this - 1.0) * 100.0)
    }
}

/// A result for a machine with more cores, which was computed and not measured.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Prediction {
    pub machine: String,
    /// The assumptions, in a sentence or two.
    pub assumes: String,
    /// The inputs of the computation: name, value, unit.
    #[serde(deserialize_with = "serial::inputs")]
    pub inputs: Vec<(String, f64, &'static str)>,
    /// Counts of the cache-line simulation.
    pub counts: Vec<Counted>,
    pub curves: Vec<Curve>,
    /// Published points for such a machine.
    pub published: Vec<Known>,
    /// Comparison of the curves with the published points: if each point is met, or by how much it is missed.
    pub against: Vec<String>,
    /// The reason why there are no curves.
    pub not_shown: Option<String>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Curve {
    pub arm: String,
    /// Points in ascending order of the number of cores.
    pub points: Vec<Predicted>,
}

/// Predicted I/Os a second of all cores together.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub struct Predicted {
    pub cores: u32,
    /// Lower end of the band.
    pub low: f64,
    /// Value with the published time of a hop.
    pub middle: f64,
    /// Upper end of the band.
    pub high: f64,
}

/// A published point.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Known {
    /// Name of the arm that corresponds to the point.
    pub arm: String,
    pub cores: u32,
    pub iops: f64,
    /// True if an input of the prediction was computed from this point, so that its match proves nothing.
    pub used: bool,
}

/// Verdict on the published claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Holds {
    /// The claim holds with at least the published percentage, in time or in instructions.
    Yes,
    /// The claim holds in its direction, but not in its size, or only in some rows.
    Partly,
    /// The claim does not hold.
    No,
    /// The claim cannot be decided on this machine or in this run.
    CannotTell,
    /// There is no verdict, because the end of the run contradicts its beginning.
    DoesNotRepeat,
}

/// Decides if a claim of at least `claimed` percent holds, from the change in time and the gain in instructions. A
/// clear loss of time decides against the claim, whatever the instructions are. If the change in time is not clear,
/// instructions decide.
pub fn decide(claimed: f64, time: Option<Change>, instructions: Option<f64>) -> Holds {
    let clear = time.filter(Change::is_clear).map(|change| change.percent);
    match (clear, instructions) {
        (Some(time), _) if time < 0.0 => Holds::No,
        (Some(time), _) if time >= claimed => Holds::Yes,
        (_, Some(gain)) if gain >= claimed => Holds::Yes,
        (Some(_), _) => Holds::Partly,
        (None, Some(gain)) if gain > 0.0 => Holds::Partly,
        (None, Some(_)) => Holds::No,
        (None, None) => Holds::CannotTell,
    }
}

/// Verdict of an experiment.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Verdict {
    pub holds: Holds,
    /// The published claim, in a sentence.
    pub claim: String,
    /// Findings of this run, in words.
    pub shows: String,
    /// Limits of the findings.
    pub does_not_show: String,
}
