//! Tests with rows and citations that must be found.

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
