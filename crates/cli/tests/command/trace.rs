//! `sheave trace`: traces of runs and of a daemon, which blkparse, btt and fio can read.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::daemon::{BOTH, Daemon, Nbd, ask, ask_ok, pools};
use crate::sheave::Dir;

/// Runs a tool, which must succeed. Returns its stdout, or `None` if the tool is not installed.
fn tool(dir: &Dir, name: &str, args: &str) -> Option<String> {
    let path = sheave_testkit::require(name)?;
    let output = Command::new(path).args(args.split(' ')).current_dir(dir.path("")).output().expect("it runs");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name} {args}\n{out}{err}");
    Some(out.into_owned())
}

/// Traces a run of 1000 reads and writes. Returns the directory with the trace.
fn bench() -> Dir {
    let dir = Dir::new();
    dir.ok("bench null:size=16M --rw randrw --depth 8 --ios 1000 --trace t");
    dir.ok("trace export --from t --blktrace b --chrome c.json");
    dir
}

#[test]
fn blkparse_counts_each_event_of_each_request() {
    let dir = bench();
    let Some(text) = tool(&dir, "blkparse", "-i b -d b.bin") else { return };
    for event in ["Q", "G", "I", "D", "C"] {
        let is = |line: &&str| line.split_whitespace().nth(5) == Some(event);
        let of_event: Vec<&str> = text.lines().filter(is).collect();
        assert_eq!(of_event.len(), 1000, "{event}\n{}", text.lines().take(20).collect::<Vec<_>>().join("\n"));
        assert!(of_event.iter().all(|line| line.trim_start().starts_with("240,0 ")), "{}", of_event[0]);
    }
    // The trace has no gaps, and each queued request is completed.
    assert!(!text.contains("skipped"), "{text}");
    let total = text.rsplit("Total (").next().unwrap_or_default();
    assert!(text.contains("Throughput (R/W):"), "{total}");
    let Some(times) = tool(&dir, "btt", "-i b.bin") else { return };
    let stage = |name: &str| times.lines().find(|line| line.starts_with(name)).map(str::to_owned);
    for name in ["Q2C", "D2C", "Q2G", "G2I", "I2D"] {
        let line = stage(name).unwrap_or_else(|| panic!("btt tells no {name}:\n{times}"));
        assert_eq!(line.split_whitespace().last(), Some("1000"), "{line}");
    }
}

#[test]
fn fio_replays_what_was_traced() {
    let dir = bench();
    if tool(&dir, "blkparse", "-i b -d b.bin -O").is_none() {
        return;
    }
    fs::File::create(dir.path("replayed")).and_then(|file| file.set_len(16 << 20)).expect("made");
    let count = |log: &str| {
        let args = format!(
            "--name=r --read_iolog={log} --replay_redirect=replayed --replay_no_stall=1 --ioengine=psync \
             --output-format=json"
        );
        let out = tool(&dir, "fio", &args)?;
        let at = out.find('{').unwrap_or_else(|| panic!("no JSON: {out}"));
        let report: Value = serde_json::from_str(&out[at..]).expect("JSON");
        let job = &report["jobs"][0];
        assert_eq!(job["error"], 0);
        let of = |way: &str| job[way]["total_ios"].as_u64().expect("a count");
        Some(of("read") + of("write"))
    };
    // fio replays both the file that blkparse has merged and the file of one ring.
    for log in ["b.bin", "b.blktrace.0"] {
        let Some(replayed) = count(log) else { return };
        assert_eq!(replayed, 1000, "{log}");
    }
}

#[test]
fn the_page_for_perfetto_has_each_request() {
    let dir = bench();
    let page: Value = serde_json::from_slice(&fs::read(dir.path("c.json")).expect("read")).expect("JSON");
    let events = page["traceEvents"].as_array().expect("a list");
    let requests = events.iter().filter(|event| event["ph"] == "X" && event["args"]["bytes"] == 4096).count();
    assert_eq!(requests, 1000);
    let lanes = events.iter().filter(|event| event["name"] == "thread_name").count();
    assert!((1..=8).contains(&lanes), "{lanes} lanes at depth 8");
}

