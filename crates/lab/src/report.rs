//! Results: what `--json` prints, what the page shows, and what a verdict is worked out from.
//!
//! Owns the types and the look-ups in them. Figures are medians over rounds; a change pairs turns of one round.

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

/// What the 99 % interval of the same arm twice may be wide, to either side, in percent, on a machine that can tell.
pub const TELLS: f64 = 2.0;

/// Results of a run.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct LabReport {
    /// Version of Sheave.
    #[serde(deserialize_with = "serial::word")]
    pub version: &'static str,
    /// The command that was run.
    pub command: String,
    /// When it began: `2026-01-31 12:00 UTC`.
    pub began: String,
    /// How long it took.
    pub seconds: f64,
    /// The machine.
    pub machine: Machine,
    /// CPUs that threads were placed on, in order.
    pub cpus: Vec<usize>,
    /// How much was measured.
    pub scale: Scale,
    /// Rounds that a figure is the median of.
    pub rounds: u32,
    /// Time of a turn.
    pub turn_ms: f64,
    /// The experiments.
    pub experiments: Vec<ExperimentReport>,
    /// What the same arms twice say of the machine, in all experiments together.
    pub same_arms_twice: SameArmsTwice,
    /// Ctrl-C ended it before all was measured.
    pub interrupted: bool,
}

/// The first arms of all experiments against themselves, and whether this machine can tell by that.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct SameArmsTwice {
    /// By how much they differ, with the 99 % interval.
    pub change: Option<Change>,
    /// Whether the interval holds 0 and is within [`TELLS`] percent.
    pub tells: bool,
    /// The same in a sentence.
    pub says: String,
}

impl LabReport {
    /// The first arms against themselves, in all experiments together, with the 99 % interval.
    pub fn control(&self) -> Option<Change> {
        let rows = self.experiments.iter().flat_map(|experiment| &experiment.headline);
        let ratios: Vec<f64> = rows.flat_map(|row| row.control.iter().copied()).collect();
        interval::of_ratios(&ratios, interval::OF_CONTROLS)
    }

    /// Whether this machine can tell: jointly the same arm twice does not differ, by less than [`TELLS`] percent.
    pub fn machine_tells(&self) -> bool {
        let tells = |control: Change| control.low <= 0.0 && control.high >= 0.0 && control.half_width() <= TELLS;
        self.control().is_some_and(tells)
    }

    /// Checks that failed, with the names of their experiments.
    pub fn failed_checks(&self) -> Vec<(&'static str, &Check)> {
        let checks = self.experiments.iter().flat_map(|exp| exp.checks.iter().map(|check| (exp.id, check)));
        checks.filter(|(_, check)| !check.ok).collect()
    }
}

/// Results of one experiment.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ExperimentReport {
    /// Its name.
    #[serde(deserialize_with = "serial::word")]
    pub id: &'static str,
    /// Its heading.
    #[serde(deserialize_with = "serial::word")]
    pub title: &'static str,
    /// The thread.
    pub seed: Seed,
    /// What is compared.
    pub metric: Metric,
    /// The arms, in the order of every `arms` below.
    pub arms: Vec<ArmInfo>,
    /// The thread's table.
    pub headline: Vec<Row>,
    /// The job file of a run, done by fio, where that was asked for.
    pub peer: Option<Peer>,
    /// The sweeps.
    pub sweeps: Vec<SweepReport>,
    /// Instructions per I/O.
    pub instructions: Vec<InstructionRow>,
    /// That the arms are what they say.
    pub checks: Vec<Check>,
    /// More cores than this machine has.
    pub predictions: Vec<Prediction>,
    /// The first arm against itself, over all rows of the thread's table, with its 99 % interval.
    pub control: Option<Change>,
    /// What the end of the run does not repeat of that on which a verdict would rest.
    #[serde(default)]
    pub strays: Vec<Stray>,
    /// What the figures show.
    pub verdict: Option<Verdict>,
    /// Ctrl-C ended it before all points were measured.
    pub interrupted: bool,
}

impl ExperimentReport {
    /// The first arm against itself, worked out from the rows that there are.
    pub fn work_out_control(&mut self) {
        let ratios: Vec<f64> = self.headline.iter().flat_map(|row| row.control.iter().copied()).collect();
        self.control = interval::of_ratios(&ratios, interval::OF_CONTROLS);
    }

