//! Resolves `file::item`, `file.rs::item`, `Type::member` and `crate::path::item` against the sources.
//!
//! Searches words and does not resolve names: an item exists if a candidate file defines it. That is enough to find
//! renamed and removed items, the usual faults of a page.

use super::markdown::is_placeholder;
use crate::tidy::lexer::{find_word, is_word};
use crate::tidy::source::Source;
use crate::tidy::tree::Tree;
use crate::workspace::{self, parse_manifest};

const STD_TYPES: &[&str] =
    &["Arc", "Box", "Cell", "Duration", "Instant", "Iterator", "Mutex", "Option", "Ordering", "Rc", "Result", "Vec"];

/// Words that precede the name of an item in its definition.
const DEFINES: &[&str] = &["fn", "struct", "enum", "union", "trait", "type", "const", "static", "mod", "macro_rules!"];

/// Finds the items that pages name.
pub struct Resolver<'a> {
    tree: &'a Tree,
    /// Names, like code writes them, of crates outside the workspace.
    outside: Vec<String>,
}

impl<'a> Resolver<'a> {
    pub fn new(tree: &'a Tree) -> Self {
        let table = tree.manifests.iter().find(|(path, _)| path == "Cargo.toml");
        let entries = table.map(|(_, text)| parse_manifest(text)).unwrap_or_default();
        let crates = entries.iter().filter(|entry| entry.section == "workspace.dependencies");
        let names = crates.map(|entry| entry.key.replace('-', "_")).filter(|name| !name.starts_with("sheave"));
        Self { tree, outside: names.chain(["std", "core", "alloc"].map(String::from)).collect() }
    }

    /// Returns the fault of a code span that contains `::`, or `None`.
    pub fn missing(&self, span: &str) -> Option<String> {
        let path = span.split(['(', '<', ' ', '!']).next().unwrap_or(span);
        let parts: Vec<&str> = path.split("::").collect();
        let (first, rest) = parts.split_first()?;
        let plain = rest.iter().all(|part| !part.is_empty() && part.bytes().all(is_word));
        if first.is_empty() || rest.is_empty() || !plain || self.is_outside(first) || is_placeholder(first) {
            return None;
        }
        let candidates = self.candidates(first);
        if candidates.is_empty() {
            return Some(format!("`{span}`: there is no file, module or type `{first}`"));
        }
        let is_there = |name: &str| candidates.iter().any(|s| s.module() == name || defines(s, name));
        let gone = rest.iter().find(|part| !is_there(part))?;
        Some(format!("`{span}`: `{gone}` is not in {}", describe(&candidates)))
    }

    fn is_outside(&self, first: &str) -> bool {
        self.outside.iter().any(|name| name == first) || STD_TYPES.contains(&first)
    }

    /// Returns the files in which the parts after `first` may be defined.
    fn candidates(&self, first: &str) -> Vec<&'a Source> {
        let sources = self.tree.sources.iter();
        if first == "crate" || first == "sheave" {
            return sources.collect();
        }
        if let Some(name) = first.strip_prefix("sheave_") {
            return sources.filter(|source| workspace::crate_of(&source.path) == Some(name)).collect();
        }
        if first.starts_with(|char: char| char.is_ascii_uppercase()) {
            let defined = self.tree.sources.iter().any(|source| defines(source, first));
            let named = |source: &&Source| defined && find_word(&source.code, first).next().is_some();
            return sources.filter(named).collect();
        }
        let stem = first.trim_end_matches(".rs").trim_end_matches("/mod");
        let (file, dir) = (format!("/{stem}.rs"), format!("/{stem}/"));
        let named = |source: &&Source| {
            let path = format!("/{}", source.path);
            path.ends_with(&file) || path.contains(&dir)
        };
        sources.filter(named).collect()
    }
}

/// Returns true if the file has an item, a variant, a field or a re-export of this name.
fn defines(source: &Source, name: &str) -> bool {
    find_word(&source.code, name).any(|at| {
        let start = source.code[..at].rfind('\n').map_or(0, |newline| newline + 1);
        let before = source.code[start..at].trim();
        before.is_empty()
            || matches!(before, "pub" | "pub(crate)" | "pub(super)")
            || before.starts_with("pub use")
            || before.rsplit(' ').next().is_some_and(|word| DEFINES.contains(&word))
    })
}

fn describe(candidates: &[&Source]) -> String {
    match candidates {
        [one] => one.path.clone(),
        [one, more @ ..] => format!("{} (nor in {} more files)", one.path, more.len()),
        [] => "any file".into(),
    }
}
