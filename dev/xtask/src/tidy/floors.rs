//! Checks the layering of crates ("floors"): a crate names only crates on lower floors, in its Cargo.toml and in its
//! code.
//!
//! Owns the table of floors. Crates on one floor (`uring` and `vol`) never name each other. No crate depends on one of
//! the top floor ("roof"). Only tests use `testkit`, `guest` and `vhost-front`.

use std::fmt;

use super::finding::Finding;
use super::lexer::is_word;
use super::tree::Tree;
use crate::workspace::{self, parse_manifest};

struct Room {
    /// Name of the crate without `sheave-`; the facade and xtask have their whole names.
    name: &'static str,
    floor: Floor,
}

/// The number of a floor, like ARCHITECTURE.md has it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Floor(u8);

impl fmt::Display for Floor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The public library, which assembles the crates below it.
const FACADE: Room = Room { name: "sheave", floor: Floor(9) };
/// Lowest floor on which no other crate depends.
const ROOF: Floor = Floor(13);
const XTASK: Room = Room { name: "xtask", floor: Floor(14) };
/// Drivers that are written like those of outside crates. They may name all crates, and no crate names them.
const OUTSIDE: Room = Room { name: "outside", floor: ROOF };
/// The folder of those drivers.
const OUTSIDE_DIR: &str = "tests/drivers/";
/// The fuzzers: a workspace of their own, whose programs name the code they fuzz.
const FUZZ: Room = Room { name: "fuzz", floor: ROOF };
/// Back-ends of other crates that we are measured against: a workspace of their own, whose tests name `vhost-front`.
const VHOST_PEERS: Room = Room { name: "vhost-peers", floor: ROOF };
/// Crates for the tests of all floors: no product code depends on them.
const FOR_TESTS: [&str; 3] = ["testkit", "guest", "vhost-front"];

const ROOMS: &[Room] = &[
    Room { name: FOR_TESTS[0], floor: Floor(0) },
    Room { name: FOR_TESTS[1], floor: Floor(0) },
    Room { name: FOR_TESTS[2], floor: Floor(0) },
    Room { name: "base", floor: Floor(1) },
    Room { name: "kring", floor: Floor(2) },
    Room { name: "blk", floor: Floor(3) },
    Room { name: "drivers", floor: Floor(4) },
    Room { name: "conformance", floor: Floor(5) },
    Room { name: "iomap", floor: Floor(5) },
    Room { name: "uring", floor: Floor(6) },
    Room { name: "vol", floor: Floor(6) },
    Room { name: "nbd", floor: Floor(7) },
    Room { name: "varlink", floor: Floor(7) },
    Room { name: "vhost", floor: Floor(7) },
    Room { name: "serve", floor: Floor(8) },
    Room { name: "nbd-client", floor: Floor(10) },
    Room { name: "rbd", floor: Floor(10) },
    Room { name: "load", floor: Floor(11) },
    Room { name: "daemon", floor: Floor(12) },
    Room { name: "lab", floor: ROOF },
    Room { name: "cli", floor: ROOF },
    Room { name: "sim", floor: ROOF },
];

/// Finds dependencies and names that do not point to a lower floor.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in &tree.manifests {
        let Some(from) = room_of(path) else {
            findings.push(Finding::new(path, 1, "this crate has no floor: add it to the table in tidy/floors.rs"));
            continue;
        };
        for entry in parse_manifest(text).iter().filter(|entry| entry.section.ends_with("dependencies")) {
            if entry.section.starts_with("workspace") {
                continue;
            }
            let package = entry.key.split('.').next().unwrap_or_default();
            let for_tests = entry.section.ends_with("dev-dependencies");
            if let Some(why) = target(package, '-').and_then(|to| forbidden(from, to, for_tests)) {
                findings.push(Finding::new(path, entry.line, why));
            }
        }
    }
    for source in &tree.sources {
        let Some(from) = room_of(&source.path) else { continue };
        for (at, name) in crate_names(&source.code) {
            let line = source.line_of(at);
            if let Some(why) = target(name, '_').and_then(|to| forbidden(from, to, source.is_test_line(line))) {
                findings.push(Finding::new(&source.path, line, why));
            }
        }
    }
    findings
}

