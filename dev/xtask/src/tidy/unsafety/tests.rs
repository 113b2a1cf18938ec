//! Tests of the list, the marker and the comments.

use super::*;

const GOOD: &str =
    "//! Rings.\n#![allow(unsafe_code)] // shared memory\nfn a() {\n    // SAFETY: I1.\n    unsafe { b() }\n}\n";

fn messages(path: &str, text: &str, allowed: &[&str]) -> Vec<String> {
    check_against(&Tree::of(&[(path, text)]), allowed).into_iter().map(|finding| finding.to_string()).collect()
}

fn found(text: &str) -> Vec<String> {
    messages("src/a.rs", text, &["src/a.rs"])
}

#[test]
fn a_listed_file_with_marker_and_comment_passes() {
    assert!(found(GOOD).is_empty(), "{:?}", found(GOOD));
}

#[test]
fn an_unlisted_file_is_found_and_a_test_needs_comments_only() {
    assert!(messages("src/a.rs", GOOD, &[])[0].contains("outside the files listed"));
    for path in ["src/a/tests.rs", "src/a/tests/b.rs", "crates/a/examples/b.rs", "examples/b.rs"] {
        assert!(messages(path, &GOOD.replace("#![allow(unsafe_code)]", ""), &[]).is_empty(), "{path}");
        assert_eq!(messages(path, &GOOD.replace("SAFETY", ""), &[]).len(), 1, "{path}");
    }
}

#[test]
fn an_entry_without_file_or_without_unsafe_is_found() {
    assert!(messages("src/b.rs", "", &["src/a.rs"])[0].contains("does not exist"));
    assert!(found("//! Nothing unsafe.\n")[0].contains("has no unsafe code"));
}

#[test]
fn a_missing_marker_is_found() {
    let text = GOOD.replace("#![allow(unsafe_code)]", "");
    assert!(found(&text)[0].contains("say so with"));
    let item = text.replace("fn a", "#[allow(unsafe_code)] // raw memory\nfn a");
    assert!(found(&item).is_empty(), "one item is even better");
}

#[test]
fn a_missing_comment_is_found_for_blocks_and_impls() {
    let text = GOOD.replace("SAFETY: I1.", "trust me");
    assert!(found(&text)[0].starts_with("src/a.rs:5: no `// SAFETY:`"), "{:?}", found(&text));
    let text = "//! R.\n#![allow(unsafe_code)]\nunsafe impl Send for A {}\n";
    assert!(found(text)[0].starts_with("src/a.rs:3:"));
}

#[test]
fn functions_and_words_need_no_comment() {
    let text = "//! R.\n#![allow(unsafe_code)]\n// unsafe { }\nunsafe fn a() {}\ntype F = unsafe extern \"C\" fn();\n";
    assert!(found(text).is_empty(), "{:?}", found(text));
}

#[test]
fn a_long_comment_counts_as_one_and_a_far_one_does_not() {
    let long = format!("    // SAFETY: I1.\n{}", "    // more\n".repeat(9));
    assert!(found(&GOOD.replace("    // SAFETY: I1.\n", &long)).is_empty());
    let near = "    // SAFETY: I1.\n    let x =\n        y\n            .z(";
    assert!(found(&GOOD.replace("    // SAFETY: I1.", near)).is_empty());
    let far = "    // SAFETY: I1.\n    a();\n    a();\n    a();\n    a();";
    assert_eq!(found(&GOOD.replace("    // SAFETY: I1.", far)).len(), 1);
}
