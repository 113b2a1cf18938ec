//! Tests of reasons, versions, and unused rows.

use super::*;

fn messages(table: &str, member: &str) -> Vec<String> {
    let table = format!("[workspace.dependencies]\n{table}\n");
    let member = format!("[dependencies]\n{member}\n");
    let tree = Tree::of(&[("Cargo.toml", &table), ("crates/base/Cargo.toml", &member)]);
    check(&tree).into_iter().map(|finding| finding.to_string()).collect()
}

#[test]
fn a_row_with_reason_and_user_passes() {
    assert!(messages("rustix = \"1\" # safe system calls", "rustix.workspace = true").is_empty());
    let table = "odd = { version = \"1\", features = [\"a\"] } # why\nsheave-base = { path = \"crates/base\" }";
    assert!(messages(table, "odd = { workspace = true, optional = true }\nsheave-base.workspace = true").is_empty());
}

#[test]
fn each_broken_rule_is_found() {
    assert!(messages("rustix = \"1\"", "rustix.workspace = true")[0].contains("say on this line why"));
    assert!(messages("", "rustix = \"1\"")[0].contains("take it from [workspace.dependencies]"));
    assert!(messages("rustix = \"1\" # calls", "")[0].contains("no crate uses it"));
}

#[test]
fn a_workspace_of_its_own_has_the_reasons_itself() {
    let of = |line: &str| check(&Tree::of(&[("dev/fuzz/Cargo.toml", &format!("[dependencies]\n{line}\n"))])).len();
    assert_eq!(of("libfuzzer-sys = \"0.4\" # libFuzzer"), 0);
    assert_eq!(of("sheave-vol = { path = \"../crates/vol\" }"), 0);
    assert_eq!(of("libfuzzer-sys = \"0.4\""), 1);
}
