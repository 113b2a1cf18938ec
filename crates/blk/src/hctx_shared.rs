//! The part of a hardware context that other threads may touch: statistics, tags, completions from elsewhere.
//!
//! Owns the way in for remote completions and the marks that readers and the gate look at. Does not own any request.
//!
//! Called by the owner ([`hctx`](crate::hctx)), by completion threads, and by readers through the queue's list.

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

/// The part of a hardware context that other threads may touch.
#[derive(Debug)]
pub struct HctxShared {
    pub(crate) stats: HctxStats,
    pub(crate) tags: Arc<TagSet>,
    /// Whether the flush request is accounted, and who has it: 0, [`FLUSH_IN_DRIVER`] or [`FLUSH_HELD`].
    pub(crate) flushing: AtomicU32,
    /// Whether the owner is inside the driver's `queue_rqs`, or about to read the gate.
    pub(crate) dispatching: CachePadded<Mark>,
    /// Tags that other threads completed; the status of each is beside it.
    pub(crate) remote: MpscQueue,
    pub(crate) remote_status: Box<[AtomicU8]>,
    pub(crate) waker: Waker,
}

/// An owner's own counts of its plain records on one hardware context. They are in the context's statistics, too, while
/// the seat is there and afterwards.
#[derive(Debug)]
pub struct RecordSeat {
    records: Arc<RecordStats>,
    shared: Arc<HctxShared>,
}

impl RecordSeat {
    /// A seat for an owner whose records are those of this partition.
    pub(crate) fn new(shared: Arc<HctxShared>, part: u16) -> RecordSeat {
        RecordSeat { records: shared.stats.owners.come(part), shared }
    }

    /// The counts.
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

/// How other threads wake the ring of a hardware context.
#[derive(Clone, Debug)]
pub(crate) struct Waker {
    pub(crate) unparker: Unparker,
    /// Completions for which the ring, if it sleeps, need not be woken; of all its hardware contexts together.
    pub(crate) wanted: Arc<WakeCount>,
}

impl HctxShared {
    /// Tells of the flush request, if it is accounted, as `TagSet::for_each` of the others. It is the whole device's.
    pub(crate) fn tell_of_flush(&self, tell: &mut dyn FnMut(Op, u16, bool)) {
        // Relaxed: like a busy tag, ordered by `is_dispatching` where it matters, see `Queue::freeze`.
        let mark = self.flushing.load(Ordering::Relaxed);
        if mark != 0 {
            tell(Op::Flush, 0, mark == FLUSH_HELD);
        }
    }

    /// The owner is about to read the gate, and to go to the driver if it is open.
    #[inline(always)]
    pub(crate) fn start_dispatch(&self) {
        self.dispatching.enter();
    }

    #[inline(always)]
    pub(crate) fn end_dispatch(&self) {
        self.dispatching.leave();
    }

    /// Whether the owner is inside the driver. After the gate was closed and a
    /// [barrier](sheave_base::asymmetric::barrier), a false means that the owner will see it closed, and that its tags
    /// are visible.
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
