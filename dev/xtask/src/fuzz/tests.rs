//! Tests of the arguments, and of the list of fuzzers.

use super::*;

fn strings(all: &[&str]) -> Vec<String> {
    all.iter().map(|one| (*one).to_owned()).collect()
}

#[test]
fn time_and_targets_are_parsed() {
    let args = strings(&["--seconds", "9", "leaf", "table"]);
    let (seconds, rest) = parse(&args).expect("valid");
    assert_eq!((seconds, rest), (9, &args[2..]));
    assert_eq!(parse(&[]).expect("valid").0, DEFAULT_SECONDS);
    assert!(parse(&strings(&["--seconds", "soon"])).is_err());
    assert!(parse(&strings(&["--minutes", "9"])).is_err());
}

#[test]
fn unknown_targets_are_refused() {
    let all = strings(&["index", "leaf"]);
    assert_eq!(choose(&all, &[]).expect("all"), ["index", "leaf"]);
    assert_eq!(choose(&all, &strings(&["leaf"])).expect("one"), ["leaf"]);
    let error = choose(&all, &strings(&["laef"])).expect_err("unknown").to_string();
    assert!(error.contains("index, leaf"), "{error}");
}

#[test]
fn every_decoder_has_a_fuzzer() {
    let all = targets(&workspace::root().join("dev/fuzz/src/bin")).expect("there are some");
    for name in ["superblock", "leaf", "index", "table", "record", "journal", "check", "open"] {
        assert!(all.iter().any(|have| have == name), "{name}");
    }
}
