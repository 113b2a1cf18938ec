//! Checks that every file of `tests/` is part of a test program. Applies to crates that join their tests into a few
//! programs (`autotests = false`).
//!
//! Cargo does not search for tests in such a crate. A file that neither the manifest nor a program names would never be
//! compiled, and its tests would seem to pass.

use super::finding::Finding;
use super::tree::Tree;
use crate::workspace::parse_manifest;

pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in &tree.manifests {
        let entries = parse_manifest(text);
        if !entries.iter().any(|entry| entry.key == "autotests" && entry.value == "false") {
            continue;
        }
        let dir = path.trim_end_matches("Cargo.toml").to_owned() + "tests/";
        let names = entries.iter().filter(|entry| entry.section == "test" && entry.key == "name");
        let programs: Vec<&str> = names.map(|entry| entry.value.trim_matches('"')).collect();
        let modules: Vec<&str> = programs
            .iter()
            .filter_map(|name| tree.source(&format!("{dir}{name}.rs")))
            .flat_map(|program| program.text.lines())
            .filter_map(|line| line.trim().strip_prefix("mod ")?.strip_suffix(';'))
            .collect();
        for source in &tree.sources {
            let Some(name) = source.path.strip_prefix(&dir).and_then(|file| file.strip_suffix(".rs")) else { continue };
            let (is_program, name) = name.strip_suffix("/main").map_or((false, name), |dir| (true, dir));
            let joined = !is_program && modules.contains(&name);
            if !name.contains('/') && !programs.contains(&name) && !joined {
                let message = format!("nobody compiles it: name it in a program of {dir}, or as a [[test]] in {path}");
                findings.push(Finding::new(&source.path, 1, message));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = "[package]\nname = \"a\"\nautotests = false # one program\n\n[[test]]\nname = \"all\"\n";

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        check(&Tree::of(files)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn programs_their_modules_and_what_is_below_them_are_compiled() {
        let all = ("crates/a/tests/all.rs", "//! x\nmod one;\nmod support;\n");
        let others =
            [("crates/a/tests/one.rs", ""), ("crates/a/tests/support/mod.rs", ""), ("crates/b/tests/two.rs", "")];
        let files =
            [&[("crates/a/Cargo.toml", MANIFEST), ("crates/b/Cargo.toml", "[package]\n"), all], &others[..]].concat();
        assert_eq!(found(&files), Vec::<String>::new());
    }

    #[test]
    fn a_file_that_no_program_names_is_found() {
        let files = [
            ("crates/a/Cargo.toml", MANIFEST),
            ("crates/a/tests/all.rs", "//! x\n// mod two;\nmod one;\n"),
            ("crates/a/tests/one.rs", ""),
            ("crates/a/tests/two.rs", ""),
            ("crates/a/tests/three/main.rs", ""),
        ];
        let found = found(&files);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("tests/two.rs") && found[1].contains("tests/three/main.rs"), "{found:?}");
    }

    #[test]
    fn the_crates_that_join_their_tests_are_looked_at() {
        let tree = Tree::read(&crate::workspace::root()).expect("the repository");
        let joined = tree.manifests.iter().filter(|(_, text)| text.contains("autotests = false")).count();
        assert!(joined >= 3, "uring, vol and the simulator");
        let mut tree = tree;
        tree.sources.push(super::super::source::Source::new("crates/uring/tests/forgotten.rs", "//! x\n"));
        assert_eq!(check(&tree).len(), 1);
    }
}
