//! Tests that circles are found, and that names are followed to their definition.

use super::*;

fn circles(files: &[(&str, &str)]) -> Vec<String> {
    let files: Vec<(String, &str)> = files.iter().map(|(path, text)| (format!("crates/x/src/{path}"), *text)).collect();
    let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
    check(&Tree::of(&files)).into_iter().map(|finding| finding.to_string()).collect()
}

const LIB: (&str, &str) = ("lib.rs", "mod a;\nmod b;\nmod c;\npub use a::x::A;\n");
const FOLDERS: [(&str, &str); 3] = [("a.rs", "pub mod x;\n"), ("b.rs", "pub mod y;\n"), ("c.rs", "pub mod z;\n")];

/// Returns the circles of three folders with one module in each.
fn of_three(x: &str, y: &str, z: &str) -> Vec<String> {
    let inner = [("a/x.rs", x), ("b/y.rs", y), ("c/z.rs", z)];
    circles(&[&[LIB], FOLDERS.as_slice(), inner.as_slice()].concat())
}

#[test]
fn two_folders_that_name_each_other_are_a_circle() {
    let found = of_three("use crate::b::y::B;\n", "\nuse crate::a::x::A;\n", "");
    let [found] = found.as_slice() else { panic!("one circle: {found:?}") };
    assert!(found.starts_with("crates/x/src/a/x.rs:1: 2 folders form a circle (`a`, `b`)"), "{found}");
    assert!(found.ends_with("`a::x` names B of `b::y`, `b::y` names A of `a::x`"), "{found}");
}

#[test]
fn a_one_way_dependency_is_no_circle() {
    assert!(of_three("use crate::b::y::B;\n", "use crate::c::z::C;", "").is_empty());
}

#[test]
fn longer_ways_round_are_found_by_any_kind_of_path() {
    let z = "fn f() -> Vec<crate::a::x::A> { vec![] }\n";
    let found = of_three("fn f() { crate::b::y::f(); }\n", "use crate::{c::z::{self, C}};", z);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("3 folders form a circle (`a`, `b`, `c`)"), "{found:?}");
}

#[test]
fn names_are_followed_through_the_root_and_through_other_re_exports() {
    let x = "use crate::b::y::B;\npub struct A;";
    assert_eq!(of_three(x, "use crate::A;\n", "").len(), 1, "the root only re-exports it");
    let of = |root: &str, y: &str| {
        let all = [("lib.rs", root), FOLDERS[0], FOLDERS[1], ("a/x.rs", x), ("b/y.rs", y)];
        circles(&all).len()
    };
    assert_eq!(of("mod a;\nmod b;\npub use a::x::*;\n", "use crate::A;\n"), 1, "all of it is re-exported");
    assert_eq!(of("mod a;\nmod b;\npub use a::x::A as Z;\n", "fn f(z: crate::Z) {}\n"), 1, "by another name");
}

#[test]
fn modules_of_one_folder_and_of_one_inside_it_name_each_other() {
    for (parent, child) in [
        ("mod b;\nmod c;\nuse b::B;\npub struct A(B);", "use super::A;\nuse super::c::C;\npub struct B;\n"),
        ("mod b;\nmod c;\npub struct A(b::B);", "use crate::a::A;\npub struct B;\n"),
    ] {
        let c = ("a/c.rs", "use super::b::B;\npub struct C;\n");
        let inner = ("a/b/d.rs", "use crate::a::A;\nuse crate::a::c::C;\n");
        let found = circles(&[("lib.rs", "mod a;\n"), ("a.rs", parent), ("a/b.rs", child), c, inner]);
        assert!(found.is_empty(), "{parent}: {found:?}");
    }
}

#[test]
fn folders_inside_a_folder_are_checked_too() {
    let files = [
        ("lib.rs", "mod a;\n"),
        ("a.rs", "mod one;\nmod two;\n"),
        ("a/one.rs", "mod x;\n"),
        ("a/one/x.rs", "use crate::a::two::y::Y;\npub struct X;\n"),
        ("a/two.rs", "pub mod y;\n"),
        ("a/two/y.rs", "use crate::a::one::x::X;\npub struct Y;\n"),
    ];
    assert_eq!(circles(&files).len(), 1);
}

#[test]
fn names_in_tests_and_comments_do_not_count() {
    let x = "use crate::b::y::B;\n";
    for y in ["//! See `crate::a::x::A`.\n", "#[cfg(test)]\nmod t {\n    use crate::a::x::A;\n}\n"] {
        assert!(of_three(x, y, "").is_empty(), "{y}");
    }
    let files = [LIB, FOLDERS[0], FOLDERS[1], ("a/x.rs", x), ("b/y.rs", "#[cfg(test)]\nmod tests;\n")];
    let tests = ("b/y/tests.rs", "use crate::a::x::A;");
    assert!(circles(&[files.as_slice(), &[tests]].concat()).is_empty());
}

#[test]
fn paths_of_other_crates_and_own_types_do_not_count() {
    let x = "use a::A;\nuse std::b::B;\nfn f() -> impl Sized + use<> { Self::b::<u8>(); x.b::<u8>() }\n";
    assert!(of_three(x, "use crate::a::x::f;\n", "").is_empty());
}
