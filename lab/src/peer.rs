//! Runs the job file of a point with the real fio: the kernel's figures for the same job, beside the arms.
//!
//! Owns the call of fio and the parsing of its terse output. fio does I/O to the file or device that the job names,
//! which the arms do not touch, so that it runs only if `--fio` is given. A failure of fio is reported in its own words
//! and does not fail the run.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde::{Deserialize, Serialize};

const FIO: &str = "fio";
/// Version 3 of the terse output, one line per job: its columns have fixed numbers.
const OPTIONS: [&str; 2] = ["--output-format=terse", "--terse-version=3"];
// Columns of a terse line: fio's version, the job's error, I/Os a second of its reads and of its writes.
const VERSION: usize = 1;
const ERROR: usize = 4;
const READS: usize = 7;
const WRITES: usize = 48;

/// Result of fio on a job.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Peer {
    /// The program that ran: `fio-3.33 on the kernel`.
    pub name: String,
    /// I/Os a second, reads and writes of all jobs together.
    pub iops: Option<f64>,
    /// Reason if there is no figure.
    pub not_measured: Option<String>,
    /// Command that repeats the measurement.
    pub command: String,
}

pub fn fio(job: &Path) -> Peer {
    of(FIO, job)
}

fn of(program: &str, job: &Path) -> Peer {
    let command = format!("{FIO} {}", job.display());
    let without = |why: String| Peer {
        name: "fio on the kernel".into(),
        iops: None,
        not_measured: Some(why),
        command: command.clone(),
    };
    match Command::new(program).args(OPTIONS).arg(job).stdin(Stdio::null()).output() {
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => without("fio is not installed".into()),
        Err(err) => without(format!("fio does not start: {err}")),
        Ok(output) => match read(&output) {
            Ok((version, iops)) => {
                Peer { name: format!("{version} on the kernel"), iops: Some(iops), not_measured: None, command }
            }
            Err(why) => without(why),
        },
    }
}

/// Parses version and I/Os a second. Returns the reason, in fio's words, if there are none.
fn read(output: &Output) -> Result<(String, f64), String> {
    let out = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    let why = || match said.lines().find(|line| !line.trim().is_empty()) {
        Some(line) => format!("fio cannot do it here: {}", line.trim()),
        None => format!("fio ended with {} and said nothing", output.status),
    };
    let mut version = None;
    let mut iops = 0.0;
    for line in out.lines().filter(|line| line.starts_with("3;")) {
        let columns: Vec<&str> = line.split(';').collect();
        let number = |column: usize| columns.get(column).and_then(|text| text.parse::<f64>().ok());
        match (number(ERROR), number(READS), number(WRITES)) {
            (Some(0.0), Some(reads), Some(writes)) => iops += reads + writes,
            _ => return Err(why()),
        }
        version = columns.get(VERSION).map(|version| (*version).to_owned());
    }
    match version {
        Some(version) if output.status.success() && iops > 0.0 => Ok((version, iops)),
        _ => Err(why()),
    }
}

#[cfg(test)]
mod tests;