    /// Whether times of this run can decide anything: the same arm twice must not differ.
    pub fn tells_time(&self) -> bool {
        self.control.is_some_and(|control| control.is_measurable() && !control.is_clear())
    }

    /// The same with no change in time that anything could be claimed by; instructions remain.
    pub fn without_times(&self) -> Self {
        let mut report = self.clone();
        let rows = report.headline.iter_mut().chain(report.sweeps.iter_mut().flat_map(|sweep| &mut sweep.rows));
        for arm in rows.flat_map(|row| row.arms.iter_mut().flatten()) {
            arm.change = arm.change.map(Change::blinded);
            arm.cpu_change = arm.cpu_change.map(Change::blinded);
        }
        report
    }

    /// What the command that repeats one row has beside experiment and point.
    pub fn options(&self) -> String {
        let rows = self.headline.iter().chain(self.sweeps.iter().flat_map(|sweep| &sweep.rows));
        let of = |row: &Row| {
            let before = format!("sheave-lab {} --point {}", self.id, row.point);
            row.command.strip_prefix(&before).map(str::to_owned)
        };
        rows.filter_map(of).next().unwrap_or_default()
    }

    /// The row of the thread's table that has this label.
    pub fn row(&self, label: &str) -> Option<&Row> {
        self.headline.iter().find(|row| row.label == label)
    }

    /// The sweep of a name.
    pub fn sweep(&self, name: &str) -> Option<&SweepReport> {
        self.sweeps.iter().find(|sweep| sweep.name == name)
    }

    /// The index of the arm with this name.
    pub fn arm(&self, name: &str) -> Option<usize> {
        self.arms.iter().position(|arm| arm.name == name)
    }

    /// Whether the thread's table was measured again at the end of the run.
    pub fn is_repeated(&self) -> bool {
        self.headline.iter().any(|row| !row.again.is_empty())
    }

    /// The index of the arm that is Sheave's.
    pub fn after(&self) -> usize {
        self.arms.iter().position(|arm| arm.role == Role::After).unwrap_or(0)
    }

    /// The row that a verdict is about, and the arm in it that is the thread's own; Sheave's where there is no other.
    pub fn judged(&self) -> Option<(&Row, usize)> {
        let row = self.best_known()?;
        let seed = self.arms.iter().position(|arm| arm.role == Role::Seed);
        Some((row, row.threads_arm.or(seed).unwrap_or(self.after())))
    }

    /// The measured row whose published change is the largest: what a thread is remembered for.
    pub fn best_known(&self) -> Option<&Row> {
        let change = |row: &&Row| row.published.map_or(0.0, |published| published.change_percent.abs());
        let measured = self.headline.iter().filter(|row| row.arms.iter().any(Option::is_some));
        measured.max_by(|a, b| change(a).total_cmp(&change(b)))
    }

    /// What an arm gains in instructions at a row's point; where those were not counted, at one with the same I/Os,
    /// which comes with it.
    pub fn gain_near(&self, row: &Row, arm: usize) -> Option<(f64, Option<&Point>)> {
        let alike = |counted: &&InstructionRow| counted.point.has_ios_of(&row.point);
        let near = || {
            let counted = self.instructions.iter().find(alike)?;
            Some((counted.gain_percent(arm)?, Some(&counted.point)))
        };
        self.gain(row, arm).map(|gain| (gain, None)).or_else(near)
    }

    /// What an arm gains in instructions at a row's point.
    pub fn gain(&self, row: &Row, arm: usize) -> Option<f64> {
        self.instructions.iter().find(|counted| counted.point == row.point)?.gain_percent(arm)
    }
}

/// A table of a report as those see it who show its rows one by one: the thread's table, or a sweep.
pub struct Part<'a> {
    /// A heading.
    pub heading: &'a str,
    /// What the rows lie along; the thread's table has none.
    pub axis: Option<Axis>,
    /// What the figures are.
    pub metric: Metric,
}

