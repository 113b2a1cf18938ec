//! Why a load could not be driven, in words for the person at the terminal: the cause, then the fix.

use std::fmt;

/// A failure of a run: the cause and, where there is one, what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadError {
    /// What went wrong, in one line.
    pub cause: String,
    /// What to do about it.
    pub fix: Option<String>,
    /// What was asked makes no sense, so that nothing ran.
    pub usage: bool,
}

impl LoadError {
    /// The run failed.
    pub fn run(cause: impl Into<String>) -> Self {
        Self { cause: cause.into(), fix: None, usage: false }
    }

    /// What was asked makes no sense.
    pub fn usage(cause: impl Into<String>) -> Self {
        Self { cause: cause.into(), fix: None, usage: true }
    }

    /// Says what to do about it.
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
