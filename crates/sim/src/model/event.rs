//! What happens to a pool, as the model hears of it.

use super::change::Change;
use crate::tag::Value;

/// Something that happens to a pool.
#[derive(Clone, Debug)]
pub enum Event {
    /// A write is issued.
    Write {
        /// Number of the operation.
        op: u64,
        /// The volume's number in the model.
        volume: u32,
        /// First sector.
        sector: u64,
        /// Sectors.
        sectors: u64,
        /// What it writes; 0 for a discard.
        value: Value,
        /// Durable when it ends.
        dsync: bool,
    },
    /// It has ended.
    Wrote {
        /// Number of the operation.
        op: u64,
        /// With success; without, it may have been done in parts.
        ok: bool,
    },
    /// A flush is issued, through a volume or by a call on the pool.
    Sync {
        /// Number of the operation.
        op: u64,
    },
    /// It has ended.
    Synced {
        /// Number of the operation.
        op: u64,
        /// With success.
        ok: bool,
    },
    /// A volume that grows was found to have this size, which a durable write that failed may have given it, or one
    /// that was under way when the volume was resized or rolled back.
    Sized {
        /// The volume.
        volume: u32,
        /// In bytes.
        size: u64,
    },
    /// A call that changes volumes as a whole begins.
    Change(Change),
    /// It has returned.
    Changed {
        /// With success; without, it changed nothing.
        ok: bool,
        /// The copies that were made have these sizes, if that was looked at: a copy of a volume that grows may be
        /// larger than the volume was when the call began.
        sizes: Vec<u64>,
    },
}
