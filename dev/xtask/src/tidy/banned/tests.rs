//! Tests that each scope finds its words and no others.

use super::*;

fn messages(path: &str, text: &str) -> Vec<String> {
    check(&Tree::of(&[(path, text)])).into_iter().map(|finding| finding.to_string()).collect()
}

#[test]
fn every_banned_word_is_found_in_product_code() {
    for &(scope, word, _) in BANNED {
        let text = match scope {
            Scope::Comments => format!("// {word}: x\n"),
            _ if word.starts_with('.') => format!("fn f() {{ x{word} }}\n"),
            _ => format!("fn f() {{ {word}(1) }}\n"),
        };
        assert!(!messages("crates/blk/src/a.rs", &text).is_empty(), "{word} in {text}");
    }
}

#[test]
fn tests_may_unwrap_and_tools_may_print() {
    assert!(messages("crates/blk/src/a/tests.rs", "fn f() { x.unwrap(); println!(); }").is_empty());
    assert!(messages("crates/cli/src/main.rs", "fn main() { println!(); std::process::exit(1) }").is_empty());
    assert_eq!(messages("crates/cli/src/main.rs", "fn main() { x.unwrap() }").len(), 1);
    assert_eq!(messages("crates/blk/src/a/tests.rs", "fn f() { dbg!(x) }").len(), 1);
}

#[test]
fn similar_words_and_strings_pass() {
    let text = "fn f() { x.unwrap_or(1); x.expect(\"I1\"); s(\"todo! println! .unwrap()\") } // todo\n";
    assert!(messages("crates/blk/src/a.rs", text).is_empty());
}

#[test]
fn catch_all_modules_are_found() {
    assert_eq!(messages("crates/blk/src/util.rs", "").len(), 1);
    assert_eq!(messages("crates/blk/src/helpers/x.rs", "").len(), 1);
    assert_eq!(messages("tests/common/mod.rs", "").len(), 1);
    assert_eq!(messages("crates/blk/src/lib.rs", "mod io;\nmod io_wq;\n").len(), 1);
    assert!(messages("crates/blk/src/kiocb.rs", "").is_empty());
}
