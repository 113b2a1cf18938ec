//! `sheave-lab`: five experiments, before and after, compared with the figures published for the same idea in the
//! kernel.
//!
//! An experiment runs **the same stack with one thing changed** in arms: without the mechanism ("before"), with it in
//! its published form ("seed"), and with Sheave's version of it ("after"). Each experiment is a file in [`exp`] and a
//! line in [`exp::ALL`].
//!
//! The library, and the hooks that it needs in the product's crates, are built only with `--cfg sheave_lab`, which
//! `cargo xtask lab` sets. Without it this library is empty.
//!
//! | module | holds |
//! |---|---|
//! | [`terms`] | the types that describe experiments and results |
//! | [`experiment`] | the trait of an experiment: arms, points, sweeps, checks, verdict |
//! | [`point`] | the parameters of one measurement, as text and back |
//! | [`report`] | results: the JSON, and the input of verdicts |
//! | [`exp`] | the experiments |
//! | [`wq`] | a flood of small work for worker pools, earlier and current ones |
//! | [`run`], [`turns`], [`interval`] | a run: its order, arms in turns, medians and intervals |
//! | `repeat` | the published table again at the end of a run; a contradiction between the two removes the verdict |
//! | [`instructions`] | instructions per I/O, under valgrind |
//! | [`model`] | predictions for more cores than this machine has |
//! | `lines` | the simulation of cache lines under the predictions; in a build of its own |
//! | [`drive`], [`crew`], [`meter`] | the loop of a thread, threads in step; time and CPU time of a turn |
//! | [`alloc`] | the counting allocator |
//! | [`machine`] | the description of the machine of a run |
//! | [`peer`] | a job file run by the real fio |
//! | `stored`, `serial` | a report read again from its JSON |
//! | `names` | short forms of names |
//! | [`table`], [`html`], [`markdown`] | the tables, the page, and the generated part of docs/internals/lab.md |
//! | [`command`] | the program `sheave-lab` |
#![cfg(sheave_lab)]

pub mod alloc;
pub mod command;
pub mod counters;
pub mod crew;
pub mod drive;
pub mod exp;
pub mod experiment;
#[cfg(test)]
mod fake;
#[cfg(test)]
mod hooks_tests;
pub mod html;
pub mod instructions;
pub mod interval;
#[cfg(sheave_mesi)]
pub mod lines;
pub mod machine;
pub mod markdown;
pub mod meter;
pub mod model;
mod names;
pub mod peer;
pub mod point;
mod repeat;
pub mod report;
pub mod run;
mod serial;
mod stored;
pub mod table;
pub mod terms;
pub mod turns;
pub mod wq;

pub use experiment::{ArmRun, Experiment, Lab, Turn, TurnEnd};
pub use point::{Point, Value};
/// Error of an experiment that could not be run, with its cause and the fix.
pub use sheave_load::LoadError as LabError;
pub use terms::{ArmInfo, Role, Scale};

/// Counts allocator calls in the tests too. The simulated machine does not use it, because it allocates while it
/// counts.
#[cfg(all(test, not(sheave_mesi)))]
#[global_allocator]
static ALLOC: alloc::Counting = alloc::Counting;
