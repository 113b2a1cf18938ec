//! Tests that every crate with unsafe code is in a run, and that the crates left to the nightly run exist.

use super::*;

#[test]
fn every_crate_with_unsafe_code_is_sanitized_in_ci_or_named_for_the_nightly_run() {
    let part = selection(&Extent::Part);
    for name in unsafety::packages() {
        let in_ci = part.windows(2).any(|pair| pair == ["-p", &name]);
        assert_eq!(in_ci, !NIGHTLY.contains(&name.as_str()), "{name} (I2)");
    }
    assert!(part.windows(2).any(|pair| pair == ["-p", FACADE]));
    assert!(NIGHTLY.iter().all(|name| unsafety::packages().contains(*name)), "nothing is named for nothing");
}
