//! Checks that the folders of a crate form no circle. Like with crates, a folder names only folders below it.
//!
//! A folder is a module with children: its own file, and the files of those children that have no children. Modules of
//! a folder may name each other freely, and so may a folder and one inside it. No crate is excepted.
//!
//! A module names another one in a `use`, or in a path that begins with `crate`, `self`, `super` or a child. A name is
//! followed through re-exports to its definition. Test code and comments do not count. Method calls do not count
//! either, because they name no module.

mod paths;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::finding::Finding;
use super::tree::Tree;
use crate::workspace;
use paths::{Module, Use};

/// Largest number of re-exports through which a name is followed.
const MAX_HOPS: usize = 16;

/// Path of a module from the root of its crate: `["ctx", "wait"]`; empty for the root.
type Path = Vec<String>;

#[derive(Default)]
struct Crate<'a> {
    modules: BTreeMap<Path, Module<'a>>,
}

/// For each folder, the names that it uses of each other folder. Only the first use is kept.
type Arrows = BTreeMap<Path, BTreeMap<Path, Named>>;

struct Named {
    by: Path,
    of: Path,
    name: String,
    line: usize,
}

pub fn check(tree: &Tree) -> Vec<Finding> {
    crates(tree).values().flat_map(Crate::circles).collect()
}

/// Returns the crates with their product modules. The key is the name after `crates/`, or `sheave` for the facade.
fn crates(tree: &Tree) -> BTreeMap<&str, Crate<'_>> {
    let mut crates: BTreeMap<&str, Crate<'_>> = BTreeMap::new();
    for source in tree.sources.iter().filter(|source| !source.is_test) {
        let Some((top, inner)) = source.path.split_once("src/").filter(|(_, inner)| !inner.starts_with("bin/")) else {
            continue;
        };
        let name = match top.trim_end_matches('/') {
            "" => "sheave",
            top => workspace::PARENTS.iter().find_map(|dir| top.strip_prefix(dir)?.strip_prefix('/')).unwrap_or(top),
        };
        // If a crate has a library and a program, the program uses the library's public names like any other program.
        let has_lib = || tree.source(&format!("{top}src/lib.rs")).is_some();
        if name.contains('/') || (inner == "main.rs" && has_lib()) {
            continue;
        }
        let mut path: Path = inner.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
        if matches!(path.last().map(String::as_str), Some("mod" | "lib" | "main")) {
            path.pop();
        }
        crates.entry(name).or_default().modules.insert(path, Module::of(source));
    }
    crates
}

impl<'a> Crate<'a> {
    /// Returns one finding for each set of folders that reach each other, with a shortest circle among them.
    fn circles(&self) -> Vec<Finding> {
        let arrows = self.arrows();
        let mut found = Vec::new();
        let mut seen: BTreeSet<&Path> = BTreeSet::new();
        for from in arrows.keys() {
            let reached = reach(&arrows, from);
            let circle: BTreeSet<&Path> = reached.into_iter().filter(|to| reach(&arrows, to).contains(from)).collect();
            if !circle.contains(from) || circle.iter().any(|module| seen.contains(module)) {
                continue;
            }
            seen.extend(&circle);
            let shortest = circle.iter().filter_map(|module| shortest_circle(&arrows, module)).min_by_key(Vec::len);
            let Some(way) = shortest else { continue };
            let first = &arrows[way[0]][way[1 % way.len()]];
            let steps = way.iter().enumerate().map(|(at, folder)| {
                let Named { by, of, name, .. } = &arrows[*folder][way[(at + 1) % way.len()]];
                format!("{} names {name} of {}", shown(by), shown(of))
            });
            let message = format!(
                "{} folders form a circle ({}); the shortest way round: {}",
                circle.len(),
                circle.iter().map(|module| shown(module)).collect::<Vec<_>>().join(", "),
                steps.collect::<Vec<_>>().join(", ")
            );
            found.push(Finding::new(self.modules[&first.by].path, first.line, message));
        }
        found
    }

