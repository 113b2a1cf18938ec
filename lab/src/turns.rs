//! Turns of the arms of one point, in balanced orders: A B D C, B C A D, C D B A, D A C B ...
//!
//! Owns the order of turns and the statistics over them. A machine is never quite quiet, and a disturbance lasts longer
//! than a turn, so that it affects the arms of a round alike.
//!
//! The address of an arm's memory can matter more than the mechanism that is measured. Each round therefore builds its
//! arms anew, warms them up, measures and drops them, and the interval includes the effect of addresses.
//!
//! * I1. Each arm has one turn a round; a round that was cut short counts for none of them.
//! * I2. The rounds are whole Williams squares (E. J. Williams, "Experimental designs balanced for the estimation of
//!   residual effects of treatments", Australian Journal of Scientific Research A 2, 1949): each arm has each place in
//!   a round equally often, and follows each other arm equally often. The after-effects of an arm (a warm cache, a
//!   clock frequency) fall on all others alike.
//! * I3. If a control is wanted, the first arm takes part twice. Its difference from itself is the noise of the
//!   machine.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use sheave_load::live::report_histogram;

use crate::LabError;
use crate::experiment::{ArmRun, Experiment, Lab, Turn, TurnEnd};
use crate::interval::{change, change_in_points, median, ratios};
use crate::point::Point;
use crate::report::{ArmResult, Latency};
use crate::terms::Metric;

/// Number and length of the turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Rounds that are measured, at least.
    pub rounds: u32,
    pub turn: Duration,
}

impl Pace {
    /// Pace of a run whose figures count. All experiments with all sweeps take less than 25 minutes at it
    /// (`the_turns_of_all_experiments_leave_time_for_the_rest`).
    pub const FULL: Pace = Pace { rounds: 10, turn: Duration::from_millis(60) };
    /// Pace of a quick run, whose figures decide nothing.
    pub const QUICK: Pace = Pace { rounds: 3, turn: Duration::from_millis(50) };

    /// Returns the time that each arm runs before it is measured.
    pub fn warm_up(&self) -> Duration {
        (self.turn / 4).min(Duration::from_millis(100))
    }

    /// Returns the rounds of a point with `arms` arms: the wanted number, rounded up to whole Williams squares. Fewer
    /// than `FEWEST` give no interval anyway and are not rounded.
    pub fn rounds_of(&self, arms: usize) -> u32 {
        let square = if arms.is_multiple_of(2) { arms } else { 2 * arms } as u32;
        if self.rounds < FEWEST { self.rounds } else { self.rounds.next_multiple_of(square.max(1)) }
    }

    /// Returns the time of a point with `arms` arms, without building them.
    pub fn of_arms(&self, arms: usize) -> Duration {
        (self.warm_up() + self.turn) * self.rounds_of(arms) * arms as u32
    }
}

/// Fewest rounds that give an interval. With fewer a control would show nothing.
pub const FEWEST: u32 = 6;

/// Returns the order of the arms in a round: a row of a Williams square, or of its mirror image if `arms` is odd.
pub fn order(arms: usize, round: usize) -> Vec<usize> {
    // 0 1 n-1 2 n-2 ...: the differences of neighbours are all distinct.
    let first = (0..arms).map(|place| if place % 2 == 1 { place.div_ceil(2) } else { (arms - place / 2) % arms });
    let mirrored = arms % 2 == 1 && round / arms % 2 == 1;
    let row = first.map(|arm| (arm + round) % arms);
    if mirrored { row.rev().collect() } else { row.collect() }
}

/// Results of a point.
#[derive(Debug)]
pub struct Measured {
    /// Results in the order of the experiment's arms, `None` for those that take no part.
    pub arms: Vec<Option<ArmResult>>,
    /// A/A control: throughput of the first arm's second run over its first, one ratio per round (I3).
    pub control: Vec<f64>,
}

