//! Tests with rows that must be found, and with correct rows.

use super::*;

const TESTS: &str =
    "//! Tests.\n#[test]\nfn a_nop_ends() {}\n\n#[test]\n#[ignore]\nfn slow_one() {}\nfn no_test() {}\n";

fn findings(rows: &str) -> Vec<String> {
    let above = format!("# Compat: {OPCODES} {SETUP_FLAGS}\n\n| `x` | same | `gone_here` |\n\n");
    let page = format!("{above}{HEADING}\n\n| program | here | by |\n|---|---|---|\n{rows}");
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
            "docs/reference/compat.md:9: `a_nop_begins`: there is no such test",
            "docs/reference/compat.md:10: `no_test`: there is no such test"
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

#[test]
fn an_opcode_or_a_flag_that_the_page_does_not_name_is_found() {
    let page = format!("# Compat\n\n{OPCODES}\n{SETUP_FLAGS}\n").replace(" PIPE", "").replace("NO_MMAP", "NO_MMAPS");
    let tree = Tree::of(&[(PAGE, &page)]);
    let found: Vec<String> = check(&tree).iter().map(ToString::to_string).collect();
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].contains("PIPE:") && found[1].contains("NO_MMAP:"), "{found:?}");
}
