//! Results on stdout, as all programs here write them ([`sheave_load::output`]); a failure is one of this command.

use serde::Serialize;

use crate::failure::Failure;

pub use sheave_load::output::text;

/// Writes exactly one JSON object to stdout.
pub fn json<T: Serialize>(value: &T) -> Result<(), Failure> {
    Ok(sheave_load::output::json(value)?)
}
