//! Tests of parsing fio's terse lines, and of fio itself if it is installed.

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
    // A path below a file, which cannot exist: fio would create a missing directory.
    let nowhere = job.join("x");
    std::fs::write(&job, format!("[a]\nfilename={}\nrw=randread\nnumber_ios=5\n", nowhere.display())).expect("written");
    let peer = fio(&job);
    assert!(peer.iops.is_none() && table::peer(&peer).contains("not measured, fio cannot do it here: "), "{peer:?}");
}
