//! What the simulation of cache lines has counted, as text and back: the simulation is a program of its own
//! (`sheave-lines`), for it is another build of the product.
//!
//! Owns the text: a line for each arm, machine and number of threads, with tabs between its fields. Called by
//! the simulation, which writes it, and by [`model`](super), which reads it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

/// The seed of every prediction.
pub const SEED: u64 = 1;

/// The arm before of io-wq as the kernel has it: each task has an io-wq of its own, so that one thread submits.
pub const ONE_TASK: &str = "before, one task";

/// Counts of one arm on one machine with so many threads.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Counted {
    /// The experiment.
    pub experiment: String,
    /// Name of the arm.
    pub arm: String,
    /// Id of the machine.
    pub machine: String,
    /// Threads with a core each.
    pub threads: u32,
    /// I/Os of all of them.
    pub ios: u64,
    /// Lines that came from another core's cache.
    pub transfers: u64,
    /// Shared copies that became the only one: the others had to answer.
    pub upgrades: u64,
    /// Copies that other cores lost.
    pub invalidations: u64,
    /// Locks that were found taken.
    pub lock_waits: u64,
    /// Transfers and upgrades from the same complex, the same socket and another one.
    pub hops: [u64; 3],
    /// Those of the line or lock that has most: all who want it wait for each other.
    pub busiest: [u64; 3],
}

impl Counted {
    /// As text.
    pub fn line(&self) -> String {
        let Counted { experiment, arm, machine, threads, ios, .. } = self;
        let Counted { transfers, upgrades, invalidations, lock_waits, .. } = self;
        let ([a, b, c], [d, e, f]) = (self.hops, self.busiest);
        format!(
            "{experiment}\t{arm}\t{machine}\t{threads}\t{ios}\t{transfers}\t{upgrades}\t{invalidations}\t{lock_waits}\t\
             {a}\t{b}\t{c}\t{d}\t{e}\t{f}\n"
        )
    }

    /// From a line; none when it is not one.
    pub fn parse(line: &str) -> Option<Counted> {
        let fields: Vec<&str> = line.split('\t').collect();
        let [experiment, arm, machine, threads, numbers @ ..] = &fields[..] else { return None };
        let numbers: Vec<u64> = numbers.iter().map(|number| number.parse()).collect::<Result<_, _>>().ok()?;
        let &[ios, transfers, upgrades, invalidations, lock_waits, a, b, c, d, e, f] = &numbers[..] else {
            return None;
        };
        Some(Counted {
            experiment: (*experiment).into(),
            arm: (*arm).into(),
            machine: (*machine).into(),
            threads: threads.parse().ok()?,
            ios,
            transfers,
            upgrades,
            invalidations,
            lock_waits,
            hops: [a, b, c],
            busiest: [d, e, f],
        })
    }

    /// So many of something, for each I/O.
    pub fn per_io(&self, count: u64) -> f64 {
        count as f64 / self.ios.max(1) as f64
    }
}

/// Runs the simulation for one experiment. Why not, if it cannot be run.
pub fn simulate(experiment: &str) -> Result<Vec<Counted>, String> {
    let program = program()?;
    let theirs = said(&program, "layout")?;
    if theirs != super::layout::of_this_build() {
        return Err(format!(
            "{} lays its types out otherwise than this program, so its lines are others",
            program.display()
        ));
    }
    let text = said(&program, experiment)?;
    let counted: Option<Vec<Counted>> = text.lines().map(Counted::parse).collect();
    counted.ok_or_else(|| format!("{} wrote something else than counts", program.display()))
}

/// What the simulation writes for an argument.
fn said(program: &Path, argument: &str) -> Result<String, String> {
    let mut command = Command::new(program);
    command.arg(argument).stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = command.output().map_err(|err| format!("{} does not start: {err}", program.display()))?;
    if !output.status.success() {
        return Err(format!("{} ended with {}", program.display(), output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Beside this program, where `cargo xtask lab` puts it.
fn program() -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|err| format!("where this program is, is not known: {err}"))?;
    let program = own.with_file_name("sheave-lines");
    match program.is_file() {
        true => Ok(program),
        false => Err(format!(
            "there is no {}, which simulates the cache lines; `cargo xtask lab` builds it",
            program.display()
        )),
    }
}

#[cfg(test)]
mod tests;