#[test]
fn a_daemon_is_traced_and_what_it_wrote_outlives_its_death() {
    let Some(dir) = pools() else { return };
    let daemon = Daemon::start(&dir, BOTH);
    assert!(!daemon.said().contains("confined=false"));
    let mut client = Nbd::connect(&dir.path("nbd.sock"), "va").expect("it is served");
    assert_eq!(client.write(0, &[1; 4096]), Some(0));
    assert!(ask_ok(&dir, "trace start --size 1M").out.starts_with("tracing 2 reactors, the last "));
    for block in 0..16 {
        assert_eq!(client.write(block << 16, &[1; 8192]), Some(0));
        assert!(client.read(block << 16, 4096).is_some());
    }
    // The daemon writes completed requests to the files within about ten milliseconds. A kill does not remove them.
    let until = Instant::now() + Duration::from_secs(30);
    while requests(&ask_ok(&dir, "trace export --chrome c.json").out) < 32 {
        assert!(Instant::now() < until, "they never come");
    }
    daemon.signal("-KILL");
    drop(daemon);
    let out = ask_ok(&dir, "trace export --chrome c.json").out;
    assert!(out.contains("wrote c.json"), "{out}");
    let page: Value = serde_json::from_slice(&fs::read(dir.path("c.json")).expect("read")).expect("JSON");
    let events = page["traceEvents"].as_array().expect("a list");
    let of = |name: &str, bytes: u64| {
        events.iter().filter(|event| event["name"] == name && event["args"]["bytes"] == bytes).count()
    };
    assert_eq!(of("read", 4096), 16, "{out}");
    // The write before the start of the trace is not in the files.
    assert!(of("write", 8192) >= 16 && of("write", 4096) == 0, "{out}");
}

/// Returns the number of requests that `trace export` reports.
fn requests(out: &str) -> u64 {
    let of_line = |line: &str| line.split_whitespace().nth(2)?.parse::<u64>().ok();
    out.lines().filter(|line| line.starts_with("ring ")).filter_map(of_line).sum()
}

#[test]
fn a_trace_ends_stays_and_is_replaced_by_the_next() {
    let Some(dir) = pools() else { return };
    assert!(ask(&dir, "trace export --chrome c.json").err.contains("there is no trace in the runtime directory"));
    let daemon = Daemon::start(&dir, BOTH);
    assert_eq!(ask(&dir, "trace start --size 1").code, 2);
    let mut client = Nbd::connect(&dir.path("nbd.sock"), "va").expect("it is served");
    assert_eq!(client.write(0, &[1; 4096]), Some(0));
    ask_ok(&dir, "trace start");
    assert!(client.read(0, 4096).is_some());
    ask_ok(&dir, "trace stop");
    assert!(client.read(0, 4096).is_some());
    assert_eq!(requests(&ask_ok(&dir, "trace export --chrome c.json").out), 1);
    ask_ok(&dir, "trace start");
    assert_eq!(requests(&ask_ok(&dir, "trace export --chrome c.json").out), 0);
    daemon.end();
    ask_ok(&dir, "trace export --chrome c.json");
}

#[test]
fn what_others_keep_beside_a_trace_stays() {
    let dir = Dir::new();
    fs::create_dir(dir.path("t")).expect("made");
    fs::write(dir.path("t/other.trace"), "somebody's").expect("written");
    fs::create_dir(dir.path("t/more.trace")).expect("made");
    for _ in 0..2 {
        dir.ok("bench null:size=1G --runtime 20ms --trace t");
    }
    assert_eq!(fs::read(dir.path("t/other.trace")).expect("there"), b"somebody's");
    assert!(dir.path("t/more.trace").is_dir());
    dir.ok("trace export --from t --chrome c.json");
}
