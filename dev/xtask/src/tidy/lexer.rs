//! Separates code from comments and strings. Knows as much of Rust's lexical grammar as checks of lines and words need.
//!
//! Invariant I1: every output has the input's length and its newlines, so that offsets and lines agree between them.

/// The parts of a source text. In each part, spaces replace the other parts.
pub struct Lexed {
    /// Code without comments, and without the contents of strings and characters.
    pub code: String,
    pub comments: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Code,
    Comment,
    Text,
}

pub fn lex(text: &str) -> Lexed {
    let bytes = text.as_bytes();
    let mut kinds = vec![Kind::Code; bytes.len()];
    let mut at = 0;
    while at < bytes.len() {
        let (kind, end) = token(bytes, at);
        kinds[at..end].fill(kind);
        at = end;
    }
    let only = |kept: Kind| {
        let blank = |(&byte, &kind): (&u8, &Kind)| if byte == b'\n' || kind == kept { byte } else { b' ' };
        String::from_utf8_lossy(&bytes.iter().zip(&kinds).map(blank).collect::<Vec<u8>>()).into_owned()
    };
    Lexed { code: only(Kind::Code), comments: only(Kind::Comment) }
}

/// Returns the kind of the token at `at`, and its end.
fn token(bytes: &[u8], at: usize) -> (Kind, usize) {
    let rest = &bytes[at..];
    if rest.starts_with(b"//") {
        return (Kind::Comment, at + rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len()));
    }
    if rest.starts_with(b"/*") {
        return (Kind::Comment, at + block_comment(rest));
    }
    if rest[0] == b'"' {
        return (Kind::Text, at + quoted(rest));
    }
    if rest[0] == b'\'' {
        return character(rest).map_or((Kind::Code, at + 1), |len| (Kind::Text, at + len));
    }
    if is_word(rest[0]) {
        return word_or_raw(bytes, at);
    }
    (Kind::Code, at + 1)
}

/// Returns the end of a word, or of a string if the word is the prefix of one.
fn word_or_raw(bytes: &[u8], at: usize) -> (Kind, usize) {
    let end = at + bytes[at..].iter().position(|&b| !is_word(b)).unwrap_or(bytes.len() - at);
    if matches!(&bytes[at..end], b"r" | b"br" | b"cr") {
        let hashes = bytes[end..].iter().take_while(|&&b| b == b'#').count();
        if bytes.get(end + hashes) == Some(&b'"') {
            let close: Vec<u8> = [b'"'].into_iter().chain(std::iter::repeat_n(b'#', hashes)).collect();
            let body = end + hashes + 1;
            let len = bytes[body..].windows(close.len()).position(|window| window == close);
            return (Kind::Text, len.map_or(bytes.len(), |len| body + len + close.len()));
        }
    }
    let literal = match (&bytes[at..end], bytes.get(end)) {
        (b"b" | b"c", Some(b'"')) => Some(quoted(&bytes[end..])),
        (b"b", Some(b'\'')) => character(&bytes[end..]),
        _ => None,
    };
    literal.map_or((Kind::Code, end), |len| (Kind::Text, end + len))
}

fn block_comment(rest: &[u8]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        if rest[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

fn quoted(rest: &[u8]) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    rest.len() // also where a backslash ends the file
}

/// Returns the length of a character literal, or `None` for a lifetime.
fn character(rest: &[u8]) -> Option<usize> {
    let close = if rest.get(1) == Some(&b'\\') {
        3 + rest.get(3..)?.iter().position(|&b| b == b'\'')?
    } else {
        let text = std::str::from_utf8(&rest[1..rest.len().min(5)]);
        let len = match text {
            Ok(text) => text.chars().next()?.len_utf8(),
            Err(error) if error.valid_up_to() > 0 => {
                std::str::from_utf8(&rest[1..1 + error.valid_up_to()]).ok()?.chars().next()?.len_utf8()
            }
            Err(_) => return None,
        };
        1 + len
    };
    (rest.get(close) == Some(&b'\'')).then_some(close + 1)
}

/// Returns true if the byte can be part of an identifier.
pub fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Returns the offsets at which `word` is a whole word in `code`.
pub fn find_word<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let bytes = code.as_bytes();
    code.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let end = at + word.len();
        let first = bytes[at];
        let last = bytes[end - 1];
        (!is_word(first) || at == 0 || !is_word(bytes[at - 1]))
            && (!is_word(last) || end == bytes.len() || !is_word(bytes[end]))
    })
}

#[cfg(test)]
mod tests {
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
    fn strings_are_neither_code_nor_comment() {
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
}
