//! Images into volumes and out of them, by a command or by the daemon for one.
//!
//! | module | holds |
//! |---|---|
//! | [`source`], [`sink`] | what is read, what is written |
//! | [`lanes`] | a ring with the volume attached |
//! | [`import`], [`export`] | raw images |
//! | [`export_diff`], [`import_diff`], [`patch`] | what changed between snapshots |
//! | [`interim`] | what an import fills before it is what was asked for |
//! | [`rescue`] | an export of all that can be read |

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

/// Who hears how far a copy is.
pub trait Meter {
    /// So many bytes more are done.
    fn advance(&mut self, bytes: u64);
}

/// Asks whether what the words say may be done; a refusal ends the copy before it has changed anything.
pub type Ask<'a> = &'a mut dyn FnMut(&str) -> Result<(), Failure>;

/// The answer of who was asked before.
///
/// # Errors
///
/// None.
pub fn agreed(_: &str) -> Result<(), Failure> {
    Ok(())
}
