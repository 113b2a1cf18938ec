//! Request counts of a hardware context: for the device itself, and for each partition.
//!
//! Owns the tallies and the list of partitions that readers walk. A request counts in one place: in the tallies of its
//! partition, or in the device's if it came through none. A reading of the device adds the partitions up.

use sheave_base::sync::atomic::Ordering;
use sheave_base::sync::count::AtomicU64;

use super::busy::BusyTime;
use super::records::{IoTally, OpCounts};
use super::split::{Split, add};
use crate::bio::{NR_OPS, Op};

/// Counts of requests by operation: one writer, any readers.
#[derive(Debug, Default)]
pub(crate) struct OpTallies {
    ops: [IoTally; NR_OPS],
    merges: [AtomicU64; NR_OPS],
    errors: [AtomicU64; NR_OPS],
}

impl OpTallies {
    /// Counts completed requests with the same operation and stamps.
    #[inline(always)]
    pub(crate) fn note(&self, op: Op, split: &Split, ios: u64, bytes: u64) {
        self.ops[op as usize].note(split, ios, bytes);
    }

    /// Counts merged bios. Their requests are counted by `note`.
    pub(crate) fn note_merges(&self, op: Op, merges: u64) {
        if merges != 0 {
            add(&self.merges[op as usize], merges);
        }
    }

    /// Counts an error. Its request is counted by `note`.
    pub(super) fn note_error(&self, op: Op) {
        add(&self.errors[op as usize], 1);
    }

    pub(super) fn read(&self, into: &mut [OpCounts; NR_OPS]) {
        for (at, sum) in into.iter_mut().enumerate() {
            // Relaxed: see `add`.
            sum.merges += self.merges[at].load(Ordering::Relaxed);
            sum.errors += self.errors[at].load(Ordering::Relaxed);
            sum.read(&self.ops[at]);
        }
    }
}

/// Statistics of one partition on one hardware context, without the records of owners with counts of their own.
#[derive(Debug)]
pub(crate) struct PartStats {
    pub(crate) part: u16,
    pub(crate) tallies: OpTallies,
    pub(crate) busy: BusyTime,
}

impl PartStats {
    pub(super) fn new(part: u16) -> PartStats {
        PartStats { part, tallies: OpTallies::default(), busy: BusyTime::default() }
    }
}
