//! Writes that have been issued and have not ended.

use crate::tag::Value;

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
    /// Returns true if both are the same write. No two events have the same time, so writes with equal times of issue
    /// are the same.
    pub(super) fn is(&self, other: &OpenWrite) -> bool {
        self.issued == other.issued
    }
}
