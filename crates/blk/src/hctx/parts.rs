//! Partitions that a hardware context serves: the requests in flight of each, from which its busy time follows.
//!
//! Owns a slot for each partition that the ring has attached, sorted by number. A context without partitions only tests
//! for an empty list in each batch.
//!
//! - A1: `in_driver` of a slot is the number of its partition's requests among those that `Hctx::in_driver` counts.

use sheave_base::clock::CoarseTs;
use sheave_base::sync::Arc;

use crate::stats::{BusyEdge, HctxStats, PartStats};

/// Largest number of partitions per hardware context with statistics of their own. I/O through further ones counts as
/// the whole device's.
const MAX_PARTS: usize = 256;

#[derive(Debug)]
pub(super) struct PartSlot {
    part: u16,
    in_driver: u32,
    edge: BusyEdge,
    pub(super) stats: Arc<PartStats>,
}

#[derive(Debug, Default)]
pub(super) struct Parts(Vec<PartSlot>);

impl Parts {
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[inline]
    fn at(&self, part: u16) -> Result<usize, usize> {
        self.0.binary_search_by_key(&part, |slot| slot.part)
    }

    /// Gives partition `part` statistics of its own.
    pub(super) fn open(&mut self, part: u16, stats: &HctxStats) {
        if part == 0 || self.0.len() == MAX_PARTS {
            return;
        }
        if let Err(at) = self.at(part) {
            let stats = stats.open_part(part);
            self.0.insert(at, PartSlot { part, in_driver: 0, edge: BusyEdge::default(), stats });
        }
    }

    /// Returns the slot of `part`, if the partition has statistics of its own.
    #[inline]
    pub(super) fn get(&self, part: u16) -> Option<&PartSlot> {
        if self.is_empty() { None } else { self.0.get(self.at(part).ok()?) }
    }

    /// Accounts a request of `part` that was issued at `start`, which is `None` without statistics.
    #[cold]
    pub(super) fn begin(&mut self, part: u16, start: Option<CoarseTs>) {
        let Ok(at) = self.at(part) else { return };
        let slot = &mut self.0[at];
        if slot.in_driver == 0
            && let Some(start) = start
        {
            slot.stats.busy.begin(slot.edge, start);
        }
        slot.in_driver += 1;
    }

    /// Ends the accounting of a request of `part` at `now`, which is `None` without statistics.
    #[cold]
    pub(super) fn end(&mut self, part: u16, now: Option<CoarseTs>) {
        let Ok(at) = self.at(part) else { return };
        let slot = &mut self.0[at];
        debug_assert!(slot.in_driver > 0, "A1");
        slot.in_driver = slot.in_driver.saturating_sub(1);
        if slot.in_driver == 0
            && let Some(now) = now
        {
            slot.stats.busy.end(&mut slot.edge, now);
        }
    }

    /// Adds the period of a request of `part` that ended in its own call, if the partition was idle otherwise.
    #[cold]
    pub(super) fn add_period(&mut self, part: u16, start: CoarseTs, now: CoarseTs) {
        let Ok(at) = self.at(part) else { return };
        let slot = &mut self.0[at];
        if slot.in_driver == 0 {
            slot.stats.busy.add_period(&mut slot.edge, start, now);
        }
    }

    /// Begins or ends the busy periods when statistics are turned on or off.
    #[cold]
    pub(super) fn turn(&mut self, on: bool, now: CoarseTs) {
        for slot in self.0.iter_mut().filter(|slot| slot.in_driver > 0) {
            if on { slot.stats.busy.begin(slot.edge, now) } else { slot.stats.busy.end(&mut slot.edge, now) }
        }
    }
}
