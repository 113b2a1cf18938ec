//! `sheave-lab`: five experiments, before and after, beside the figures published for the same idea in the kernel.
//!
//! An experiment runs **the same stack with one thing changed** in arms: the mechanism off ("before"), as the thread on
//! the mailing list had it ("seed"), and as Sheave has it ("after"). Each is a file in [`exp`] and a line in
//! [`exp::ALL`].
//!
//! Built with `--cfg sheave_lab` only (`cargo xtask lab`), as the hooks in the floors that it needs; without it this
//! library is empty.
//!
//! | module | holds |
//! |---|---|
//! | [`terms`] | the words in which experiments and results are described |
//! | [`experiment`] | what an experiment is: arms, points, sweeps, checks, verdict |
//! | [`point`] | the parameters of one measurement, as text and back |
//! | [`report`] | results: the JSON, and what a verdict is worked out from |
//! | [`exp`] | the experiments |
//! | [`wq`] | a flood of small work for worker pools, as they were and are |
//! | [`run`], [`turns`], [`interval`] | a run: its order, arms in turns, medians and intervals |
//! | `repeat` | the thread's table again at the end of a run: what it contradicts has no verdict |
//! | [`instructions`] | instructions per I/O, under valgrind |
//! | [`model`] | what more cores than this machine has would do: a prediction |
//! | `lines` | the simulation of cache lines that it rests on; in a build of its own |
//! | [`drive`], [`crew`], [`meter`] | the loop of a thread, threads in step; what a turn takes beside its I/O |
//! | [`alloc`] | the allocator that counts |
//! | [`machine`] | the machine that a run ran on |
//! | [`peer`] | a job file given to the real fio |
//! | `stored`, `serial` | a report that was written as JSON, read again |
//! | `names` | names as a reader wants them |
//! | [`table`], [`html`], [`markdown`] | the tables, the page, and what docs/lab.md has of a run |
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
/// Why an experiment could not be run: the cause, and the fix.
pub use sheave_load::LoadError as LabError;
pub use terms::{ArmInfo, Role, Scale};

/// The tests count calls of the allocator too; not on the simulated machine, which allocates while it counts.
#[cfg(all(test, not(sheave_mesi)))]
#[global_allocator]
static ALLOC: alloc::Counting = alloc::Counting;
