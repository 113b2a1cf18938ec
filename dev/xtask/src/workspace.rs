//! Paths of the repository, its target directory, and its member crates with their model checkers.
//!
//! Owns the small Cargo.toml parser that `tidy` and `test` share. It parses the subset that this repository uses (one
//! key a line, arrays that may span lines, no multi-line strings), not all of TOML.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Returns the repository's root, which is the parent of this crate.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// Directories whose subdirectories are crates: the product's, and those that only its developers run.
pub const PARENTS: [&str; 2] = ["crates", "dev"];

/// Returns the directory of the crate with this name after `sheave-`, or `None` if there is none.
#[cfg(test)]
pub fn dir_of(name: &str) -> Option<PathBuf> {
    let mut dirs = PARENTS.iter().map(|parent| root().join(parent).join(name)).chain([root().join(name)]);
    dirs.find(|dir| dir.join("Cargo.toml").is_file())
}

/// Returns the name of the crate that the file at `path` belongs to, without `sheave-`; `None` for the facade.
pub fn crate_of(path: &str) -> Option<&str> {
    let (top, rest) = path.split_once('/')?;
    if top == "lab" { Some(top) } else { PARENTS.contains(&top).then(|| rest.split('/').next())? }
}

pub fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// Returns the file in which tests note the reasons for skipping (`sheave_testkit::skip`).
pub fn skip_log() -> PathBuf {
    target_dir().join("skipped-tests.log")
}

/// A `key = value # comment` of a Cargo.toml.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Header above the entry, without brackets (`dependencies`, `target.x.dependencies`).
    pub section: String,
    /// Key as written (`rustix`, `rustix.workspace`).
    pub key: String,
    /// Value as written, without the comment.
    pub value: String,
    /// Comment after `#`, or empty.
    pub comment: String,
    /// Line number, from 1.
    pub line: usize,
}

/// Parses all entries of a Cargo.toml, in order.
pub fn parse_manifest(text: &str) -> Vec<Entry> {
    let mut section = String::new();
    let mut entries: Vec<Entry> = Vec::new();
    let mut open = 0; // open brackets of an array or inline table that continues on the next line
    for (at, line) in text.lines().enumerate() {
        let (code, comment) = split_comment(line);
        let code = code.trim();
        let depth = code.matches(['[', '{']).count() as isize - code.matches([']', '}']).count() as isize;
        if open > 0 {
            if let Some(last) = entries.last_mut() {
                last.value.push_str(code);
            }
            open += depth;
        } else if let Some(header) = code.strip_prefix('[') {
            section = header.trim_matches(['[', ']']).trim().to_owned();
        } else if let Some((key, value)) = code.split_once('=') {
            open = depth;
            entries.push(Entry {
                section: section.clone(),
                key: key.trim().trim_matches('"').to_owned(),
                value: value.trim().to_owned(),
                comment: comment.trim().to_owned(),
                line: at + 1,
            });
        }
    }
    entries
}

fn split_comment(line: &str) -> (&str, &str) {
    let mut quoted = false;
    for (at, char) in line.char_indices() {
        match char {
            '"' => quoted = !quoted,
            '#' if !quoted => return (&line[..at], &line[at + 1..]),
            _ => {}
        }
    }
    (line, "")
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    pub name: String,
    /// Model checkers that the crate has models for: packages it depends on under a `--cfg` of their own name.
    pub checkers: Vec<String>,
}

impl Member {
    pub fn has_models(&self) -> bool {
        !self.checkers.is_empty()
    }
}

/// Returns the crates under `crates/`, sorted by path.
pub fn members() -> Result<Vec<Member>> {
    let mut manifests = Vec::new();
    for parent in PARENTS {
        let dir = root().join(parent);
        let entries = fs::read_dir(&dir).with_context(|| format!("reading {}", dir.display()))?;
        manifests.extend(entries.filter_map(|entry| Some(entry.ok()?.path().join("Cargo.toml"))));
    }
    manifests.push(root().join("lab/Cargo.toml"));
    manifests.retain(|manifest| manifest.is_file());
    manifests.sort();
    manifests.iter().map(|path| Ok(member(&fs::read_to_string(path)?))).collect()
}

fn member(manifest: &str) -> Member {
    let entries = parse_manifest(manifest);
    let name = entries.iter().find(|entry| entry.section == "package" && entry.key == "name");
    Member {
        name: name.map(|entry| entry.value.trim_matches('"').to_owned()).unwrap_or_default(),
        checkers: entries.iter().filter_map(checker).map(str::to_owned).collect(),
    }
}

/// Returns the model checker that an entry depends on: `loom.workspace = true` under
/// `[target.'cfg(loom)'.dependencies]`.
fn checker(entry: &Entry) -> Option<&str> {
    let (cfg, kind) = entry.section.strip_prefix("target.'cfg(")?.split_once(")'.")?;
    let package = entry.key.split('.').next().filter(|package| *package == cfg)?;
    ["dependencies", "dev-dependencies"].contains(&kind).then_some(package)
}

#[cfg(test)]
mod tests;
