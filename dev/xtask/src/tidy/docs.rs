//! Checks that the Markdown pages name only existing files, items, link targets, and commands of xtask, and that
//! comments name only existing files. rustdoc checks the items in comments.
//!
//! Checks code spans (`ring.rs`, `crates/blk`, `plug::flush`, `ring.rs::submit`, `Ring::builder`), relative links, and
//! every `cargo xtask NAME`. In fenced blocks only the commands are checked. The changelog may name removed things.
//! Names in capitals (`op/NAME.rs`) are placeholders.

mod items;
pub(super) mod markdown;

use std::collections::BTreeSet;

use super::finding::Finding;
use super::tree::Tree;
use items::Resolver;

/// Extensions that make a code span the name of a file.
const KINDS: &[&str] = &["rs", "md", "toml", "txt", "sh", "yml"];

/// Folders that make a code span the name of a file.
const TOP: &[&str] = &["crates/", "docs/", "src/", "tests/", "dev/", "lab/", "examples/"];

/// The file with the table of xtask's commands.
const XTASK: &str = "dev/xtask/src/main.rs";

pub fn check(tree: &Tree) -> Vec<Finding> {
    let resolver = Resolver::new(tree);
    let commands = xtask_commands(tree);
    let mut findings = Vec::new();
    for (path, text) in &tree.pages {
        let mut find = |line: usize, message: String| findings.push(Finding::new(path, line, message));
        for (line, command) in markdown::xtask_commands(text) {
            if !commands.contains(command) {
                find(line, format!("`cargo xtask {command}`: there is no such command"));
            }
        }
        for (line, target) in markdown::links(text) {
            if let Some(message) = broken_link(tree, path, target) {
                find(line, message);
            }
        }
        if path.ends_with("CHANGELOG.md") {
            continue;
        }
        for (line, span) in markdown::code_spans(text) {
            if let Some(message) = broken_span(tree, &resolver, path, span) {
                find(line, message);
            }
        }
    }
    for source in &tree.sources {
        for (line, span) in markdown::code_spans(&source.comments) {
            let promised = TOP.iter().any(|top| span.starts_with(top)) && !span.contains("::");
            if let Some(message) = promised.then(|| broken_span(tree, &resolver, "", span)).flatten() {
                findings.push(Finding::new(&source.path, line, message));
            }
        }
    }
    findings
}

/// Returns the names in xtask's table of commands. They are read from the source, because the table itself names this
/// check.
fn xtask_commands(tree: &Tree) -> BTreeSet<&str> {
    let table = tree.source(XTASK).map_or("", |source| &source.text);
    let names = table.split("Command {").filter_map(|entry| entry.trim_start().strip_prefix("name: \""));
    names.filter_map(|entry| entry.split_once('"')).map(|(name, _)| name).collect()
}

fn broken_link(tree: &Tree, page: &str, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let file = if file.is_empty() { page.to_owned() } else { join(page, file) };
    if !exists(tree, &file) {
        return Some(format!("link to `{target}`: there is no `{file}`"));
    }
    let text = tree.pages.iter().find(|(path, _)| *path == file).map(|(_, text)| text)?;
    let missing = !anchor.is_empty() && markdown::anchors(text).all(|slug| slug != anchor);
    missing.then(|| format!("link to `{target}`: `{file}` has no heading for `#{anchor}`"))
}

fn broken_span(tree: &Tree, resolver: &Resolver<'_>, page: &str, span: &str) -> Option<String> {
    if span.contains(char::is_whitespace) && !span.contains("::") {
        return None;
    }
    if span.contains("::") {
        return resolver.missing(span);
    }
    if markdown::is_placeholder(span) || span.starts_with(['/', '~', '$']) || span.contains([':', '*', '<', '{', '=']) {
        return file_with_line(span);
    }
    let top = TOP.iter().any(|top| span.starts_with(top));
    let kind = span.rsplit_once('.').is_some_and(|(stem, kind)| !stem.is_empty() && KINDS.contains(&kind));
    let found = || exists(tree, &join(page, span)) || exists(tree, span) || ends_a_path(tree, span);
    ((top || kind) && !found()).then(|| format!("`{span}`: there is no such file"))
}

/// Rejects `file.rs:12`: a line number is wrong after the next change to the file.
fn file_with_line(span: &str) -> Option<String> {
    let (file, line) = span.split_once(".rs:")?;
    let is_line = !file.is_empty() && line.starts_with(|char: char| char.is_ascii_digit());
    is_line.then(|| format!("`{span}`: name the function, a line number does not last"))
}

fn exists(tree: &Tree, path: &str) -> bool {
    let dir = format!("{}/", path.trim_end_matches('/'));
    path.is_empty() || tree.paths.contains(path) || tree.paths.iter().any(|known| known.starts_with(&dir))
}

/// Returns true if some file's path ends with these whole components (`driver/null.rs`).
fn ends_a_path(tree: &Tree, span: &str) -> bool {
    let suffix = format!("/{span}");
    tree.paths.iter().any(|path| path.ends_with(&suffix))
}

/// Resolves `target` relative to the folder of `page`.
fn join(page: &str, target: &str) -> String {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            name => parts.push(name),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests;
