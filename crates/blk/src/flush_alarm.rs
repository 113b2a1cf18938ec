//! Flush alarms: the owner of a device hears that a flush of it failed, whoever sent that flush.
//!
//! A flush that fails may have lost whatever it was to make durable, and the next one knows nothing of that: the kernel
//! tells a writeback error once, a disk forgets its cache. So an owner that must not report a loss as durable gives its
//! device a [`FlushAlarm`]. Owns the alarm, and who watches which part of a queue. Does not own what an owner does
//! about it.
//!
//! Invariants:
//! - A1: the alarm rings for every flush that failed on a queue under the device: of any ring, of any partition, and
//!   the flush that stands for FUA on a device without FUA. A write with the device's own FUA counts as a flush too,
//!   for to `file:` it is one. What was canceled was not tried, and does not count.
//! - A2: once it rings it does not stop, and no flush of the watched part ends well any more, even if the device says
//!   so; but for those of the owner ([`BIO_OWNER`](crate::bio::BIO_OWNER)), which hear what the device says.
//! - A3: it rings before the poll returns in which the flush that failed has ended: whoever learns of the failure finds
//!   the alarm ringing.
//!
//! Called by the [hardware contexts](crate::hctx) when flushes end; by owners of devices, through
//! [`Device::watch_flushes`](crate::Device::watch_flushes).

use std::fmt;

use sheave_base::status::Status;
use sheave_base::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use sheave_base::sync::{Arc, Mutex};

/// What an owner hears with: a count of its own (its *epoch*), which turns into [`FlushAlarm::RINGING`] for good.
///
/// One load tells both whether something that the owner did in an epoch still holds, and whether a flush has failed.
#[derive(Debug)]
pub struct FlushAlarm {
    epoch: AtomicU64,
    status: AtomicU8,
}

impl Default for FlushAlarm {
    fn default() -> Self {
        FlushAlarm { epoch: AtomicU64::new(1), status: AtomicU8::new(0) }
    }
}

impl FlushAlarm {
    /// The epoch of an alarm that rings.
    pub const RINGING: u64 = u64::MAX;

    /// The epoch, from 1 on; for a look that some later look makes good.
    #[inline(always)]
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// The epoch, in one order with all who change it and with the owner's own stores of that order.
    pub fn epoch_now(&self) -> u64 {
        // SeqCst: pairs with the exchanges in `ring` and `next_epoch`.
        self.epoch.load(Ordering::SeqCst)
    }

    /// Begins another epoch, unless the alarm rings; the one that has ended.
    pub fn next_epoch(&self) -> u64 {
        let next = |epoch| (epoch != Self::RINGING).then(|| epoch + 1);
        // SeqCst: pairs with the load in `epoch_now`.
        let before = self.epoch.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next);
        before.unwrap_or(Self::RINGING)
    }

    /// How the first flush that failed ended; none while all went well.
    pub fn failed(&self) -> Option<Status> {
        // SeqCst, by `epoch_now`: pairs with `ring`, whose status is stored before.
        let ringing = self.epoch_now() == Self::RINGING;
        ringing.then(|| Status::from_u8(self.status.load(Ordering::Relaxed)))
    }

    /// A flush has failed.
    pub fn ring(&self, status: Status) {
        // Relaxed, both ways: published by the exchange below. The first failure is the cause of the rest.
        let _ = self.status.compare_exchange(0, status as u8, Ordering::Relaxed, Ordering::Relaxed);
        // SeqCst: pairs with the loads in `epoch_now` and `failed`.
        self.epoch.swap(Self::RINGING, Ordering::SeqCst);
    }
}

/// Who watches the flushes of a queue.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    table: Mutex<Vec<(u16, Arc<FlushAlarm>)>>,
    /// Some alarm of the table rings: so that flushes that end well look at one word.
    ringing: AtomicBool,
}

impl Watches {
    fn table(&self) -> impl std::ops::DerefMut<Target = Vec<(u16, Arc<FlushAlarm>)>> + '_ {
        self.table.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// A flush of the queue has failed (A1).
    #[cold]
    pub(crate) fn failed(&self, status: Status) {
        if matches!(status, Status::Ok | Status::Canceled) {
            return;
        }
        let table = self.table();
        table.iter().for_each(|(_, alarm)| alarm.ring(status));
        // Relaxed: a thread that must see it learned of the failed flush from its end, and is ordered behind that (A3).
        self.ringing.store(!table.is_empty(), Ordering::Relaxed);
    }

    /// Whether a flush of this part cannot be believed (A2).
    #[inline]
    pub(crate) fn distrusts(&self, part: u16) -> bool {
        // Relaxed: as in `failed`.
        self.ringing.load(Ordering::Relaxed)
            && self.table().iter().any(|(watched, alarm)| *watched == part && alarm.failed().is_some())
    }
}

/// The alarm of an owner watches a device while this lives.
pub struct FlushWatch {
    alarm: Arc<FlushAlarm>,
    parts: Vec<(u16, Arc<Watches>)>,
}

impl fmt::Debug for FlushWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FlushWatch({})", self.parts.len())
    }
}

impl FlushWatch {
    /// Has the alarm ring for each of these parts of queues.
    pub(crate) fn new(alarm: &Arc<FlushAlarm>, parts: Vec<(u16, Arc<Watches>)>) -> FlushWatch {
        for (part, watches) in &parts {
            watches.table().push((*part, Arc::clone(alarm)));
        }
        FlushWatch { alarm: Arc::clone(alarm), parts }
    }
}

impl Drop for FlushWatch {
    fn drop(&mut self) {
        for (part, watches) in &self.parts {
            let mut table = watches.table();
            let ours = table.iter().position(|(at, alarm)| at == part && Arc::ptr_eq(alarm, &self.alarm));
            ours.map(|at| table.swap_remove(at));
            // Relaxed: as in `Watches::failed`.
            let ringing = table.iter().any(|(_, alarm)| alarm.failed().is_some());
            watches.ringing.store(ringing, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
