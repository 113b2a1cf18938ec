//! A check: its subject, result and advice.

use serde::Serialize;

/// Verdict of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// No problem was found.
    Ok,
    /// Everything works, but not as well as it could.
    Warn,
    /// `file:` devices cannot work.
    Fail,
}

/// A check with its result.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// Subject of the check.
    pub name: &'static str,
    pub status: Verdict,
    /// Observed value.
    pub found: String,
    /// Advice, in one line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl Check {
    /// Makes a check without a problem.
    pub fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, status: Verdict::Ok, found: found.into(), fix: None }
    }

    /// Makes a check that shows room for improvement.
    pub fn warn(name: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { name, status: Verdict::Warn, found: found.into(), fix: Some(fix.into()) }
    }

    /// Makes a check that has failed.
    pub fn fail(name: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { name, status: Verdict::Fail, found: found.into(), fix: Some(fix.into()) }
    }
}
