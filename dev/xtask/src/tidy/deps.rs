//! Checks that every outside dependency is in `[workspace.dependencies]`, with the reason for not writing it ourselves.

use super::finding::Finding;
use super::tree::Tree;
use crate::workspace::{Entry, parse_manifest};

/// Crates with a workspace of their own, whose manifests have the reasons.
const OWN_WORKSPACES: &[&str] = &["dev/fuzz/Cargo.toml"];

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
mod tests;
