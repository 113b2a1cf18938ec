//! Tests of which files are read, and which of them are tests.

use super::*;

#[test]
fn test_modules_are_marked_through_their_parent() {
    let tree = Tree::of(&[
        ("src/lib.rs", "#[cfg(all(test, loom))]\nmod model;\nmod bio;"),
        ("src/model.rs", "mod deep;"),
        ("src/model/deep.rs", ""),
        ("src/models.rs", ""),
        ("src/bio.rs", "#[cfg(test)]\nmod check;"),
        ("src/bio/check.rs", ""),
        ("src/check.rs", ""),
    ]);
    let tests: Vec<_> = tree.sources.iter().filter(|s| s.is_test).map(|s| s.path.as_str()).collect();
    assert_eq!(tests, ["src/model.rs", "src/model/deep.rs", "src/bio/check.rs"]);
}

#[test]
fn the_repository_is_read_without_what_cargo_builds() {
    let tree = Tree::read(&crate::workspace::root()).expect("readable");
    assert!(tree.source("dev/xtask/src/tidy/tree.rs").is_some());
    assert!(tree.manifests.iter().any(|(path, _)| path == "Cargo.toml"));
    assert!(tree.paths.contains(".ci/run"));
    assert!(tree.paths.iter().all(|path| !path.starts_with("target") && !path.starts_with(".git/")));
}
