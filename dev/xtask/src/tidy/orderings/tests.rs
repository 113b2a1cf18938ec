//! Tests of which comments explain an ordering, and from how far.

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
    assert_eq!(found("// SeqCst: see I3.\n// More.\n// More.\nlet a = x\n    .y\n    .load(Ordering::SeqCst);\n"), 0);
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
