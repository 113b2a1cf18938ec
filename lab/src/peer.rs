//! Runs the job file of a point with the real fio, which gives the kernel's figures for the same job.
//!
//! Owns the call of fio and the parsing of its terse output. fio does I/O to the file or device that the job names, and
//! which the arms do not touch. Therefore it runs only if `--fio` is given. A failure of fio is reported in its own
//! words and does not fail the run.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde::{Deserialize, Serialize};

const FIO: &str = "fio";
/// Options for version 3 of the terse output, which has one line per job and fixed column numbers.
const OPTIONS: [&str; 2] = ["--output-format=terse", "--terse-version=3"];
// Columns of a terse line: fio's version, the job's error, the I/Os a second of its reads, and those of its writes.
const VERSION: usize = 1;
const ERROR: usize = 4;
const READS: usize = 7;
const WRITES: usize = 48;

/// Result of fio on a job.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Peer {
    /// Name of the program that ran, for example `fio-3.33 on the kernel`.
    pub name: String,
    /// I/Os a second: the sum of reads and writes of all jobs.
    pub iops: Option<f64>,
    /// The reason why there is no figure.
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

/// Parses the version and the I/Os a second. Returns the reason, in fio's words, if there are none.
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
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;
    use crate::table;

    /// Makes the output of a fio run: a terse line with these columns set, an exit code, and stderr.
    fn said(columns: &[(usize, &str)], code: i32, err: &str) -> Output {
        let mut line = vec!["0"; 121];
        for (column, text) in [(0, "3"), (1, "fio-3.33"), (2, "a;b")].iter().chain(columns) {
            line[*column] = text.split(';').next().unwrap_or_default();
        }
        let out = format!("note: something\n{}\n", line.join(";"));
        Output { status: ExitStatus::from_raw(code << 8), stdout: out.into(), stderr: err.into() }
    }

    #[test]
    fn reads_and_writes_of_every_job_are_added_up() {
        assert_eq!(read(&said(&[(7, "12375"), (48, "12625")], 0, "")), Ok(("fio-3.33".into(), 25e3)));
        let mut two = said(&[(7, "100")], 0, "");
        two.stdout = [two.stdout.clone(), said(&[(48, "50")], 0, "").stdout].concat();
        assert_eq!(read(&two).map(|(_, iops)| iops), Ok(150.0));
    }

    #[test]
    fn what_is_no_figure_is_told_in_fios_words() {
        let words = "a: you need to specify size=\nfio: pid=0";
        for output in [said(&[(4, "22"), (7, "5")], 1, words), said(&[(7, "5")], 1, words), said(&[], 0, words)] {
            assert_eq!(read(&output), Err("fio cannot do it here: a: you need to specify size=".into()));
        }
        let silent = Output { status: ExitStatus::from_raw(0), stdout: b"3;fio".to_vec(), stderr: Vec::new() };
        assert!(read(&silent).expect_err("a short line").contains("said nothing"));
    }

    #[test]
    fn without_fio_the_row_says_so() {
        let peer = of("no-such-fio", Path::new("jobs/x.fio"));
        assert_eq!(table::peer(&peer), "fio on the kernel: not measured, fio is not installed (`fio jobs/x.fio`)");
    }

    #[test]
    fn the_real_fio_does_a_job() {
        if sheave_testkit::require("fio").is_none() {
            return;
        }
        let dir = tempfile::tempdir().expect("a directory");
        let (job, file) = (dir.path().join("a.fio"), dir.path().join("data"));
        let options = "size=1M\nrw=randrw\nnorandommap\nnumber_ios=200\nioengine=psync\nthread=1";
        std::fs::write(&job, format!("[a]\nfilename={}\n{options}\n", file.display())).expect("written");
        let peer = fio(&job);
        assert!(peer.iops.is_some_and(|iops| iops > 0.0) && peer.name.starts_with("fio-"), "{peer:?}");
        // The path is below a file and so cannot exist. A missing directory would be created by fio.
        let nowhere = job.join("x");
        std::fs::write(&job, format!("[a]\nfilename={}\nrw=randread\nnumber_ios=5\n", nowhere.display()))
            .expect("written");
        let peer = fio(&job);
        assert!(
            peer.iops.is_none() && table::peer(&peer).contains("not measured, fio cannot do it here: "),
            "{peer:?}"
        );
    }
}
