//! Flush alarms: report every failed flush of a device to its owner, including flushes that other users sent.
//!
//! A failed flush may have lost the data that it was to make durable, and the next flush does not report that: the
//! kernel reports a writeback error once, and a disk may have dropped its cache. An owner that must not report lost
//! data as durable therefore gives its device a [`FlushAlarm`]. Owns the alarm, and the table of watched parts of a
//! queue. Does not own the owner's reaction.
//!
//! Invariants:
//! - A1: every failed flush on a queue under the device triggers the alarm: of any ring, of any partition, and also the
//!   flush that replaces FUA on a device without it. A write with native FUA counts as a flush, because on `file:` it
//!   is one. A canceled flush was not tried, and does not count.
//! - A2: a triggered alarm stays triggered, and from then on every flush of the watched part fails, even if the device
//!   reports success. Exception: flushes of the owner ([`BIO_OWNER`](crate::bio::BIO_OWNER)) end with the device's own
//!   result.
//! - A3: the alarm is triggered before the poll returns in which the failed flush ends, so every caller that sees the
//!   failure finds the alarm triggered.
//!
//! Called by the [hardware contexts](crate::hctx) when flushes end, and by owners of devices through
//! [`Device::watch_flushes`](crate::Device::watch_flushes).

use std::fmt;

use sheave_base::status::Status;
use sheave_base::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use sheave_base::sync::{Arc, Mutex};

/// Alarm of an owner: a count that the owner increments (its *epoch*), which becomes [`FlushAlarm::RINGING`] for good
/// when a flush fails.
///
/// One load shows both if an action of an earlier epoch is still valid, and if a flush has failed.
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
    /// Epoch of a triggered alarm.
    pub const RINGING: u64 = u64::MAX;

    /// Returns the epoch, from 1 on. Not ordered with other memory, so a later ordered load must confirm it.
    #[inline(always)]
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// Returns the epoch, in one total order with its changes and with the owner's own SeqCst stores.
    pub fn epoch_now(&self) -> u64 {
        // SeqCst: pairs with the exchanges in `ring` and `next_epoch`.
        self.epoch.load(Ordering::SeqCst)
    }

    /// Begins another epoch unless the alarm is triggered. Returns the epoch that has ended.
    pub fn next_epoch(&self) -> u64 {
        let next = |epoch| (epoch != Self::RINGING).then(|| epoch + 1);
        // SeqCst: pairs with the load in `epoch_now`.
        let before = self.epoch.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next);
        before.unwrap_or(Self::RINGING)
    }

    /// Returns the status of the first failed flush, if one has failed.
    pub fn failed(&self) -> Option<Status> {
        // SeqCst, by `epoch_now`: pairs with `ring`, whose status is stored before.
        let ringing = self.epoch_now() == Self::RINGING;
        ringing.then(|| Status::from_u8(self.status.load(Ordering::Relaxed)))
    }

    /// Triggers the alarm because of a failed flush.
    pub fn ring(&self, status: Status) {
        // Relaxed, both ways: published by the exchange below. The first failure is the cause of the rest.
        let _ = self.status.compare_exchange(0, status as u8, Ordering::Relaxed, Ordering::Relaxed);
        // SeqCst: pairs with the loads in `epoch_now` and `failed`.
        self.epoch.swap(Self::RINGING, Ordering::SeqCst);
    }
}

/// Watchers of the flushes of a queue.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    table: Mutex<Vec<(u16, Arc<FlushAlarm>)>>,
    /// True if an alarm of the table is triggered, so that successful flushes read only one word.
    ringing: AtomicBool,
}

impl Watches {
    fn table(&self) -> impl std::ops::DerefMut<Target = Vec<(u16, Arc<FlushAlarm>)>> + '_ {
        self.table.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Reports a failed flush of the queue to all watchers (A1).
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

    /// Returns true if a successful flush of this part must be reported as failed (A2).
    #[inline]
    pub(crate) fn distrusts(&self, part: u16) -> bool {
        // Relaxed: as in `failed`.
        self.ringing.load(Ordering::Relaxed)
            && self.table().iter().any(|(watched, alarm)| *watched == part && alarm.failed().is_some())
    }
}

/// Registration of an owner's alarm with a device. Dropping it ends the watch.
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
    /// Registers the alarm for each of these parts of queues.
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
