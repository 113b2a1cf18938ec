//! A device as users see it: made from a driver, cheap to clone, attached to rings.
//!
//! Owns the map from a device's addresses to request queues. A driver's device is one queue from end to end;
//! partitions and concatenations ([`driver::linear`](crate::linear)) are legs on other devices' queues. Legs are
//! resolved when the device is made, so an I/O is remapped once however deep the stack.
//!
//! A device may become longer by another while rings use it ([`Device::extend`]). Who looked at its legs before then
//! has an old list: a ring looks again when its own is not the newest.
//!
//! Invariants:
//! - I1: legs are sorted, adjacent and cover the device; their sizes are whole logical blocks.
//! - I2: what an address was before an extension it is after it, below where that begins.

mod extend;

use std::any::Any;
use std::sync::OnceLock;
use std::time::Duration;

use sheave_base::beside::Beside;
use sheave_base::clock::CoarseTs;
use sheave_base::status::Status;
use sheave_base::sync::Arc;

use crate::bio::SECTOR_SHIFT;
use crate::claim::{Claim, Sharing};
use crate::driver::{Capabilities, Driver, Extent};
use crate::error::DeviceError;
use crate::flush_alarm::{FlushAlarm, FlushWatch};
use crate::limits::Limits;
use crate::queue::{DEFAULT_TIMEOUT, GateGuard, Queue};
use crate::stats::{Faults, Stats};
use crate::tag_set::InFlight;

/// A piece of a device: sectors `start..start + sectors` are `offset..` of the queue.
#[derive(Clone, Debug)]
pub struct Leg {
    /// First sector of the device that the leg serves.
    pub start: u64,
    /// Length.
    pub sectors: u64,
    /// Where that is on the queue.
    pub offset: u64,
    /// The partition it is accounted to on the queue; 0 is the whole device.
    pub part: u16,
    /// The queue.
    pub queue: Arc<Queue>,
    /// The devices that the queue's driver stands on, for a stacked one.
    pub lower: Option<Arc<Vec<Device>>>,
}

#[derive(Debug)]
struct Inner {
    name: String,
    legs: Vec<Leg>,
    /// One queue from end to end, whose size may change.
    whole: bool,
    limits: Limits,
    capabilities: Capabilities,
    /// What it has become.
    longer: OnceLock<Box<Longer>>,
}

/// A device that was extended.
#[derive(Debug)]
struct Longer {
    legs: Vec<Leg>,
    /// How often it was extended.
    version: u32,
    longer: OnceLock<Box<Longer>>,
}

/// An opened device.
#[derive(Clone, Debug)]
pub struct Device {
    inner: Arc<Inner>,
}

impl Device {
    /// A device of your own driver.
    #[doc(hidden)]
    pub fn from_driver(name: &str, driver: Box<dyn Driver>) -> Device {
        Device::with_timeout(name, driver, DEFAULT_TIMEOUT)
    }

    /// A device of your own driver, which is asked about a request that takes longer than `timeout`.
    #[doc(hidden)]
    pub fn with_timeout(name: &str, driver: Box<dyn Driver>, timeout: Duration) -> Device {
        Device::from_queue(name, Queue::new(name, driver, timeout))
    }

    /// A device that is one queue from end to end.
    #[doc(hidden)]
    pub fn from_queue(name: &str, queue: Arc<Queue>) -> Device {
        Device::of_queue(name, queue, None)
    }

    /// A device of your own driver that stands on others: its hardware queues get the way to them by
    /// [`HctxOpen::lower`](crate::driver::HctxOpen::lower).
    #[doc(hidden)]
    pub fn stacked(name: &str, driver: Box<dyn Driver>, timeout: Duration, lower: Vec<Device>) -> Device {
        Device::of_queue(name, Queue::new(name, driver, timeout), Some(Arc::new(lower)))
    }

    fn of_queue(name: &str, queue: Arc<Queue>, lower: Option<Arc<Vec<Device>>>) -> Device {
        let leg = Leg { start: 0, sectors: queue.sectors(), offset: 0, part: 0, queue: queue.clone(), lower };
        let (limits, capabilities) = (queue.limits().clone(), queue.capabilities());
        let inner = Inner {
            name: name.to_string(),
            legs: vec![leg],
            whole: true,
            limits,
            capabilities,
            longer: OnceLock::new(),
        };
        Device { inner: Arc::new(inner) }
    }