/// Returns the reason if `from` must not name `to`.
fn forbidden(from: &Room, to: &Room, for_tests: bool) -> Option<String> {
    if from.name == to.name {
        return None;
    }
    if FOR_TESTS.contains(&to.name) {
        let ok = for_tests || from.floor == XTASK.floor || FOR_TESTS.contains(&from.name);
        return (!ok).then(|| format!("`{}` is for tests only: make it a dev-dependency", to.name));
    }
    if to.floor >= ROOF {
        return Some(format!("nothing depends on `{}`: it is a roof", to.name));
    }
    let (a, b) = (from.floor, to.floor);
    (b >= a).then(|| format!("`{}` (floor {a}) must not name `{}` (floor {b}): arrows point down", from.name, to.name))
}

/// Returns the crate to which the file at a path belongs.
fn room_of(path: &str) -> Option<&'static Room> {
    if path.starts_with(OUTSIDE_DIR) {
        return Some(&OUTSIDE);
    }
    let Some(name) = workspace::crate_of(path) else { return Some(&FACADE) };
    [&FUZZ, &VHOST_PEERS, &XTASK].into_iter().chain(ROOMS).find(|room| room.name == name)
}

/// Returns the crate with a package name, if it is one of the workspace.
fn target(name: &str, separator: char) -> Option<&'static Room> {
    match name.strip_prefix("sheave") {
        Some("") => Some(&FACADE),
        Some(rest) if rest.strip_prefix(separator).is_some_and(|rest| rest.starts_with(OUTSIDE.name)) => Some(&OUTSIDE),
        Some(rest) => {
            let name = rest.strip_prefix(separator)?.replace('_', "-"); // as code writes it
            ROOMS.iter().find(|room| room.name == name)
        }
        None => (name == XTASK.name).then_some(&XTASK),
    }
}

