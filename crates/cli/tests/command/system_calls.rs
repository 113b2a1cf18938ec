//! `sheave bench null:` makes no system call per I/O: ten times as many I/Os need the same number of calls. A server
//! makes one or two system calls for all requests that a client has sent at once. If calls of `io_uring_enter` begin to
//! fail while the program runs, bench and server end with an error.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use sheave_testkit::process;

use crate::daemon::Nbd;
use crate::sheave::{Dir, Said, no_io_uring, sheave};

const SHORT: u64 = 100_000;
const LONG: u64 = 1_000_000;
/// Largest difference between two runs in system calls. Threads that wait for each other and the allocator cause it.
const SLACK: u64 = 20;

/// Returns the number of system calls that all threads of a run make, and the table that strace printed.
fn calls(strace: &Path, line: &str) -> (u64, String) {
    let dir = tempfile::tempdir().expect("a directory");
    let table = dir.path().join("calls");
    let program = sheave(line);
    let mut traced = Command::new(strace);
    traced.args(["-f", "-c", "-o"]).arg(&table).arg(program.get_program()).args(program.get_args());
    let said = Said::of(traced.output().expect("strace starts"));
    assert_eq!(said.code, 0, "{line}\n{}", said.err);
    assert_eq!(said.json()["errors"], 0);
    let table = std::fs::read_to_string(&table).expect("strace wrote its table");
    let total = total(&table).unwrap_or_else(|| panic!("no total in\n{table}"));
    (total, table)
}

/// Returns the value of column `calls` in the line `total` of a table of strace.
fn total(table: &str) -> Option<u64> {
    table.lines().find(|line| line.ends_with(" total"))?.split_whitespace().nth(3)?.parse().ok()
}

#[test]
fn the_table_of_strace_is_read_right() {
    let table = "% time     seconds  usecs/call     calls    errors syscall\n\
                 ------ ----------- ----------- --------- --------- ----------------\n\
                 100.00    0.002719          18       150         1 total\n";
    assert_eq!(total(table), Some(150));
    assert_eq!(total("strace: Process 1 attached"), None);
}

#[test]
fn null_makes_no_system_call() {
    if sheave_testkit::under_sanitizer() {
        return sheave_testkit::skip("a sanitizer makes system calls of its own");
    }
    let Some(strace) = sheave_testkit::require("strace") else { return };
    for options in [
        "--bs 512 --depth 128 --batch 32 --poll",
        "--bs 512 --depth 1 --batch 1",
        "--depth 32 --batch 8 --rw randrw --fixed-buffers",
        "--depth 32 --batch 32 --rw write --bs 64k --threads 2",
    ] {
        let line = |ios: u64| format!("bench null:size=1G {options} --ios {ios} --json --progress none");
        let ((short, _), (long, table)) = (calls(&strace, &line(SHORT)), calls(&strace, &line(LONG)));
        assert!(long <= short + SLACK, "{options}: {short} calls for {SHORT} I/Os, {long} for {LONG}:\n{table}");
    }
}

#[test]
fn what_makes_system_calls_is_seen_to() {
    if sheave_testkit::under_sanitizer() {
        return;
    }
    let Some(strace) = sheave_testkit::require("strace") else { return };
    // Another thread completes the I/Os. At depth 1 the ring sleeps each time, and that thread has to wake it.
    let line = "bench null:size=1G,complete=thread --depth 1 --batch 1 --ios 2000 --json --progress none";
    let (count, table) = calls(&strace, line);
    assert!(count > 1000, "{count} calls:\n{table}");
}

