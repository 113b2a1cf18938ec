//! Tests of which modules may name which, in every spelling of the path.

use super::*;

fn messages(path: &str, text: &str) -> Vec<String> {
    check(&Tree::of(&[(path, text)])).into_iter().map(|finding| finding.to_string()).collect()
}

fn names(from: &str, text: &str) -> bool {
    let found = messages(&format!("crates/vol/src/{from}"), text);
    assert!(found.len() <= 1, "{found:?}");
    !found.is_empty()
}

#[test]
fn arrows_point_down() {
    for (from, to) in [
        ("error.rs", "format"),
        ("device/sweep.rs", "format"),
        ("state/alloc/pages.rs", "state"),
        ("engine/commit.rs", "state"),
        ("ops/grow.rs", "engine"),
        ("pool/mod.rs", "volume"),
        ("check.rs", "finding"),
        ("lib.rs", "pool"),
    ] {
        assert!(!names(from, &format!("use crate::{to}::x;\n")), "{from} -> {to}");
    }
    for (from, to) in [
        ("format/page/leaf.rs", "error"),
        ("format/page/leaf.rs", "device"),
        ("device/sweep.rs", "info"),
        ("state/limbo.rs", "engine"),
        ("state/mod.rs", "check"),
        ("engine/commit.rs", "ops"),
        ("volume/mod.rs", "pool"),
        ("check/walk.rs", "state"),
        ("pool/mod.rs", "elsewhere"),
        ("elsewhere.rs", "format"),
    ] {
        assert!(names(from, &format!("use crate::{to}::x;\n")), "{from} -> {to}");
    }
}

#[test]
fn however_they_are_written() {
    assert_eq!(
        messages("crates/vol/src/state/table.rs", "//! x\n\nfn f() { crate::pool::x() }\n"),
        ["crates/vol/src/state/table.rs:3: `state` must not name `pool`: inside vol, too, arrows point down"]
    );
    assert!(names("state/table.rs", "use crate::{format::{BLOCK, kind}, engine::{a, b}, error::PoolError};\n"));
    assert!(names("state/sums/data.rs", "use super::super::super::engine::x;\n"), "all the way up");
    assert!(names("state/mod.rs", "use super::engine::x;\n"));
    assert!(names("engine/commit.rs", "use crate::Pool;\n"), "a name that the root exports again");
    assert!(!names("state/sums/data.rs", "use super::super::table::x;\n"), "within the folder");
    assert!(!names("state/table.rs", "use super::engine::x;\n"), "a module of the folder");
    assert!(!names("state/table.rs", "// crate::engine::x\nuse other_crate::engine;\nfn f() { a!($crate::pool) }\n"));
}

#[test]
fn tests_and_other_crates_may_name_anything() {
    assert!(!names("state/table.rs", "#[cfg(test)]\nmod t {\n    use crate::pool::Pool;\n}\n"));
    assert!(messages("crates/uring/src/a.rs", "use crate::engine::x;\n").is_empty());
    let files = [
        ("crates/vol/src/state/table.rs", "#[cfg(test)]\nmod tests;\n"),
        ("crates/vol/src/state/table/tests.rs", "use crate::pool::Pool;\n"),
    ];
    assert!(check(&Tree::of(&files)).is_empty());
}
