//! The table of liburing's own tests: each program that "same" stands beside names a test of ours, and each test that
//! it names is there.
//!
//! A row is a line of the table below the heading [`HEADING`]: programs, what they would find here, and by which tests
//! or why not. Names of tests are the code spans behind the last colon of the last cell, or all where it has none.

use std::collections::BTreeSet;

use super::finding::Finding;
use super::tree::Tree;

/// The page with the table, and the heading that it stands below.
const PAGE: &str = "docs/compat.md";
const HEADING: &str = "### liburing's own tests";

/// Finds rows without a test, and names of tests that there are not.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let Some((_, page)) = tree.pages.iter().find(|(path, _)| path == PAGE) else { return Vec::new() };
    let tests = tests(tree);
    let mut findings = Vec::new();
    for (number, cells) in rows(page) {
        let [programs, here, by] = cells[..] else {
            findings.push(Finding::new(PAGE, number, "three cells: programs, what they find, by which test or why"));
            continue;
        };
        let named: Vec<&str> = named(by).collect();
        if named.is_empty() && here.starts_with("same") {
            findings.push(Finding::new(PAGE, number, format!("{programs}: \"same\", and no test says so")));
        }
        let missing = named.into_iter().filter(|name| !tests.contains(name));
        findings.extend(missing.map(|name| Finding::new(PAGE, number, format!("`{name}`: there is no such test"))));
    }
    findings
}

/// The rows of the table with their lines, and the cells of each.
fn rows(page: &str) -> impl Iterator<Item = (usize, Vec<&str>)> {
    let below = page.lines().enumerate().skip_while(|(_, line)| *line != HEADING).skip(1);
    let rows = below.take_while(|(_, line)| !line.starts_with('#')).filter(|(_, line)| line.starts_with("| `"));
    rows.map(|(index, line)| {
        let cells = line.trim_matches('|').split(" | ").map(|cell| cell.trim_matches(['|', ' '])).collect();
        (index + 1, cells)
    })
}

/// The names of tests in a cell.
fn named(cell: &str) -> impl Iterator<Item = &str> {
    let list = cell.rsplit_once(": ").map_or(cell, |(_, list)| list);
    let is_name = |span: &&str| {
        span.contains('_')
            && span.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
    };
    list.split('`').skip(1).step_by(2).filter(is_name)
}

/// The functions that stand below a `#[test]`.
fn tests(tree: &Tree) -> BTreeSet<&str> {
    let mut names = BTreeSet::new();
    for source in &tree.sources {
        let mut behind = false;
        for line in source.text.lines().map(str::trim) {
            match line.strip_prefix("fn ").and_then(|rest| rest.split_once('(')) {
                Some((name, _)) if behind => {
                    names.insert(name);
                    behind = false;
                }
                _ => behind = line == "#[test]" || (behind && (line.starts_with("#[") || line.starts_with("//"))),
            }
        }
    }
    names
}

#[cfg(test)]
mod tests;