/// Measures the arms at a point. Calls `tick` after each turn. Returns `None` if the run was stopped before the first
/// round ended.
pub fn measure(
    lab: &Lab,
    experiment: &dyn Experiment,
    what: &What<'_>,
    pace: Pace,
    tick: &mut dyn FnMut(Duration),
) -> Result<Option<Measured>, LabError> {
    let What { metric, point, arms, .. } = *what;
    let all = what.with_control();
    let mut samples: Vec<Samples> = all.iter().map(|_| Samples::default()).collect();
    for round in 0..pace.rounds_of(all.len()) as usize {
        let Some(turns) = self::round(lab, experiment, point, &all, round, pace, tick)? else { break };
        let [wall, cpu] = ways(experiment, point, &all, &turns);
        for (at, (samples, turn)) in samples.iter_mut().zip(turns).enumerate() {
            samples.add(turn, metric, [wall[all[at]], cpu[all[at]]]);
        }
    }
    if samples.iter().any(|samples| samples.values.is_empty()) {
        return Ok(None);
    }
    let again = samples.split_off(arms.len());
    let control = again.first().and_then(|again| ratios(&samples[0].iops, &again.iops)).unwrap_or_default();
    Ok(Some(Measured { arms: finish(&samples, metric, experiment.arms().len(), arms), control }))
}

/// Description of a point to measure.
#[derive(Clone, Copy)]
pub struct What<'a> {
    /// The figure to compare.
    pub metric: Metric,
    pub point: &'a Point,
    /// The arms that take part, by index.
    pub arms: &'a [usize],
    /// True to measure the first arm twice (I3).
    pub control: bool,
}

impl What<'_> {
    /// Returns the arms, and the first one again if there is a control.
    fn with_control(&self) -> Vec<usize> {
        let again = self.arms.first().filter(|_| self.control);
        self.arms.iter().chain(again).copied().collect()
    }
}

/// Runs one turn of each arm. Returns them in the order of `arms`, or `None` if the run was stopped.
fn round(
    lab: &Lab,
    experiment: &dyn Experiment,
    point: &Point,
    arms: &[usize],
    round: usize,
    pace: Pace,
    tick: &mut dyn FnMut(Duration),
) -> Result<Option<Vec<Turn>>, LabError> {
    let context = |arm: usize, err: LabError| {
        let name = experiment.arms()[arm].name;
        LabError { cause: format!("{}, arm {name}, at {point}: {}", experiment.id(), err.cause), ..err }
    };
    let mut runs: Vec<Box<dyn ArmRun>> = Vec::new();
    for &arm in arms {
        runs.push(experiment.prepare(lab, arm, point).map_err(|err| context(arm, err))?);
    }
    for (run, &arm) in runs.iter_mut().zip(arms) {
        let warm = run.turn(TurnEnd::Time(pace.warm_up()));
        // Checked before the result: an interrupted turn may have failed because of the interruption.
        if lab.stopped() {
            return Ok(None);
        }
        warm.map_err(|err| context(arm, err))?;
        tick(pace.warm_up());
    }
    let mut turns: Vec<Option<Turn>> = vec![None; arms.len()];
    for at in order(arms.len(), round) {
        let turn = runs[at].turn(TurnEnd::Time(pace.turn));
        if lab.stopped() {
            return Ok(None);
        }
        let turn = turn.map_err(|err| context(arms[at], err))?;
        if turn.ios == 0 || turn.wall_ns == 0 {
            let nothing = LabError::run("a turn ended without a single I/O").fix("use a longer --turn");
            return Err(context(arms[at], nothing));
        }
        turns[at] = Some(turn);
        tick(pace.turn);
    }
    Ok(Some(turns.into_iter().map(|turn| turn.expect("each arm had its turn (I1)")).collect()))
}

