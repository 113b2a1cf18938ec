//! One check of the doctor: what was looked at, what was found, and how to mend it.

use serde::Serialize;

/// How a check went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// Works, but not as well as it could.
    Warn,
    /// Keeps `file:` devices from working.
    Fail,
}

/// One check.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// What was looked at.
    pub name: &'static str,
    /// How it went.
    pub status: Verdict,
    /// What was found.
    pub found: String,
    /// How to mend it, in one line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl Check {
    /// As it should be.
    pub fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, status: Verdict::Ok, found: found.into(), fix: None }
    }

    /// Could be better.
    pub fn warn(name: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { name, status: Verdict::Warn, found: found.into(), fix: Some(fix.into()) }
    }

    /// Does not work.
    pub fn fail(name: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { name, status: Verdict::Fail, found: found.into(), fix: Some(fix.into()) }
    }
}