    /// A device made of legs of others, at least one; I1 is the caller's.
    #[doc(hidden)]
    pub fn from_legs(name: &str, legs: Vec<Leg>) -> Device {
        let mut limits = legs[0].queue.limits().clone();
        let mut capabilities = legs[0].queue.capabilities();
        for leg in &legs[1..] {
            let (l, c) = (leg.queue.limits(), leg.queue.capabilities());
            limits.logical_block = limits.logical_block.max(l.logical_block);
            limits.physical_block = limits.physical_block.max(l.physical_block);
            limits.dma_alignment = limits.dma_alignment.max(l.dma_alignment);
            limits.max_discard_sectors = limits.max_discard_sectors.min(l.max_discard_sectors);
            limits.max_write_zeroes_sectors = limits.max_write_zeroes_sectors.min(l.max_write_zeroes_sectors);
            capabilities.fua &= c.fua;
            capabilities.volatile_cache |= c.volatile_cache;
            capabilities.discard &= c.discard;
            capabilities.write_zeroes &= c.write_zeroes;
            capabilities.polled &= c.polled;
            capabilities.direct_io &= c.direct_io;
            capabilities.sparse |= c.sparse;
            capabilities.fences &= c.fences;
            capabilities.flush_per_ring |= c.flush_per_ring;
            capabilities.asynchronous &= c.asynchronous;
            capabilities.read_only |= c.read_only;
            capabilities.engine = capabilities.engine.filter(|&engine| c.engine == Some(engine));
        }
        let inner = Inner { name: name.to_string(), legs, whole: false, limits, capabilities, longer: OnceLock::new() };
        Device { inner: Arc::new(inner) }
    }

    /// The spec the device was opened with.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Size in bytes, now.
    #[inline]
    pub fn size_bytes(&self) -> u64 {
        if self.is_whole() {
            return self.inner.legs[0].queue.sectors() << SECTOR_SHIFT;
        }
        self.legs().last().map_or(0, |leg| (leg.start + leg.sectors) << SECTOR_SHIFT)
    }

    /// What one I/O may look like; larger ones are cut.
    pub fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    /// What the device can do.
    pub fn capabilities(&self) -> Capabilities {
        self.inner.capabilities
    }

    /// The driver of a device that is one queue from end to end, if it is a `D`: for what only that driver can tell.
    #[doc(hidden)]
    pub fn driver_as<D: Driver>(&self) -> Option<&D> {
        let driver: &dyn Any = self.whole_queue()?.driver();
        driver.downcast_ref()
    }

    /// What is known of the content from this byte on: extents that follow one another. None when nothing is known, as
    /// of most kinds of devices: read it then. It may block for as long as a request may take; a ring's thread calls
    /// it between its I/O, when it copies the device.
    ///
    /// # Errors
    ///
    /// What the device says of its content cannot be right.
    pub fn extents(&self, from: u64) -> Result<Vec<Extent>, DeviceError> {
        self.whole_queue().map_or_else(|| Ok(Vec::new()), |queue| queue.driver().extents(from))
    }

    /// What the user should know about the device, in plain words.
    pub fn notices(&self) -> Vec<String> {
        let mut all = Vec::new();
        for leg in self.legs() {
            for notice in leg.queue.driver().notices() {
                if !all.contains(&notice) {
                    all.push(notice);
                }
            }
        }
        all
    }

    /// What was done since then that may have made I/O wait on it.
    pub fn beside(&self, since: CoarseTs) -> Beside {
        self.legs().iter().fold(Beside::default(), |all, leg| all.and(leg.queue.beside().since(since)))
    }

    /// Statistics of the device over all rings. Of a partition those of its own requests and of the partitions within
    /// it; of a concatenation those of the devices that it is made of. Flushes and faults are the whole device's.
    pub fn stats(&self) -> Stats {
        let mut sum = Stats::default();
        self.each_queue(|queue, is| sum.add(&queue.stats_of(is)));
        sum
    }

    /// Keeps statistics of the queues under the device from now on, or no more; they are kept at first. For all rings
    /// that keep some: each learns of it with the next I/O that it sends there, also in the middle of others.
    ///
    /// What is counted stays. While it is off no clock is read for the I/O of the device, no latency, time in a stage
    /// or busy time is counted, for its files and volumes neither, and nothing of it is slow or traced. What is in
    /// flight when it is turned off counts nowhere if it ends after that; what is when it is turned on counts from
    /// that moment. What is in flight, and faults that a health check looks at, are known in any case but for the
    /// number of faults.
    pub fn set_stats(&self, on: bool) {
        self.each_queue(|queue, _| queue.set_stats(on));
    }

    /// Returns true if all queues under the device keep statistics.
    pub fn keeps_stats(&self) -> bool {
        let mut all = true;
        self.each_queue(|queue, _| all &= queue.keeps_stats());
        all
    }

