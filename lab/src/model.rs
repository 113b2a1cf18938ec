//! Predictions for more processors than this machine has, computed from the cache lines that the product's code moves.
//!
//! The counts come from a simulation that runs the product's code ([`counted`]). The time of a transfer from another
//! core comes from a publication ([`machines`]). No parameter is fitted, so the prediction can fail; a comparison
//! states for each published point if the prediction holds. The reasons are in `docs/internals/scaling-model.md`.
//!
//! A core that works on an I/O is a customer of a closed queueing network ([`queue`]). The line or lock with the most
//! transfers is a server with one customer at a time. Private work, and transfers of all other lines, count as
//! thinking:
//!
//! ```text
//!   stall    = sum of the hops of an I/O, each with the time of its distance
//!   demand   = the part of it for the busiest line or lock
//!   thinking = private work + stall - demand
//! ```
//!
//! * M1. On one core no line comes from another core: the rate is 1 / private work.
//! * M2. No rate exceeds one round of the busiest line, however many cores there are.
//! * M3. The band has the rates for hops that are shorter or longer by the factor [`machines::BAND`]. It is therefore
//!   at most a factor of 2 wide, and has no width if no line moves.
//! * M4. Everything that is not shared scales evenly: memory bandwidth, last-level caches and clock frequency are left
//!   out.

pub mod counted;
pub mod layout;
pub mod machines;
pub mod queue;

use crate::report::{Curve, Known, Predicted, Prediction};
use counted::Counted;
use machines::{BAND, Machine};

/// Returns the I/Os a second of all cores together, with hops that take `factor` times the published time.
pub fn rate(machine: &Machine, counted: &Counted, private_ns: f64, factor: f64) -> f64 {
    let (think, demand) = network(machine, counted, private_ns, factor);
    let demands = if demand > 0.0 { vec![demand] } else { Vec::new() };
    1e9 * queue::throughput(counted.threads, think, &demands).min(queue::at_most(counted.threads, think, &demands))
}

/// A task that queues items for workers, which take the items under one lock. The kernel's io-wq has this form: each
/// task has an io-wq of its own.
#[derive(Clone, Copy, Debug)]
pub struct Task {
    /// Largest number of items in flight.
    pub depth: u32,
    /// CPU time of an item without the lock, in ns.
    pub item_ns: f64,
    /// The task's share of `item_ns`, in which it queues the item and reaps it.
    pub of_task: f64,
}

/// Returns the share of CPU time that a task and its workers spend at the lock, with hops that take `factor` times the
/// published time.
///
/// There is a worker for each item in flight as long as there are cores, because an item with IOSQE_ASYNC that finds no
/// free worker makes one. Items are therefore the customers. The task serves each of them, then the lock does, then a
/// worker of its own. Workers without an item sleep, and take no CPU time.
pub fn share_at_lock(machine: &Machine, counted: &Counted, task: Task, factor: f64) -> f64 {
    let (stall, lock) = network(machine, counted, 0.0, factor);
    let of_task = task.item_ns * task.of_task;
    let of_worker = task.item_ns - of_task + stall;
    let customers = task.depth.min(counted.threads.saturating_sub(1)).max(1);
    let (rate, queues) = queue::solve(customers, of_worker, &[of_task, lock]);
    queues[1] / (rate * (of_task + of_worker) + queues[1])
}

/// Returns thinking and demand of an I/O, in ns.
fn network(machine: &Machine, counted: &Counted, private_ns: f64, factor: f64) -> (f64, f64) {
    let ns = |hops: [u64; 3]| -> f64 {
        let each = hops.iter().zip(machine.hop_ns).map(|(&hops, ns)| counted.per_io(hops) * ns * factor);
        each.sum()
    };
    let (all, busiest) = (ns(counted.hops), ns(counted.busiest));
    (private_ns + (all - busiest).max(0.0), busiest)
}

