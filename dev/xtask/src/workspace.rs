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

/// Directories whose subdirectories are crates: those of the product, and those that only its developers run.
pub const PARENTS: [&str; 2] = ["crates", "dev"];

/// Returns the directory of the crate with this name after `sheave-`, or `None` if there is none.
#[cfg(test)]
pub fn dir_of(name: &str) -> Option<PathBuf> {
    let mut dirs = PARENTS.iter().map(|parent| root().join(parent).join(name)).chain([root().join(name)]);
    dirs.find(|dir| dir.join("Cargo.toml").is_file())
}

/// Returns the name of the crate that the file at `path` belongs to, without `sheave-`. Returns `None` for the facade.
pub fn crate_of(path: &str) -> Option<&str> {
    let (top, rest) = path.split_once('/')?;
    if top == "lab" { Some(top) } else { PARENTS.contains(&top).then(|| rest.split('/').next())? }
}

pub fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// Returns the path of the file in which tests record the reasons for skipping (`sheave_testkit::skip`).
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
    /// Model checkers for which the crate has models: packages on which it depends under a `--cfg` of the same name.
    pub checkers: Vec<String>,
}

impl Member {
    pub fn has_models(&self) -> bool {
        !self.checkers.is_empty()
    }
}

/// Returns the crates of all workspaces, sorted by path.
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

/// Returns the model checker that an entry depends on, like `loom.workspace = true` under
/// `[target.'cfg(loom)'.dependencies]`.
fn checker(entry: &Entry) -> Option<&str> {
    let (cfg, kind) = entry.section.strip_prefix("target.'cfg(")?.split_once(")'.")?;
    let package = entry.key.split('.').next().filter(|package| *package == cfg)?;
    ["dependencies", "dev-dependencies"].contains(&kind).then_some(package)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = r##"
[package]
name = "sheave-x" # the name
[dependencies]
rustix.workspace = true
odd = { version = "1", features = [ # why
    "a#b",
] } # tail
[target.'cfg(shuttle)'.dependencies]
shuttle.workspace = true
[target.'cfg(loom)'.dev-dependencies]
loom = { workspace = true }
odd.workspace = true
[target.'cfg(unix)'.dependencies]
libc.workspace = true
"##;

    #[test]
    fn entries_keep_section_value_comment_and_line() {
        let entries = parse_manifest(MANIFEST);
        let keys: Vec<_> = entries.iter().map(|e| (e.section.as_str(), e.key.as_str(), e.line)).collect();
        assert_eq!(
            keys,
            [
                ("package", "name", 3),
                ("dependencies", "rustix.workspace", 5),
                ("dependencies", "odd", 6),
                ("target.'cfg(shuttle)'.dependencies", "shuttle.workspace", 10),
                ("target.'cfg(loom)'.dev-dependencies", "loom", 12),
                ("target.'cfg(loom)'.dev-dependencies", "odd.workspace", 13),
                ("target.'cfg(unix)'.dependencies", "libc.workspace", 15),
            ]
        );
        assert_eq!((entries[0].value.as_str(), entries[0].comment.as_str()), ("\"sheave-x\"", "the name"));
        assert_eq!(entries[2].value, r##"{ version = "1", features = ["a#b",] }"##);
        assert_eq!(entries[2].comment, "why");
    }

    #[test]
    fn a_member_has_its_name_and_its_checkers() {
        let member = member(MANIFEST);
        assert_eq!(member.name, "sheave-x");
        assert_eq!(member.checkers, ["shuttle", "loom"]);
    }

    #[test]
    fn this_repository_has_its_members() {
        let members = members().expect("crates/");
        let base = members.iter().find(|member| member.name == "sheave-base").expect("a floor to stand on");
        assert_eq!(base.checkers, ["shuttle", "loom"], "as its manifest writes them");
    }

    #[test]
    fn a_path_names_the_crate_that_it_lies_in() {
        let of = |path| crate_of(path);
        assert_eq!(
            [of("crates/blk/src/a.rs"), of("dev/sim/Cargo.toml"), of("lab/src/a.rs")].map(Option::unwrap),
            ["blk", "sim", "lab"]
        );
        assert_eq!([of("src/lib.rs"), of("tests/drivers/xor/src/lib.rs"), of("Cargo.toml")], [None; 3]);
        assert!(dir_of("sim").is_some_and(|dir| dir.ends_with("dev/sim")) && dir_of("attic").is_none());
    }
}
