//! Tests of the arguments for `sheave-sim`.

use super::*;

#[test]
fn nightly_is_a_number_of_crashes_with_checksums_and_without() {
    let args = |words: &[&str]| runs(&words.iter().map(ToString::to_string).collect::<Vec<_>>());
    let with = |kind| ["--tally", "--points", NIGHTLY, kind];
    assert_eq!(args(&["--nightly"]), [with("--checksum"), with("--no-checksum")]);
    assert_eq!(args(&["--nightly", "--no-checksum"]), [["--no-checksum", "--tally", "--points", NIGHTLY]]);
    assert_eq!(args(&["--seed", "7", "--ops", "9"]), [["--seed", "7", "--ops", "9"]]);
}
