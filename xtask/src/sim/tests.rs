//! What the program is told.

use super::*;

#[test]
fn nightly_is_a_number_of_crashes_and_all_else_goes_on() {
    let args = |words: &[&str]| arguments(&words.iter().map(ToString::to_string).collect::<Vec<_>>());
    assert_eq!(args(&["--nightly"]), ["--points", NIGHTLY]);
    assert_eq!(args(&["--seed", "7", "--ops", "9"]), ["--seed", "7", "--ops", "9"]);
}
