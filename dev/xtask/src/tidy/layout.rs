//! Checks that every Rust file opens with `//!`, and that no line is wider than 120 columns.

use super::finding::Finding;
use super::tree::Tree;

/// Largest number of columns, like in rustfmt. Rustfmt does not wrap comments and strings, so this check applies to
/// them too.
const MAX_COLUMNS: usize = 120;

pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in &tree.sources {
        if !source.text.starts_with("//! ") {
            findings.push(Finding::new(
                &source.path,
                1,
                "open with `//!`: what it owns, what not, invariants, callers",
            ));
        }
        for (at, line) in source.text.lines().enumerate() {
            let columns = line.chars().count();
            if columns > MAX_COLUMNS {
                findings.push(Finding::new(&source.path, at + 1, format!("{columns} columns, at most {MAX_COLUMNS}")));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
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
}
