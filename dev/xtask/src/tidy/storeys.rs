//! Checks the layering of modules in `sheave-vol` ("storeys"): a module names only modules on lower storeys, so that no
//! path of names leads from a module back to it.
//!
//! Owns the table of storeys. A module is an entry of `crates/vol/src` with everything in its folder. A re-export at
//! the crate's root would hide the origin of a name, so code must name the defining module.

use super::finding::Finding;
use super::lexer::is_word;
use super::source::Source;
use super::tree::Tree;

const HOUSE: &str = "crates/vol/src/";

/// The modules of each storey, the lowest storey first. Modules on one storey never name each other.
const STOREYS: &[&[&str]] = &[
    &["made_at"],
    &["format", "rbd_diff"],
    &["error"],
    &["device", "finding", "info", "members", "options"],
    &["state", "check"],
    &["engine"],
    &["volume"],
    &["ops"],
    &["pool"],
];

/// Finds names that do not point to a lower storey.
pub fn check(tree: &Tree) -> Vec<Finding> {
    tree.sources.iter().filter(|source| !source.is_test).flat_map(arrows).collect()
}

fn arrows(source: &Source) -> Vec<Finding> {
    let Some(path) = source.path.strip_prefix(HOUSE) else { return Vec::new() };
    let from = path.split(['/', '.']).next().unwrap_or_default();
    if from == "lib" {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (at, to) in names(&source.code, depth(path)) {
        let line = source.line_of(at);
        if source.is_test_line(line) {
            continue;
        }
        findings.extend(forbidden(from, to).map(|why| Finding::new(&source.path, line, why)));
    }
    findings
}

/// Returns the number of `super`s that lead from a file to the crate's root.
fn depth(path: &str) -> usize {
    path.trim_end_matches("/mod.rs").trim_end_matches(".rs").split('/').count()
}

fn storey(module: &str) -> Option<usize> {
    STOREYS.iter().position(|storey| storey.contains(&module))
}

/// Returns the reason if `from` must not name `to`.
fn forbidden(from: &str, to: &str) -> Option<String> {
    if from == to {
        return None;
    }
    let Some(low) = storey(to) else {
        return Some(format!("`{to}` has no storey: name the module that has it, or add it to tidy/storeys.rs"));
    };
    let Some(high) = storey(from) else {
        return Some(format!("`{from}` has no storey: add it to the table in tidy/storeys.rs"));
    };
    (low >= high).then(|| format!("`{from}` must not name `{to}`: inside vol, too, arrows point down"))
}

/// Returns the names that code uses at the crate's root, with their offsets. They follow `crate::` or enough
/// `super::`s, also in braces.
fn names(code: &str, depth: usize) -> Vec<(usize, &str)> {
    let root = "super::".repeat(depth);
    let mut found = Vec::new();
    for start in ["crate::", root.as_str()] {
        for (at, _) in code.match_indices(start) {
            // The match is a part of `$crate`, of a longer word, or of a longer path of `super`s.
            if code[..at].ends_with(|c: char| c == '$' || c == ':' || is_word(c as u8)) {
                continue;
            }
            let rest = &code[at + start.len()..];
            match rest.strip_prefix('{') {
                Some(list) => found.extend(first_words(list).map(|word| (at, word))),
                None => found.extend(word(rest).filter(|word| *word != "super").map(|word| (at, word))),
            }
        }
    }
    found
}

fn word(text: &str) -> Option<&str> {
    let end = text.bytes().position(|byte| !is_word(byte)).unwrap_or(text.len());
    Some(&text[..end]).filter(|word| !word.is_empty())
}

/// Returns the first word of each part of a list in braces, up to the closing brace.
fn first_words(list: &str) -> impl Iterator<Item = &str> {
    let mut open = 1;
    let mut starts = vec![0];
    for (at, byte) in list.bytes().enumerate() {
        match byte {
            b'{' => open += 1,
            b'}' => open -= 1,
            b',' if open == 1 => starts.push(at + 1),
            _ => {}
        }
        if open == 0 {
            break;
        }
    }
    starts.into_iter().filter_map(move |start| word(list[start..].trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(path: &str, text: &str) -> Vec<String> {
        check(&Tree::of(&[(path, text)])).into_iter().map(|finding| finding.to_string()).collect()
    }

    fn names(from: &str, text: &str) -> bool {
        let found = messages(&format!("crates/vol/src/{from}"), text);
        assert!(found.len() <= 1, "{found:?}");
        !found.is_empty()
    }

    #[test]
    fn arrows_point_down() {
        for (from, to) in [
            ("error.rs", "format"),
            ("device/sweep.rs", "format"),
            ("state/alloc/pages.rs", "state"),
            ("engine/commit.rs", "state"),
            ("ops/grow.rs", "engine"),
            ("pool/mod.rs", "volume"),
            ("check.rs", "finding"),
            ("lib.rs", "pool"),
        ] {
            assert!(!names(from, &format!("use crate::{to}::x;\n")), "{from} -> {to}");
        }
        for (from, to) in [
            ("format/page/leaf.rs", "error"),
            ("format/page/leaf.rs", "device"),
            ("device/sweep.rs", "info"),
            ("state/limbo.rs", "engine"),
            ("state/mod.rs", "check"),
            ("engine/commit.rs", "ops"),
            ("volume/mod.rs", "pool"),
            ("check/walk.rs", "state"),
            ("pool/mod.rs", "elsewhere"),
            ("elsewhere.rs", "format"),
        ] {
            assert!(names(from, &format!("use crate::{to}::x;\n")), "{from} -> {to}");
        }
    }

    #[test]
    fn every_spelling_of_a_crate_path_is_found() {
        assert_eq!(
            messages("crates/vol/src/state/table.rs", "//! x\n\nfn f() { crate::pool::x() }\n"),
            ["crates/vol/src/state/table.rs:3: `state` must not name `pool`: inside vol, too, arrows point down"]
        );
        assert!(names("state/table.rs", "use crate::{format::{BLOCK, kind}, engine::{a, b}, error::PoolError};\n"));
        assert!(names("state/sums/data.rs", "use super::super::super::engine::x;\n"), "all the way up");
        assert!(names("state/mod.rs", "use super::engine::x;\n"));
        assert!(names("engine/commit.rs", "use crate::Pool;\n"), "a name that the root exports again");
        assert!(!names("state/sums/data.rs", "use super::super::table::x;\n"), "within the folder");
        assert!(!names("state/table.rs", "use super::engine::x;\n"), "a module of the folder");
        assert!(!names(
            "state/table.rs",
            "// crate::engine::x\nuse other_crate::engine;\nfn f() { a!($crate::pool) }\n"
        ));
    }

    #[test]
    fn tests_and_other_crates_may_name_anything() {
        assert!(!names("state/table.rs", "#[cfg(test)]\nmod t {\n    use crate::pool::Pool;\n}\n"));
        assert!(messages("crates/uring/src/a.rs", "use crate::engine::x;\n").is_empty());
        let files = [
            ("crates/vol/src/state/table.rs", "#[cfg(test)]\nmod tests;\n"),
            ("crates/vol/src/state/table/tests.rs", "use crate::pool::Pool;\n"),
        ];
        assert!(check(&Tree::of(&files)).is_empty());
    }
}