/// Predicts the curves of one machine. `private` is the private work of an I/O in ns, with the source of that figure.
/// Compares the curves with the `published` points.
pub fn predict(machine: &Machine, counted: &[Counted], private: (f64, &str), published: Vec<Known>) -> Prediction {
    let here: Vec<&Counted> = counted.iter().filter(|counted| counted.machine == machine.id).collect();
    let mut curves: Vec<Curve> = Vec::new();
    for counted in &here {
        let at = |factor| rate(machine, counted, private.0, factor);
        let point = Predicted { cores: counted.threads, low: at(BAND), middle: at(1.0), high: at(1.0 / BAND) };
        match curves.iter_mut().find(|curve| curve.arm == counted.arm) {
            Some(curve) => curve.points.push(point),
            None => curves.push(Curve { arm: counted.arm.clone(), points: vec![point] }),
        }
    }
    let hop = |at: usize| machine.hop_ns[at];
    let inputs = vec![
        (format!("private work of an I/O ({})", private.1), private.0, "ns"),
        ("a line from the same complex".into(), hop(0), "ns"),
        ("a line from the same socket".into(), hop(1), "ns"),
        ("a line from another socket".into(), hop(2), "ns"),
    ];
    let against = against(&curves, &published);
    Prediction {
        machine: machine.what.into(),
        assumes: assumes(),
        inputs,
        counts: here.into_iter().cloned().collect(),
        curves,
        published,
        against,
        not_shown: None,
    }
}

/// Returns a prediction without curves, which states `why` there are none.
pub fn without(why: String) -> Prediction {
    Prediction { assumes: assumes(), not_shown: Some(why), ..Prediction::default() }
}

fn assumes() -> String {
    "A prediction, not a measurement: the product's code runs on a simulated machine that keeps the state of each \
     cache line (MESI) for so many threads, one at a time in an order drawn from a seed, and counts the lines that \
     move. Each takes what was published for a machine of that kind. Nothing is fitted: the points of the thread on \
     the plot were not used, but where an input says so. Memory bandwidth, shared caches and clock frequency are \
     left out."
        .into()
}

/// Compares the curves with the published points: each point, and the ratio of the first two at one number of cores.
fn against(curves: &[Curve], published: &[Known]) -> Vec<String> {
    let at = |known: &Known| {
        let curve = curves.iter().find(|curve| curve.arm == known.arm)?;
        curve.points.iter().find(|point| point.cores == known.cores).copied()
    };
    let mut told: Vec<String> = published
        .iter()
        .filter(|known| !known.used)
        .filter_map(|known| Some((known, at(known)?)))
        .map(|(known, point)| {
            let what = format!("{} on {} cores", known.arm, known.cores);
            sentence(&what, known.iops / 1e6, [point.low, point.middle, point.high].map(|iops| iops / 1e6), "M IOPS")
        })
        .collect();
    if let [before, after] = published
        && let (Some(slow), Some(fast)) = (at(before), at(after))
    {
        // The ratio uses only the band of the slow arm: no line moves in the fast arm, so that arm has no band.
        let ratios = [fast.middle / slow.high, fast.middle / slow.middle, fast.middle / slow.low];
        let what = format!("{} / {} on {} cores", after.arm, before.arm, before.cores);
        told.push(sentence(&what, after.iops / before.iops, ratios, "times"));
    }
    told
}

/// Compares one published figure with its prediction. States that it is within the band, or by how much it is missed.
fn sentence(what: &str, published: f64, [low, middle, high]: [f64; 3], unit: &str) -> String {
    let off = 100.0 * (middle / published - 1.0);
    let verdict = match published >= low && published <= high {
        true => format!("within the band, the middle {off:+.0} % off"),
        false => format!("MISSED: the middle is {off:+.0} % off"),
    };
    format!("{what}: published {published:.2} {unit}, predicted {middle:.2} ({low:.2} to {high:.2}): {verdict}")
}

#[cfg(test)]
mod tests;
