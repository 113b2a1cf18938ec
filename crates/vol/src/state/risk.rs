//! What is not durable, and so may be lost with a flush that fails.
//!
//! Owns the words. Their rules (L1 to L4) are in [`loss`](crate::engine::loss).

use super::everyone::Everyone;

/// What is not durable, and whether the list of it is.
#[derive(Debug)]
pub(crate) struct Risk {
    /// Writes that began in epochs before this one are durable (L1).
    pub(crate) safe: u64,
    /// An epoch that was ended, and those who may write in it or an earlier one.
    pub(crate) ended: Option<(Everyone, u64)>,
    /// Volumes that were deleted, with the epochs of their last writes: until that is durable they may come back.
    pub(crate) deleted: Vec<(u32, u64)>,
    /// The list is on the device, or there is nothing to list.
    pub(crate) listed: bool,
    /// The next checkpoint has no list; until one is durable.
    pub(crate) acknowledged: bool,
}

impl Default for Risk {
    fn default() -> Self {
        Risk { safe: 1, ended: None, deleted: Vec::new(), listed: false, acknowledged: false }
    }
}
