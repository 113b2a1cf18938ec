//! Data that is not durable yet and may be lost by a failed flush.
//!
//! Owns the fields. Their rules (L1 to L4) are in [`loss`](crate::engine::loss).

use super::everyone::Everyone;

/// Epochs and volumes that are not durable, and the state of the list of losses.
#[derive(Debug)]
pub(crate) struct Risk {
    /// First epoch that is not known to be durable: writes that began in earlier epochs are durable (L1).
    pub(crate) safe: u64,
    /// An ended epoch, and the I/O that may still write in it or an earlier one.
    pub(crate) ended: Option<(Everyone, u64)>,
    /// Deleted volumes, with the epochs of their last writes. Until a delete is durable, a crash may bring the volume
    /// back.
    pub(crate) deleted: Vec<(u32, u64)>,
    /// True if the list of losses is on the device, or nothing has to be listed.
    pub(crate) listed: bool,
    /// True if the user has acknowledged the list, so that the next checkpoint omits it. Reset when that checkpoint is
    /// durable.
    pub(crate) acknowledged: bool,
}

impl Default for Risk {
    fn default() -> Self {
        Risk { safe: 1, ended: None, deleted: Vec::new(), listed: false, acknowledged: false }
    }
}
