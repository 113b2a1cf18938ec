//! How many faults of each kind were injected, and the words for it.
//!
//! Owns the counters of one fault device: written by its hardware queues (a fault is no fast path), read by anyone.

use sheave_base::sync::atomic::{AtomicU64, Ordering};

use super::plan::{FaultKind, NR_FAULTS};

/// The faults that a device has injected so far, over all rings.
#[derive(Debug, Default)]
pub struct FaultCounts([AtomicU64; NR_FAULTS]);

impl FaultCounts {
    /// Faults of this kind.
    pub fn get(&self, kind: FaultKind) -> u64 {
        // Relaxed: a count orders nothing; it is exact when the rings are quiet.
        self.0[kind as usize].load(Ordering::Relaxed)
    }

    /// All faults.
    pub fn total(&self) -> u64 {
        FaultKind::ALL.iter().map(|&kind| self.get(kind)).sum()
    }

    pub(super) fn count(&self, kind: FaultKind) {
        // Relaxed: see `get`.
        self.0[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Such as `error 12, torn 3`; empty when there were none.
    pub(super) fn in_words(&self) -> String {
        let some = FaultKind::ALL.iter().map(|&kind| (kind, self.get(kind))).filter(|&(_, count)| count > 0);
        some.map(|(kind, count)| format!("{} {count}", kind.name())).collect::<Vec<_>>().join(", ")
    }
}
