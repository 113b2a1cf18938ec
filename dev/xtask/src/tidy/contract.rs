//! Checks the durability contract against its tests. A test must cite every row of the table in the page on volumes,
//! and tests must not cite missing rows. For each row, a page in the folder of the tests of `crates/vol` must name
//! existing tests.
//!
//! A row is a line of the table that begins with its number, for example `| V7 |`. A test cites a row with its number
//! as a whole word, in code, text or comment. Only crates that implement or test the contract are searched, because
//! elsewhere such a word has other meanings.

use std::collections::BTreeMap;

use super::docs::markdown::code_spans;
use super::finding::Finding;
use super::lexer::find_word;
use super::tree::Tree;

/// The page with the contract's table.
const PAGE: &str = "docs/concepts/volumes.md";
/// The page that names the tests of each row.
const PROOFS: &str = "crates/vol/tests/CONTRACT.md";
/// Folders with tests of the contract.
const TESTS: &[&str] = &["crates/vol/", "dev/sim/", "crates/cli/tests/", "crates/nbd-client/", "tests/"];
/// Largest number to search for, above that of any row.
const MAX_ROW: u32 = 99;

pub fn check(tree: &Tree) -> Vec<Finding> {
    let Some((_, page)) = tree.pages.iter().find(|(path, _)| path == PAGE) else { return Vec::new() };
    let rows: BTreeMap<u32, usize> = rows(page).collect();
    let mut findings = Vec::new();
    let mut cited = Vec::new();
    let tests = tree.sources.iter().filter(|source| TESTS.iter().any(|top| source.path.starts_with(top)));
    for source in tests {
        for number in 1..=MAX_ROW {
            let word = format!("V{number}");
            let mut lines = find_word(&source.text, &word).map(|at| source.line_of(at));
            let Some(line) = lines.find(|&line| source.is_test_line(line)) else { continue };
            if !rows.contains_key(&number) {
                findings.push(Finding::new(&source.path, line, format!("V{number}: {PAGE} has no such row")));
            }
            cited.push(number);
        }
    }
    for (&number, &line) in &rows {
        if !cited.contains(&number) {
            findings.push(Finding::new(PAGE, line, format!("V{number}: no test cites this row")));
        }
    }
    check_proofs(tree, &rows, &mut findings);
    findings
}

/// Finds rows for which [`PROOFS`] names no test, and missing tests that it names.
fn check_proofs(tree: &Tree, rows: &BTreeMap<u32, usize>, findings: &mut Vec<Finding>) {
    let Some((_, page)) = tree.pages.iter().find(|(path, _)| path == PROOFS) else { return };
    let mut named = Vec::new();
    for (index, text) in page.lines().enumerate().filter(|(_, text)| text.starts_with("| V")) {
        let mut cells = text.split('|').skip(1);
        let numbers = cells.next().unwrap_or_default().split(',').filter_map(|row| row.trim().strip_prefix('V'));
        named.extend(numbers.filter_map(|number| number.parse::<u32>().ok()));
        let tests: Vec<&str> = code_spans(text).map(|(_, span)| span).collect();
        let missing = tests.iter().filter(|test| !is_test(tree, test));
        findings.extend(missing.map(|test| Finding::new(PROOFS, index + 1, format!("there is no test `{test}`"))));
        if tests.is_empty() {
            findings.push(Finding::new(PROOFS, index + 1, "names no test"));
        }
    }
    for (&number, &line) in rows.iter().filter(|(number, _)| !named.contains(number)) {
        findings.push(Finding::new(PAGE, line, format!("V{number}: {PROOFS} names no test of this row")));
    }
}

/// Returns true if a test function of this name exists.
fn is_test(tree: &Tree, name: &str) -> bool {
    let head = format!("fn {name}()");
    tree.sources.iter().any(|source| {
        let mut heads = source.code.match_indices(&head).map(|(at, _)| at);
        heads.any(|at| source.code[..at].trim_end().ends_with("#[test]"))
    })
}

/// Returns the numbers of the rows with their lines.
fn rows(page: &str) -> impl Iterator<Item = (u32, usize)> + '_ {
    page.lines().enumerate().filter_map(|(index, line)| {
        let number = line.strip_prefix("| V")?.split(' ').next()?;
        number.parse().ok().map(|number| (number, index + 1))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "# Volumes\n\n| row | call |\n|---|---|\n| V1 | write |\n| V2 | flush |\n| V12 | create |\n";

    fn findings(files: &[(&str, &str)]) -> Vec<String> {
        let mut all = vec![(PAGE, TABLE)];
        all.extend(files);
        check(&Tree::of(&all)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_row_without_a_test_is_found() {
        let test = "//! Tests.\n\n/// V1, V12.\n#[test]\nfn writes() {}\n";
        let found = findings(&[("crates/vol/tests/a.rs", test)]);
        assert_eq!(found, ["docs/concepts/volumes.md:6: V2: no test cites this row"]);
    }

    #[test]
    fn a_citation_without_a_row_is_found() {
        let test = "//! V1 V2 V12.\nfn x() { assert!(y, \"V3\"); }\n";
        assert_eq!(
            findings(&[("dev/sim/tests/a.rs", test)]),
            ["dev/sim/tests/a.rs:2: V3: docs/concepts/volumes.md has no such row"]
        );
    }

    #[test]
    fn product_code_and_other_crates_cite_nothing() {
        let text = "//! V1 V2 V12.\n";
        assert_eq!(findings(&[("crates/vol/src/pool.rs", text), ("crates/blk/tests/a.rs", text)]).len(), 3);
        // The number must be a whole word.
        assert_eq!(findings(&[("crates/vol/tests/a.rs", "//! V1x xV2 V120\n")]).len(), 3);
    }

    #[test]
    fn a_row_without_a_named_test_and_a_name_without_a_test_are_found() {
        let test = "/// V1, V2, V12.\n#[test]\nfn writes() {}\nfn helper() {}\n";
        let proofs = "# Testing\n\n| V1, V12 | `writes` |\n| V2 | `helper`, `gone` |\n";
        let found = findings(&[("crates/vol/tests/a.rs", test), (PROOFS, proofs)]);
        assert_eq!(
            found,
            [
                "crates/vol/tests/CONTRACT.md:4: there is no test `helper`",
                "crates/vol/tests/CONTRACT.md:4: there is no test `gone`"
            ]
        );
        let found = findings(&[("crates/vol/tests/a.rs", test), (PROOFS, "| V1, V12 | `writes` |\n| V2 | none |\n")]);
        assert_eq!(found, ["crates/vol/tests/CONTRACT.md:2: names no test"]);
        let found = findings(&[("crates/vol/tests/a.rs", test), (PROOFS, "| V1, V12 | `writes` |\n")]);
        assert_eq!(found, ["docs/concepts/volumes.md:6: V2: crates/vol/tests/CONTRACT.md names no test of this row"]);
    }
}
