//! Tests of which crates may name which, in manifests and in code.

use super::*;

fn messages(path: &str, text: &str) -> Vec<String> {
    check(&Tree::of(&[(path, text)])).into_iter().map(|finding| finding.to_string()).collect()
}

fn depends(from: &str, section: &str, to: &str) -> bool {
    let path = if from.is_empty() { "Cargo.toml".to_owned() } else { format!("crates/{from}/Cargo.toml") };
    messages(&path, &format!("[{section}]\n{to}.workspace = true\n")).is_empty()
}

#[test]
fn arrows_point_down_in_manifests() {
    for (from, to) in [("blk", "sheave-base"), ("uring", "sheave-iomap"), ("serve", "sheave-vol"), ("cli", "sheave")] {
        assert!(depends(from, "dependencies", to), "{from} -> {to}");
    }
    for (from, to) in [("base", "sheave-blk"), ("iomap", "sheave-uring"), ("blk", "sheave"), ("cli", "sheave-lab")] {
        assert!(!depends(from, "dependencies", to), "{from} -> {to}");
        assert!(!depends(from, "dev-dependencies", to), "{from} -> {to} in tests");
        assert!(!depends(from, "target.'cfg(unix)'.dependencies", to), "{from} -> {to} for a target");
    }
    assert!(depends("", "dependencies", "sheave-uring"), "the facade assembles");
    assert!(depends("", "workspace.dependencies", "sheave-cli"), "a table of versions is no arrow");
    assert!(!depends("", "dependencies", "sheave-cli"), "nothing depends on a roof");
    assert!(!depends("cli", "dependencies", "xtask"), "nothing depends on a roof");
}

#[test]
fn adjacent_floors_point_down_only() {
    for (from, to) in
        [("kring", "base"), ("blk", "kring"), ("drivers", "blk"), ("drivers", "kring"), ("iomap", "drivers")]
    {
        assert!(depends(from, "dependencies", &format!("sheave-{to}")), "{from} -> {to}");
        assert!(!depends(to, "dev-dependencies", &format!("sheave-{from}")), "{to} -> {from}, even in tests");
    }
    let up = messages("crates/blk/src/a.rs", "use sheave_drivers::null;");
    assert_eq!(up, ["crates/blk/src/a.rs:1: `blk` (floor 3) must not name `drivers` (floor 4): arrows point down"]);
}

#[test]
fn crates_on_one_floor_never_meet() {
    assert!(!depends("uring", "dependencies", "sheave-vol"));
    assert!(!depends("vol", "dependencies", "sheave-uring"));
    assert!(messages("crates/vol/src/pool.rs", "use sheave_uring::Ring;")[0].contains("must not name `uring`"));
}

#[test]
fn the_test_kit_is_for_tests() {
    assert!(depends("base", "dev-dependencies", "sheave-testkit"));
    assert!(!depends("base", "dependencies", "sheave-testkit"));
    let code = "fn a() { sheave_testkit::skip(\"\") }\n#[cfg(test)]\nmod t { use sheave_testkit::skip; }\n";
    assert_eq!(messages("crates/base/src/a.rs", code).len(), 1);
}

#[test]
fn arrows_point_down_in_code() {
    let up = messages("crates/blk/src/queue.rs", "//! x\n\nfn f(r: &sheave_uring::Ring) {}\n");
    assert_eq!(up, ["crates/blk/src/queue.rs:3: `blk` (floor 3) must not name `uring` (floor 6): arrows point down"]);
    assert_eq!(messages("crates/blk/tests/t.rs", "use sheave::Ring;").len(), 1, "tests too");
    assert!(messages("crates/uring/src/a.rs", "use sheave_iomap::File; // sheave_cli\nlet sheave = 1;").is_empty());
    assert!(messages("src/lib.rs", "pub use sheave_uring as uring;").is_empty());
    assert!(messages("crates/blk/src/a.rs", "#[cfg(sheave_lab)]\nfn f() { cfg!(sheave_lab); }").is_empty(), "a build");
    assert_eq!(messages("crates/blk/src/a.rs", "#[cfg(sheave_lab)]\nuse sheave_lab::Lab;").len(), 1, "the crate");
}

#[test]
fn nothing_names_the_drivers_of_outside_crates() {
    assert!(messages("tests/drivers/xor/src/a.rs", "fn f(r: &sheave_load::Looper, d: sheave::Device) {}\n").is_empty());
    let named = messages("crates/load/src/a.rs", "use sheave_outside_xor::register;\n");
    assert!(named.len() == 1 && named[0].contains("roof"), "{named:?}");
}

#[test]
fn a_crate_without_a_floor_is_found() {
    assert!(messages("crates/attic/Cargo.toml", "")[0].contains("has no floor"));
}
