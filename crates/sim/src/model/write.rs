//! A write under way.

use crate::tag::Value;

/// A write that has been issued and has not ended.
#[derive(Clone, Debug)]
pub(super) struct OpenWrite {
    pub(super) volume: u32,
    pub(super) sector: u64,
    pub(super) sectors: u64,
    pub(super) value: Value,
    pub(super) issued: u64,
    pub(super) dsync: bool,
}

impl OpenWrite {
    /// Whether both are the same write: no two are issued at one time.
    pub(super) fn is(&self, other: &OpenWrite) -> bool {
        self.issued == other.issued
    }
}
