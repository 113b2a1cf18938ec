//! Descriptions of failed I/Os.

use super::*;

#[test]
fn errors_name_place_cause_and_fix() {
    let full = explain(IoError { offset: 8192, write: true, result: -libc::ENOSPC }, 4096, 1 << 20).to_string();
    assert!(full.contains("write of 4096 bytes at byte 8192 failed: ENOSPC"), "{full}");
    assert!(full.contains("fix: free space"), "{full}");
}

#[test]
fn a_short_read_behind_the_end_is_a_shrunk_device() {
    let short = explain(IoError { offset: 8192, write: false, result: 0 }, 4096, 8192).to_string();
    assert!(short.contains("gave only 0 bytes") && short.contains("shrunk to 8192"), "{short}");
}
