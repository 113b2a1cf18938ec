//! Tests of the selection of steps.

use super::*;

fn names(words: &[&str]) -> Result<Vec<&'static str>> {
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    Ok(chosen(&words)?.into_iter().map(|(name, _)| name).collect())
}

#[test]
fn all_steps_run_or_those_that_are_named() {
    assert_eq!(names(&[]).unwrap().len(), STEPS.len());
    // In the order of the list, whatever the order of the words.
    assert_eq!(names(&["stress", "soak"]).unwrap(), ["soak of the daemon", "stress"]);
    let error = names(&["fuzzers", "sok"]).unwrap_err().to_string();
    assert!(error.contains("`sok`") && error.contains("\n  soak of the daemon"), "{error}");
}
