//! The packages in the lock file of a program that depends on the library, with all features of the library.
//!
//! Audits, licence checks and `cargo vendor` treat all packages of a lock file, also those that are never built:
//! packages for other systems and of every `cfg`. Dependencies of tests are not among them.
//!
//! The list is computed from this repository's own lock file. For a crate of the workspace the entries under its
//! dependencies count, for other crates all dependencies in the lock file. The result may have more packages than the
//! lock file of a program, and never fewer.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};

use crate::workspace::{self, Entry};

/// Largest number of packages that is allowed. The commit that raises the number must give the reason.
const MOST: usize = 34;
/// Packages that every list has. A list that lacks one of them was parsed wrongly.
const PRESENT: &[&str] = &["sheave-base", "sheave-vol", "libc", "rustix", "linux-raw-sys"];

#[derive(Debug, Default, PartialEq, Eq)]
struct Package {
    name: String,
    version: String,
    /// True for a package outside the workspace.
    is_foreign: bool,
    /// Names of packages, with a version if several packages have the name.
    dependencies: Vec<String>,
}

/// Returns the packages in the lock file of a program that depends on the library, as names with versions.
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

/// Checks the number of packages, and returns it.
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
         tests need belongs under dev-dependencies; if that cannot be, raise MOST in dev/xtask/src/api/locked.rs"
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

/// Returns all packages that `from` needs, including `from` itself.
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

/// Returns true if a manifest has a package under its dependencies, of any target.
fn depends(entries: &[Entry], name: &str) -> bool {
    let counts = |section: &str| {
        let kind = section.rsplit_once("'.").map_or(section, |(_, kind)| kind);
        ["dependencies", "build-dependencies"].contains(&kind)
    };
    entries.iter().any(|entry| counts(&entry.section) && entry.key.split('.').next() == Some(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: &str = r#"
[[package]]
name = "mine"
version = "0.1.0"
dependencies = [
 "checker",
 "odd 1.0.0",
 "winlike",
]

[[package]]
name = "checker"
version = "2.0.0"
source = "registry+x"

[[package]]
name = "odd"
version = "1.0.0"
source = "registry+x"
dependencies = [
 "deep",
]

[[package]]
name = "odd"
version = "2.0.0"
source = "registry+x"

[[package]]
name = "deep"
version = "3.0.0"
source = "registry+x"

[[package]]
name = "winlike"
version = "4.0.0"
source = "registry+x"
"#;

    fn found(manifest: &str) -> Vec<String> {
        let manifests = BTreeMap::from([("mine".to_owned(), workspace::parse_manifest(manifest))]);
        reached(&parse(LOCK), &manifests, "mine").expect("all are there").into_iter().collect()
    }

    #[test]
    fn dependencies_of_every_target_count_and_those_of_tests_do_not() {
        let manifest = "[dependencies]\nodd.workspace = true\n[target.'cfg(windows)'.dependencies]\nwinlike = \"4\"\n";
        let tests =
            "[dev-dependencies]\nchecker.workspace = true\n[target.'cfg(x)'.dev-dependencies]\nchecker = \"2\"\n";
        let expected = ["deep 3.0.0", "mine 0.1.0", "odd 1.0.0", "winlike 4.0.0"];
        assert_eq!(found(&format!("{manifest}{tests}")), expected);
        assert_eq!(found(&format!("{manifest}[target.'cfg(x)'.dependencies]\nchecker = \"2\"\n")).len(), 5);
    }

    #[test]
    fn a_program_that_depends_on_the_library_has_few_packages_in_its_lock_file() {
        check().expect("no more than there may be");
        let packages = packages().expect("they are read");
        for checker in ["shuttle ", "loom "] {
            assert!(!packages.iter().any(|package| package.starts_with(checker)), "{packages:?}");
        }
    }
}