    /// The faults of the queues under the device.
    pub fn faults(&self) -> Faults {
        let mut sum = Faults::default();
        self.each_queue(|queue, _| sum.add(queue.faults()));
        sum
    }

    /// Calls `with` for each queue under the device, once, with what tells which of the queue's partitions the device
    /// is made of.
    fn each_queue(&self, mut with: impl FnMut(&Arc<Queue>, &dyn Fn(u16) -> bool)) {
        let legs = self.legs();
        if let [leg] = legs {
            return with(&leg.queue, &|part| part == leg.part);
        }
        for (at, leg) in legs.iter().enumerate() {
            if !legs[..at].iter().any(|before| Arc::ptr_eq(&before.queue, &leg.queue)) {
                let on_it = |have: &&Leg| Arc::ptr_eq(&have.queue, &leg.queue);
                with(&leg.queue, &|part| legs.iter().filter(on_it).any(|have| have.part == part));
            }
        }
    }

    /// Requests of this device that are *in the drivers' hands*. For a partition only its own and those of the
    /// partitions within it; for a concatenation those of the devices that it is made of.
    pub fn in_flight(&self) -> InFlight {
        self.count(false)
    }

    /// Requests of this device that are *accounted*: those in the drivers' hands, and those that a driver refused or a
    /// quiesced queue holds back. Statistics count a request when it leaves this number.
    pub fn accounted(&self) -> InFlight {
        self.count(true)
    }

    fn count(&self, held_too: bool) -> InFlight {
        let mut sum = InFlight::default();
        self.each_queue(|queue, is| {
            let one = queue.count(is, held_too);
            sum.reads += one.reads;
            sum.writes += one.writes;
            sum.other += one.other;
        });
        sum
    }

    /// Holds the device against everybody who asks for it too, in this process and, where the driver can, in others.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Claimed`] names who has it.
    #[doc(hidden)]
    pub fn claim(&self, sharing: Sharing) -> Result<Claim, DeviceError> {
        // One queue from end to end is held as a whole, also what it grows by.
        let range = |leg: &Leg| if self.is_whole() { 0..u64::MAX } else { leg.offset..leg.offset + leg.sectors };
        let claims = self.legs().iter().map(|leg| leg.queue.claim(range(leg), sharing));
        Ok(Claim::all(claims.collect::<Result<_, _>>()?))
    }

    /// Asks what the device stands on whether who has claimed it has it still. May block for as long as a request may
    /// take. See [`Driver::still_owns`](crate::driver::Driver::still_owns).
    ///
    /// # Errors
    ///
    /// It was taken away, or nobody answers.
    #[doc(hidden)]
    pub fn still_owns(&self) -> Result<(), Status> {
        self.legs().iter().try_for_each(|leg| leg.queue.driver().still_owns())
    }

    /// Has `alarm` ring when a flush fails of what the device is now. What it is extended by later is to be watched
    /// too, before anything is written there.
    #[doc(hidden)]
    pub fn watch_flushes(&self, alarm: &Arc<FlushAlarm>) -> FlushWatch {
        let parts = self.legs().iter().map(|leg| (leg.part, Arc::clone(leg.queue.watches())));
        FlushWatch::new(alarm, parts.collect())
    }

    /// Lets no I/O enter until the guards are dropped; returns when nothing is in flight. See [`Queue::freeze`].
    #[doc(hidden)]
    pub fn freeze(&self, timeout: Duration) -> Result<Vec<GateGuard>, DeviceError> {
        self.legs().iter().map(|leg| leg.queue.freeze(timeout)).collect()
    }

    /// Lets no request go to a driver until the guards are dropped. See [`Queue::quiesce`].
    #[doc(hidden)]
    pub fn quiesce(&self, timeout: Duration) -> Result<Vec<GateGuard>, DeviceError> {
        self.legs().iter().map(|leg| leg.queue.quiesce(timeout)).collect()
    }

    /// The pieces of the device, now.
    #[doc(hidden)]
    pub fn legs(&self) -> &[Leg] {
        self.newest().map_or(&self.inner.legs, |longer| &longer.legs)
    }

    /// Whether two handles name the same device.
    pub fn same(&self, other: &Device) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// The queue whose size is the device's, when one queue is the device from end to end.
    #[doc(hidden)]
    pub fn whole_queue(&self) -> Option<&Arc<Queue>> {
        if self.is_whole() { self.inner.legs.first().map(|leg| &leg.queue) } else { None }
    }

    /// Whether one queue is the device from end to end: a device without pieces, which was not extended.
    #[doc(hidden)]
    pub fn is_whole(&self) -> bool {
        self.inner.whole && !self.is_extended()
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
