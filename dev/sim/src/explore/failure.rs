//! The report of a failure: the deviation, the crashes that led to it, and the command that repeats it.

use std::fmt;

use sheave_vol::Checksum;

use crate::setup::Setup;

/// Largest number of trace lines that are shown.
const SHOWN: usize = 60;

/// A deviation from the contract that an exploration found.
#[derive(Clone, Debug)]
pub struct Failure {
    pub setup: Setup,
    /// Number of steps at which the run was cut.
    pub cuts: usize,
    pub why: String,
    /// The crashes that led to it.
    pub path: Vec<String>,
    /// The events before the last crash, with the disk's time.
    pub trace: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let setup = &self.setup;
        writeln!(out, "seed {}: {}", setup.seed, self.why)?;
        for (at, crash) in self.path.iter().enumerate() {
            writeln!(out, "  {}. {crash}", at + 1)?;
        }
        writeln!(
            out,
            "pool of {} bytes, units of {}, journal of {}, {} engines, {:?}",
            setup.size_bytes, setup.unit_bytes, setup.journal_bytes, setup.engines, setup.disk
        )?;
        let hidden = self.trace.len().saturating_sub(SHOWN);
        if hidden > 0 {
            writeln!(out, "({hidden} lines before these; --trace shows all)")?;
        }
        self.trace[hidden..].iter().try_for_each(|line| writeln!(out, "{line}"))?;
        let sums = if setup.checksum == Checksum::None { "--no-checksum" } else { "--checksum" };
        write!(
            out,
            "repeat it: cargo xtask sim --seed {} --ops {} --cuts {} {sums}",
            setup.seed, setup.ops, self.cuts
        )?;
        // Errors that the seed draws need no option.
        let errors = setup.disk.errors;
        if errors != Setup::of_run(setup.seed, setup.ops).disk.errors {
            write!(out, " --errors {} --flush-errors {}", errors.write, errors.flush)?;
        }
        Ok(())
    }
}
