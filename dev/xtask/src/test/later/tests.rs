//! Tests that the entries exist (I1), and that both runners get the same selection.

use std::path::Path;

use super::*;
use crate::workspace;

/// Returns all Rust files below a directory, concatenated.
fn sources(dir: &Path) -> String {
    let mut text = String::new();
    for entry in std::fs::read_dir(dir).expect("a directory").flatten() {
        let path = entry.path();
        if path.is_dir() && !path.ends_with("target") {
            text += &sources(&path);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text += &std::fs::read_to_string(&path).expect("text");
        }
    }
    text
}

#[test]
fn each_entry_stands_for_tests_that_exist() {
    for later in LATER {
        let dir = match later.package.strip_prefix("sheave-") {
            Some(name) => workspace::dir_of(name).expect("a crate of the workspace"),
            None => workspace::root().join("tests"),
        };
        let sources = sources(&dir);
        for name in later.tests.split("::").filter(|name| !name.is_empty()) {
            let there = ["fn ", "mod "].iter().any(|what| sources.contains(&format!("{what}{name}")));
            assert!(there, "{} has no `{name}`", later.package);
        }
    }
}

#[test]
fn nextest_gets_an_expression() {
    let [flag, quick] = Tests::Quick.for_nextest().try_into().expect("two words");
    assert_eq!(flag, "-E");
    let all: Vec<String> =
        LATER.iter().map(|it| format!("(package(={}) & test(/^{}/))", it.package, it.tests)).collect();
    assert_eq!(quick, format!("not ({})", all.join(" | ")));
    let rest = Tests::Rest(vec!["a::b".into()]).for_nextest();
    assert_eq!(rest[1], format!("{} | test(=a::b)", all.join(" | ")));
    assert!(Tests::All.for_nextest().is_empty());
}

#[test]
fn cargo_test_gets_names() {
    let quick = Tests::Quick.for_cargo();
    assert_eq!((quick[0].as_str(), quick[1].as_str(), quick.len()), ("--", "--skip", 1 + 2 * LATER.len()));
    let rest = Tests::Rest(vec!["a::b".into()]).for_cargo();
    assert_eq!((rest[0].as_str(), rest.last().map(String::as_str), rest.len()), ("--", Some("a::b"), 2 + LATER.len()));
    assert!(Tests::All.for_cargo().is_empty());
}
