//! `--verify` accepts good devices and detects bad ones.

use crate::sheave::{no_io_uring, run};

#[test]
fn good_devices_pass() {
    for rw in ["read", "write", "randread", "randwrite", "randrw"] {
        let said = run(&format!("bench ram:size=4M --rw {rw} --verify --ios 5000 --json --progress none"));
        assert_eq!(said.code, 0, "{rw}: {}", said.err);
        let verify = &said.json()["verify"];
        assert_eq!(verify["wrong"], 0, "{rw}: {verify}");
        assert_eq!(verify["unknown"], 0, "{rw}: {verify}");
        let looked_at = verify["checked"].as_u64().unwrap_or(0) + verify["read_back"].as_u64().unwrap_or(0);
        assert!(looked_at > 500, "{rw}: {verify}");
    }
}

#[test]
fn threads_verify_their_parts() {
    let said = run("bench ram:size=4M --rw randrw --verify --threads 3 --bs 512 --ios 9000 --json --progress none");
    assert_eq!(said.code, 0, "{}", said.err);
    assert_eq!(said.json()["verify"]["filled"], 8192);
    assert_eq!(said.json()["verify"]["read_back"], 8192);
}

#[test]
fn a_real_file_passes() {
    if no_io_uring() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let spec = format!("file:{},size=16M", dir.path().join("a.img").display());
    for extra in ["", "--fixed-buffers=off --depth 1", "--bs 64k --depth 8"] {
        let said = run(&format!("bench {spec} --rw randrw --verify --ios 3000 {extra} --progress none"));
        assert_eq!(said.code, 0, "{extra}: {}", said.err);
        assert!(said.out.contains("blocks right"), "{}", said.out);
    }
}

/// Asserts that a run with this fault has exit code 1 and a report, as text and as JSON.
fn assert_caught(fault: &str) {
    let spec = format!("fault:{fault}=0.01,seed=1,over=ram:size=16M");
    let line = format!("bench {spec} --rw randrw --verify --ios 50000 --progress none");
    let said = run(&line);
    assert_eq!(said.code, 1, "{fault}: {}{}", said.out, said.err);
    for word in ["wrong block at byte", "expected: address", "found:", "meaning:", "00000000  ", "fix: "] {
        assert!(said.err.contains(word), "{fault}: no `{word}` in\n{}", said.err);
    }
    let report = run(&format!("{line} --json")).json();
    assert!(report["verify"]["wrong"].as_u64() > Some(0), "{report}");
    assert!(report["verify"]["wrong_block"]["head_hex"].as_str().is_some_and(|hex| hex.len() == 128), "{report}");
}

#[test]
fn misdirected_writes_are_caught() {
    assert_caught("misdirect");
}

#[test]
fn failed_writes_are_not_taken_for_wrong_blocks() {
    let spec = "fault:error=0.01,seed=1,over=ram:size=4M";
    let said =
        run(&format!("bench {spec} --rw randrw --verify --ios 20000 --max-errors 1000000 --json --progress none"));
    let report = said.json();
    assert_eq!(report["verify"]["wrong"], 0, "{report}");
    assert!(report["errors"].as_u64() > Some(0), "{report}");
    assert_eq!(said.code, 1, "failed I/Os are still told: {}", said.err);
}
