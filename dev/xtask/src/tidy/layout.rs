//! Checks that every Rust file opens with `//!`, and that no line is wider than 120 columns.

use super::finding::Finding;
use super::tree::Tree;

/// Width of rustfmt, which does not wrap comments and strings. The check applies to those too.
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
mod tests;
