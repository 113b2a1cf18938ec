//! Checks that every outside dependency is in `[workspace.dependencies]`, with the reason why the project does not
//! implement it itself.

use super::finding::Finding;
use super::tree::Tree;
use crate::workspace::{Entry, parse_manifest};

/// Crates with a workspace of their own, whose manifests have the reasons.
const OWN_WORKSPACES: &[&str] = &["dev/fuzz/Cargo.toml", "dev/vhost-peers/Cargo.toml"];

/// Finds dependencies without a reason, versions outside the workspace's table, and unused rows of the table.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut used = Vec::new();
    for (path, text) in &tree.manifests {
        for entry in parse_manifest(text).iter().filter(|entry| is_dependency(entry)) {
            let package = package(entry);
            if OWN_WORKSPACES.contains(&path.as_str()) {
                if !entry.value.contains("path =") && entry.comment.is_empty() {
                    let message = format!("`{package}`: say on this line why we do not write it ourselves");
                    findings.push(Finding::new(path, entry.line, message));
                }
                continue;
            }
            if !entry.value.contains("workspace = true") && !entry.key.ends_with(".workspace") {
                let message = format!("`{package}`: take it from [workspace.dependencies], where its reason stands");
                findings.push(Finding::new(path, entry.line, message));
            }
            used.push(package.to_owned());
        }
    }
    let table = tree.manifests.iter().find(|(path, _)| path == "Cargo.toml").map(|(_, text)| parse_manifest(text));
    for entry in table.iter().flatten().filter(|entry| entry.section == "workspace.dependencies") {
        let package = package(entry);
        let ours = entry.value.contains("path =");
        if !ours && entry.comment.is_empty() {
            let message = format!("`{package}`: say on this line why we do not write it ourselves");
            findings.push(Finding::new("Cargo.toml", entry.line, message));
        }
        if !used.iter().any(|name| name == package) {
            findings.push(Finding::new("Cargo.toml", entry.line, format!("`{package}`: no crate uses it, drop it")));
        }
    }
    findings
}

fn is_dependency(entry: &Entry) -> bool {
    entry.section.ends_with("dependencies") && entry.section != "workspace.dependencies"
}

fn package(entry: &Entry) -> &str {
    entry.key.split('.').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
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
        assert!(
            messages(table, "odd = { workspace = true, optional = true }\nsheave-base.workspace = true").is_empty()
        );
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
}
