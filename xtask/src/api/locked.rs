//! The packages that a program which depends on the library has in its lock file, with all features of the library.
//!
//! Audits, licence checks and `cargo vendor` look at each of them, whether it is ever built or not: also at those of
//! other systems and of every `cfg`. Dependencies of tests are not among them.
//!
//! Read from this repository's own lock file: of a crate of the workspace the entries under its dependencies count, of
//! others all that the lock file names. That may be more than another program has, and never less.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};

use crate::workspace::{self, Entry};

/// Most packages that may be there. Who needs one more says why in the commit that raises this.
const MOST: usize = 34;
/// What every such list has: without these the files are read wrongly.
const PRESENT: &[&str] = &["sheave-base", "sheave-vol", "libc", "rustix", "linux-raw-sys"];

/// A package of a lock file.
#[derive(Debug, Default, PartialEq, Eq)]
struct Package {
    name: String,
    version: String,
    /// It comes from elsewhere.
    is_foreign: bool,
    /// Names, with versions where there are several of a name.
    dependencies: Vec<String>,
}

/// The packages in the lock files of those who depend on the library, as names with versions.
pub fn packages() -> Result<BTreeSet<String>> {
    let lock = std::fs::read_to_string(workspace::root().join("Cargo.lock")).context("reading Cargo.lock")?;
    let mut manifests = BTreeMap::new();
    for dir in [workspace::root(), workspace::root().join("crates")] {
        let own = dir.join("Cargo.toml");
        let below = std::fs::read_dir(&dir)?.filter_map(|entry| Some(entry.ok()?.path().join("Cargo.toml")));
        for path in below.chain([own]).filter(|path| path.is_file()) {
            let entries = workspace::parse_manifest(&std::fs::read_to_string(&path)?);
            let name = entries.iter().find(|entry| entry.section == "package" && entry.key == "name");
            if let Some(name) = name.map(|entry| entry.value.trim_matches('"').to_owned()) {
                manifests.insert(name, entries);
            }
        }
    }
    reached(&parse(&lock), &manifests, "sheave")
}

/// That there are no more than there may be.
pub fn check() -> Result<usize> {
    let packages = packages()?;
    let many = packages.len();
    let list = packages.into_iter().collect::<Vec<_>>().join(", ");
    for present in PRESENT {
        ensure!(list.contains(present), "Cargo.lock or a manifest is read wrongly: {present} is missing in {list}");
    }
    ensure!(
        many <= MOST,
        "a program that depends on the library has {many} packages in its lock file, at most {MOST}: {list}. What only \
         tests need belongs under dev-dependencies; where it cannot be otherwise, raise MOST in xtask/src/api/locked.rs"
    );
    Ok(many)
}

fn parse(lock: &str) -> Vec<Package> {
    let mut packages = Vec::new();
    for entry in workspace::parse_manifest(lock).into_iter().filter(|entry| entry.section == "package") {
        if entry.key == "name" {
            packages.push(Package::default());
        }
        let Some(package) = packages.last_mut() else { continue };
        let value = || entry.value.trim_matches('"').to_owned();
        match entry.key.as_str() {
            "name" => package.name = value(),
            "version" => package.version = value(),
            "source" => package.is_foreign = true,
            "dependencies" => {
                package.dependencies = entry.value.split('"').skip(1).step_by(2).map(Into::into).collect()
            }
            _ => {}
        }
    }
    packages
}

/// All that one package needs, with itself.
fn reached(packages: &[Package], manifests: &BTreeMap<String, Vec<Entry>>, from: &str) -> Result<BTreeSet<String>> {
    let find = |wanted: &str| {
        let mut words = wanted.split(' ');
        let (name, version) = (words.next().unwrap_or_default(), words.next());
        let is_it = |it: &&Package| it.name == name && version.is_none_or(|version| it.version == version);
        packages.iter().find(is_it).with_context(|| format!("Cargo.lock has no {wanted}"))
    };
    let (mut found, mut left) = (BTreeSet::new(), vec![from.to_owned()]);
    while let Some(next) = left.pop() {
        let package = find(&next)?;
        if !found.insert(format!("{} {}", package.name, package.version)) {
            continue;
        }
        let needs = |wanted: &&String| {
            let name = wanted.split(' ').next().unwrap_or_default();
            package.is_foreign || manifests.get(&package.name).is_some_and(|entries| depends(entries, name))
        };
        left.extend(package.dependencies.iter().filter(needs).cloned());
    }
    Ok(found)
}

/// Whether a manifest has a package under its dependencies, of any target.
fn depends(entries: &[Entry], name: &str) -> bool {
    let counts = |section: &str| {
        let kind = section.rsplit_once("'.").map_or(section, |(_, kind)| kind);
        ["dependencies", "build-dependencies"].contains(&kind)
    };
    entries.iter().any(|entry| counts(&entry.section) && entry.key.split('.').next() == Some(name))
}

#[cfg(test)]
mod tests;