/// Returns the experiment's overhead in this round by arm, in ns of time and of CPU time per I/O.
fn ways(experiment: &dyn Experiment, point: &Point, arms: &[usize], turns: &[Turn]) -> [Vec<f64>; 2] {
    let spent: [fn(&Turn) -> u64; 2] = [|turn| turn.wall_ns, |turn| turn.cpu_ns];
    spent.map(|spent| {
        let mut costs = vec![None; experiment.arms().len()];
        for (&arm, turn) in arms.iter().zip(turns) {
            costs[arm] = Some(spent(turn) as f64 / turn.ios as f64);
        }
        experiment.ways(point, &costs)
    })
}

/// Figures of the turns of one arm, one per round.
#[derive(Default)]
struct Samples {
    values: Vec<f64>,
    iops: Vec<f64>,
    cpu: Vec<f64>,
    switches: Vec<f64>,
    latency: Option<Histogram<u64>>,
    counters: BTreeMap<&'static str, Vec<f64>>,
    gauges: BTreeMap<&'static str, Vec<f64>>,
}

impl Samples {
    /// Adds a turn, without the experiment's overhead in time and CPU time of each I/O.
    fn add(&mut self, turn: Turn, metric: Metric, [wall_way, cpu_way]: [f64; 2]) {
        let ios = turn.ios as f64;
        let iops = ios * 1e9 / turn.wall_ns as f64;
        let own_ns = turn.wall_ns as f64 / ios - wall_way;
        let value = match metric.name == Metric::IOPS.name {
            // Noise can make the overhead longer than the whole I/O; the value is then not a number.
            true => (own_ns > 0.0).then(|| 1e9 / own_ns),
            false => turn.gauges.get(metric.name).copied(),
        };
        self.values.push(value.unwrap_or(f64::NAN));
        self.iops.push(iops);
        self.cpu.push(turn.cpu_ns as f64 / ios - cpu_way);
        self.switches.push(turn.context_switches as f64 / ios);
        for (name, count) in turn.counters {
            self.counters.entry(name).or_default().push(count / ios);
        }
        for (name, value) in turn.gauges {
            self.gauges.entry(name).or_default().push(value);
        }
        if let Some(latency) = turn.latency {
            let sum = self.latency.get_or_insert_with(report_histogram);
            for bucket in latency.iter_recorded() {
                sum.saturating_record_n(bucket.value_iterated_to(), bucket.count_at_value());
            }
        }
    }

    fn result(&self, metric: Metric, base: Option<&Self>) -> ArmResult {
        let middle = |values: &[f64]| median(values).unwrap_or(f64::NAN);
        let medians = |map: &BTreeMap<&'static str, Vec<f64>>| {
            map.iter().map(|(&name, values)| (name, middle(values))).collect::<BTreeMap<_, _>>()
        };
        // An arm without a value of the metric is compared in CPU time only.
        let told = |samples: &&Self| samples.values.iter().chain(&self.values).all(|value| value.is_finite());
        let how = if metric.in_points() { change_in_points } else { change };
        ArmResult {
            value: middle(&self.values),
            range: [
                self.values.iter().copied().fold(f64::INFINITY, f64::min),
                self.values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            ],
            iops: middle(&self.iops),
            cpu_ns_per_io: middle(&self.cpu),
            switches_per_io: middle(&self.switches),
            change: base.filter(told).and_then(|base| how(&base.values, &self.values)),
            cpu_change: base.and_then(|base| change(&base.cpu, &self.cpu)),
            latency: self.latency.as_ref().map(Latency::of),
            counters: medians(&self.counters),
            gauges: medians(&self.gauges),
            rounds: self.values.len() as u32,
        }
    }
}

/// Returns the results in the order of the experiment's arms.
fn finish(samples: &[Samples], metric: Metric, all: usize, arms: &[usize]) -> Vec<Option<ArmResult>> {
    let base = arms.iter().position(|&arm| arm == 0);
    let mut results = vec![None; all];
    for (at, &arm) in arms.iter().enumerate() {
        let against = base.filter(|&base| base != at).map(|base| &samples[base]);
        results[arm] = Some(samples[at].result(metric, against));
    }
    results
}

#[cfg(test)]
mod tests;
