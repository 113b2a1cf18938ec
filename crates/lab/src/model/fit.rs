//! The model held against what was measured: a curve is shown only if it meets one and two threads.
//!
//! Owns the rounds, the 10 % and the words. In each round the costs of lines are measured in turn with every arm on one
//! and on two threads, and the model has to explain the arms of that round with the costs of that round; its figure is
//! the median over rounds. So a machine whose costs change from one second to the next is not compared with itself at
//! another time.
//!
//! * F1. Curves are there only if every arm's fit is within [`LIMIT_PERCENT`]: all arms or none.
//!   And only if the reference arm itself gains from a second CPU ([`MOST_BESIDE`]).
//! * F2. What an arm does is not put into the model: private work is that of the reference arm, alone and beside a
//!   second thread of it. So the reference arm fits by itself; the others are what is tested.

use std::time::Duration;

use super::costs::{LineCosts, visit_cost};
use super::{CORES, Copies, Load, Shared, VisitCost};
use crate::experiment::{Experiment, Lab, TurnEnd};
use crate::point::Point;
use crate::report::{Curve, Fit, Prediction};
use crate::terms::Scale;
use crate::{ArmInfo, LabError};

/// How far the model may be off at one and two threads.
pub const LIMIT_PERCENT: f64 = 10.0;

/// How much longer private work may take beside a second thread: more, and there are not two CPUs to learn from.
const MOST_BESIDE: f64 = 1.5;

/// What one arm shares.
pub struct Shape {
    /// Its index.
    pub arm: usize,
    /// What its I/Os visit; empty if they share nothing.
    pub shared: Vec<Shared>,
    /// Copies of that.
    pub copies: Copies,
}

impl Shape {
    /// An arm with one copy of each for all cores.
    pub fn new(arm: usize, shared: impl Into<Vec<Shared>>) -> Self {
        Self { arm, shared: shared.into(), copies: Copies::One }
    }
}

/// One round of one arm.
struct Round {
    measured: [f64; 2],
    load: Load,
}

/// The curves of an experiment's arms, or why there are none. `reference` is the arm that shares nothing, whose time on
/// one thread is the private work of all; `point` gives the parameters for so many threads.
pub fn predict(
    lab: &Lab,
    experiment: &dyn Experiment,
    reference: usize,
    shapes: &[Shape],
    point: impl Fn(u32) -> Point,
) -> Result<Prediction, LabError> {
    let (rounds, turn) = match lab.scale {
        Scale::Quick => (3, Duration::from_millis(10)),
        Scale::Full => (9, Duration::from_millis(40)),
    };
    let names = |arm: usize| experiment.arms()[arm].name;
    let mut prediction = Prediction { assumes: assumes(names(reference)), ..Prediction::default() };
    let [first, second] = match lab.cpus[..] {
        [first, second, ..] => [first, second],
        _ => {
            prediction.not_shown = Some("it needs two CPUs to measure what a shared line costs".into());
            return Ok(prediction);
        }
    };
    let (mut lines, mut found): (Vec<LineCosts>, Vec<Vec<Round>>) =
        (Vec::new(), shapes.iter().map(|_| Vec::new()).collect());
    for _ in 0..rounds {
        if lab.stopped() {
            prediction.not_shown = Some("the run was ended before it was checked".into());
            return Ok(prediction);
        }
        let costs = LineCosts::measure([first, second], turn / 2)?;
        for (shape, found) in shapes.iter().zip(&mut found) {
            let (mut private_ns, mut measured) = ([0.0; 2], [0.0; 2]);
            for (at, threads) in [1, 2].into_iter().enumerate() {
                // The two that are compared, one right after the other: a busy machine changes within a round too.
                let reference = rate(lab, experiment, reference, &point(threads), turn)?;
                private_ns[at] = f64::from(threads) * 1e9 / reference;
                measured[at] = rate(lab, experiment, shape.arm, &point(threads), turn)?;
            }
            let load = load([first, second], turn / 2, &costs, shape, private_ns)?;
            found.push(Round { measured, load });
        }
        lines.push(costs);
    }
    fill(&mut prediction, experiment.arms(), shapes, &lines, &found);
    Ok(prediction)
}

