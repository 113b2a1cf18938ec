//! Tests that a file of tests outside all programs is found.

use super::*;

const MANIFEST: &str = "[package]\nname = \"a\"\nautotests = false # one program\n\n[[test]]\nname = \"all\"\n";

fn found(files: &[(&str, &str)]) -> Vec<String> {
    check(&Tree::of(files)).iter().map(ToString::to_string).collect()
}

#[test]
fn programs_their_modules_and_what_is_below_them_are_compiled() {
    let all = ("crates/a/tests/all.rs", "//! x\nmod one;\nmod support;\n");
    let others = [("crates/a/tests/one.rs", ""), ("crates/a/tests/support/mod.rs", ""), ("crates/b/tests/two.rs", "")];
    let files =
        [&[("crates/a/Cargo.toml", MANIFEST), ("crates/b/Cargo.toml", "[package]\n"), all], &others[..]].concat();
    assert_eq!(found(&files), Vec::<String>::new());
}

#[test]
fn a_file_that_no_program_names_is_found() {
    let files = [
        ("crates/a/Cargo.toml", MANIFEST),
        ("crates/a/tests/all.rs", "//! x\n// mod two;\nmod one;\n"),
        ("crates/a/tests/one.rs", ""),
        ("crates/a/tests/two.rs", ""),
        ("crates/a/tests/three/main.rs", ""),
    ];
    let found = found(&files);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].contains("tests/two.rs") && found[1].contains("tests/three/main.rs"), "{found:?}");
}

#[test]
fn the_crates_that_join_their_tests_are_looked_at() {
    let tree = Tree::read(&crate::workspace::root()).expect("the repository");
    let joined = tree.manifests.iter().filter(|(_, text)| text.contains("autotests = false")).count();
    assert!(joined >= 3, "uring, vol and the simulator");
    let mut tree = tree;
    tree.sources.push(super::super::source::Source::new("crates/uring/tests/forgotten.rs", "//! x\n"));
    assert_eq!(check(&tree).len(), 1);
}
