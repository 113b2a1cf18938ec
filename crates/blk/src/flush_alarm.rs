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
mod tests {
    use super::*;
    use crate::bio::{BIO_FUA, BIO_OWNER, NO_FIXED_BUF, Op};
    use crate::ctx::BioSpec;
    use crate::linear::{concatenate, partition};
    use crate::support::{BLOCK, Puppet, Rig};

    fn puppet(fua: bool) -> Puppet {
        Puppet::new().caps(|caps| (caps.volatile_cache, caps.fua) = (true, fua))
    }

    fn alarm() -> Arc<FlushAlarm> {
        Arc::new(FlushAlarm::default())
    }

    /// Sends one flush with these flags to a device of the rig. Returns its status.
    fn flush(rig: &mut Rig, device: usize, flags: u16) -> Status {
        let bdev = rig.devices[device].0;
        let spec = BioSpec { bdev, op: Op::Flush, flags, sector: 0, bytes: 0, owner: 9 };
        assert!(rig.ctx.submit(&spec, &[], NO_FIXED_BUF));
        rig.drain();
        let ended = rig.take_ended();
        assert_eq!(ended.len(), 1);
        ended[0].1
    }

    /// V3: a later flush proves nothing about data that an earlier one lost.
    #[test]
    fn after_a_failed_flush_only_the_owners_flushes_succeed() {
        let puppet = puppet(true);
        let device = puppet.device();
        let alarm = alarm();
        let watch = device.watch_flushes(&alarm);
        let mut rigs = [Rig::new(&[&device]), Rig::new(&[&device])];
        assert_eq!(flush(&mut rigs[0], 0, 0), Status::Ok);
        assert_eq!(alarm.failed(), None);
        puppet.script().fail = vec![(Op::Flush, Status::Medium)];
        assert_eq!(flush(&mut rigs[0], 0, 0), Status::Medium);
        puppet.script().fail.clear();
        assert_eq!((alarm.failed(), alarm.epoch()), (Some(Status::Medium), FlushAlarm::RINGING));
        for rig in &mut rigs {
            assert_eq!(flush(rig, 0, 0), Status::IoErr, "A2, of any ring");
            assert_eq!(flush(rig, 0, BIO_OWNER), Status::Ok);
        }
        puppet.script().fail = vec![(Op::Flush, Status::Timeout)];
        assert_eq!(flush(&mut rigs[1], 0, BIO_OWNER), Status::Timeout);
        assert_eq!(alarm.failed(), Some(Status::Medium), "the first is the cause");
        puppet.script().fail.clear();
        drop(watch);
        assert_eq!(flush(&mut rigs[0], 0, 0), Status::Ok, "nobody relies on it any more");
    }

    #[test]
    fn failed_fua_writes_trigger_the_alarm_plain_writes_do_not() {
        for (fua, fails, status, rings) in [
            (true, Op::Write, Status::Medium, true),
            (true, Op::Write, Status::NoSpc, false),
            (false, Op::Write, Status::Medium, false),
            (false, Op::Flush, Status::Medium, true),
        ] {
            let puppet = puppet(fua);
            let device = puppet.device();
            let alarm = alarm();
            let _watch = device.watch_flushes(&alarm);
            let mut rig = Rig::new(&[&device]);
            puppet.script().fail = vec![(fails, status)];
            assert!(rig.io_flags(Op::Write, BIO_FUA, 0, BLOCK, 1));
            rig.drain();
            assert_eq!(rig.take_ended(), [(1, status)]);
            assert_eq!(alarm.failed().is_some(), rings, "FUA of its own {fua}, {fails:?} fails with {status:?}");
            assert!(rig.io_flags(Op::Write, 0, 0, BLOCK, 2));
            rig.drain();
            rig.take_ended();
            assert_eq!(alarm.failed().is_some(), rings, "a plain write that fails lost nothing that was acknowledged");
        }
    }

    #[test]
    fn canceled_flushes_do_not_trigger_the_alarm() {
        let puppet = puppet(true).holding();
        puppet.script().accept = 0;
        let device = puppet.device();
        let alarm = alarm();
        let _watch = device.watch_flushes(&alarm);
        let mut rig = Rig::new(&[&device]);
        rig.flush(0);
        rig.poll();
        rig.shutdown();
        assert_eq!(rig.take_ended(), [(0, Status::Canceled)]);
        assert_eq!(alarm.failed(), None);
    }

    /// The cache belongs to the whole disk: a flush that fails for one partition may have lost data of another.
    #[test]
    fn every_watcher_is_alerted_and_only_watched_parts_fail() {
        let puppet = puppet(true);
        let whole = puppet.device();
        let half = whole.size_bytes() / 2;
        let parts = [partition("a", &whole, 0, half).unwrap(), partition("b", &whole, half, half).unwrap()];
        let alarms = [alarm(), alarm()];
        let a = parts[0].watch_flushes(&alarms[0]);
        let _b = parts[1].watch_flushes(&alarms[1]);
        let mut rig = Rig::new(&[&parts[0], &parts[1], &whole]);
        puppet.script().fail = vec![(Op::Flush, Status::IoErr)];
        assert_eq!(flush(&mut rig, 0, 0), Status::IoErr);
        puppet.script().fail.clear();
        assert!(alarms.iter().all(|alarm| alarm.failed().is_some()));
        drop(a);
        assert_eq!(flush(&mut rig, 0, 0), Status::Ok, "its owner has begun anew");
        assert_eq!(flush(&mut rig, 1, 0), Status::IoErr, "and this one has not");
        assert_eq!(flush(&mut rig, 2, 0), Status::Ok);
    }

    #[test]
    fn each_leg_is_watched_and_what_comes_later_when_it_is_told() {
        let puppets = [puppet(true), puppet(true), puppet(true)];
        let devices = puppets.each_ref().map(Puppet::device);
        let device = concatenate("both", &devices[..2]).unwrap();
        let alarm = alarm();
        let _watch = device.watch_flushes(&alarm);
        let _later = devices[2].watch_flushes(&alarm);
        device.extend(device.size_bytes(), &devices[2]).unwrap();
        let mut rig = Rig::new(&[&device]);
        assert_eq!(flush(&mut rig, 0, 0), Status::Ok);
        puppets[2].script().fail = vec![(Op::Flush, Status::IoErr)];
        assert_eq!(flush(&mut rig, 0, 0), Status::IoErr);
        puppets[2].script().fail.clear();
        assert!(alarm.failed().is_some());
        assert_eq!(flush(&mut rig, 0, 0), Status::IoErr);
        assert_eq!(flush(&mut rig, 0, BIO_OWNER), Status::Ok, "the flag reaches each leg");
    }

    #[test]
    fn an_epoch_counts_until_it_rings() {
        let alarm = alarm();
        assert_eq!((alarm.epoch(), alarm.next_epoch(), alarm.epoch_now()), (1, 1, 2));
        alarm.ring(Status::Timeout);
        assert_eq!(alarm.next_epoch(), FlushAlarm::RINGING);
        assert_eq!((alarm.epoch(), alarm.failed()), (FlushAlarm::RINGING, Some(Status::Timeout)));
    }
}
