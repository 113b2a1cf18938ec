//! Parser of interface definitions, and generator of a documentation page.
//!
//! Supports the subset of the language that the definitions of this repository use: types of structs and enums,
//! methods, errors, and the comments above them. Clients can query the definition; the page is generated from it.

use std::fmt::Write;

use thiserror::Error;

/// The error for an invalid definition.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("line {line}: {what}")]
pub struct IdlError {
    /// Line number, from 1.
    pub line: usize,
    pub what: String,
}

/// A parsed definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    pub name: String,
    /// Comment above the definition.
    pub doc: String,
    /// Types, methods and errors, in order.
    pub members: Vec<Member>,
}

/// Kind of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `type`
    Type,
    /// `method`
    Method,
    /// `error`
    Error,
}

/// A type, method or error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub kind: Kind,
    pub name: String,
    /// Comment above the member.
    pub doc: String,
    /// Fields of a struct or error, names of an enum, or parameters of a method.
    pub input: Vec<Field>,
    /// Fields of the reply of a method.
    pub output: Vec<Field>,
}

/// A field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    pub name: String,
    /// Type as written in the definition; empty in an enum.
    pub kind: String,
    /// Comment above the field.
    pub doc: String,
}

/// A token, with the comment before it.
#[derive(Clone, Debug)]
struct Token {
    text: String,
    line: usize,
    doc: String,
}

struct Reader {
    tokens: Vec<Token>,
    at: usize,
}

/// Parses a definition.
///
/// # Errors
///
/// Returns a syntax error, or a type that is not defined, with its line.
pub fn parse(text: &str) -> Result<Interface, IdlError> {
    let mut reader = Reader { tokens: tokens(text), at: 0 };
    let first = reader.take("interface")?;
    let name = reader.word("the name of the interface")?;
    let mut members = Vec::new();
    while reader.at < reader.tokens.len() {
        members.push(reader.member()?);
    }
    let interface = Interface { name: name.text, doc: first.doc, members };
    interface.check()?;
    Ok(interface)
}

fn tokens(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut doc = String::new();
    for (number, line) in text.lines().enumerate() {
        let (code, comment) = match line.split_once('#') {
            Some((code, comment)) => (code, Some(comment)),
            None => (line, None),
        };
        if code.trim().is_empty() && comment.is_none() {
            doc.clear();
        }
        let mut rest = code.trim();
        while let Some(first) = rest.chars().next() {
            let is_word = |char: char| char.is_alphanumeric() || matches!(char, '_' | '.');
            let len = match first {
                _ if is_word(first) => rest.find(|char| !is_word(char)).unwrap_or(rest.len()),
                _ if rest.starts_with("->") || rest.starts_with("[]") => 2,
                _ if rest.starts_with("[string]") => "[string]".len(),
                _ => first.len_utf8(),
            };
            tokens.push(Token { text: rest[..len].into(), line: number + 1, doc: std::mem::take(&mut doc) });
            rest = rest[len..].trim_start();
        }
        if let Some(comment) = comment {
            doc += if doc.is_empty() { "" } else { "\n" };
            doc += comment.trim();
        }
    }
    tokens
}

impl Reader {
    fn error(&self, what: impl Into<String>) -> IdlError {
        let line = self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |token| token.line);
        IdlError { line, what: what.into() }
    }

    fn peek(&self) -> &str {
        self.tokens.get(self.at).map_or("", |token| token.text.as_str())
    }

    fn take(&mut self, text: &str) -> Result<Token, IdlError> {
        if self.peek() != text {
            return Err(self.error(format!("'{text}' must stand here, not '{}'", self.peek())));
        }
        self.at += 1;
        Ok(self.tokens[self.at - 1].clone())
    }

    fn word(&mut self, what: &str) -> Result<Token, IdlError> {
        if !self.peek().starts_with(char::is_alphabetic) {
            return Err(self.error(format!("{what} must stand here, not '{}'", self.peek())));
        }
        self.at += 1;
        Ok(self.tokens[self.at - 1].clone())
    }

    fn member(&mut self) -> Result<Member, IdlError> {
        let first = self.word("type, method or error")?;
        let kind = match first.text.as_str() {
            "type" => Kind::Type,
            "method" => Kind::Method,
            "error" => Kind::Error,
            other => return Err(self.error(format!("'{other}' is neither type, method nor error"))),
        };
        let name = self.word("a name")?;
        if !name.text.starts_with(char::is_uppercase) {
            return Err(self.error(format!("the name '{}' must begin with a capital letter", name.text)));
        }
        let input = self.fields()?;
        let output = if kind == Kind::Method {
            self.take("->")?;
            self.fields()?
        } else {
            Vec::new()
        };
        Ok(Member { kind, name: name.text, doc: first.doc, input, output })
    }

    fn fields(&mut self) -> Result<Vec<Field>, IdlError> {
        self.take("(")?;
        let mut fields = Vec::new();
        while self.peek() != ")" {
            if !fields.is_empty() {
                self.take(",")?;
            }
            let name = self.word("the name of a field")?;
            let kind = if self.peek() == ":" {
                self.at += 1;
                self.kind()?
            } else {
                String::new()
            };
            fields.push(Field { name: name.text, kind, doc: name.doc });
        }
        self.at += 1;
        Ok(fields)
    }

    fn kind(&mut self) -> Result<String, IdlError> {
        let mut kind = String::new();
        while matches!(self.peek(), "?" | "[]" | "[string]") {
            kind += self.peek();
            self.at += 1;
        }
        kind += &self.word("a type")?.text;
        Ok(kind)
    }
}

impl Interface {
    /// Checks that all types in use are defined.
    fn check(&self) -> Result<(), IdlError> {
        let known = |kind: &str| {
            let kind = kind.trim_start_matches(['?', '[', ']']).trim_start_matches("string]");
            matches!(kind, "" | "bool" | "int" | "float" | "string" | "object")
                || self.members.iter().any(|member| member.kind == Kind::Type && member.name == kind)
        };
        for member in &self.members {
            for field in member.input.iter().chain(&member.output) {
                if !known(&field.kind) {
                    let what = format!("{}.{}: there is no type '{}'", member.name, field.name, field.kind);
                    return Err(IdlError { line: 1, what });
                }
            }
        }
        Ok(())
    }

    /// Generates the documentation page in Markdown.
    #[must_use]
    pub fn page(&self) -> String {
        let mut page = format!("# {}\n\n{}\n", self.name, self.doc);
        for (kind, title) in [(Kind::Method, "Methods"), (Kind::Type, "Types"), (Kind::Error, "Errors")] {
            // Writing to a string never fails.
            let _ = write!(page, "\n## {title}\n");
            for member in self.members.iter().filter(|member| member.kind == kind) {
                let _ = write!(page, "\n### {}\n\n{}\n", member.name, member.doc);
                rows(&mut page, if kind == Kind::Method { "takes" } else { "has" }, &member.input);
                rows(&mut page, "gives", &member.output);
            }
        }
        page
    }
}

fn rows(page: &mut String, what: &str, fields: &[Field]) {
    if fields.is_empty() {
        return;
    }
    let _ = write!(page, "\n| {what} | type | meaning |\n|---|---|---|\n");
    for field in fields {
        let kind = if field.kind.is_empty() { String::new() } else { format!("`{}`", field.kind) };
        let _ = writeln!(page, "| `{}` | {kind} | {} |", field.name, field.doc.replace('\n', " "));
    }
}

#[cfg(test)]
mod tests {
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
        assert!(
            page.contains("### GetInfo\n\nGet a list") && page.contains("| `interfaces` | `[]string` |  |"),
            "{page}"
        );
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
}