/// All arms at one point.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Row {
    /// What it is.
    pub label: String,
    /// Place on the axis of a sweep.
    pub x: f64,
    /// The parameters.
    pub point: Point,
    /// What the thread published for it.
    pub published: Option<Published>,
    /// Ours, in the order of the experiment's arms; `None` for arms that took no part.
    pub arms: Vec<Option<ArmResult>>,
    /// The arm that is the thread's here, where figures were published.
    pub threads_arm: Option<usize>,
    /// The arms at the end of the run, in the same order; empty where the row was measured once.
    #[serde(default)]
    pub again: Vec<Option<Again>>,
    /// What the first arm did a second time, in ratios of I/Os a second to the first, one a round.
    pub control: Vec<f64>,
    /// The command that measures this row again.
    pub command: String,
}

impl Row {
    /// What an arm did.
    pub fn arm(&self, index: usize) -> Option<&ArmResult> {
        self.arms.get(index)?.as_ref()
    }
}

/// An arm at the end of the run (`repeat`).
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub struct Again {
    /// Median of the metric.
    #[serde(deserialize_with = "serial::number")]
    pub value: f64,
    /// The metric against the first arm, which ran at the end too.
    pub change: Option<Change>,
}

/// A change of the thread's table that the end of the run does not repeat.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Stray {
    /// The row's label.
    pub row: String,
    /// The arm's name.
    pub arm: String,
    /// What was measured at the beginning.
    pub first: Change,
    /// And at the end; not measurable where the rounds of the end have no interval.
    pub again: Change,
}

/// One arm at one point.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ArmResult {
    /// Median of the metric over rounds; I/Os a second without the experiment's own way, where the arm takes one.
    #[serde(deserialize_with = "serial::number")]
    pub value: f64,
    /// Lowest and highest of the rounds.
    #[serde(deserialize_with = "serial::range")]
    pub range: [f64; 2],
    /// Median I/Os a second, as they ran.
    #[serde(deserialize_with = "serial::number")]
    pub iops: f64,
    /// Median CPU time per I/O, of all threads, without the experiment's own way.
    #[serde(deserialize_with = "serial::number")]
    pub cpu_ns_per_io: f64,
    /// Context switches per I/O.
    #[serde(deserialize_with = "serial::number")]
    pub switches_per_io: f64,
    /// The metric against the first arm; `None` for that arm itself.
    pub change: Option<Change>,
    /// CPU time per I/O against the first arm.
    pub cpu_change: Option<Change>,
    /// Latencies of all rounds together.
    pub latency: Option<Latency>,
    /// Per I/O.
    #[serde(deserialize_with = "serial::figures")]
    pub counters: BTreeMap<&'static str, f64>,
    /// Medians as they are.
    #[serde(deserialize_with = "serial::figures")]
    pub gauges: BTreeMap<&'static str, f64>,
    /// Rounds that count.
    pub rounds: u32,
}

impl From<&ArmResult> for Again {
    fn from(arm: &ArmResult) -> Self {
        Self { value: arm.value, change: arm.change }
    }
}

/// Latencies in ns.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Latency {
    /// Half are below.
    pub p50: u64,
    /// 99 % are below.
    pub p99: u64,
    /// 99.9 % are below.
    pub p999: u64,
    /// The longest.
    pub max: u64,
    /// For plots: where a bucket begins, in ns, and its share of the I/Os. Twelve buckets a doubling; empty ones are
    /// left out.
    pub shares: Vec<[f64; 2]>,
}

impl Latency {
    /// Buckets a doubling: as fine as a plot shows, and no finer than what was recorded.
    pub const PER_DOUBLING: f64 = 12.0;

    /// The figures of a histogram.
    pub fn of(histogram: &Histogram<u64>) -> Self {
        let at = |share| histogram.value_at_quantile(share);
        Self { p50: at(0.5), p99: at(0.99), p999: at(0.999), max: histogram.max(), shares: shares(histogram) }
    }
}

/// Share of the I/Os in each bucket, buckets of equal width on a logarithmic axis.
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

/// A sweep's results.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct SweepReport {
    /// Its name.
    #[serde(deserialize_with = "serial::word")]
    pub name: &'static str,
    /// Its heading.
    #[serde(deserialize_with = "serial::word")]
    pub title: &'static str,
    /// Its axis.
    pub axis: Axis,
    /// What is drawn.
    pub metric: Metric,
    /// Along it.
    pub rows: Vec<Row>,
}

