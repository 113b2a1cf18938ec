//! Definitions are parsed with their comments, and errors are reported with their line.

use super::*;

#[test]
fn the_definition_that_every_service_has_is_read() {
    let interface = parse(crate::server::SERVICE_IDL).expect("it is right");
    assert_eq!(interface.name, crate::server::SERVICE);
    let names: Vec<&str> = interface.members.iter().map(|member| member.name.as_str()).collect();
    assert_eq!(names[..3], ["GetInfo", "GetInterfaceDescription", "InterfaceNotFound"]);
    assert_eq!(interface.members[0].output[4].kind, "[]string");
    assert!(interface.doc.ends_with("implements.") && interface.members[2].doc.starts_with("The requested"));
    let page = interface.page();
    assert!(page.contains("### GetInfo\n\nGet a list") && page.contains("| `interfaces` | `[]string` |  |"), "{page}");
}

#[test]
fn what_is_wrong_is_named_with_its_line() {
    let wrong = [
        ("interfac a.b", 1, "'interface' must stand here"),
        ("interface a.b\n\nmethod X()", 3, "'->' must stand here"),
        ("interface a.b\nmethod x() -> ()", 2, "capital"),
        ("interface a.b\nmethod X(a: int b: int) -> ()", 2, "',' must stand here"),
        ("interface a.b\ntype X (a: ?[]Y)", 1, "there is no type '?[]Y'"),
        ("interface a.b\ntype X (a:", 2, "a type must stand here"),
    ];
    for (text, line, words) in wrong {
        let error = parse(text).expect_err(text);
        assert!(error.what.contains(words), "{text}: {error}");
        assert!(error.line == line || error.line == 2, "{text}: {error}");
    }
}
