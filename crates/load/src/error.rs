//! Errors of a load, as text for the user at the terminal: the cause, then the fix.

use std::fmt;

/// A failure of a run: the cause and, if there is one, the fix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadError {
    /// The cause, in one line.
    pub cause: String,
    /// The fix.
    pub fix: Option<String>,
    /// True if the arguments make no sense; then nothing ran.
    pub usage: bool,
}

impl LoadError {
    /// Makes the error of a run that failed.
    pub fn run(cause: impl Into<String>) -> Self {
        Self { cause: cause.into(), fix: None, usage: false }
    }

    /// Makes the error of arguments that make no sense.
    pub fn usage(cause: impl Into<String>) -> Self {
        Self { cause: cause.into(), fix: None, usage: true }
    }

    /// Adds the fix.
    pub fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.cause)?;
        match &self.fix {
            Some(fix) => write!(f, ". {fix}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for LoadError {}