/// Works it out of the rounds.
fn fill(prediction: &mut Prediction, arms: &[ArmInfo], shapes: &[Shape], lines: &[LineCosts], found: &[Vec<Round>]) {
    prediction.inputs = inputs_of_lines(lines);
    for (shape, rounds) in shapes.iter().zip(found) {
        let arm = arms[shape.arm].name;
        for (at, threads) in [1, 2].into_iter().enumerate() {
            let measured = median(rounds.iter().map(|round| round.measured[at]));
            let ratio = median(rounds.iter().map(|round| round.load.iops(threads) / round.measured[at]));
            prediction.fit.push(Fit {
                arm: arm.into(),
                threads,
                measured,
                predicted: measured * ratio,
                off_percent: (ratio - 1.0) * 100.0,
            });
        }
        let load = middle(rounds, shape);
        prediction.inputs.extend(inputs_of_arm(arm, shape, &load));
        let points = CORES.iter().map(|&cores| (cores, load.iops(cores))).collect();
        prediction.curves.push(Curve { arm: arm.into(), points });
    }
    let beside = found.iter().flatten().map(|round| round.load.beside_ns / round.load.private_ns);
    prediction.not_shown = not_two_cpus(median(beside)).or_else(|| why_not(&prediction.fit, lines));
    if prediction.not_shown.is_some() {
        prediction.curves.clear(); // F1
    }
}

/// Why nothing can be learned from two threads, if work that shares nothing takes so many times as long beside a second
/// (F1).
fn not_two_cpus(beside: f64) -> Option<String> {
    // Two threads would do this many times what one does; a figure that is no number is judged with the fit.
    (beside > MOST_BESIDE).then(|| {
        format!(
            "two threads of the arm that shares nothing do only {:.2} times what one does: other programs use the \
             CPUs, or these are two halves of one core",
            2.0 / beside
        )
    })
}

/// Why the curves are not shown; `None` if they may be (F1).
fn why_not(fit: &[Fit], lines: &[LineCosts]) -> Option<String> {
    // A figure that is not a number is no fit either.
    let missed: Vec<String> = fit
        .iter()
        .filter(|fit| !matches!(fit.off_percent.abs().partial_cmp(&LIMIT_PERCENT), Some(order) if order.is_le()))
        .map(|fit| format!("\"{}\" on {} thread(s) by {:+.0} %", fit.arm, fit.threads, fit.off_percent))
        .collect();
    if missed.is_empty() {
        return None;
    }
    let (lowest, highest) = range(lines.iter().map(|costs| costs.hand_over_ns));
    let moved = if highest > 2.0 * lowest {
        format!(
            ". What a hand-over costs changed from {lowest:.0} to {highest:.0} ns between rounds, as it does when the \
             host moves virtual CPUs or other programs run"
        )
    } else {
        String::new()
    };
    Some(format!(
        "the model misses what was measured here by more than {LIMIT_PERCENT} %: {}{moved}",
        missed.join(", ")
    ))
}

/// I/Os a second of an arm at a point, warm.
fn rate(lab: &Lab, experiment: &dyn Experiment, arm: usize, point: &Point, time: Duration) -> Result<f64, LabError> {
    let mut run = experiment.prepare(lab, arm, point)?;
    run.turn(TurnEnd::Time(time / 4))?;
    let turn = run.turn(TurnEnd::Time(time))?;
    Ok(turn.ios as f64 * 1e9 / turn.wall_ns.max(1) as f64)
}