    /// Returns the folder of a module: the module itself if it has children, else its parent.
    fn folder<'p>(&self, module: &'p Path) -> &'p [String] {
        let has_children = self.modules.keys().any(|other| other.len() > module.len() && other.starts_with(module));
        if has_children { module } else { module.split_last().map_or(&[], |(_, parent)| parent) }
    }

    /// Collects the uses between folders.
    fn arrows(&self) -> Arrows {
        let mut arrows = Arrows::new();
        for (from, module) in &self.modules {
            let own = module.uses.iter().filter(|one| !one.is_reexport || module.names_outside_uses(&one.binds));
            let used = own.map(|one| (&one.segments, one.line));
            for (segments, line) in used.chain(module.paths.iter().map(|(segments, line)| (segments, *line))) {
                let Some(to) = self.target(from, segments, MAX_HOPS).filter(|to| to != from) else { continue };
                let name = segments.last().cloned().unwrap_or_default();
                let (above, below) = (self.folder(from), self.folder(&to));
                if above.starts_with(below) || below.starts_with(above) {
                    continue;
                }
                let (above, below) = (above.to_vec(), below.to_vec());
                let named = Named { by: from.clone(), of: to, name, line };
                arrows.entry(above).or_default().entry(below).or_insert(named);
            }
        }
        arrows
    }

    /// Returns the module that defines the last name of a path, if that is in this crate.
    fn target(&self, from: &Path, segments: &[String], hops: usize) -> Option<Path> {
        let (first, rest) = segments.split_first()?;
        let mut here = from.clone();
        let rest = match first.as_str() {
            "crate" => {
                here.clear();
                rest
            }
            "self" => rest,
            "super" => {
                here.pop()?;
                rest
            }
            // Otherwise a path begins with a child, with a name that a `use` binds, or with another crate.
            name if self.has_child(&here, name) => segments,
            name if hops > 0 && segments.len() > 1 => {
                let bound = self.modules.get(from)?.uses.iter().find(|one| one.binds == name)?;
                let whole: Vec<String> = bound.segments.iter().chain(rest).cloned().collect();
                // `use crc;` binds the name that it begins with, so following it would lead back here.
                return (whole[0] != *first).then(|| self.target(from, &whole, hops - 1))?;
            }
            _ => return None,
        };
        for (at, name) in rest.iter().enumerate() {
            match name.as_str() {
                "super" => drop(here.pop()?),
                "self" | "*" => {}
                name if self.has_child(&here, name) => here.push(name.to_owned()),
                name => return Some(self.definer(here, name, &rest[at + 1..], hops)),
            }
        }
        Some(here)
    }

    /// Returns the module that defines `name`, which is reached through `here`: either `here` itself, or the source of
    /// a re-export.
    fn definer(&self, here: Path, name: &str, rest: &[String], hops: usize) -> Path {
        let Some(module) = self.modules.get(&here).filter(|_| hops > 0) else { return here };
        let follow = |one: &Use| {
            let segments: Vec<String> = one.segments.iter().chain(rest).cloned().collect();
            self.target(&here, &segments, hops - 1)
        };
        if let Some(one) = module.uses.iter().find(|one| one.binds == name) {
            return follow(one).unwrap_or(here);
        }
        if module.defines(name) {
            return here;
        }
        let globs = module.uses.iter().filter(|one| one.binds == "*").filter_map(follow);
        globs.into_iter().find(|to| self.modules.get(to).is_some_and(|module| module.defines(name))).unwrap_or(here)
    }

    fn has_child(&self, here: &Path, name: &str) -> bool {
        let mut child = here.clone();
        child.push(name.to_owned());
        self.modules.contains_key(&child)
    }
}

/// Returns the folders reachable from `from`. Contains `from` only if it is on a circle.
fn reach<'m>(arrows: &'m Arrows, from: &'m Path) -> BTreeSet<&'m Path> {
    let mut reached = BTreeSet::new();
    let mut left = vec![from];
    while let Some(module) = left.pop() {
        let next = arrows.get(module).into_iter().flat_map(BTreeMap::keys);
        left.extend(next.filter(|to| reached.insert(*to)));
    }
    reached
}

/// Returns the folders on a shortest circle through `from`, beginning with `from`. Returns `None` if there is no
/// circle.
fn shortest_circle<'m>(arrows: &'m Arrows, from: &'m Path) -> Option<Vec<&'m Path>> {
    let mut came: BTreeMap<&Path, &Path> = BTreeMap::new();
    let mut left = VecDeque::from([from]);
    while let Some(module) = left.pop_front() {
        for to in arrows.get(module).into_iter().flat_map(BTreeMap::keys) {
            if to == from {
                let mut way = vec![module];
                while *way.last()? != from {
                    way.push(came.get(way.last()?)?);
                }
                way.reverse();
                return Some(way);
            }
            if !came.contains_key(to) {
                came.insert(to, module);
                left.push_back(to);
            }
        }
    }
    None
}

fn shown(module: &[String]) -> String {
    if module.is_empty() { "the root".to_owned() } else { format!("`{}`", module.join("::")) }
}

#[cfg(test)]
mod tests;
