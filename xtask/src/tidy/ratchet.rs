//! Files of at most 600 lines, functions of at most 70; the exceptions stand in a file and may only shrink.
//!
//! The ratchet file has one exception a line: `file PATH LINES` or `fn PATH::NAME LINES`. An entry must say the
//! present length: what grew is a finding, and so is what shrank, until `cargo xtask tidy --lower` has lowered it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::finding::Finding;
use super::tree::{RATCHET, Tree};

const MAX_FILE_LINES: usize = 600;
const MAX_FN_LINES: usize = 70;

/// What is measured, as the ratchet file names it (`file a.rs`, `fn a.rs::b`).
type Lengths = BTreeMap<String, Length>;

#[derive(Debug, Clone)]
struct Length {
    lines: usize,
    limit: usize,
    path: String,
    at: usize,
}

/// Finds what is too long, and entries that no longer say the truth.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let lengths = measure(tree);
    let (allowed, mut findings) = parse(&tree.ratchet);
    for (name, length) in &lengths {
        let Length { lines, limit, ref path, at } = *length;
        let found = |message: String| Finding::new(path, at, format!("{name}: {message}"));
        match allowed.get(name) {
            None if lines > limit => findings.push(found(format!("{lines} lines, at most {limit}: split it"))),
            Some(&(was, _)) if lines > was => {
                findings.push(found(format!("grew from {was} to {lines} lines; the ratchet only goes down: split it")));
            }
            Some(&(was, _)) if lines < was => {
                findings.push(found(format!("shrank from {was} to {lines} lines: run `cargo xtask tidy --lower`")));
            }
            _ => {}
        }
    }
    for (name, &(_, line)) in allowed.iter().filter(|(name, _)| !lengths.contains_key(*name)) {
        findings.push(Finding::new(RATCHET, line, format!("`{name}` is gone: run `cargo xtask tidy --lower`")));
    }
    findings
}

/// Lowers the entries to the present lengths and drops those that are not needed; never raises or adds one.
pub fn lower(tree: &Tree, root: &Path) -> Result<()> {
    let (text, changes) = lowered(tree);
    if changes.is_empty() {
        println!("nothing to lower");
        return Ok(());
    }
    changes.iter().for_each(|change| println!("{change}"));
    fs::write(root.join(RATCHET), text).with_context(|| format!("writing {RATCHET}"))
}

fn lowered(tree: &Tree) -> (String, Vec<String>) {
    let lengths = measure(tree);
    let (allowed, _) = parse(&tree.ratchet);
    let mut changes = Vec::new();
    let mut text: String =
        tree.ratchet.lines().filter(|line| is_comment(line)).map(|line| format!("{line}\n")).collect();
    for (name, (was, _)) in allowed {
        match lengths.get(&name) {
            Some(now) if now.lines > now.limit => {
                if now.lines < was {
                    changes.push(format!("{name}: {was} -> {}", now.lines));
                }
                text += &format!("{name} {}\n", was.min(now.lines));
            }
            _ => changes.push(format!("{name}: dropped")),
        }
    }
    (text, changes)
}

fn measure(tree: &Tree) -> Lengths {
    let mut lengths = Lengths::new();
    for source in &tree.sources {
        let path = &source.path;
        let lines = source.text.lines().count();
        let length = Length { lines, limit: MAX_FILE_LINES, path: path.clone(), at: 1 };
        lengths.insert(format!("file {path}"), length);
        for function in source.functions() {
            let name = format!("fn {path}::{}", function.name);
            let length = Length { lines: function.lines, limit: MAX_FN_LINES, path: path.clone(), at: function.line };
            // Several functions of one name in one file (methods): the longest speaks for all.
            let longest = lengths.entry(name).or_insert_with(|| length.clone());
            if longest.lines < length.lines {
                *longest = length;
            }
        }
    }
    lengths
}

fn is_comment(line: &str) -> bool {
    line.trim().is_empty() || line.starts_with('#')
}

/// The entries (name to lines and line number), and findings for lines that are none.
fn parse(text: &str) -> (BTreeMap<String, (usize, usize)>, Vec<Finding>) {
    let mut allowed = BTreeMap::new();
    let mut findings = Vec::new();
    for (at, line) in text.lines().enumerate().filter(|(_, line)| !is_comment(line)) {
        match line.trim().rsplit_once(' ').map(|(name, lines)| (name, lines.parse::<usize>())) {
            Some((name, Ok(lines))) => drop(allowed.insert(name.to_owned(), (lines, at + 1))),
            _ => findings.push(Finding::new(RATCHET, at + 1, "not `file PATH LINES` nor `fn PATH::NAME LINES`")),
        }
    }
    (allowed, findings)
}

#[cfg(test)]
mod tests;
