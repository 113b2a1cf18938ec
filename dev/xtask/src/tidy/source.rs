//! A Rust file for the checks: text, code, comments, functions, and its test regions.
//!
//! Finds functions and test regions from words and matching braces, without a parser. That is exact for code formatted
//! by rustfmt.

use std::ops::Range;

use super::lexer::{self, find_word, is_word};

pub struct Source {
    /// Path relative to the repository's root, with `/`.
    pub path: String,
    /// The whole text.
    pub text: String,
    /// The text with everything but code blanked, with the same offsets.
    pub code: String,
    /// The text with everything but comments blanked, with the same offsets.
    pub comments: String,
    /// True if the whole file is test code.
    pub is_test: bool,
    /// Lines of test code in a product file.
    test_lines: Vec<Range<usize>>,
}

/// A function with a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    pub name: String,
    /// Line of the word `fn`.
    pub line: usize,
    /// Lines from `fn` to the closing brace, both included.
    pub lines: usize,
}

impl Source {
    /// Makes a source of `text` as the file at `path`.
    pub fn new(path: &str, text: &str) -> Self {
        let lexed = lexer::lex(text);
        let mut source = Self {
            path: path.to_owned(),
            text: text.to_owned(),
            code: lexed.code,
            comments: lexed.comments,
            is_test: is_test_path(path),
            test_lines: Vec::new(),
        };
        source.test_lines = source.test_regions();
        source
    }

    /// Returns the file's name without folders and `.rs`. For `mod.rs` it is the folder's name.
    pub fn module(&self) -> &str {
        let stem = self.path.trim_end_matches(".rs");
        let mut parts = stem.rsplit('/');
        match parts.next().unwrap_or(stem) {
            "mod" => parts.next().unwrap_or("mod"),
            name => name,
        }
    }

    /// Returns the number of the line in which an offset lies, from 1.
    pub fn line_of(&self, offset: usize) -> usize {
        1 + self.text.as_bytes()[..offset].iter().filter(|&&b| b == b'\n').count()
    }

    pub fn is_test_line(&self, line: usize) -> bool {
        self.is_test || self.test_lines.iter().any(|lines| lines.contains(&line))
    }

    /// Returns the numbers of the lines in product code that contain `word`.
    pub fn product_lines(&self, word: &str) -> Vec<usize> {
        let lines = find_word(&self.code, word).map(|at| self.line_of(at));
        lines.filter(|&line| !self.is_test_line(line)).collect()
    }

    /// Returns every function with a body, nested ones included.
    pub fn functions(&self) -> Vec<Function> {
        let found = find_word(&self.code, "fn").filter_map(|at| {
            let name = word_at(&self.code, at + 2)?;
            let end = self.body_end(at)?;
            let line = self.line_of(at);
            Some(Function { name: name.to_owned(), line, lines: self.line_of(end) - line + 1 })
        });
        found.collect()
    }

    /// Returns the modules with files of their own that exist only for tests: `#[cfg(test)] mod NAME;`.
    pub fn test_modules(&self) -> Vec<&str> {
        let found = self.test_attributes().filter_map(|end| {
            let item = self.code[end..].trim_start();
            let item = item.strip_prefix("pub(crate) ").unwrap_or(item);
            let (name, rest) = split_word(item.strip_prefix("mod ")?);
            rest.trim_start().starts_with(';').then_some(name)
        });
        found.collect()
    }

    /// Returns the offset of the brace that closes the body of the item at `at`. Returns `None` for an item without a
    /// body.
    fn body_end(&self, at: usize) -> Option<usize> {
        let bytes = self.code.as_bytes();
        let mut nested = 0; // open parentheses and brackets of the signature: `[u8; 4]` has a semicolon too
        let open = (at..bytes.len()).find(|&i| {
            match bytes[i] {
                b'(' | b'[' => nested += 1,
                b')' | b']' => nested -= 1,
                _ => {}
            }
            nested == 0 && matches!(bytes[i], b'{' | b';')
        })?;
        if bytes[open] == b';' {
            return None;
        }
        let mut depth = 0;
        (open..bytes.len()).find(|&i| {
            match bytes[i] {
                b'{' => depth += 1,
                b'}' => depth -= 1,
                _ => {}
            }
            depth == 0
        })
    }

    fn test_regions(&self) -> Vec<Range<usize>> {
        let tests = find_word(&self.code, "#[test]").map(|at| at + "#[test]".len());
        let ends = self.test_attributes().chain(tests);
        ends.filter_map(|end| Some(self.line_of(end)..self.line_of(self.body_end(end)?) + 1)).collect()
    }

