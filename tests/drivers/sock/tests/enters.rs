//! Number of kernel entries of a ring for a batch, counted by strace: a batch of any size takes one call.

use std::process::Command;

use sheave::drivers::Registry;
use sheave::{Buf, Ring, op};
use sheave_outside_sock::register;
use sheave_outside_sock::server::{Fails, Server};

/// Number of reads of a batch on each device.
const BATCH: u64 = 32;
/// Number of batches of the short run, and of the long run.
const SHORT_LONG: (u64, u64) = (50, 250);
/// Environment of the program under strace: the number of batches, and the flag that a file is used in addition to the
/// socket.
const BATCHES: &str = "SHEAVE_SOCK_BATCHES";
const BESIDE: &str = "SHEAVE_SOCK_BESIDE";

/// The program under strace, which the test below starts.
#[test]
#[ignore = "started under strace by the other test"]
fn program() {
    let many: u64 = std::env::var(BATCHES).expect("set by the test").parse().expect("a number");
    let beside = std::env::var_os(BESIDE).is_some();
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("sock");
    let _server = Server::start(&path, 1 << 20, Fails::Gathers(BATCH as usize)).expect("listening");
    let mut registry = Registry::standard();
    register(&mut registry).expect("a free name");
    let file = format!("file:{},size=1M,direct=off", dir.path().join("file").display());
    let mut ring = Ring::builder().entries(128).build().expect("a ring");
    let mut fds = vec![format!("sock:{},size=1M,receive=any", path.display())];
    fds.extend(beside.then_some(file));
    let fds: Vec<_> =
        fds.iter().map(|spec| ring.attach(&registry.open(spec).expect("opened")).expect("attached")).collect();
    for _ in 0..many {
        for number in 0..BATCH {
            for &fd in &fds {
                // With gaps, or they would be merged into one request.
                let read = op::read(fd, Buf::zeroed(4096, 4096).expect("memory"));
                ring.push(read.offset(number * 17 % 128 * 8192)).expect("room");
            }
        }
        let all = BATCH * fds.len() as u64;
        ring.submit_and_wait(all as u32).expect("submitted");
        for _ in 0..all {
            assert_eq!(ring.pop().expect("it was waited for").res, 4096);
        }
    }
}

/// Returns the number of calls of `io_uring_enter`; `None` if processes may not be traced.
fn enters(many: u64, beside: bool) -> Option<u64> {
    let strace = sheave_testkit::require("strace")?;
    let mut command = Command::new(strace);
    command.args(["-f", "-c", "-e", "trace=io_uring_enter", "-U", "calls,name"]);
    command.arg(std::env::current_exe().expect("its path"));
    command.args(["--ignored", "--exact", "program"]).env(BATCHES, many.to_string());
    if beside {
        command.env(BESIDE, "1");
    }
    let output = command.output().expect("strace starts");
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("ptrace") && said.contains("not permitted") {
        sheave_testkit::skip("this container forbids ptrace: run outside of it, or with --cap-add=SYS_PTRACE");
        return None;
    }
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stdout));
    let count = said.lines().find_map(|line| line.trim().strip_suffix(" io_uring_enter")?.trim().parse().ok());
    Some(count.unwrap_or_else(|| panic!("strace gave no count:\n{said}")))
}

#[test]
fn a_batch_goes_with_one_call_also_beside_a_file() {
    if sheave_testkit::under_sanitizer() {
        return; // its look for leaks does not work under strace
    }
    let dir = tempfile::tempdir().expect("a directory");
    let mut registry = Registry::standard();
    register(&mut registry).expect("a free name");
    let device = registry.open(&format!("sock:{},size=1M", dir.path().join("none").display())).expect("opened");
    if let Err(error) = Ring::builder().build().expect("a ring").attach(&device) {
        return sheave_testkit::skip(&format!("no kernel ring here: {error}"));
    }
    for beside in [false, true] {
        let (short, long) = SHORT_LONG;
        let (Some(low), Some(high)) = (enters(short, beside), enters(long, beside)) else { return };
        let each = (high - low) as f64 / (long - short) as f64;
        println!("{each:.2} calls of io_uring_enter for a batch, with a file beside: {beside}");
        // One call sends the batch; the others sleep until replies arrive.
        assert!((1.0..4.0).contains(&each), "{each:.2} calls for {BATCH} reads (a file beside: {beside})");
    }
}
