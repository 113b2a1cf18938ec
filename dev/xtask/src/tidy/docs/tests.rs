//! Tests that valid names in pages pass, and that missing things are found.

use super::*;

const RING: &str = "//! The ring.\npub struct Ring {\n    pub depth: u32,\n}\npub enum State {\n    Idle,\n}\n\
    impl Ring {\n    pub fn submit(&mut self) {}\n}\n";

const XTASK_TABLE: &str = r#"//! Commands.
struct Command {
    name: &'static str,
}
const COMMANDS: &[Command] = &[
    Command { name: "test", run: test::main },
    Command {
        name: "tidy",
        run: tidy::main,
    },
];
"#;

fn messages(page: &str) -> Vec<String> {
    let tree = Tree::of(&[
        ("Cargo.toml", "[workspace.dependencies]\nio-uring = \"0.7\" # x\n"),
        ("README.md", "# Sheave\n\n## Quick start, now\n"),
        ("crates/uring/src/ring.rs", RING),
        ("crates/uring/src/op/nop.rs", "//! Nop.\npub fn issue() {}\n"),
        ("crates/uring/src/op/mod.rs", "//! Ops.\npub mod nop;\n"),
        ("src/lib.rs", "//! Facade.\npub use sheave_uring::{Ring, ring};\n"),
        ("dev/xtask/src/main.rs", XTASK_TABLE),
        ("docs/page.md", page),
    ]);
    check(&tree).into_iter().map(|finding| finding.to_string()).collect()
}

#[test]
fn what_exists_may_be_named() {
    for span in [
        "ring.rs",
        "op/nop.rs",
        "crates/uring/src/ring.rs",
        "crates/uring",
        "crates/uring/src/",
        "README.md",
        "ring.rs::submit",
        "ring::submit",
        "uring/src/ring.rs::Ring",
        "op/nop::issue",
        "nop::issue()",
        "op::nop",
        "Ring::submit",
        "Ring::submit(&mut self)",
        "Ring::depth",
        "State::Idle",
        "ring::Ring::submit",
        "sheave::Ring",
        "sheave_uring::ring::Ring",
        "std::sync::Arc",
        "io_uring::opcode",
        "Vec::with_capacity",
        "op/NAME.rs",
        "FILE.rs::FUNCTION",
        "cargo test",
        "null:size=1G",
        "file:PATH",
        "-errno",
        "/etc/fstab.txt",
        "a.img",
        "target/release/sheave",
        "~/x.rs",
        "*.rs",
        "",
    ] {
        let found = messages(&format!("See `{span}`.\n"));
        assert!(found.is_empty(), "{span}: {found:?}");
    }
}

#[test]
fn what_is_gone_is_found() {
    for (span, why) in [
        ("rings.rs", "no such file"),
        ("ing.rs", "no such file"),
        ("crates/vol", "no such file"),
        ("docs/gone.md", "no such file"),
        ("ring.rs::gone", "`gone` is not in"),
        ("ring::gone()", "`gone` is not in"),
        ("gone::submit", "no file, module or type `gone`"),
        ("Gone::submit", "no file, module or type `Gone`"),
        ("Ring::gone", "`gone` is not in"),
        ("sheave::Gone", "`Gone` is not in"),
        ("ring.rs:12", "a line number does not last"),
        ("op/nop.rs::submit", "`submit` is not in"),
    ] {
        let found = messages(&format!("Line one.\nSee `{span}`.\n"));
        assert_eq!(found.len(), 1, "{span}");
        assert!(found[0].starts_with("docs/page.md:2: ") && found[0].contains(why), "{found:?}");
    }
}

#[test]
fn fenced_blocks_are_not_prose() {
    assert!(messages("```text\nsee `gone.rs` and [x](gone.md)\n```\n").is_empty());
}

#[test]
fn links_lead_somewhere() {
    for link in ["../README.md", "../README.md#quick-start-now", "../crates/uring", "https://x.org/y", "#here"] {
        let found = messages(&format!("# Here\n[text]({link})\n"));
        assert!(found.is_empty(), "{link}: {found:?}");
    }
    for link in ["README.md", "../README.md#gone", "../crates/gone", "#gone"] {
        assert_eq!(messages(&format!("# Here\n[text]({link})\n")).len(), 1, "{link}");
    }
}

#[test]
fn commands_of_xtask_exist() {
    assert!(messages("`cargo xtask test --fail-fast`\n```\ncargo xtask tidy\n```\n").is_empty());
    assert_eq!(messages("```\ncargo xtask gone\n```\n").len(), 1);
}

#[test]
fn comments_name_files_that_exist() {
    let found = |text| check(&Tree::of(&[("src/lib.rs", text), ("docs/a.md", "")])).len();
    assert_eq!(found("//! See `docs/a.md` and `src/lib.rs`, `op/gone.rs`.\n"), 0, "only whole paths are a promise");
    assert_eq!(found("//! See `docs/gone.md`.\nfn f() {} // `crates/gone`\n"), 2);
}

#[test]
fn the_changelog_may_name_what_is_gone() {
    let tree = Tree::of(&[("CHANGELOG.md", "- removed `gone.rs`, see [x](gone.md)\n")]);
    assert_eq!(check(&tree).len(), 1, "links are still followed");
}
