//! Ctrl-C ends commands. A run of bench still prints its report.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use sheave_testkit::process::wait_until_working;

use crate::sheave::{Dir, Said, no_io_uring, sheave};

fn start(line: &str) -> Child {
    sheave(line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs")
}

fn interrupt(child: &Child) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it is there");
}

#[test]
fn the_first_one_ends_the_run_with_its_report() {
    let child = start("bench null:size=1G --runtime 300s --json --progress none");
    wait_until_working(child.id(), Duration::from_millis(500));
    interrupt(&child);
    let since = Instant::now();
    let said = Said::of(child.wait_with_output().expect("it ends"));
    assert!(since.elapsed() < Duration::from_secs(30), "it took {:?} to stop", since.elapsed());
    assert_eq!(said.code, 0, "{}", said.err);
    let report = said.json();
    assert_eq!(report["interrupted"], true);
    assert!(report["ios"].as_u64() > Some(0) && report["seconds"].as_f64() < Some(100.0), "{report}");
}

#[test]
fn it_also_ends_a_verified_run() {
    let child = start("bench ram:size=16M --rw randrw --verify --runtime 60s --json --progress none");
    wait_until_working(child.id(), Duration::from_millis(500));
    interrupt(&child);
    let said = Said::of(child.wait_with_output().expect("it ends"));
    assert_eq!(said.code, 0, "{}", said.err);
    let report = said.json();
    assert_eq!(report["verify"]["wrong"], 0);
    assert_eq!(report["interrupted"], true);
    // The latencies are those of the run. The read-back at its end did not take place.
    assert!(report["ios"] == 0 || report["max_ns"].as_u64() > Some(0), "{report}");
}

/// While a command waits for a pool, Ctrl-C is caught and only sets a flag. After the wait Ctrl-C must end the process
/// directly, because the work checks no flag.
#[test]
fn it_ends_a_command_that_had_to_wait_before() {
    let dir = Dir::new();
    dir.ok("pool create p.img --size 64M");
    let pool = std::fs::File::open(dir.path("p.img")).expect("opened");
    rustix::fs::flock(&pool, rustix::fs::FlockOperation::NonBlockingLockExclusive).expect("locked");
    // Each read takes a minute, so the check still runs when the signal is sent.
    let line = format!("pool check --wait=60s fault:delay=1,delay_time=60s,over=file:{}", dir.path("p.img").display());
    let mut command = dir.command(&line);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    let mut said = String::new();
    BufReader::new(child.stderr.as_mut().expect("piped")).read_line(&mut said).expect("read");
    assert!(said.contains("waiting"), "{said}");
    drop(pool);
    std::thread::sleep(Duration::from_millis(1500));
    interrupt(&child);
    let since = Instant::now();
    assert!(!child.wait().expect("it ends").success());
    assert!(since.elapsed() < Duration::from_secs(20), "it took {:?} to stop", since.elapsed());
}

#[test]
fn it_also_ends_a_comparison_while_its_raw_device_is_filled() {
    if no_io_uring() {
        return;
    }
    let dir = Dir::new();
    dir.ok("pool create p.img --size 3G");
    dir.ok("volume create p.img#v --size 2G");
    // Before the comparison the raw file of 2 GiB is filled. The signal comes during that fill.
    let line = "bench vol:p.img#v --rw randwrite --depth 1 --compare raw --runtime 300s --json --progress none";
    let child = dir.command(line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
    let since = Instant::now();
    let is_open = || {
        let files = std::fs::read_dir(format!("/proc/{}/fd", child.id())).into_iter().flatten().flatten();
        files.filter_map(|file| file.path().read_link().ok()).any(|path| path.to_string_lossy().contains("p.img.raw-"))
    };
    while !is_open() {
        assert!(since.elapsed() < Duration::from_secs(30), "no raw file is opened");
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(300));
    // The raw file was unlinked when it was made, so it disappears with the process in any case.
    let names = || -> Vec<_> {
        std::fs::read_dir(dir.path("")).expect("a directory").flatten().map(|file| file.file_name()).collect()
    };
    let during = names();
    interrupt(&child);
    let since = Instant::now();
    let said = Said::of(child.wait_with_output().expect("it ends"));
    assert!(since.elapsed() < Duration::from_secs(30), "it took {:?} to stop", since.elapsed());
    assert_eq!(said.code, 0, "{}", said.err);
    let report = said.json();
    assert!(report["interrupted"] == true && report["compare"].is_null(), "{report}");
    assert_eq!((during, names()), (vec!["p.img".into()], vec!["p.img".into()]));
}

#[test]
fn a_limit_on_the_size_of_files_is_an_error_and_not_the_end_of_the_process() {
    let dir = Dir::new();
    dir.ok("pool create p.img --size 64M");
    dir.ok("volume create p.img#v --size 32M");
    std::fs::write(dir.path("in"), vec![7; 8 << 20]).expect("written");
    let limited = |line: &str| {
        let mut command = Command::new("bash");
        // bash counts in units of 1,024 bytes.
        command.args(["-c", &format!("ulimit -f 4096 && exec \"$0\" {line}")]);
        Said::of(
            command.arg(assert_cmd::cargo::cargo_bin!("sheave")).current_dir(dir.path("")).output().expect("it runs"),
        )
    };
    for engine in ["sync", "uring"] {
        let said = limited(&format!("volume import in file:p.img,engine={engine}#v --yes"));
        assert!(said.code == 1 && said.err.contains("ulimit -f"), "{engine}: {} {}", said.code, said.err);
        dir.ok("pool check p.img");
    }
    let said = limited("pool create q.img --size 64M");
    assert!(said.code == 1 && said.err.contains("ulimit -f"), "{} {}", said.code, said.err);
}
