//! Events: the only input of the model.

use super::change::Change;
use crate::tag::Value;

/// One step in the life of a pool.
#[derive(Clone, Debug)]
pub enum Event {
    Write {
        op: u64,
        /// The volume's number in the model.
        volume: u32,
        sector: u64,
        sectors: u64,
        /// The value written; 0 for a discard.
        value: Value,
        dsync: bool,
    },
    /// A write has ended.
    Wrote {
        op: u64,
        /// If false, any part of the write may have been done.
        ok: bool,
    },
    /// A flush is issued, through a volume or by a call on the pool.
    Sync { op: u64 },
    /// A flush has ended.
    Synced { op: u64, ok: bool },
    /// The size of a volume that grows was measured. It may have been raised by a failed DSYNC write, or by a write
    /// that was under way during a resize or rollback.
    Sized {
        volume: u32,
        /// Size in bytes.
        size: u64,
    },
    /// A call that changes volumes as a whole begins.
    Change(Change),
    /// The call that was under way has returned.
    Changed {
        /// If false, the call changed nothing.
        ok: bool,
        /// The measured sizes of the copies that were made; empty if they were not measured. The copy of a volume that
        /// grows may be larger than the volume was when the call began.
        sizes: Vec<u64>,
    },
}
