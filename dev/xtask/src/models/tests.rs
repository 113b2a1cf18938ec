//! Tests of which crates run under which model checker, and of finding a crate without a model.

use super::*;

#[test]
fn every_crate_runs_under_each_of_its_checkers() {
    let member = |name: &str, checkers: &[&str]| Member {
        name: name.into(),
        checkers: checkers.iter().map(|checker| (*checker).to_owned()).collect(),
    };
    let members = [member("a", &["shuttle", "loom"]), member("b", &[]), member("c", &["shuttle"])];
    assert_eq!(runs(&members), BTreeMap::from([("loom", vec!["a"]), ("shuttle", vec!["a", "c"])]));
}

#[test]
fn a_crate_in_which_no_model_ran_is_named() {
    let mut passed = Passed::default();
    let lines = [
        "     Running unittests src/lib.rs (target/x/debug/deps/sheave_base-9cdab5c0d9f9a1b2)",
        "running 2 tests",
        "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 17 filtered out; finished in 5.65s",
        "\u{1b}[1m\u{1b}[92m     Running\u{1b}[0m unittests src/lib.rs (target/x/debug/deps/sheave_blk-0d9f9a1b)",
        "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 221 filtered out; finished in 0.00s",
    ];
    lines.iter().for_each(|line| passed.read_line(line));
    let crates = ["sheave-base", "sheave-blk", "sheave-vol"];
    assert_eq!(passed.without(&crates).collect::<Vec<_>>(), ["sheave-blk", "sheave-vol"]);
}

#[test]
fn the_file_of_a_checker_is_found_among_what_cargo_has_made() {
    let messages = [
        r#"{"filenames":["/t/deps/libshuttle_engine-0a.rlib","/t/deps/libshuttle_engine-0a.rmeta"]}"#,
        r#"{"filenames":["/t/deps/libshuttle-1b.rmeta","/t/deps/libshuttle-1b.rlib"]}"#,
    ];
    assert_eq!(artifact(&messages.join("\n"), "shuttle").as_deref(), Some("/t/deps/libshuttle-1b.rlib"));
    assert_eq!(artifact(&messages.join("\n"), "loom"), None);
}
