//! An event ready for output: message and fields, of bounded length, without control characters (L3 of the log).

use std::fmt::{self, Write};

use tracing::Level;
use tracing::field::{Field, Visit};

/// Maximum length of a message or field (L3).
pub(super) const MAX_BYTES: usize = 2048;
/// Maximum number of fields.
const MAX_FIELDS: usize = 16;

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) message: String,
    pub(super) fields: Vec<(&'static str, String)>,
}

impl Line {
    /// Formats the event for stderr.
    pub(super) fn words(&self, level: Level) -> String {
        let grade = match level {
            Level::ERROR => "error: ",
            Level::WARN => "warning: ",
            _ => "",
        };
        let mut words = format!("{grade}{}", self.message);
        for (name, value) in &self.fields {
            let quoted = value.is_empty() || value.contains([' ', '"', '=']);
            // Writing to a String does not fail.
            let _ = if quoted {
                write!(words, " {name}=\"{}\"", value.replace('"', "'"))
            } else {
                write!(words, " {name}={value}")
            };
        }
        words
    }
}

/// Escapes control characters and limits the length (L3).
fn clean(text: &str) -> String {
    let mut clean = String::with_capacity(text.len().min(MAX_BYTES));
    for letter in text.chars() {
        if clean.len() >= MAX_BYTES {
            clean.push_str("...");
            break;
        }
        if letter.is_control() || letter == '\u{2028}' || letter == '\u{2029}' {
            clean.extend(letter.escape_default());
        } else {
            clean.push(letter);
        }
    }
    clean
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = clean(&format!("{value:?}"));
        if field.name() == "message" {
            self.message = text;
        } else if self.fields.len() < MAX_FIELDS {
            self.fields.push((field.name(), text));
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}
