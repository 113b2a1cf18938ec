//! Unit tests: which crates run under which model checker.

use super::*;

#[test]
fn every_model_checker_feature_is_run() {
    let member = |name: &str, features: &[&str]| Member {
        name: name.into(),
        features: features.iter().map(|feature| (*feature).to_owned()).collect(),
    };
    let members = [member("a", &["default", "shuttle", "loom"]), member("b", &[]), member("c", &["shuttle"])];
    let runs: Vec<_> = model_runs(&members).collect();
    assert_eq!(runs, [("a", "shuttle"), ("a", "loom"), ("c", "shuttle")]);
}
