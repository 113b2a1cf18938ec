//! Bios that wait for a flush of one hardware context: for the one in flight, or for the next.
//!
//! Owns the waiting bios. The steps of a sequence of flushes and data are in `hctx::sequence`.
//!
//! Conditions:
//! - C1: at most one flush is in flight on a hardware context. Bios that need one meanwhile wait for the next, which
//!   serves them all.
//! - C2: a flush issued at T covers every write that completed before T. A bio joins `pending`, never the running
//!   flush.
//!
//! The flush request has a tag of its own, so that a flush never waits for a data request.

use sheave_base::status::Status;

use crate::bio::BioId;
use crate::bio_set::{BioList, BioSet};
use crate::ring_core::Core;

/// Bios that wait for a flush of one hardware context.
#[derive(Debug, Default)]
pub(crate) struct FlushQueue {
    /// Bios that wait for the next flush.
    pending: BioList,
    /// Bios that wait for the flush in flight.
    running: BioList,
    in_flight: bool,
}

impl FlushQueue {
    /// Makes the bio wait for the next flush (C2).
    pub(crate) fn join(&mut self, bios: &mut BioSet, id: BioId) {
        self.pending.push_back(bios, id);
    }

    /// Returns true if a flush must be issued now, for all waiting bios (C1). It counts as in flight from then on.
    pub(crate) fn issue(&mut self) -> bool {
        if self.in_flight || self.pending.is_empty() {
            return false;
        }
        self.in_flight = true;
        self.running = self.pending.take();
        true
    }

    /// Ends the flush in flight. Returns the bios that waited for it.
    pub(crate) fn end(&mut self) -> BioList {
        self.in_flight = false;
        self.running.take()
    }

    pub(crate) fn is_running(&self) -> bool {
        self.in_flight
    }

    pub(crate) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Takes back a flush that was not passed to the driver after all. Its bios wait again, before those that came
    /// later.
    pub(crate) fn unissue(&mut self, bios: &mut BioSet) {
        self.in_flight = false;
        let mut later = self.pending.take();
        self.pending = self.running.take();
        while let Some(id) = later.pop(bios) {
            self.pending.push_back(bios, id);
        }
    }

    /// Cancels the bios that wait for a flush which will not be issued.
    pub(crate) fn cancel_pending(&mut self, core: &mut Core) {
        while let Some(id) = self.pending.pop(&mut core.bios) {
            core.end_later(id, Status::Canceled);
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_flush_that_was_not_issued_comes_again_before_later_ones() {
        let mut bios = BioSet::new(8, 8);
        let ids: Vec<BioId> = (0..5).map(|_| bios.take().unwrap()).collect();
        let mut flush = FlushQueue::default();
        ids[..2].iter().for_each(|&id| flush.join(&mut bios, id));
        assert!(flush.issue());
        ids[2..].iter().for_each(|&id| flush.join(&mut bios, id));
        assert!(!flush.issue(), "one is in flight");
        flush.unissue(&mut bios);
        assert!(!flush.is_running() && flush.has_pending());
        assert!(flush.issue());
        let mut served = flush.end();
        let order: Vec<BioId> = std::iter::from_fn(|| served.pop(&mut bios)).collect();
        assert_eq!(order, ids);
    }
}
