//! The names in a module: its `use` declarations and the other paths in its code.
//!
//! Searches for words and braces without a parser, which is exact enough for compiling code formatted by rustfmt.

use std::cell::OnceCell;
use std::collections::BTreeSet;

use crate::tidy::lexer::{find_word, is_word};
use crate::tidy::source::Source;

/// Words that precede the name of an item in its definition.
const DEFINES: &[&str] = &["fn", "struct", "enum", "trait", "const", "static", "type", "union", "macro_rules!", "mod"];

pub struct Module<'a> {
    pub path: &'a str,
    /// The `use` declarations, one for each name.
    pub uses: Vec<Use>,
    /// The other paths of at least two words, each with its line.
    pub paths: Vec<(Vec<String>, usize)>,
    /// Code without tests and `use` declarations.
    code: String,
    words: OnceCell<BTreeSet<String>>,
}

/// A name bound by a `use` declaration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Use {
    /// The whole path, ending in `*` for all names.
    pub segments: Vec<String>,
    /// The bound name: the last one of the path, or the one after `as`; `*` for all names.
    pub binds: String,
    /// True for a `pub` declaration, through which other modules can use the name.
    pub is_reexport: bool,
    pub line: usize,
}

impl<'a> Module<'a> {
    /// Collects the names in a file.
    pub fn of(source: &'a Source) -> Module<'a> {
        let mut code = without_tests(source);
        let mut uses = Vec::new();
        let starts: Vec<usize> = find_word(&code, "use").collect();
        for at in starts {
            let Some(end) = code[at..].find(';').map(|end| at + end) else { continue };
            let before = code[..at].trim_end();
            // A bound of a return type (`use<'a>`) is no declaration.
            if code[at + 3..].starts_with('<') {
                continue;
            }
            let is_reexport = before.ends_with("pub") || before.ends_with(')') && before.contains("pub(");
            let mut names = Vec::new();
            tree(code[at + 3..end].trim(), &[], &mut names);
            let line = source.line_of(at);
            uses.extend(names.into_iter().map(|(segments, binds)| Use { segments, binds, is_reexport, line }));
            // This keeps the number of bytes, so that offsets in `code` remain those of the source.
            let blank: String = code[at..end].chars().map(|c| if c == '\n' { '\n' } else { ' ' }).collect();
            if blank.len() == end - at {
                code.replace_range(at..end, &blank);
            }
        }
        let paths = paths(&code).into_iter().map(|(at, path)| (path, source.line_of(at))).collect();
        Module { path: &source.path, uses, paths, code, words: OnceCell::new() }
    }

    /// Returns true if the code has the word `name` outside `use` declarations.
    pub fn names_outside_uses(&self, name: &str) -> bool {
        let words = || self.code.split(|c: char| !c.is_alphanumeric() && c != '_').map(str::to_owned).collect();
        self.words.get_or_init(words).contains(name)
    }

    /// Returns true if an item of this name is defined here.
    pub fn defines(&self, name: &str) -> bool {
        find_word(&self.code, name).any(|at| {
            let before = self.code[..at].trim_end();
            DEFINES
                .iter()
                .any(|word| before.strip_suffix(word).is_some_and(|rest| !rest.bytes().last().is_some_and(is_word)))
        })
    }
}

/// Returns the code with the lines of tests blanked.
fn without_tests(source: &Source) -> String {
    let mut code = String::with_capacity(source.code.len());
    for (index, line) in source.code.split_inclusive('\n').enumerate() {
        if source.is_test_line(index + 1) {
            code.extend(line.bytes().map(|b| if b == b'\n' { '\n' } else { ' ' }));
        } else {
            code.push_str(line);
        }
    }
    code
}

/// Collects the names of a `use` tree such as `a::{b, c as d, e::*, self}`, each with its whole path.
fn tree(text: &str, prefix: &[String], names: &mut Vec<(Vec<String>, String)>) {
    let text = text.trim();
    if let Some((path, group)) = text.split_once('{') {
        let mut prefix = prefix.to_vec();
        prefix.extend(words(path));
        let group = group.trim_end().strip_suffix('}').unwrap_or(group);
        items(group).into_iter().for_each(|item| tree(item, &prefix, names));
        return;
    }
    let (path, alias) = text.split_once(" as ").map_or((text, None), |(path, alias)| (path, Some(alias.trim())));
    let mut segments = prefix.to_vec();
    segments.extend(words(path));
    if segments.len() > 1 && segments.last().is_some_and(|last| last == "self") {
        segments.pop();
    }
    if let Some(last) = segments.last() {
        let binds = alias.unwrap_or(last).to_owned();
        names.push((segments, binds));
    }
}

/// Splits a group at its commas, except for those in nested groups.
fn items(group: &str) -> Vec<&str> {
    let mut depth = 0;
    let comma = |c: char| {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    };
    group.split(comma).filter(|item| !item.trim().is_empty()).collect()
}

fn words(path: &str) -> Vec<String> {
    path.split("::").map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// Returns every path `a::b::c` in the code, with its offset.
fn paths(code: &str) -> Vec<(usize, Vec<String>)> {
    let bytes = code.as_bytes();
    let word_end = |at: usize| at + bytes[at..].iter().position(|&b| !is_word(b)).unwrap_or(bytes.len() - at);
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        if !is_word(bytes[at]) {
            at += 1;
            continue;
        }
        let start = at;
        at = word_end(at);
        let mut path = vec![code[start..at].to_owned()];
        while code[at..].starts_with("::") && bytes.get(at + 2).copied().is_some_and(is_word) {
            let end = word_end(at + 2);
            path.push(code[at + 2..end].to_owned());
            at = end;
        }
        // After `::` this is the rest of a path with type arguments; after a point it is a method.
        if path.len() > 1 && !code[..start].ends_with([':', '.']) {
            found.push((start, path));
        }
    }
    found
}