/// Returns the number of system calls of a server that answers `rounds` batches of `depth` reads each.
fn calls_of_a_server(strace: &Path, depth: u64, rounds: u32) -> u64 {
    let dir = Dir::new();
    let program = sheave("serve ram:size=1M --name x --nbd unix:s --threads 1");
    let mut traced = Command::new(strace);
    // -D makes the server our direct child, and strace a detached process: the SIGTERM below must reach the server.
    traced.args(["-D", "-f", "-c", "-o", "calls"]).arg(program.get_program()).args(program.get_args());
    traced.current_dir(dir.path("")).env("SHEAVE_RUNTIME_DIR", "").stderr(Stdio::null());
    let mut server = traced.spawn().expect("strace starts");
    let until = Instant::now() + Duration::from_secs(60);
    let wait = |what: &str| {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    };
    let mut client = loop {
        if let Some(client) = Nbd::connect(&dir.path("s"), "x") {
            break client.0;
        }
        wait("it does not serve");
    };
    let read = |cookie: u64| {
        let head = [0x2560_9513u32.to_be_bytes(), [0; 4]].concat();
        [head, cookie.to_be_bytes().to_vec(), (cookie * 4096).to_be_bytes().to_vec(), 4096u32.to_be_bytes().to_vec()]
    };
    let batch: Vec<u8> = (0..depth).flat_map(read).flatten().collect();
    let mut replies = vec![0; depth as usize * (16 + 4096)];
    for _ in 0..rounds {
        client.write_all(&batch).expect("sent");
        client.read_exact(&mut replies).expect("answered");
    }
    drop(client);
    process::signal(server.id(), "-TERM");
    server.wait().expect("it ends");
    loop {
        // strace writes its table a little after the server has ended.
        let table = std::fs::read_to_string(dir.path("calls")).unwrap_or_default();
        if let Some(total) = total(&table) {
            return total;
        }
        wait("no table");
    }
}

#[test]
fn a_server_answers_all_that_came_at_once_by_few_system_calls() {
    if sheave_testkit::under_sanitizer() || no_io_uring() {
        return;
    }
    let Some(strace) = sheave_testkit::require("strace") else { return };
    for (depth, most) in [(16, 0.25), (64, 0.06)] {
        let (short, long) = (calls_of_a_server(&strace, depth, 100), calls_of_a_server(&strace, depth, 600));
        let each = long.saturating_sub(short) as f64 / (500.0 * depth as f64);
        assert!(each <= most && each > 0.0, "{each} system calls a request, {depth} at once: {short}, {long}");
    }
}

/// Runs a command in which each thread's `io_uring_enter` fails with EPERM from its 20th call on.
fn refused_later(dir: &Dir, line: &str) -> Option<Said> {
    if no_io_uring() || sheave_testkit::require("strace").is_none() {
        return None;
    }
    // `timeout` gives the exit code 124 to a command that hangs.
    let strace = "timeout 120 strace -f -o trace -e trace=io_uring_enter -e inject=io_uring_enter:error=EPERM:when=20+";
    let said = dir.shell(&format!("{strace} $SHEAVE {line}"));
    if !std::fs::read_to_string(dir.path("trace")).is_ok_and(|trace| trace.contains("INJECTED")) {
        sheave_testkit::skip("strace changes no calls here");
        return None;
    }
    Some(said)
}

#[test]
fn a_kernel_ring_that_is_refused_ends_a_command_with_an_error() {
    let dir = Dir::new();
    let line = "bench file:image,size=16M --ios 2000 --depth 8 --progress none";
    let Some(said) = refused_later(&dir, line) else { return };
    assert_eq!(said.code, 1, "{}", said.err);
    assert!(said.err.contains("EIO"), "{}", said.err);
}

#[test]
fn a_kernel_ring_that_is_refused_ends_the_server_with_an_error() {
    let dir = Dir::new();
    // The client's own ring fails in the same way, so only the output of the server is checked.
    let client = "for i in 1 2 3 4 5 6 7 8; do \
                  timeout 30 $SHEAVE bench nbd:unix:${uri#*socket=},export=disk --ios 100 --progress none; done; \
                  exec sleep 300";
    let Some(said) = refused_later(&dir, &format!("serve ram:size=1M --run '{client}'")) else { return };
    assert_eq!(said.code, 1, "{}", said.err);
    assert!(said.err.contains("io_uring_enter failed") && said.err.contains("the server ends"), "{}", said.err);
}
