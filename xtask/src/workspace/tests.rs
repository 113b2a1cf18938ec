//! Unit tests of the Cargo.toml reader.

use super::*;

const MANIFEST: &str = r##"
[package]
name = "sheave-x" # the name
[dependencies]
rustix.workspace = true
odd = { version = "1", features = [ # why
    "a#b",
] } # tail
[features]
default = []
shuttle = ["dep:shuttle"]
loom = []
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
            ("features", "default", 10),
            ("features", "shuttle", 11),
            ("features", "loom", 12),
        ]
    );
    assert_eq!((entries[0].value.as_str(), entries[0].comment.as_str()), ("\"sheave-x\"", "the name"));
    assert_eq!(entries[2].value, r##"{ version = "1", features = ["a#b",] }"##);
    assert_eq!(entries[2].comment, "why");
}

#[test]
fn a_member_has_its_name_and_features() {
    let member = member(MANIFEST);
    assert_eq!(member.name, "sheave-x");
    assert_eq!(member.features, ["default", "shuttle", "loom"]);
}

#[test]
fn this_repository_has_its_members() {
    let members = members().expect("crates/");
    assert!(members.iter().any(|member| member.name == "sheave-base"), "{members:?}");
}
