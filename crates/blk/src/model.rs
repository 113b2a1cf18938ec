//! The block layer under a model checker: races between rings, freezers, readers and completing threads.
//!
//! Owns the limits of the exploration and the loop of the models' rings. The primitives below (bitmap, queue, parker)
//! have models of their own in the base floor, also under weak memory; here whole rings run, sequentially consistent.
//!
//! * I1: only the schedule makes a model nondeterministic: it uses a virtual clock, no real time, no real randomness.
//! * I2: a loop that waits for another thread yields, because a schedule by priorities would otherwise never run that
//!   one.
//!
//! Only in builds with `--cfg shuttle`. `SHEAVE_MODEL_RUNS` sets the number of schedules.

mod gate;
mod remote;
mod tags;

use sheave_base::sync::thread;
use shuttle::scheduler::{PctScheduler, RandomScheduler};

use crate::support::Rig;

/// Number of random schedules per model, for each of the two kinds.
const RUNS: usize = 2_000;

/// Number of priority changes in one schedule of the second kind (PCT, Burckhardt et al. 2010).
const PCT_DEPTH: usize = 3;

/// Stack of each thread of a model, in bytes. A device's statistics are built there, and the checker's atomics are
/// large.
const STACK: usize = 256 << 10;

/// Limit for loops that wait for other threads; more than any schedule needs.
const TURNS: u32 = 100_000;

/// Runs `body` under many schedules. A failure prints how to repeat it.
fn explore(body: impl Fn() + Send + Sync + 'static) {
    let runs = std::env::var("SHEAVE_MODEL_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(RUNS);
    // Not the `Arc` of `sync`, because it outlives the executions.
    let body = std::sync::Arc::new(body);
    let again = std::sync::Arc::clone(&body);
    let mut config = shuttle::Config::new();
    config.stack_size = STACK;
    shuttle::Runner::new(RandomScheduler::new(runs), config.clone()).run(move || body());
    shuttle::Runner::new(PctScheduler::new(PCT_DEPTH, runs), config).run(move || again());
}

/// Polls until the ring has no I/O in flight.
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

/// Asserts that the owners `0..n` have each ended once, with success.
fn assert_all_ended(rig: &mut Rig, n: u32) {
    let mut owners = rig.take_ok();
    owners.sort_unstable();
    assert_eq!(owners, (0..n).collect::<Vec<_>>(), "each bio ends once");
}
