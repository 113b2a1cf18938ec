//! Tests of the heading and width checks.

use super::*;

#[test]
fn a_good_file_passes() {
    let wide = format!("//! Owns x.\n// {}\n", "é".repeat(117));
    assert_eq!(check(&Tree::of(&[("a.rs", &wide)])), []);
}

#[test]
fn a_missing_heading_is_found() {
    for text in ["fn a() {}\n", "// Not a doc comment.\n", "\n//! Late.\n", ""] {
        let findings = check(&Tree::of(&[("a.rs", text)]));
        assert_eq!(findings.len(), 1, "{text:?}");
    }
}

#[test]
fn a_wide_line_is_found() {
    let text = format!("//! Owns x.\n// {}\n", "x".repeat(118));
    let findings = check(&Tree::of(&[("a.rs", &text)]));
    assert_eq!(findings, [Finding::new("a.rs", 2, "121 columns, at most 120")]);
}
