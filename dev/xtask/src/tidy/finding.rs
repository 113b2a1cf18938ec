//! The result of a check of tidy: a place, and the fault there.

use std::fmt;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    path: String,
    /// Line number, from 1.
    pub(super) line: usize,
    message: String,
}

impl Finding {
    /// Makes a finding in the file at `path`, which is relative to the repository's root.
    pub fn new(path: impl Into<String>, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.into(), line, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}
