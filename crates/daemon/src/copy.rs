//! Copies images into volumes and out of them, for a command or for the daemon on behalf of one.
//!
//! | module | holds |
//! |---|---|
//! | [`source`], [`sink`] | input and output of a copy |
//! | [`lanes`] | a ring with the volume attached, and its buffers |
//! | [`import`], [`export`] | raw images |
//! | [`export_diff`], [`import_diff`], [`patch`] | changes between snapshots |
//! | [`interim`] | the temporary volume that an import fills |
//! | [`rescue`] | an export that continues past unreadable blocks |

pub mod export;
pub mod export_diff;
pub mod import;
pub mod import_diff;
mod interim;
pub mod lanes;
mod patch;
pub mod rescue;
pub mod sink;
pub mod source;

use crate::failure::Failure;

/// Receives the progress of a copy.
pub trait Meter {
    /// Adds `bytes` to those done.
    fn advance(&mut self, bytes: u64);
}

/// Asks the user to confirm the question in the argument. An error ends the copy before it has changed anything.
pub type Ask<'a> = &'a mut dyn FnMut(&str) -> Result<(), Failure>;

/// An [`Ask`] that confirms everything, for callers that have asked already.
///
/// # Errors
///
/// Never fails.
pub fn agreed(_: &str) -> Result<(), Failure> {
    Ok(())
}
