//! Every Rust file opens with `//!`, and no line is wider than 120 columns.

use super::finding::Finding;
use super::tree::Tree;

/// rustfmt keeps code within this; it leaves comments and strings alone, we do not.
const MAX_COLUMNS: usize = 120;

/// Finds files without a heading and lines that are too wide.
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
