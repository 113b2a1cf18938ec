//! The definition of the interface, and the page generated from it.

use super::types::{IDL, INTERFACE};

const PAGE: &str = include_str!("../../../../docs/reference/control.md");

#[test]
fn the_page_is_that_of_the_definition() {
    let interface = sheave_varlink::idl::parse(IDL).expect("the definition is right");
    assert_eq!(interface.name, INTERFACE);
    let again = "cargo run -p sheave-varlink --example page crates/daemon/src/api/io.sheave.Control.varlink \
                 docs/reference/control.md";
    assert!(interface.page() == PAGE, "docs/reference/control.md is old: {again}");
    for member in &interface.members {
        assert!(!member.doc.is_empty(), "{} has no comment", member.name);
    }
}