/// Returns the words of `code` that may be crates of the workspace: `sheave_*`, and `sheave` before `::`.
fn crate_names(code: &str) -> impl Iterator<Item = (usize, &str)> {
    let bytes = code.as_bytes();
    code.match_indices("sheave").filter_map(move |(at, word)| {
        if at > 0 && is_word(bytes[at - 1]) {
            return None;
        }
        // `cfg(sheave_lab)` tests a flag of the build, and names no crate.
        if ["cfg(", "cfg!(", "not("].iter().any(|before| code[..at].ends_with(before)) {
            return None;
        }
        let end = at + bytes[at..].iter().position(|&b| !is_word(b)).unwrap_or(bytes.len() - at);
        let name = &code[at..end];
        (name != word || code[end..].starts_with("::")).then_some((at, name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(path: &str, text: &str) -> Vec<String> {
        check(&Tree::of(&[(path, text)])).into_iter().map(|finding| finding.to_string()).collect()
    }

    fn depends(from: &str, section: &str, to: &str) -> bool {
        let path = if from.is_empty() { "Cargo.toml".to_owned() } else { format!("crates/{from}/Cargo.toml") };
        messages(&path, &format!("[{section}]\n{to}.workspace = true\n")).is_empty()
    }

    #[test]
    fn arrows_point_down_in_manifests() {
        for (from, to) in
            [("blk", "sheave-base"), ("uring", "sheave-iomap"), ("serve", "sheave-vol"), ("cli", "sheave")]
        {
            assert!(depends(from, "dependencies", to), "{from} -> {to}");
        }
        for (from, to) in [("base", "sheave-blk"), ("iomap", "sheave-uring"), ("blk", "sheave"), ("cli", "sheave-lab")]
        {
            assert!(!depends(from, "dependencies", to), "{from} -> {to}");
            assert!(!depends(from, "dev-dependencies", to), "{from} -> {to} in tests");
            assert!(!depends(from, "target.'cfg(unix)'.dependencies", to), "{from} -> {to} for a target");
        }
        assert!(depends("", "dependencies", "sheave-uring"), "the facade assembles");
        assert!(depends("", "workspace.dependencies", "sheave-cli"), "a table of versions is no arrow");
        assert!(!depends("", "dependencies", "sheave-cli"), "nothing depends on a roof");
        assert!(!depends("cli", "dependencies", "xtask"), "nothing depends on a roof");
    }

    #[test]
    fn adjacent_floors_point_down_only() {
        for (from, to) in
            [("kring", "base"), ("blk", "kring"), ("drivers", "blk"), ("drivers", "kring"), ("iomap", "drivers")]
        {
            assert!(depends(from, "dependencies", &format!("sheave-{to}")), "{from} -> {to}");
            assert!(!depends(to, "dev-dependencies", &format!("sheave-{from}")), "{to} -> {from}, even in tests");
        }
        let up = messages("crates/blk/src/a.rs", "use sheave_drivers::null;");
        assert_eq!(up, ["crates/blk/src/a.rs:1: `blk` (floor 3) must not name `drivers` (floor 4): arrows point down"]);
    }

    #[test]
    fn crates_on_one_floor_never_meet() {
        assert!(!depends("uring", "dependencies", "sheave-vol"));
        assert!(!depends("vol", "dependencies", "sheave-uring"));
        assert!(messages("crates/vol/src/pool.rs", "use sheave_uring::Ring;")[0].contains("must not name `uring`"));
    }

    #[test]
    fn the_test_kit_is_for_tests() {
        assert!(depends("base", "dev-dependencies", "sheave-testkit"));
        assert!(!depends("base", "dependencies", "sheave-testkit"));
        assert!(depends("serve", "dev-dependencies", "sheave-vhost-front"));
        assert!(!depends("serve", "dependencies", "sheave-vhost-front"), "it shares no code with the product");
        assert!(depends("cli", "dev-dependencies", "sheave-guest") && !depends("cli", "dependencies", "sheave-guest"));
        assert!(depends("guest", "dependencies", "sheave-testkit"), "a part of the tests uses another");
        let code = "fn a() { sheave_testkit::skip(\"\") }\n#[cfg(test)]\nmod t { use sheave_testkit::skip; }\n";
        assert_eq!(messages("crates/base/src/a.rs", code).len(), 1);
    }

    #[test]
    fn arrows_point_down_in_code() {
        let up = messages("crates/blk/src/queue.rs", "//! x\n\nfn f(r: &sheave_uring::Ring) {}\n");
        assert_eq!(
            up,
            ["crates/blk/src/queue.rs:3: `blk` (floor 3) must not name `uring` (floor 6): arrows point down"]
        );
        assert_eq!(messages("crates/blk/tests/t.rs", "use sheave::Ring;").len(), 1, "tests too");
        assert!(messages("crates/uring/src/a.rs", "use sheave_iomap::File; // sheave_cli\nlet sheave = 1;").is_empty());
        assert!(messages("src/lib.rs", "pub use sheave_uring as uring;").is_empty());
        assert!(
            messages("crates/blk/src/a.rs", "#[cfg(sheave_lab)]\nfn f() { cfg!(sheave_lab); }").is_empty(),
            "a build"
        );
        assert_eq!(messages("crates/blk/src/a.rs", "#[cfg(sheave_lab)]\nuse sheave_lab::Lab;").len(), 1, "the crate");
    }

    #[test]
    fn nothing_names_the_drivers_of_outside_crates() {
        assert!(
            messages("tests/drivers/xor/src/a.rs", "fn f(r: &sheave_load::Looper, d: sheave::Device) {}\n").is_empty()
        );
        let named = messages("crates/load/src/a.rs", "use sheave_outside_xor::register;\n");
        assert!(named.len() == 1 && named[0].contains("roof"), "{named:?}");
    }

    #[test]
    fn a_crate_without_a_floor_is_found() {
        assert!(messages("crates/attic/Cargo.toml", "")[0].contains("has no floor"));
    }
}
