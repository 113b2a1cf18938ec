//! Unit tests: what makes a circle, what does not, and how names are followed.

use super::*;

fn circles(files: &[(&str, &str)]) -> Vec<String> {
    let files: Vec<(String, &str)> = files.iter().map(|(path, text)| (format!("crates/x/src/{path}"), *text)).collect();
    let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
    check(&Tree::of(&files)).into_iter().map(|finding| finding.to_string()).collect()
}

const LIB: (&str, &str) = ("lib.rs", "mod a;\nmod b;\nmod c;\npub use a::A;\n");

#[test]
fn two_modules_that_name_each_other_are_a_circle() {
    let found = circles(&[LIB, ("a.rs", "use crate::b::B;\n"), ("b.rs", "\nuse super::a::A;\n")]);
    let [found] = found.as_slice() else { panic!("one circle: {found:?}") };
    assert!(found.starts_with("crates/x/src/a.rs:1: 2 modules form a circle (`a`, `b`)"), "{found}");
    assert!(found.ends_with("`a` names B of `b`, `b` names A of `a`"), "{found}");
}

#[test]
fn one_way_is_no_circle() {
    assert!(circles(&[LIB, ("a.rs", "use crate::b::B;\n"), ("b.rs", "use crate::c::C;"), ("c.rs", "")]).is_empty());
}

#[test]
fn longer_ways_round_are_found_by_any_kind_of_path() {
    let c = "fn f() -> Vec<crate::a::A> { vec![] }\n";
    let found =
        circles(&[LIB, ("a.rs", "fn f() { super::b::f(); }\n"), ("b.rs", "use crate::{c::{self, C}};"), ("c.rs", c)]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("3 modules form a circle (`a`, `b`, `c`)"), "{found:?}");
}

#[test]
fn names_are_followed_through_the_root_and_through_other_re_exports() {
    let found = circles(&[LIB, ("a.rs", "use crate::b::B;\npub struct A;"), ("b.rs", "use crate::A;\n")]);
    assert_eq!(found.len(), 1, "the root only re-exports it: {found:?}");
    let all = ("lib.rs", "mod a;\nmod b;\npub use a::*;\n");
    let found = circles(&[all, ("a.rs", "use crate::b::B;\npub struct A;"), ("b.rs", "use crate::A;\n")]);
    assert_eq!(found.len(), 1, "all of it is re-exported: {found:?}");
    let renamed = ("lib.rs", "mod a;\nmod b;\npub use a::A as Z;\n");
    let found = circles(&[renamed, ("a.rs", "use crate::b::B;\npub struct A;"), ("b.rs", "fn f(z: crate::Z) {}\n")]);
    assert_eq!(found.len(), 1, "by another name: {found:?}");
}

#[test]
fn a_parent_that_only_re_exports_makes_no_circle() {
    let parent = "mod open;\nmod close;\npub use open::Open;\npub(crate) use close::Close;\n";
    let close = ("a/close.rs", "use super::Open;\npub struct Close;\n");
    assert!(circles(&[("a.rs", parent), ("a/open.rs", "pub struct Open;\n"), close]).is_empty());
    let owner = format!("{parent}pub struct Owner;\n");
    assert!(
        circles(&[("a.rs", &owner), ("a/open.rs", "use super::Owner;\npub struct Open(Owner);\n"), close]).is_empty(),
        "a child may stand on its parent"
    );
}

#[test]
fn a_parent_and_a_child_that_need_each_other_are_a_circle() {
    for parent in
        ["mod b;\nuse b::B;\npub struct A(B);", "mod b;\npub struct A(b::B);", "mod b;\npub use b::B;\nstruct A(B);"]
    {
        let found = circles(&[("a.rs", parent), ("a/b.rs", "use super::A;\npub struct B;\n")]);
        assert_eq!(found.len(), 1, "{parent}: {found:?}");
        assert!(found[0].contains("(`a`, `a::b`)"), "{found:?}");
    }
    let methods = ("a/b.rs", "use super::A;\nimpl A { pub fn go(&self) {} }\n");
    assert!(
        circles(&[("a.rs", "mod b;\nstruct A;\nfn f(a: &A) { a.go() }\n"), methods]).is_empty(),
        "a call names nobody"
    );
}

#[test]
fn tests_and_comments_name_nobody() {
    let a = "use crate::b::B;\n";
    for b in
        ["//! See `crate::a::A`.\n", "#[cfg(test)]\nmod t {\n    use crate::a::A;\n}\n", "#[cfg(test)]\nmod tests;\n"]
    {
        assert!(circles(&[LIB, ("a.rs", a), ("b.rs", b), ("b/tests.rs", "use crate::a::A;")]).is_empty(), "{b}");
    }
}

#[test]
fn other_crates_and_own_types_are_nobody() {
    let a = "use a::A;\nuse std::b::B;\nfn f() -> impl Sized + use<> { Self::b::<u8>(); x.b::<u8>() }\n";
    assert!(circles(&[LIB, ("a.rs", a), ("b.rs", "use crate::a::f;\n")]).is_empty());
}
