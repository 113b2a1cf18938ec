//! Unit tests: no crate with unsafe code is forgotten, and what is left to the nightly run exists.

use super::*;
use crate::workspace;

#[test]
fn every_crate_with_unsafe_code_is_sanitized_in_ci_or_named_for_the_nightly_run() {
    let part = selection(&Extent::Part);
    for name in unsafety::packages() {
        let in_ci = part.windows(2).any(|pair| pair == ["-p", &name]);
        assert_eq!(in_ci, !NIGHTLY.contains(&name.as_str()), "{name} (I2)");
    }
    assert!(part.windows(2).any(|pair| pair == ["-p", FACADE]));
    assert!(NIGHTLY.iter().all(|name| unsafety::packages().contains(*name)), "nothing is named for nothing");
    assert!(
        !selection(&Extent::All { round: 1 }).iter().any(|word| word == "--skip"),
        "the nightly run leaves none out"
    );
}

#[test]
fn tests_that_are_left_out_exist() {
    let files = ["crates/vol/tests/hostile.rs", "crates/vol/src/engine/recovery/tests/hostile.rs"];
    let hostile = files.map(|file| std::fs::read_to_string(workspace::root().join(file)).expect("the file")).concat();
    assert!(LONG.iter().all(|name| hostile.contains(&format!("fn {name}()"))), "{LONG:?}");
}
