//! What a hardware context counts of requests: of those of the device itself, and of each partition by itself.
//!
//! Owns the tallies and the list of partitions that readers go through. A request counts in one place: in the tallies
//! of its partition, or of the device where it came through none. Who reads the device adds the partitions up.

use sheave_base::sync::atomic::Ordering;
use sheave_base::sync::count::AtomicU64;

use super::busy::BusyTime;
use super::records::{IoTally, OpCounts};
use super::split::{Split, add};
use crate::bio::{NR_OPS, Op};

/// Counts of requests, by operation: one writer, any readers.
#[derive(Debug, Default)]
pub(crate) struct OpTallies {
    ops: [IoTally; NR_OPS],
    merges: [AtomicU64; NR_OPS],
    errors: [AtomicU64; NR_OPS],
}

impl OpTallies {
    /// Counts completed requests that are alike in operation and stamps, none of which had neighbours in it.
    #[inline(always)]
    pub(crate) fn note(&self, op: Op, split: &Split, ios: u64, bytes: u64) {
        self.ops[op as usize].note(split, ios, bytes);
    }

    /// Counts bios that rode along in requests which are counted beside it.
    pub(crate) fn note_merges(&self, op: Op, merges: u64) {
        if merges != 0 {
            add(&self.merges[op as usize], merges);
        }
    }

    /// Counts an error of a request that is counted beside it.
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

/// What one hardware context has done for one partition, but for the records of owners with counts of their own.
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
