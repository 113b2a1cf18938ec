//! Turns of the arms of one point, in balanced orders: A B D C, B C A D, C D B A, D A C B ...
//!
//! Owns the order of turns and the statistics over them. A machine is never quite quiet, but a disturbance usually
//! lasts longer than a turn and so affects the arms of a round alike.
//!
//! The address of an arm's memory can matter more than the mechanism that is measured. Therefore each round builds its
//! arms anew, warms them up, measures and drops them, and the interval includes the effect of addresses.
//!
//! * I1. Each arm has one turn a round. A round that was cut short counts for none of the arms.
//! * I2. The rounds are whole Williams squares (E. J. Williams, "Experimental designs balanced for the estimation of
//!   residual effects of treatments", Australian Journal of Scientific Research A 2, 1949): each arm has each position
//!   in a round equally often, and follows each other arm equally often. So the after-effects of an arm (a warm cache,
//!   a clock frequency) affect all others alike.
//! * I3. If a control is wanted, the first arm takes part twice. The difference between its two turns is the noise of
//!   the machine.

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
    /// Least number of rounds that are measured.
    pub rounds: u32,
    pub turn: Duration,
}

impl Pace {
    /// Pace of a run whose figures count. At this pace all experiments with all sweeps take less than 25 minutes
    /// (`the_turns_of_all_experiments_leave_time_for_the_rest`).
    pub const FULL: Pace = Pace { rounds: 10, turn: Duration::from_millis(60) };
    /// Pace of a quick run, whose figures decide nothing.
    pub const QUICK: Pace = Pace { rounds: 3, turn: Duration::from_millis(50) };

    /// Returns the time that each arm runs before it is measured.
    pub fn warm_up(&self) -> Duration {
        (self.turn / 4).min(Duration::from_millis(100))
    }

    /// Returns the number of rounds of a point with `arms` arms: the wanted number, rounded up to whole Williams
    /// squares. A number below `FEWEST` gives no interval anyway and is not rounded.
    pub fn rounds_of(&self, arms: usize) -> u32 {
        let square = if arms.is_multiple_of(2) { arms } else { 2 * arms } as u32;
        if self.rounds < FEWEST { self.rounds } else { self.rounds.next_multiple_of(square.max(1)) }
    }

    /// Returns the time that a point with `arms` arms takes, not counting the building of the arms.
    pub fn of_arms(&self, arms: usize) -> Duration {
        (self.warm_up() + self.turn) * self.rounds_of(arms) * arms as u32
    }
}

/// Least number of rounds that give an interval. With fewer rounds a control would show nothing.
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
    /// A/A control: for each round, the ratio of the throughput of the first arm in its second turn to that in its
    /// first (I3).
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
    /// Indices of the arms that take part.
    pub arms: &'a [usize],
    /// True to measure the first arm twice (I3).
    pub control: bool,
}

impl What<'_> {
    /// Returns the indices of the arms, and that of the first one again if there is a control.
    fn with_control(&self) -> Vec<usize> {
        let again = self.arms.first().filter(|_| self.control);
        self.arms.iter().chain(again).copied().collect()
    }
}

/// Runs one turn of each arm. Returns the turns in the order of `arms`, or `None` if the run was stopped.
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
        // The stop flag is checked before the result, because an interrupted turn may have failed due to the
        // interruption.
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

