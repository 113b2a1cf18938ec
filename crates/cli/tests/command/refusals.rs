//! Errors are reported with cause, fix and the right exit code, and never by a panic.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::Duration;

use crate::sheave::{Said, no_io_uring, run, sheave};

fn assert_refused(line: &str, code: i32, words: &[&str]) {
    let said = run(line);
    assert_eq!(said.code, code, "{line}\n{}{}", said.out, said.err);
    for word in words {
        assert!(said.err.contains(word), "{line}: no `{word}` in\n{}", said.err);
    }
    assert!(!said.err.contains("panicked"), "{line}\n{}", said.err);
}

#[test]
fn bad_command_lines() {
    for (line, words) in [
        ("bench", &["[SPEC]", "null:size=1T"][..]),
        ("bench null:size=1G --bs 1000", &["multiple of 512"]),
        ("bench null:size=1G --bs 4q", &["unit"]),
        ("bench null:size=1G --depth 0", &["1..=4096"]),
        ("bench null:size=1G --runtime 0", &["measures nothing"]),
        ("bench null:size=1G --rw sideways", &["randread"]),
        ("bench null:size=1G --depth 4 --batch 8", &["more than --depth", "fix: "]),
        ("bench null:size=1G --verify", &["keeps nothing", "fix: "]),
        ("bench null:size=1G --range 2G", &["beyond the device", "fix: "]),
        ("bench null:size=1G --compare memcpy", &["fix: "]),
        ("bench null:size=1G --cpu 4000", &["CPU 4000", "fix: "]),
        ("bench wq: --workers 2", &["sheave-lab", "fix: ", "cargo xtask lab wq"]),
        ("lab all --quick", &["sheave-lab", "fix: ", "cargo xtask lab all --quick"]),
    ] {
        assert_refused(line, 2, words);
    }
}

#[test]
fn bad_specs() {
    for (line, words) in [
        ("bench nul:size=1G", &["nul", "null, ram, file"][..]),
        ("bench null:size=zz", &["size"]),
        ("bench null:sice=1G", &["sice"]),
        ("bench /some/file", &["file:/some/file"]),
        ("bench file:", &["no file", "fix: "]),
        ("bench ram:size=", &["size"]),
        ("bench fault:error=2,over=ram:size=1M", &["error"]),
    ] {
        assert_refused(line, 2, words);
    }
}

#[test]
fn missing_files_and_directories() {
    let dir = tempfile::tempdir().expect("a directory");
    let missing = dir.path().join("missing.img");
    assert_refused(&format!("bench file:{}", missing.display()), 1, &["missing.img", "size="]);
    let deep = dir.path().join("no/such/dir/a.img");
    assert_refused(&format!("bench file:{},size=1M", deep.display()), 1, &["a.img"]);
    assert_refused(&format!("bench file:{}", dir.path().display()), 1, &["directory"]);
}

#[test]
fn no_permission() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("mine.img");
    fs::write(&path, vec![1; 1 << 20]).expect("a file");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).expect("chmod");
    if fs::File::open(&path).is_ok() {
        sheave_testkit::skip("root may read every file: run as another user");
        return;
    }
    assert_refused(&format!("bench file:{}", path.display()), 1, &["mine.img", "ermission"]);
}

#[test]
fn a_full_disk() {
    if no_io_uring() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=1M", "sheave-test"])
        .arg(dir.path())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !mounted {
        sheave_testkit::skip("no small file system can be mounted here: run as root");
        return;
    }
    let spec = format!("file:{},size=8M", dir.path().join("a.img").display());
    let said = run(&format!("bench {spec} --rw write --progress none"));
    let _ = std::process::Command::new("umount").arg("-l").arg(dir.path()).status();
    assert_eq!(said.code, 1, "{}{}", said.out, said.err);
    assert!(said.err.contains("ENOSPC") || said.err.contains("No space left"), "{}", said.err);
    assert!(said.err.contains("free space") || said.err.contains("space"), "{}", said.err);
}

#[test]
fn a_device_that_shrinks_under_the_run() {
    if no_io_uring() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("a.img");
    fs::write(&path, vec![1; 8 << 20]).expect("a file");
    let line = format!("bench file:{} --runtime 60s --progress none", path.display());
    let child = sheave(&line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
    sheave_testkit::process::wait_until_working(child.id(), Duration::from_millis(300));
    fs::OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(4096)).expect("truncate");
    let said = Said::of(child.wait_with_output().expect("it ends"));
    assert_eq!(said.code, 1, "{}{}", said.out, said.err);
    assert!(said.err.contains("shrunk"), "{}", said.err);
    assert!(!said.err.contains("panicked"), "{}", said.err);
}

#[test]
fn injected_errors_end_the_run_unless_allowed() {
    let spec = "fault:error=0.01,seed=3,over=ram:size=16M";
    let said = run(&format!("bench {spec} --ios 100000 --progress none"));
    assert_eq!(said.code, 1, "{}{}", said.out, said.err);
    assert!(said.err.contains("failed: ") && said.err.contains("fix: "), "{}", said.err);
    let report = run(&format!("bench {spec} --ios 20000 --max-errors 1M --json --progress none")).json();
    assert_eq!(report["ios"], 20_000);
    assert!(report["errors"].as_u64().is_some_and(|errors| (50..800).contains(&errors)), "{report}");
    assert!(report["first_error"].as_str().is_some_and(|error| error.contains("at byte")), "{report}");
}
