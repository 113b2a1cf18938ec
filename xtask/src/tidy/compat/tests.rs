//! Rows that must be found, and rows that are right.

use super::*;

const TESTS: &str =
    "//! Tests.\n#[test]\nfn a_nop_ends() {}\n\n#[test]\n#[ignore]\nfn slow_one() {}\nfn no_test() {}\n";

fn findings(rows: &str) -> Vec<String> {
    let page = format!(
        "# Compat\n\n| `x` | same | `gone_here` |\n\n{HEADING}\n\n| program | here | by |\n|---|---|---|\n{rows}"
    );
    let tree = Tree::of(&[(PAGE, &page), ("crates/uring/tests/a.rs", TESTS)]);
    check(&tree).iter().map(ToString::to_string).collect()
}

#[test]
fn tests_that_are_there_and_reasons_are_right() {
    let rows = "| `nop`, `nop-flags` | same | `a_nop_ends`, `slow_one` |\n\
                | `size` | differs | `cq_entries` may be less: `a_nop_ends` |\n\
                | `overflow` | differs | a full mailbox answers `-EOVERFLOW` |\n\
                | `sockets` | does not apply | absent |\n";
    assert_eq!(findings(rows), [""; 0]);
}

#[test]
fn a_test_that_is_not_there_is_found() {
    let rows = "| `nop` | same | `a_nop_ends`, `a_nop_begins` |\n| `size` | differs | why: `no_test` |\n";
    assert_eq!(
        findings(rows),
        [
            "docs/compat.md:9: `a_nop_begins`: there is no such test",
            "docs/compat.md:10: `no_test`: there is no such test"
        ]
    );
}

#[test]
fn a_claim_without_a_test_is_found() {
    let rows = "| `nop` | same; without flags | by and large |\n| `more` | same |\n";
    let found = findings(rows);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].contains("no test says so") && found[1].contains("three cells"), "{found:?}");
}