fn load(
    cpus: [usize; 2],
    time: Duration,
    lines: &LineCosts,
    shape: &Shape,
    private_ns: [f64; 2],
) -> Result<Load, LabError> {
    let visits: f64 = shape.shared.iter().map(|shared| shared.visits_per_io).sum();
    let [private_ns, beside_ns] = private_ns;
    let mut load = Load { private_ns, beside_ns, shared: Vec::new(), copies: shape.copies };
    for shared in &shape.shared {
        let cost = visit_cost(cpus, time, lines, shared, private_ns / visits)?;
        load.shared.push((shared.visits_per_io, cost));
    }
    Ok(load)
}

/// The median of each figure.
fn middle(rounds: &[Round], shape: &Shape) -> Load {
    let of =
        |at: usize, figure: fn(&VisitCost) -> f64| median(rounds.iter().map(|round| figure(&round.load.shared[at].1)));
    let shared = shape.shared.iter().enumerate().map(|(at, shared)| {
        let cost = VisitCost {
            local_ns: of(at, |cost| cost.local_ns),
            moved_ns: of(at, |cost| cost.moved_ns),
            hidden_ns: of(at, |cost| cost.hidden_ns),
        };
        (shared.visits_per_io, cost)
    });
    Load {
        private_ns: median(rounds.iter().map(|round| round.load.private_ns)),
        beside_ns: median(rounds.iter().map(|round| round.load.beside_ns)),
        shared: shared.collect(),
        copies: shape.copies,
    }
}

fn inputs_of_lines(lines: &[LineCosts]) -> Vec<(String, f64, &'static str)> {
    let of = |figure: fn(&LineCosts) -> f64| median(lines.iter().map(figure));
    let (lowest, highest) = range(lines.iter().map(|costs| costs.hand_over_ns));
    vec![
        ("atomic add, one thread".into(), of(|costs| costs.add_ns), "ns"),
        ("atomic add, two threads on one line, per add".into(), of(|costs| costs.contended_add_ns), "ns"),
        ("hand-over of a line, one way of a ping-pong".into(), of(|costs| costs.hand_over_ns), "ns"),
        ("hand-over, lowest of the rounds".into(), lowest, "ns"),
        ("hand-over, highest of the rounds".into(), highest, "ns"),
    ]
}

fn inputs_of_arm(arm: &str, shape: &Shape, load: &Load) -> Vec<(String, f64, &'static str)> {
    let mut inputs = vec![
        (format!("{arm}: private work of an I/O, one thread"), load.private_ns, "ns"),
        (format!("{arm}: the same beside a second thread"), load.beside_ns, "ns"),
    ];
    for (shared, (visits, cost)) in shape.shared.iter().zip(&load.shared) {
        let name = |what: &str| format!("{arm}: {}: {what}", shared.what);
        inputs.push((name("visits"), *visits, "per I/O"));
        inputs.push((name("a visit that finds it here"), cost.local_ns, "ns"));
        inputs.push((name("more when it is elsewhere"), cost.moved_ns, "ns"));
        inputs.push((name("of that hidden behind other work"), cost.hidden_ns, "ns"));
    }
    inputs
}

fn assumes(reference: &str) -> String {
    format!(
        "A prediction, not a measurement: a closed queueing network (exact mean value analysis, Reiser and \
         Lavenberg 1980) in which each core does the private work of an I/O, as measured with \"{reference}\" on \
         one thread and beside a second, and visits shared lines and locks one core at a time at the costs \
         measured here between two CPUs. All cores are taken to be as near to each other as those two; memory \
         bandwidth, shared caches and clock frequency are left out. So real machines with several chips or sockets \
         lose more on shared lines than this shows."
    )
}

fn median(figures: impl Iterator<Item = f64>) -> f64 {
    crate::interval::median(&figures.collect::<Vec<f64>>()).unwrap_or(f64::NAN)
}

fn range(figures: impl Iterator<Item = f64>) -> (f64, f64) {
    figures.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), figure| (low.min(figure), high.max(figure)))
}

#[cfg(test)]
mod tests;