/// Instructions per I/O of each arm at one point, counted under valgrind.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct InstructionRow {
    /// Where.
    pub point: Point,
    /// In the order of the arms, as counted.
    pub per_io: Vec<Option<f64>>,
    /// Of these, what the experiment's own way to what the arm stands for takes; 0 where it takes none.
    pub way: Vec<f64>,
    /// Lines of 64 bytes fetched into a first-level cache of 32 KiB, by valgrind's model of one.
    pub lines_per_io: Vec<Option<f64>>,
    /// Functions in which arms differ, those in which they differ most first.
    pub functions: Vec<FunctionRow>,
    /// Commands that count them again, in the order of the arms.
    pub commands: Vec<String>,
}

/// Instructions per I/O in one function, in the order of the arms.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct FunctionRow {
    /// Its name.
    pub name: String,
    /// Of each arm that was counted.
    pub per_io: Vec<Option<f64>>,
}

impl FunctionRow {
    /// By how much the arms differ.
    pub fn spread(&self) -> f64 {
        let [least, most] = self.range();
        most - least
    }

    /// The least and the most that an arm takes in it.
    pub fn range(&self) -> [f64; 2] {
        let least = self.per_io.iter().flatten().copied().fold(f64::INFINITY, f64::min);
        let most = self.per_io.iter().flatten().copied().fold(f64::NEG_INFINITY, f64::max);
        [least, most]
    }
}

impl InstructionRow {
    /// Instructions per I/O of an arm without the experiment's own way.
    pub fn net(&self, arm: usize) -> Option<f64> {
        Some((*self.per_io.get(arm)?)? - self.way.get(arm).copied().unwrap_or(0.0))
    }

    /// How many more instructions the first arm takes than this one takes, in percent of this one's: what the metric
    /// would gain if time were instructions.
    pub fn gain_percent(&self, arm: usize) -> Option<f64> {
        let (before, this) = (self.net(0)?, self.net(arm)?);
        (this > 0.0).then(|| (before / this - 1.0) * 100.0)
    }
}

/// What more cores than there are would do: worked out, not measured.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Prediction {
    /// The machine.
    pub machine: String,
    /// What it assumes, in a sentence or two.
    pub assumes: String,
    /// Its inputs: name, value, unit.
    #[serde(deserialize_with = "serial::inputs")]
    pub inputs: Vec<(String, f64, &'static str)>,
    /// What the simulation has counted.
    pub counts: Vec<Counted>,
    /// The curves.
    pub curves: Vec<Curve>,
    /// What the thread has published for such a machine.
    pub published: Vec<Known>,
    /// What the curves say of that: each holds or misses, by how much.
    pub against: Vec<String>,
    /// Why there are no curves.
    pub not_shown: Option<String>,
}

/// One arm's predicted curve.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Curve {
    /// Name of the arm.
    pub arm: String,
    /// By rising number of cores.
    pub points: Vec<Predicted>,
}

/// I/Os a second of so many cores together.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub struct Predicted {
    /// Cores.
    pub cores: u32,
    /// The lower end of the band.
    pub low: f64,
    /// With what was published for the machine.
    pub middle: f64,
    /// The upper end.
    pub high: f64,
}

/// A point that the thread has published.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Known {
    /// The arm that it stands for.
    pub arm: String,
    /// Cores.
    pub cores: u32,
    /// I/Os a second.
    pub iops: f64,
    /// An input of the prediction is worked out from it, so that it proves nothing.
    pub used: bool,
}

/// Whether the thread's claim holds here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Holds {
    /// It does, by at least the thread's percentage, in time or in instructions.
    Yes,
    /// The direction holds; the size does not, or only in some rows.
    Partly,
    /// It does not.
    No,
    /// This machine or this run cannot tell.
    CannotTell,
    /// The end of the run contradicts its beginning, so that there is no verdict.
    DoesNotRepeat,
}

/// Whether a claim of at least so many percent holds, by the change in time and by that in instructions, which repeat.
/// What is measured to be worse does not hold, whatever its instructions; what time cannot tell, instructions decide.
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

/// What the figures show.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Verdict {
    /// Whether the claim holds.
    pub holds: Holds,
    /// The thread's claim, in a sentence.
    pub claim: String,
    /// What the figures show here.
    pub shows: String,
    /// What they do not show.
    pub does_not_show: String,
}
