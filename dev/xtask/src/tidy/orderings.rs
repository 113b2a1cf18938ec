//! Checks that every memory ordering except Relaxed names its partner.
//!
//! This is a heuristic: above each `Ordering::Acquire`, `Release`, `AcqRel` and `SeqCst` of product code there must be
//! a comment that contains the name of the ordering or "pairs with". Relaxed orders nothing, so it needs none.

use super::finding::Finding;
use super::lexer::find_word;
use super::source::Source;
use super::tree::Tree;

const ORDERINGS: &[&str] = &["Acquire", "Release", "AcqRel", "SeqCst"];

/// Largest number of lines of code between the end of the comment and the ordering: a statement that rustfmt has
/// wrapped, or a few statements that share one comment.
const MAX_DISTANCE: usize = 8;

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

/// Returns true if a comment block that ends on `line` or a few lines above explains the ordering.
fn is_explained(source: &Source, comments: &[&str], line: usize, ordering: &str) -> bool {
    let codes: Vec<&str> = source.code.lines().take(line).collect();
    let mut distance = 0;
    for at in (0..line).rev() {
        let comment = comments[at];
        if comment.contains(ordering) || comment.contains("pairs with") || comment.contains("Pairs with") {
            return true;
        }
        // Lines of a comment block do not count, because a reason may be long.
        distance += usize::from(!codes[at].trim().is_empty() || comment.trim().is_empty());
        if distance > MAX_DISTANCE {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> usize {
        check(&Tree::of(&[("crates/base/src/a.rs", text)])).len()
    }

    #[test]
    fn an_ordering_without_a_word_is_found() {
        for ordering in ORDERINGS {
            assert_eq!(found(&format!("fn f() {{\n    // The flag.\n    x.load(Ordering::{ordering});\n}}\n")), 1);
        }
        assert_eq!(found("fn f() {\n    x.swap(1, atomic::Ordering::AcqRel);\n}\n"), 1);
    }

    #[test]
    fn a_comment_that_names_it_or_its_partner_explains_it() {
        assert_eq!(found("// Release pairs with the Acquire in `g`.\nx.store(1, Ordering::Release);\n"), 0);
        assert_eq!(found("x.store(1, Ordering::Release); // pairs with the load in `g`\n"), 0);
        assert_eq!(
            found("// SeqCst: see I3.\n// More.\n// More.\nlet a = x\n    .y\n    .load(Ordering::SeqCst);\n"),
            0
        );
    }

    #[test]
    fn a_far_comment_explains_nothing() {
        let far = format!("// Acquire pairs with `g`.\n{}x.load(Ordering::Acquire);\n", "a();\n".repeat(8));
        assert_eq!(found(&far), 1);
    }

    #[test]
    fn relaxed_tests_and_comparisons_need_none() {
        assert_eq!(found("fn f() { x.load(Ordering::Relaxed); a.cmp(b) == Ordering::Less }\n"), 0);
        assert_eq!(found("#[cfg(test)]\nmod t {\n    fn f() { x.load(Ordering::SeqCst); }\n}\n"), 0);
    }
}
