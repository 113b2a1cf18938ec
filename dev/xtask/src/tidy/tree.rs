//! All files that the checks use, read once: Rust sources, Markdown pages, Cargo manifests.
//!
//! Skips files that are not part of the repository: `target*` and hidden folders.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::source::Source;

#[derive(Default)]
pub struct Tree {
    pub sources: Vec<Source>,
    pub pages: Vec<(String, String)>,
    pub manifests: Vec<(String, String)>,
    /// Paths of all files, of any kind.
    pub paths: BTreeSet<String>,
}

impl Tree {
    pub fn read(root: &Path) -> Result<Self> {
        let mut paths = Vec::new();
        walk(root, "", &mut paths)?;
        paths.sort();
        let mut tree = Self::default();
        for path in paths {
            let wanted = [".rs", ".md", ".toml"].iter().any(|end| path.ends_with(end));
            let text = if wanted { fs::read_to_string(root.join(&path)).context(path.clone())? } else { String::new() };
            tree.add(&path, text);
        }
        tree.mark_test_modules();
        Ok(tree)
    }

    /// Makes a tree of the given files, for the tests of checks.
    #[cfg(test)]
    pub fn of(files: &[(&str, &str)]) -> Self {
        let mut tree = Self::default();
        files.iter().for_each(|(path, text)| tree.add(path, (*text).to_owned()));
        tree.mark_test_modules();
        tree
    }

    fn add(&mut self, path: &str, text: String) {
        self.paths.insert(path.to_owned());
        if path.ends_with(".rs") {
            self.sources.push(Source::new(path, &text));
        } else if path.ends_with(".md") {
            self.pages.push((path.to_owned(), text));
        } else if path.ends_with("Cargo.toml") {
            self.manifests.push((path.to_owned(), text));
        }
    }

    /// Marks a file as a test if its `mod` line has `#[cfg(test)]`, and all files below it.
    fn mark_test_modules(&mut self) {
        let mut modules = BTreeSet::new();
        for source in &self.sources {
            let (dir, file) = source.path.rsplit_once('/').unwrap_or(("", &source.path));
            let stem = file.trim_end_matches(".rs");
            let own = if matches!(stem, "mod" | "lib" | "main") { dir.to_owned() } else { format!("{dir}/{stem}") };
            modules.extend(source.test_modules().into_iter().map(|name| format!("{own}/{name}")));
        }
        for source in &mut self.sources {
            let path = source.path.trim_end_matches(".rs");
            source.is_test |= modules.iter().any(|module| {
                path.strip_prefix(module.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            });
        }
    }

    pub fn source(&self, path: &str) -> Option<&Source> {
        self.sources.iter().find(|source| source.path == path)
    }
}

fn walk(root: &Path, dir: &str, paths: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(root.join(dir)).with_context(|| format!("reading {dir}"))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if dir.is_empty() { name.clone() } else { format!("{dir}/{name}") };
        if entry.file_type()?.is_dir() {
            let built = name == "target" || name.starts_with("target-");
            let ours = !built && (!name.starts_with('.') || matches!(&*name, ".ci" | ".config"));
            if ours {
                walk(root, &path, paths)?;
            }
        } else {
            paths.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_modules_are_marked_through_their_parent() {
        let tree = Tree::of(&[
            ("src/lib.rs", "#[cfg(all(test, loom))]\nmod model;\nmod bio;"),
            ("src/model.rs", "mod deep;"),
            ("src/model/deep.rs", ""),
            ("src/models.rs", ""),
            ("src/bio.rs", "#[cfg(test)]\nmod check;"),
            ("src/bio/check.rs", ""),
            ("src/check.rs", ""),
        ]);
        let tests: Vec<_> = tree.sources.iter().filter(|s| s.is_test).map(|s| s.path.as_str()).collect();
        assert_eq!(tests, ["src/model.rs", "src/model/deep.rs", "src/bio/check.rs"]);
    }

    #[test]
    fn the_repository_is_read_without_what_cargo_builds() {
        let tree = Tree::read(&crate::workspace::root()).expect("readable");
        assert!(tree.source("dev/xtask/src/tidy/tree.rs").is_some());
        assert!(tree.manifests.iter().any(|(path, _)| path == "Cargo.toml"));
        assert!(tree.paths.contains(".ci/run"));
        assert!(tree.paths.iter().all(|path| !path.starts_with("target") && !path.starts_with(".git/")));
    }
}
