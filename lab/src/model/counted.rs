//! Counts of the cache-line simulation: written as text and parsed again. The simulation is a program of its own
//! (`sheave-lines`), because it needs another build of the product.
//!
//! Owns the text format: a line for each arm, machine and number of threads, with tabs between its fields. The
//! simulation writes it, and [`model`](super) reads it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

/// Seed of the order in which simulated threads run, the same for every prediction.
pub const SEED: u64 = 1;

/// Name of io-wq's arm "before" in the kernel's form, where each task has an io-wq of its own and so only one thread
/// submits.
pub const ONE_TASK: &str = "before, one task";

/// Counts of one arm on one machine with `threads` threads.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Counted {
    pub experiment: String,
    pub arm: String,
    pub machine: String,
    /// Number of threads, each on a core of its own.
    pub threads: u32,
    /// Number of I/Os of all threads.
    pub ios: u64,
    /// Number of lines that came from another core's cache.
    pub transfers: u64,
    /// Number of shared copies that became the only one, to which the other cores had to agree.
    pub upgrades: u64,
    /// Number of copies that other cores lost.
    pub invalidations: u64,
    /// Number of acquisitions of a lock that was held.
    pub lock_waits: u64,
    /// Numbers of transfers and upgrades for each distance: from the same complex, the same socket, another socket.
    pub hops: [u64; 3],
    /// Hops of the line or lock that has the most hops. All cores that need it wait for each other.
    pub busiest: [u64; 3],
}

impl Counted {
    /// Formats the counts as a line of text.
    pub fn line(&self) -> String {
        let Counted { experiment, arm, machine, threads, ios, .. } = self;
        let Counted { transfers, upgrades, invalidations, lock_waits, .. } = self;
        let ([a, b, c], [d, e, f]) = (self.hops, self.busiest);
        format!(
            "{experiment}\t{arm}\t{machine}\t{threads}\t{ios}\t{transfers}\t{upgrades}\t{invalidations}\t{lock_waits}\t\
             {a}\t{b}\t{c}\t{d}\t{e}\t{f}\n"
        )
    }

    /// Parses a line. Returns `None` if it is not a line of counts.
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

    /// Divides a count by the number of I/Os.
    pub fn per_io(&self, count: u64) -> f64 {
        count as f64 / self.ios.max(1) as f64
    }
}

/// Runs the simulation for one experiment. Returns the reason as the error if it cannot be run.
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

/// Runs the simulation with one argument and returns the text that it prints.
fn said(program: &Path, argument: &str) -> Result<String, String> {
    let mut command = Command::new(program);
    command.arg(argument).stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = command.output().map_err(|err| format!("{} does not start: {err}", program.display()))?;
    if !output.status.success() {
        return Err(format!("{} ended with {}", program.display(), output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the path of the simulation, which `cargo xtask lab` puts into the directory of this program.
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
mod tests {
    use super::*;

    #[test]
    fn counts_come_back_as_they_went() {
        let counted = Counted {
            experiment: "in-flight".into(),
            arm: "4 per node".into(),
            machine: "power".into(),
            threads: 80,
            ios: 5120,
            transfers: 1,
            upgrades: 2,
            invalidations: 3,
            lock_waits: 4,
            hops: [5, 6, 7],
            busiest: [8, 9, 10],
        };
        let line = counted.line();
        assert_eq!(Counted::parse(line.trim_end()), Some(counted.clone()));
        assert_eq!(counted.per_io(10_240), 2.0);
    }

    #[test]
    fn what_is_no_line_of_counts_is_refused() {
        let line = Counted::default().line();
        for wrong in ["", "a\tb", line.trim_end().trim_end_matches("\t0"), &format!("{}\t0", line.trim_end())] {
            assert_eq!(Counted::parse(wrong), None, "{wrong}");
        }
        assert_eq!(Counted::parse(&line.replace('0', "x")), None);
    }
}
