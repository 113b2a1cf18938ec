//! Warns of files and functions that are so long that a reader should check if they contain more than one idea.
//!
//! It does not fail, because a limit that fails would make authors cut by length and not by meaning.

use super::finding::Finding;
use super::tree::Tree;

const MANY_FILE_LINES: usize = 800;
const MANY_FN_LINES: usize = 100;

pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in &tree.sources {
        let lines = source.text.lines().count();
        if lines > MANY_FILE_LINES {
            findings.push(Finding::new(&source.path, 1, format!("{lines} lines: does the file hold one idea?")));
        }
        for function in source.functions().into_iter().filter(|function| function.lines > MANY_FN_LINES) {
            let message = format!("`{}` has {} lines: does it do one thing?", function.name, function.lines);
            findings.push(Finding::new(&source.path, function.line, message));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_longer_than_the_limit_is_named() {
        let file = |lines| "//! x\n".repeat(lines);
        let function = |lines: usize| format!("fn f() {{\n{}}}\n", "    x;\n".repeat(lines - 2));
        let found = |files: &[(&str, &str)]| check(&Tree::of(files)).iter().map(Finding::to_string).collect::<Vec<_>>();
        assert!(found(&[("a.rs", &file(800)), ("b.rs", &function(100))]).is_empty());
        let long = found(&[("a.rs", &file(801)), ("b.rs", &function(101))]);
        assert_eq!(long.len(), 2, "{long:?}");
        assert!(
            long[0].starts_with("a.rs:1: 801 lines") && long[1].starts_with("b.rs:1: `f` has 101 lines"),
            "{long:?}"
        );
    }
}