/// Returns the experiment's overhead of each arm in this round, in ns of time and in ns of CPU time per I/O.
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
    /// Adds a turn. The experiment's overhead is subtracted from the time and the CPU time of each I/O.
    fn add(&mut self, turn: Turn, metric: Metric, [wall_way, cpu_way]: [f64; 2]) {
        let ios = turn.ios as f64;
        let iops = ios * 1e9 / turn.wall_ns as f64;
        let own_ns = turn.wall_ns as f64 / ios - wall_way;
        let value = match metric.name == Metric::IOPS.name {
            // Noise can make the overhead longer than the whole I/O. The value is then not a number.
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
        // An arm without a value of the metric is compared only in CPU time.
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
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::fake::{FAKE, lab};

    const PACE: Pace = Pace { rounds: 6, turn: Duration::from_millis(10) };

    fn what<'a>(metric: Metric, point: &'a Point, arms: &'a [usize]) -> What<'a> {
        What { metric, point, arms, control: false }
    }

    #[test]
    fn the_change_is_against_the_first_arm() {
        let mut time = Duration::ZERO;
        let mut tick = |more| time += more;
        let results = measure(&lab(), &FAKE, &what(Metric::IOPS, &Point::default(), &[0, 1]), PACE, &mut tick);
        let results = results.unwrap().expect("it was not stopped");
        assert!(results.control.is_empty(), "nobody asked for one");
        let [Some(before), Some(after)] = &results.arms[..] else { panic!("two arms: {results:?}") };
        assert_eq!((before.value, after.value, before.change), (1000.0, 1500.0, None));
        let change = after.change.expect("there is a first arm");
        assert!((change.percent - 50.0).abs() < 1e-6 && change.is_clear(), "{change:?}");
        assert_eq!((after.rounds, after.switches_per_io, after.counters["allocator_calls"]), (6, 1.0, 3.0));
        assert_eq!(after.gauges["workers"], 2.0);
        assert_eq!(time, PACE.of_arms(2));
        let latency = after.latency.as_ref().expect("it was recorded");
        let share: f64 = latency.shares.iter().map(|[_, share]| share).sum();
        assert!((share - 1.0).abs() < 1e-9 && latency.p50.abs_diff(666_666) < 20_000, "{latency:?}");
    }

    #[test]
    fn an_arm_that_takes_no_part_leaves_its_place_empty() {
        let results = measure(&lab(), &FAKE, &what(Metric::IOPS, &Point::default(), &[1]), PACE, &mut |_| ());
        let results = results.unwrap().expect("it was not stopped");
        assert!(results.arms[0].is_none());
        assert_eq!(results.arms[1].as_ref().map(|arm| (arm.value, arm.change)), Some((1500.0, None)));
    }

    #[test]
    fn a_metric_may_be_a_gauge_in_percent() {
        let metric = Metric { name: "workers", label: "workers", unit: "%", more_is_better: false };
        let results =
            measure(&lab(), &FAKE, &what(metric, &Point::default(), &[0, 1]), PACE, &mut |_| ()).unwrap().unwrap();
        let after = results.arms[1].as_ref().unwrap();
        assert_eq!((after.value, after.change.map(|change| change.percent)), (2.0, Some(0.0)));
    }

    #[test]
    fn a_stop_before_the_first_round_leaves_nothing() {
        let lab = lab();
        let point = Point::default().with("stop", "yes");
        assert!(measure(&lab, &FAKE, &what(Metric::IOPS, &point, &[0, 1]), PACE, &mut |_| ()).unwrap().is_none());
        assert!(lab.stop.load(Ordering::Relaxed));
    }

    #[test]
    fn a_failure_says_where() {
        let point = Point::default().with("fail", "yes");
        let error = measure(&lab(), &FAKE, &what(Metric::IOPS, &point, &[0, 1]), PACE, &mut |_| ()).unwrap_err();
        assert!(error.cause.starts_with("fake, arm before, at bs=512"), "{error}");
        assert_eq!(error.fix.as_deref(), Some("make one"));
    }

    #[test]
    fn the_way_of_the_experiment_is_not_in_the_figures() {
        let turn = || Turn { ios: 1000, wall_ns: 60_000, cpu_ns: 50_000, ..Turn::default() };
        let (mut net, mut hidden) = (Samples::default(), Samples::default());
        net.add(turn(), Metric::IOPS, [20.0, 15.0]);
        hidden.add(turn(), Metric::IOPS, [60.0, 15.0]);
        let result = net.result(Metric::IOPS, None);
        assert_eq!((result.value, result.cpu_ns_per_io), (25e6, 35.0), "40 ns of 60 are its own");
        assert!((result.iops - 1e9 / 60.0).abs() < 1.0, "as it ran");
        assert!(hidden.result(Metric::IOPS, None).value.is_nan(), "all of it is way: nothing to tell");
    }

    #[test]
    fn the_same_arm_twice_is_a_control() {
        let point = Point::default();
        let what = What { control: true, ..what(Metric::IOPS, &point, &[0, 1]) };
        let measured = measure(&lab(), &FAKE, &what, PACE, &mut |_| ()).unwrap().expect("it was not stopped");
        assert_eq!(measured.arms.len(), 2, "it is no arm of the table");
        // Three arms in turns, and the control, make two squares of three rounds.
        assert_eq!(measured.control, [1.0; 6]);
    }

    /// Counts how often each arm has each position in the rounds of a point, and how often it directly follows each
    /// other arm.
    fn balance(arms: usize, rounds: u32) -> (Vec<u32>, Vec<u32>) {
        let (mut places, mut follows) = (vec![0; arms * arms], vec![0; arms * arms]);
        for round in 0..rounds as usize {
            let order = order(arms, round);
            order.iter().enumerate().for_each(|(place, arm)| places[arm * arms + place] += 1);
            order.windows(2).for_each(|pair| follows[pair[0] * arms + pair[1]] += 1);
        }
        (places, follows)
    }

    #[test]
    fn orders_are_balanced_for_places_and_for_what_comes_before() {
        for arms in 1..=9 {
            let rounds = Pace { rounds: 10, ..PACE }.rounds_of(arms);
            assert!(rounds >= 10, "{arms} arms");
            let (places, follows) = balance(arms, rounds);
            assert!(places.iter().all(|&count| count == places[0]), "{arms} arms: {places:?}");
            let pairs = follows.iter().enumerate().filter(|(at, _)| at / arms != at % arms).map(|(_, &count)| count);
            let pairs: Vec<u32> = pairs.collect();
            assert!(pairs.iter().all(|&count| count == pairs[0]), "{arms} arms: {follows:?}");
        }
        assert_eq!((0..4).map(|round| order(4, round)).collect::<Vec<_>>()[1], [1, 2, 0, 3]);
        assert_eq!(Pace { rounds: 3, ..PACE }.rounds_of(5), 3, "a quick run stays quick");
    }
}
