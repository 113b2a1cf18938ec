//! System calls per I/O, counted by strace: none over `null:`, one per batch over a file.

use std::path::Path;
use std::process::Command;

use crate::{build, skip_here};
use sheave::open_device;
use sheave_testkit::hot_loop::{Profile, arguments};

/// Number of I/Os of the short run, and of the long run.
const SHORT_LONG: (u64, u64) = (3_200, 32_000);

/// Returns the system calls of one I/O; `None` if processes may not be traced.
fn per_io(case: &str) -> Option<f64> {
    if skip_here() {
        return None;
    }
    let strace = sheave_testkit::require("strace")?;
    let program = build(Profile::Release).join("examples/hot_loop");
    let (short, long) = SHORT_LONG;
    let (low, high) = (calls(&strace, &program, case, short)?, calls(&strace, &program, case, long)?);
    Some((high as f64 - low as f64) / (long - short) as f64)
}

fn calls(strace: &Path, program: &Path, case: &str, ios: u64) -> Option<u64> {
    let mut command = Command::new(strace);
    command.args(["-f", "-c", "-U", "calls,name"]).arg(program).args(arguments(case, &ios.to_string()));
    let output = command.output().expect("strace starts");
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("ptrace") && said.contains("not permitted") {
        sheave_testkit::skip("this container forbids ptrace: run outside of it, or with --cap-add=SYS_PTRACE");
        return None;
    }
    assert!(output.status.success(), "hot_loop {case} under strace failed:\n{said}");
    Some(total(&said).unwrap_or_else(|| panic!("strace gave no total:\n{said}")))
}

/// Returns the number in the line `     148 total`.
fn total(said: &str) -> Option<u64> {
    said.lines().find_map(|line| line.trim().strip_suffix(" total")?.trim().parse().ok())
}

#[test]
fn null_makes_no_system_call() {
    for case in ["null:size=1T read 128 32", "null:size=1T write 128 32", "null:size=1T read 1 1"] {
        let Some(calls) = per_io(case) else { return };
        assert_eq!(calls, 0.0, "hot_loop {case}: system calls an I/O");
    }
}

#[test]
fn a_file_takes_one_system_call_a_batch() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let file = dir.path().join("disk");
    std::fs::write(&file, vec![1; 1 << 20]).expect("written");
    let device = open_device(&format!("file:{}", file.display())).expect("a device");
    if let Err(error) = sheave::Ring::builder().build().expect("a ring").attach(&device) {
        return sheave_testkit::skip(&format!("no kernel ring here: {error}"));
    }
    // Through the cache, because the file system need not support direct I/O of 512 bytes then. A disk that takes
    // longer than a wait gathers completions adds a call now and then, but not one per batch.
    for (options, words, most) in [(",direct=off", "", 1.02), ("", " 4k sleep", 1.5)] {
        for (depth, batch) in [(32, 32), (1, 1)] {
            let rws: &[&str] = if words.is_empty() { &["read"] } else { &["read", "write"] };
            for rw in rws {
                let case = format!("file:{}{options} {rw} {depth} {batch}{words}", file.display());
                let Some(calls) = per_io(&case) else { return };
                let limit = most / f64::from(batch);
                assert!(calls <= limit, "hot_loop {case}: {calls} system calls an I/O, more than {limit}");
                assert!(
                    calls > 0.98 / f64::from(batch),
                    "hot_loop {case}: {calls} system calls an I/O: one is missing"
                );
            }
        }
    }
}

#[test]
fn strace_is_read_right() {
    assert_eq!(total("    calls syscall\n--------- ----------------\n        9 read\n      148 total\n"), Some(148));
    assert_eq!(total("strace: no such program"), None);
}
