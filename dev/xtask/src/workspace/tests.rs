//! Tests of the Cargo.toml parser.

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
