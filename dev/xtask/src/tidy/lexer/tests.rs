//! Tests of what is code, what is comment, and what is neither.

use super::*;

fn code(text: &str) -> String {
    let lexed = lex(text);
    assert_eq!(lexed.code.len(), text.len(), "I1");
    assert_eq!(lexed.comments.len(), text.len(), "I1");
    lexed.code.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn comments(text: &str) -> String {
    lex(text).comments.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn comments_are_not_code() {
    assert_eq!(code("a // unsafe\nb /* x /* nested */ y */ c"), "a b c");
    assert_eq!(comments("a // one\nb /* x /* n */ y */ c"), "// one /* x /* n */ y */");
}

#[test]
fn strings_are_neither() {
    for text in [
        r#"f("unsafe // \" no") g"#,
        r##"f(r#"a " // b"#) g"##,
        r#"f(b"x\\") g"#,
        "f(br\"//\") g",
        "f('\"') g",
        "f(b'\"') g",
    ] {
        assert_eq!(code(text), "f( ) g", "{text}");
        assert_eq!(comments(text), "", "{text}");
    }
}

#[test]
fn characters_and_lifetimes_are_told_apart() {
    assert_eq!(code(r"f('\'') g"), "f( ) g");
    assert_eq!(code(r"f('\u{1F600}') g"), "f( ) g");
    assert_eq!(code("f('é') g('日') h('😀') i"), "f( ) g( ) h( ) i");
    assert_eq!(code("fn f<'a>(x: &'a str) {}"), "fn f<'a>(x: &'a str) {}");
    assert_eq!(code("'outer: loop { break 'outer; }"), "'outer: loop { break 'outer; }");
}

#[test]
fn an_unfinished_token_ends_with_the_file() {
    for text in ["\"abc", "/* abc", "r#\"abc", "'", "'\\", "\"\\"] {
        code(text);
    }
}

#[test]
fn a_word_is_found_whole_only() {
    assert_eq!(find_word("unsafe unsafe_code xunsafe unsafe", "unsafe").collect::<Vec<_>>(), [0, 27]);
    assert_eq!(find_word("a.unwrap() b.unwrap_or()", ".unwrap()").collect::<Vec<_>>(), [1]);
}
