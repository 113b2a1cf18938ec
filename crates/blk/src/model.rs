//! The block layer under a model checker: what rings, freezers, readers and completion threads may do to each other.
//!
//! Owns the bounds of the exploration and the ring's loop of the models. The primitives below (bitmap, queue, parker)
//! have models of their own in the base floor, under weak memory too; here whole rings run, sequentially consistent.
//!
//! * I1: a model is deterministic but for the schedule: a virtual clock, no real time, no real randomness.
//! * I2: a loop that waits for another thread yields, or a schedule by priorities would never let that one run.
//!
//! Only in builds with `--cfg shuttle`; `SHEAVE_MODEL_RUNS` sets the number of schedules.

mod gate;
mod remote;
mod tags;

use sheave_base::sync::thread;
use shuttle::scheduler::{PctScheduler, RandomScheduler};

use crate::support::Rig;

/// Random schedules of one model, of each of the two kinds.
const RUNS: usize = 2_000;

/// Priority changes in one schedule of the second kind (PCT, Burckhardt et al. 2010).
const PCT_DEPTH: usize = 3;

/// The stack of each thread of a model, in bytes: the statistics of a device are made there, and the atomics of a
/// checker are large.
const STACK: usize = 256 << 10;

/// Turns of a loop that waits for other threads; more than any schedule needs.
const TURNS: u32 = 100_000;

/// Runs `body` under many schedules; a failed one prints what repeats it.
fn explore(body: impl Fn() + Send + Sync + 'static) {
    let runs = std::env::var("SHEAVE_MODEL_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(RUNS);
    // Not from `sync`: it outlives the executions.
    let body = std::sync::Arc::new(body);
    let again = std::sync::Arc::clone(&body);
    let mut config = shuttle::Config::new();
    config.stack_size = STACK;
    shuttle::Runner::new(RandomScheduler::new(runs), config.clone()).run(move || body());
    shuttle::Runner::new(PctScheduler::new(PCT_DEPTH, runs), config).run(move || again());
}

/// Polls until the ring has nothing on its way.
fn drain(rig: &mut Rig) {
    for _ in 0..TURNS {
        rig.poll();
        if rig.ctx.is_idle() {
            return;
        }
        thread::yield_now();
    }
    panic!("the ring does not become idle: {} ended so far", rig.ended.len());
}

/// The owners `0..n`, each ended once and well.
fn assert_all_ended(rig: &mut Rig, n: u32) {
    let mut owners = rig.take_ok();
    owners.sort_unstable();
    assert_eq!(owners, (0..n).collect::<Vec<_>>(), "each bio ends once");
}
