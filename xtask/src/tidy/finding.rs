//! What a check of tidy reports: a place, and what is to be mended there.

use std::fmt;

/// One thing to mend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    path: String,
    /// From 1.
    pub(super) line: usize,
    message: String,
}

impl Finding {
    /// A finding in the file at `path`, which is relative to the repository's root.
    pub fn new(path: impl Into<String>, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.into(), line, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}
