//! Finds banned words, and modules with catch-all names.
//!
//! Owns both lists. To ban a word, add a row.

use super::finding::Finding;
use super::lexer::find_word;
use super::source::Source;
use super::tree::Tree;

/// The text in which a word is banned.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// All code, tests included.
    Code,
    /// Code outside tests.
    Product,
    /// Product code of the library and the crates below it, which must not print or end the process.
    Library,
    Comments,
}

const BANNED: &[(Scope, &str, &str)] = &[
    (Scope::Code, "todo!", "finish it or leave it out"),
    (Scope::Code, "unimplemented!", "return an error that says what is not supported"),
    (Scope::Code, "dbg!", "left over from debugging"),
    (Scope::Code, "#[ignore]", "give the reason: #[ignore = \"...\"], or skip loudly with sheave_testkit::skip"),
    (Scope::Product, ".unwrap()", "return the error, or `expect` the invariant it relies on"),
    (Scope::Library, "println!", "a library does not print: return it"),
    (Scope::Library, "eprintln!", "a library does not print: return it as an error or a notice"),
    (Scope::Library, "process::exit", "a library does not end the process: return an error"),
    (Scope::Comments, "FIXME", "mend it, or open an issue"),
    (Scope::Comments, "TODO", "do it, or open an issue"),
    (Scope::Comments, "XXX", "say what is wrong, or open an issue"),
];

const MODULES: &[&str] = &["util", "utils", "common", "helper", "helpers", "misc", "io"];

pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in &tree.sources {
        for &(scope, word, instead) in BANNED {
            for line in lines(source, scope, word) {
                findings.push(Finding::new(&source.path, line, format!("`{word}`: {instead}")));
            }
        }
        let mut parts = source.path.trim_end_matches(".rs").split('/');
        if let Some(part) = parts.find(|part| MODULES.contains(part)) {
            findings.push(Finding::new(
                &source.path,
                1,
                format!("a module `{part}`: name it after the thing it holds"),
            ));
        }
        for name in MODULES {
            for at in find_word(&source.code, &format!("mod {name}")) {
                let message = format!("a module `{name}`: name it after the thing it holds");
                findings.push(Finding::new(&source.path, source.line_of(at), message));
            }
        }
    }
    findings
}

fn lines(source: &Source, scope: Scope, word: &str) -> Vec<usize> {
    let all = |text: &str| find_word(text, word).map(|at| source.line_of(at)).collect();
    match scope {
        Scope::Code => all(&source.code),
        Scope::Comments => all(&source.comments),
        Scope::Product => source.product_lines(word),
        Scope::Library if is_library(&source.path) => source.product_lines(word),
        Scope::Library => Vec::new(),
    }
}

fn is_library(path: &str) -> bool {
    let roofs = ["crates/cli/", "lab/", "dev/sim/", "dev/xtask/", "examples/"];
    !roofs.iter().any(|roof| path.starts_with(roof)) && !path.ends_with("build.rs")
}

#[cfg(test)]
mod tests {
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
}