    /// Returns the end of each attribute that compiles its item only for tests.
    fn test_attributes(&self) -> impl Iterator<Item = usize> {
        self.code.match_indices("#[cfg(").filter_map(|(at, open)| {
            let condition = &self.code[at + open.len()..];
            let (first, rest) = split_word(condition);
            let only_tests = first == "test" || (first == "all" && split_word(&rest[1..]).0 == "test");
            let end = at + self.code[at..].find(")]")? + 2;
            only_tests.then_some(end)
        })
    }
}

/// Returns true for paths of files that contain only tests.
fn is_test_path(path: &str) -> bool {
    let is_test_dir = |part: &str| matches!(part, "tests" | "benches" | "fuzz");
    path.ends_with("/tests.rs") || path.split('/').any(is_test_dir) || path.starts_with("dev/testkit/")
}

fn split_word(text: &str) -> (&str, &str) {
    text.split_at(text.bytes().position(|b| !is_word(b)).unwrap_or(text.len()))
}

fn word_at(text: &str, at: usize) -> Option<&str> {
    let rest = &text[at..];
    let trimmed = rest.trim_start();
    let (word, _) = split_word(trimmed.strip_prefix("r#").unwrap_or(trimmed));
    (trimmed.len() < rest.len() && !word.is_empty()).then_some(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn functions(text: &str) -> Vec<(String, usize, usize)> {
        Source::new("a.rs", text).functions().into_iter().map(|f| (f.name, f.line, f.lines)).collect()
    }

    #[test]
    fn functions_are_measured_from_fn_to_brace() {
        let text = "/// Doc.\n#[inline]\npub fn one(\n    a: [u8; 4],\n) {\n    let s = \"}\";\n}\nfn two() {}\n";
        assert_eq!(functions(text), [("one".into(), 3, 5), ("two".into(), 8, 1)]);
    }

    #[test]
    fn declarations_and_pointer_types_are_no_functions() {
        assert_eq!(functions("trait T { fn a(&self); fn b() {} }\ntype F = fn(u8) -> u8;\n"), [("b".into(), 1, 1)]);
    }

    #[test]
    fn a_nested_function_counts_by_itself_and_in_its_parent() {
        assert_eq!(functions("fn a() {\n    fn b() {\n    }\n}\n"), [("a".into(), 1, 4), ("b".into(), 2, 2)]);
    }

    #[test]
    fn test_code_inside_a_product_file_is_known() {
        let text =
            "fn a() { x.unwrap() }\n#[cfg(test)]\nmod tests {\n    fn b() { x.unwrap() }\n}\nfn c() { x.unwrap() }\n";
        assert_eq!(Source::new("src/a.rs", text).product_lines(".unwrap()"), [1, 6]);
        let text = "#[cfg(any(test, fuzz))]\nfn a() { x.unwrap() }\n#[cfg(not(test))]\nfn b() { x.unwrap() }\n";
        assert_eq!(Source::new("src/a.rs", text).product_lines(".unwrap()"), [2, 4], "not for tests only");
        let text = "#[cfg(all(test, loom))]\nmod m { fn a() { x.unwrap() } }\n#[test]\nfn t() { x.unwrap() }";
        assert!(Source::new("src/a.rs", text).product_lines(".unwrap()").is_empty());
    }

    #[test]
    fn test_files_are_known_by_path() {
        for path in ["crates/a/src/x/tests.rs", "tests/a.rs", "crates/a/benches/b.rs", "dev/testkit/src/lib.rs"] {
            assert!(Source::new(path, "").is_test, "{path}");
        }
        assert!(!Source::new("crates/a/src/latest.rs", "").is_test);
    }

    #[test]
    fn out_of_line_test_modules_are_named() {
        let text =
            "#[cfg(test)]\nmod tests;\n#[cfg(all(test, loom))]\nmod model;\n#[cfg(test)]\nmod inline {}\nmod real;\n";
        assert_eq!(Source::new("src/a.rs", text).test_modules(), ["tests", "model"]);
    }

    #[test]
    fn a_module_is_named_after_its_file_or_directory() {
        for (path, module) in [("src/op/nop.rs", "nop"), ("src/op/mod.rs", "op"), ("src/lib.rs", "lib")] {
            assert_eq!(Source::new(path, "").module(), module);
        }
    }
}
