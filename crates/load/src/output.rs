//! Writing results to stdout without dying of a closed pipe.
//!
//! `println!` panics when the reader went away (`sheave bench ... | head -1`); a result that nobody
//! reads any more is not an error of the run.

use std::io::Write;

use serde::Serialize;

use crate::error::LoadError;

/// Writes text to stdout as it is.
pub fn text(text: &str) {
    // A closed pipe means that the reader has seen enough.
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

/// Writes exactly one JSON object to stdout.
pub fn json<T: Serialize>(value: &T) -> Result<(), LoadError> {
    let mut line = serde_json::to_string_pretty(value)
        .map_err(|err| LoadError::run(format!("the report does not fit into JSON: {err}")))?;
    line.push('\n');
    text(&line);
    Ok(())
}
