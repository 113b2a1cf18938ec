//! The partitions that a hardware context serves: what each has in flight, so that it is known for how long it is busy.
//!
//! Owns a slot for each partition that the ring has attached, sorted by number. A context without partitions pays for a
//! look at an empty list in each batch, and for no more.
//!
//! - A1: `in_driver` of a slot is the number of its partition's requests among those that `Hctx::in_driver` counts.

use sheave_base::clock::CoarseTs;
use sheave_base::sync::Arc;

use crate::stats::{BusyEdge, HctxStats, PartStats};

/// Partitions of one hardware context that are counted by themselves; what comes through others counts as the device's
/// own.
const MAX_PARTS: usize = 256;

/// One partition.
#[derive(Debug)]
pub(super) struct PartSlot {
    part: u16,
    in_driver: u32,
    edge: BusyEdge,
    pub(super) stats: Arc<PartStats>,
}

/// The partitions of a hardware context.
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

    /// Counts what comes through this partition by itself from now on.
    pub(super) fn open(&mut self, part: u16, stats: &HctxStats) {
        if part == 0 || self.0.len() == MAX_PARTS {
            return;
        }
        if let Err(at) = self.at(part) {
            let stats = stats.open_part(part);
            self.0.insert(at, PartSlot { part, in_driver: 0, edge: BusyEdge::default(), stats });
        }
    }

    /// The slot of a partition that is counted by itself.
    #[inline]
    pub(super) fn get(&self, part: u16) -> Option<&PartSlot> {
        if self.is_empty() { None } else { self.0.get(self.at(part).ok()?) }
    }

    /// A request of this partition is accounted that was issued at `start`; `None` without statistics.
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

    /// A request of this partition is accounted no more, since `now`; `None` without statistics.
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

    /// A request of this partition was accounted for the time of a call alone.
    #[cold]
    pub(super) fn add_period(&mut self, part: u16, start: CoarseTs, now: CoarseTs) {
        let Ok(at) = self.at(part) else { return };
        let slot = &mut self.0[at];
        if slot.in_driver == 0 {
            slot.stats.busy.add_period(&mut slot.edge, start, now);
        }
    }

    /// Statistics were turned on, or off, at this moment.
    #[cold]
    pub(super) fn turn(&mut self, on: bool, now: CoarseTs) {
        for slot in self.0.iter_mut().filter(|slot| slot.in_driver > 0) {
            if on { slot.stats.busy.begin(slot.edge, now) } else { slot.stats.busy.end(&mut slot.edge, now) }
        }
    }
}
