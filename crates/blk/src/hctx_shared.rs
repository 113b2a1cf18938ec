//! The part of a hardware context that other threads may access: statistics, tags, completions by other threads.
//!
//! Owns the queue of remote completions and the marks that readers and the freezer of the gate read. Does not own
//! requests.
//!
//! Called by the owner ([`hctx`](crate::hctx)), by completing threads, and by readers through the queue's list.

use crossbeam_utils::CachePadded;
use sheave_base::asymmetric::Mark;
use sheave_base::mpscq::MpscQueue;
use sheave_base::parker::Unparker;
use sheave_base::status::Status;
use sheave_base::sync::Arc;
use sheave_base::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use sheave_base::wake_count::WakeCount;

use crate::bio::Op;
use crate::stats::{HctxStats, RecordStats};
use crate::tag_set::TagSet;

/// The driver has the flush request.
pub(crate) const FLUSH_IN_DRIVER: u32 = 1;
/// The block layer holds the flush request back.
pub(crate) const FLUSH_HELD: u32 = 2;

/// Part of a hardware context that other threads may access.
#[derive(Debug)]
pub struct HctxShared {
    pub(crate) stats: HctxStats,
    pub(crate) tags: Arc<TagSet>,
    /// State of the flush request: 0 if it is not accounted, else [`FLUSH_IN_DRIVER`] or [`FLUSH_HELD`].
    pub(crate) flushing: AtomicU32,
    /// Set while the owner is inside the driver's `queue_rqs`, or about to read the gate.
    pub(crate) dispatching: CachePadded<Mark>,
    /// Tags that other threads completed. Their status is in `remote_status`, by tag.
    pub(crate) remote: MpscQueue,
    pub(crate) remote_status: Box<[AtomicU8]>,
    pub(crate) waker: Waker,
}

/// An owner's own counts of its plain records on one hardware context. They are part of the context's statistics, also
/// after the seat was dropped.
#[derive(Debug)]
pub struct RecordSeat {
    records: Arc<RecordStats>,
    shared: Arc<HctxShared>,
}

impl RecordSeat {
    /// Makes a seat for an owner whose plain records count for partition `part`.
    pub(crate) fn new(shared: Arc<HctxShared>, part: u16) -> RecordSeat {
        RecordSeat { records: shared.stats.owners.come(part), shared }
    }

    /// Returns the counts.
    #[inline(always)]
    pub fn records(&self) -> &Arc<RecordStats> {
        &self.records
    }
}

impl Drop for RecordSeat {
    fn drop(&mut self) {
        self.shared.stats.owners.go(&self.records);
    }
}

/// Handle by which other threads wake the ring of a hardware context.
#[derive(Clone, Debug)]
pub(crate) struct Waker {
    pub(crate) unparker: Unparker,
    /// Number of completions, over all hardware contexts of the ring, for which a sleeping ring waits. Fewer need not
    /// wake it.
    pub(crate) wanted: Arc<WakeCount>,
}

impl HctxShared {
    /// Calls `tell` for the flush request if it is accounted, as `TagSet::for_each` does for other requests. A flush
    /// belongs to the whole device, which is partition 0.
    pub(crate) fn tell_of_flush(&self, tell: &mut dyn FnMut(Op, u16, bool)) {
        // Relaxed: like a busy tag, ordered by `is_dispatching` where it matters, see `Queue::freeze`.
        let mark = self.flushing.load(Ordering::Relaxed);
        if mark != 0 {
            tell(Op::Flush, 0, mark == FLUSH_HELD);
        }
    }

    /// Called before the owner reads the gate and, if that is open, calls the driver.
    #[inline(always)]
    pub(crate) fn start_dispatch(&self) {
        self.dispatching.enter();
    }

    #[inline(always)]
    pub(crate) fn end_dispatch(&self) {
        self.dispatching.leave();
    }

    /// Returns true if the owner is inside the driver. False, after the gate was closed and a
    /// [barrier](sheave_base::asymmetric::barrier), means that the owner will see the gate closed and that its tags are
    /// visible.
    pub(crate) fn is_dispatching(&self) -> bool {
        self.dispatching.is_set()
    }

    pub(crate) fn unpark(&self) {
        self.waker.unparker.unpark();
    }

    pub(crate) fn complete_remotely(&self, tag: u16, status: Status) {
        // Relaxed: published by the push, read after the pop in `Hctx::take_remote`.
        self.remote_status[usize::from(tag)].store(status as u8, Ordering::Relaxed);
        self.remote.push(u32::from(tag));
        if self.waker.wanted.is_due(1) {
            self.unpark();
        }
    }
}
