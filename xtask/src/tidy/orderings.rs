//! Every memory ordering that orders something says with what it pairs.
//!
//! A rule of thumb that a script can check: above each `Ordering::Acquire`, `Release`, `AcqRel` and `SeqCst` of
//! product code stands a comment that speaks of it (its name, or "pairs with"). Relaxed orders nothing.

use super::finding::Finding;
use super::lexer::find_word;
use super::source::Source;
use super::tree::Tree;

const ORDERINGS: &[&str] = &["Acquire", "Release", "AcqRel", "SeqCst"];

/// How far above the ordering its comment may begin to end: a statement that rustfmt broke up, or a short run of
/// statements that share one comment.
const MAX_DISTANCE: usize = 8;

/// Finds orderings without a partner.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in &tree.sources {
        let comments: Vec<&str> = source.comments.lines().collect();
        for ordering in ORDERINGS {
            for at in find_word(&source.code, &format!("Ordering::{ordering}")) {
                let line = source.line_of(at);
                if !source.is_test_line(line) && !is_explained(source, &comments, line, ordering) {
                    let message = format!("`Ordering::{ordering}`: say in a comment above what it pairs with");
                    findings.push(Finding::new(&source.path, line, message));
                }
            }
        }
    }
    findings
}

/// Whether a comment block that ends on `line` or a few lines above speaks of the ordering.
fn is_explained(source: &Source, comments: &[&str], line: usize, ordering: &str) -> bool {
    let codes: Vec<&str> = source.code.lines().take(line).collect();
    let mut distance = 0;
    for at in (0..line).rev() {
        let comment = comments[at];
        if comment.contains(ordering) || comment.contains("pairs with") || comment.contains("Pairs with") {
            return true;
        }
        // A line of a comment block costs nothing: reasons may be long.
        distance += usize::from(!codes[at].trim().is_empty() || comment.trim().is_empty());
        if distance > MAX_DISTANCE {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests;
