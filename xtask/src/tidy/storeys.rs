//! Storeys: inside `sheave-vol` a module names only modules on lower storeys, so that none leads back to itself.
//!
//! Owns the table of storeys. A module is what stands in `crates/vol/src`, with all that is in its folder. Names that
//! the crate's root exports again would hide where they come from; so code names the module that has them.

use super::finding::Finding;
use super::lexer::is_word;
use super::source::Source;
use super::tree::Tree;

/// Where the house stands.
const HOUSE: &str = "crates/vol/src/";

/// Modules by storey, the lowest first. Those on one storey never name each other.
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

/// Finds arrows inside the house that do not point down.
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

/// How many `super`s lead from a file to the crate's root.
fn depth(path: &str) -> usize {
    path.trim_end_matches("/mod.rs").trim_end_matches(".rs").split('/').count()
}

fn storey(module: &str) -> Option<usize> {
    STOREYS.iter().position(|storey| storey.contains(&module))
}

/// Why `from` must not name `to`, if so.
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

/// What code names at the crate's root, each where it does: after `crate::`, after enough `super::`s, and what stands
/// in braces there.
fn names(code: &str, depth: usize) -> Vec<(usize, &str)> {
    let root = "super::".repeat(depth);
    let mut found = Vec::new();
    for start in ["crate::", root.as_str()] {
        for (at, _) in code.match_indices(start) {
            // `$crate`, a longer word, a longer way up.
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

/// The first word of each part of a list in braces, up to the brace that closes it.
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
mod tests;
