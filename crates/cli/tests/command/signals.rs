//! Ctrl-C ends a run with its report.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::sheave::{Said, sheave};

fn start(line: &str) -> Child {
    sheave(line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs")
}

fn interrupt(child: &Child) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it is there");
}

#[test]
fn the_first_one_ends_the_run_with_its_report() {
    let child = start("bench null:size=1G --runtime 60s --json --progress none");
    std::thread::sleep(Duration::from_millis(500));
    interrupt(&child);
    let since = Instant::now();
    let said = Said::of(child.wait_with_output().expect("it ends"));
    assert!(since.elapsed() < Duration::from_secs(5), "it took {:?} to stop", since.elapsed());
    assert_eq!(said.code, 0, "{}", said.err);
    let report = said.json();
    assert_eq!(report["interrupted"], true);
    assert!(report["ios"].as_u64() > Some(0) && report["seconds"].as_f64() < Some(5.0), "{report}");
}

#[test]
fn it_also_ends_a_verified_run() {
    let child = start("bench ram:size=16M --rw randrw --verify --runtime 60s --json --progress none");
    std::thread::sleep(Duration::from_millis(500));
    interrupt(&child);
    let said = Said::of(child.wait_with_output().expect("it ends"));
    assert_eq!(said.code, 0, "{}", said.err);
    let report = said.json();
    assert_eq!(report["verify"]["wrong"], 0);
    assert_eq!(report["interrupted"], true);
    // The latencies are those of the run, not of the reading back that did not come any more.
    assert!(report["ios"] == 0 || report["max_ns"].as_u64() > Some(0), "{report}");
}
