//! Unit tests: the limits, the exceptions, and that they only shrink.

use super::*;

fn file(lines: usize) -> String {
    "//! x\n".repeat(lines)
}

fn function(lines: usize) -> String {
    format!("fn f() {{\n{}}}\n", "    x;\n".repeat(lines - 2))
}

fn messages(files: &[(&str, &str)]) -> Vec<String> {
    check(&Tree::of(files)).into_iter().map(|finding| finding.to_string()).collect()
}

#[test]
fn the_limits_themselves_pass() {
    assert!(messages(&[("a.rs", &file(600)), ("b.rs", &function(70))]).is_empty());
}

#[test]
fn one_line_more_is_found() {
    let found = messages(&[("a.rs", &file(601)), ("b.rs", &function(71))]);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].contains("file a.rs: 601 lines"), "{found:?}");
    assert!(found[1].contains("fn b.rs::f: 71 lines"), "{found:?}");
}

#[test]
fn an_exception_must_say_the_present_length() {
    let ratchet = |lines| format!("# why\nfn b.rs::f {lines}\n");
    assert!(messages(&[("b.rs", &function(80)), (RATCHET, &ratchet(80))]).is_empty());
    let grown = messages(&[("b.rs", &function(81)), (RATCHET, &ratchet(80))]);
    assert!(grown[0].contains("grew from 80 to 81"), "{grown:?}");
    let shrunk = messages(&[("b.rs", &function(79)), (RATCHET, &ratchet(80))]);
    assert!(shrunk[0].contains("shrank from 80 to 79"), "{shrunk:?}");
    let gone = messages(&[("c.rs", &function(9)), (RATCHET, &ratchet(80))]);
    assert!(gone[0].contains("is gone"), "{gone:?}");
    let junk = messages(&[(RATCHET, "file a.rs many\n")]);
    assert!(junk[0].contains("not `file PATH LINES`"), "{junk:?}");
}

#[test]
fn lowering_never_raises() {
    let text = "# kept\nfile gone.rs 700\nfn b.rs::f 90\nfn c.rs::f 75\nfn d.rs::f 99\n";
    let tree = Tree::of(&[
        ("b.rs", &function(80)),
        ("c.rs", &function(76)),
        ("d.rs", &function(70)),
        ("new.rs", &function(99)),
        (RATCHET, text),
    ]);
    let (text, changes) = lowered(&tree);
    assert_eq!(text, "# kept\nfn b.rs::f 80\nfn c.rs::f 75\n");
    assert_eq!(changes.len(), 3, "{changes:?}");
}
