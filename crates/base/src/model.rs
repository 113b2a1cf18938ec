//! Runs a model test under the checker of this build, and reports the number of schedules.
//!
//! Owns the bounds of the exploration. Does not own any model.
//!
//! * I1: a model is deterministic except for the schedule: no real time, no real randomness.
//! * I2: `loom` tries each schedule with at most [`PREEMPTIONS`] forced switches, with the stale values that weak
//!   memory allows; `shuttle` tries random ones, sequentially consistent, of larger models.
//!
//! Called by the `model` tests of each module. `SHEAVE_MODEL_RUNS` sets the number of random schedules,
//! `LOOM_MAX_PREEMPTIONS` that of forced switches (5 takes minutes).

use std::sync::atomic::{AtomicU64, Ordering};

/// Number of forced thread switches that `loom` tries in one schedule. Few bugs need more than two.
#[cfg(loom)]
const PREEMPTIONS: usize = 3;

/// Number of random schedules of one model, of each of the two kinds.
#[cfg(not(loom))]
const RUNS: usize = 20_000;

/// Number of priority changes in one schedule of the second kind: finds any bug that needs this many ordered switches
/// with a probability that has a lower bound (PCT, Burckhardt et al. 2010).
#[cfg(not(loom))]
const PCT_DEPTH: usize = 3;

/// Explores `body`, prints the number of schedules, and returns it.
pub(crate) fn explore(name: &str, body: impl Fn() + Send + Sync + 'static) -> u64 {
    // Not from `sync`: counts the executions of the checker from outside of them.
    let seen = std::sync::Arc::new(AtomicU64::new(0));
    let counter = std::sync::Arc::clone(&seen);
    run(move || {
        counter.fetch_add(1, Ordering::Relaxed);
        body();
    });
    let seen = seen.load(Ordering::Relaxed);
    println!("{name}: explored {seen} schedules");
    seen
}

#[cfg(loom)]
fn run(body: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(PREEMPTIONS));
    builder.check(body);
}

#[cfg(not(loom))]
fn run(body: impl Fn() + Send + Sync + 'static) {
    let runs = std::env::var("SHEAVE_MODEL_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(RUNS);
    let body = std::sync::Arc::new(body);
    let again = std::sync::Arc::clone(&body);
    shuttle::check_random(move || body(), runs);
    shuttle::check_pct(move || again(), runs, PCT_DEPTH);
}
