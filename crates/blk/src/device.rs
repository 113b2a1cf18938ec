//! A device as users see it: made from a driver, cheap to clone, attached to rings.
//!
//! Owns the map from a device's sectors to request queues. A device of a driver is one queue from end to end.
//! Partitions and concatenations ([`driver::linear`](crate::linear)) are legs on the queues of other devices. Legs are
//! resolved when the device is made, so that an I/O is remapped once at any depth of the stack.
//!
//! A device may be extended by another one while rings use it ([`Device::extend`]). A ring that read the legs before
//! has an old list, and reads them again when its version is not the newest.
//!
//! Invariants:
//! - I1: legs are sorted, adjacent and cover the device; their sizes are whole logical blocks.
//! - I2: an extension does not change the mapping of sectors below its start.

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

/// A piece of a device: sectors `start..start + sectors` are at `offset..` of the queue.
#[derive(Clone, Debug)]
pub struct Leg {
    /// First sector of the device in this leg.
    pub start: u64,
    /// Length in sectors.
    pub sectors: u64,
    /// First sector on the queue.
    pub offset: u64,
    /// Partition of the queue to which the leg is accounted; 0 is the whole device.
    pub part: u16,
    /// Queue that carries out its I/O.
    pub queue: Arc<Queue>,
    /// Devices below the queue's driver, if that is a stacked one.
    pub lower: Option<Arc<Vec<Device>>>,
}

#[derive(Debug)]
struct Inner {
    name: String,
    legs: Vec<Leg>,
    /// True if one queue is the device from end to end, so that its size may change.
    whole: bool,
    limits: Limits,
    capabilities: Capabilities,
    /// First extension, which links to the next.
    longer: OnceLock<Box<Longer>>,
}

/// One extension of a device: its legs from then on.
#[derive(Debug)]
struct Longer {
    legs: Vec<Leg>,
    /// Number of extensions up to this one.
    version: u32,
    longer: OnceLock<Box<Longer>>,
}

/// An opened device.
#[derive(Clone, Debug)]
pub struct Device {
    inner: Arc<Inner>,
}

impl Device {
    /// Makes a device of a driver.
    #[doc(hidden)]
    pub fn from_driver(name: &str, driver: Box<dyn Driver>) -> Device {
        Device::with_timeout(name, driver, DEFAULT_TIMEOUT)
    }

    /// Makes a device of a driver, which is called for requests that take longer than `timeout`.
    #[doc(hidden)]
    pub fn with_timeout(name: &str, driver: Box<dyn Driver>, timeout: Duration) -> Device {
        Device::from_queue(name, Queue::new(name, driver, timeout))
    }

    /// Makes a device that is one queue from end to end.
    #[doc(hidden)]
    pub fn from_queue(name: &str, queue: Arc<Queue>) -> Device {
        Device::of_queue(name, queue, None)
    }

    /// Makes a device of a driver that stands on the devices `lower`. Its hardware queues access them through
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

    /// Makes a device of at least one leg of others. The caller ensures I1.
    #[doc(hidden)]
    pub fn from_legs(name: &str, legs: Vec<Leg>) -> Device {
        let mut limits = legs[0].queue.limits().clone();
        let mut capabilities = legs[0].queue.capabilities();
        // The weakest leg decides: a feature needs the support of all legs, and a restriction of one applies to all.
        // The length of reads and writes is not combined, because each queue cuts to its own limits.
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

    /// Returns the spec that the device was opened with.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Returns the current size in bytes.
    #[inline]
    pub fn size_bytes(&self) -> u64 {
        if self.is_whole() {
            return self.inner.legs[0].queue.sectors() << SECTOR_SHIFT;
        }
        self.legs().last().map_or(0, |leg| (leg.start + leg.sectors) << SECTOR_SHIFT)
    }

    /// Returns the limits of one I/O; larger ones are cut.
    pub fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    /// Returns the features of the device.
    pub fn capabilities(&self) -> Capabilities {
        self.inner.capabilities
    }

    /// Returns the driver as a `D`, if it is one and the device is one queue from end to end.
    #[doc(hidden)]
    pub fn driver_as<D: Driver>(&self) -> Option<&D> {
        let driver: &dyn Any = self.whole_queue()?.driver();
        driver.downcast_ref()
    }

    /// Returns what is known of the content as consecutive extents from byte `from` on. Empty if nothing is known, as
    /// for most kinds of devices; the caller then has to read. May block for as long as a request may take. A ring's
    /// thread calls it between its I/O when it copies the device.
    ///
    /// # Errors
    ///
    /// The device's description of its content is inconsistent.
    pub fn extents(&self, from: u64) -> Result<Vec<Extent>, DeviceError> {
        self.whole_queue().map_or_else(|| Ok(Vec::new()), |queue| queue.driver().extents(from))
    }

    /// Returns messages about the device for its user.
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

    /// Returns activities since `since` that may have delayed I/O on the device.
    pub fn beside(&self, since: CoarseTs) -> Beside {
        self.legs().iter().fold(Beside::default(), |all, leg| all.and(leg.queue.beside().since(since)))
    }

    /// Returns statistics of the device over all rings. For a partition: of its own requests and those of partitions
    /// within it. For a concatenation: of the devices that it consists of. Flushes and faults are those of the whole
    /// device.
    pub fn stats(&self) -> Stats {
        let mut sum = Stats::default();
        self.each_queue(|queue, is| sum.add(&queue.stats_of(is)));
        sum
    }

    /// Turns statistics of the queues under the device on or off. They are on at first. Applies to all rings that keep
    /// statistics; each follows with the next I/O that it sends to the device, even within a batch.
    ///
    /// Existing counts stay. While statistics are off, no clock is read for I/O of the device, none of its I/O is
    /// traced or counts as slow, and no latency, stage time or busy time is counted, not even for files and volumes on
    /// the device. I/O in flight when statistics are turned off is not counted if it ends later; I/O in flight when
    /// they are turned on counts from that moment. Requests in flight and the number of faults, which health checks
    /// read, are always counted.
    pub fn set_stats(&self, on: bool) {
        self.each_queue(|queue, _| queue.set_stats(on));
    }

    /// Returns true if all queues under the device keep statistics.
    pub fn keeps_stats(&self) -> bool {
        let mut all = true;
        self.each_queue(|queue, _| all &= queue.keeps_stats());
        all
    }

    /// Returns the faults of the queues under the device.
    pub fn faults(&self) -> Faults {
        let mut sum = Faults::default();
        self.each_queue(|queue, _| sum.add(queue.faults()));
        sum
    }

    /// Calls `with` once for each queue under the device, with a test for the queue's partitions that belong to the
    /// device.
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

    /// Returns a device for each queue under this one, whose statistics and in-flight counts are this device's part of
    /// those of the queue: this device alone, if it has one queue. The others have the names of their queues.
    #[doc(hidden)]
    pub fn by_queue(&self) -> Vec<Device> {
        let legs = self.legs();
        if legs.iter().all(|leg| Arc::ptr_eq(&leg.queue, &legs[0].queue)) {
            return vec![self.clone()];
        }
        let mut queues: Vec<Vec<Leg>> = Vec::new();
        for leg in legs {
            match queues.iter_mut().find(|have| Arc::ptr_eq(&have[0].queue, &leg.queue)) {
                Some(have) => {
                    let start = have.last().map_or(0, |last| last.start + last.sectors); // I1
                    have.push(Leg { start, ..leg.clone() });
                }
                None => queues.push(vec![Leg { start: 0, ..leg.clone() }]),
            }
        }
        let of = |legs: Vec<Leg>| {
            let queue = Arc::clone(&legs[0].queue);
            Device::from_legs(queue.name(), legs)
        };
        queues.into_iter().map(of).collect()
    }

    /// Counts the requests of this device that are with the drivers. For a partition: its own and those of partitions
    /// within it. For a concatenation: those of the devices that it consists of.
    pub fn in_flight(&self) -> InFlight {
        self.count(false)
    }

    /// Counts the requests of this device that are *accounted*: those with the drivers, and those that a driver refused
    /// or a quiesced queue holds back. Statistics count a request when it leaves this number.
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

    /// Claims the device against other users in this process and, if the driver supports it, in other processes.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Claimed`] names the holder.
    #[doc(hidden)]
    pub fn claim(&self, sharing: Sharing) -> Result<Claim, DeviceError> {
        // A whole device is claimed without an upper end, so that the claim covers its growth.
        let range = |leg: &Leg| if self.is_whole() { 0..u64::MAX } else { leg.offset..leg.offset + leg.sectors };
        let claims = self.legs().iter().map(|leg| leg.queue.claim(range(leg), sharing));
        Ok(Claim::all(claims.collect::<Result<_, _>>()?))
    }

    /// Checks with the storage behind the device that this process still holds its claim. May block for as long as a
    /// request may take. See [`Driver::still_owns`](crate::driver::Driver::still_owns).
    ///
    /// # Errors
    ///
    /// The claim was lost, or the storage does not answer.
    #[doc(hidden)]
    pub fn still_owns(&self) -> Result<(), Status> {
        self.legs().iter().try_for_each(|leg| leg.queue.driver().still_owns())
    }

    /// Returns what tells the storage of the first part from any other of this host, if completed writes to all parts
    /// survive the end of this process. See [`Driver::lasting`](crate::driver::Driver::lasting).
    #[doc(hidden)]
    pub fn lasting(&self) -> Option<[u64; 2]> {
        let mut legs = self.legs().iter().map(|leg| leg.queue.driver().lasting());
        let first = legs.next().flatten()?;
        legs.all(|leg| leg.is_some()).then_some(first)
    }

    /// Triggers `alarm` when a flush of any current part of the device fails. Extensions must be watched separately,
    /// before anything is written to them.
    #[doc(hidden)]
    pub fn watch_flushes(&self, alarm: &Arc<FlushAlarm>) -> FlushWatch {
        let parts = self.legs().iter().map(|leg| (leg.part, Arc::clone(leg.queue.watches())));
        FlushWatch::new(alarm, parts.collect())
    }

    /// Keeps I/O from entering until the guards are dropped. Returns when nothing is in flight. See [`Queue::freeze`].
    #[doc(hidden)]
    pub fn freeze(&self, timeout: Duration) -> Result<Vec<GateGuard>, DeviceError> {
        self.legs().iter().map(|leg| leg.queue.freeze(timeout)).collect()
    }

    /// Keeps requests from the drivers until the guards are dropped. See [`Queue::quiesce`].
    #[doc(hidden)]
    pub fn quiesce(&self, timeout: Duration) -> Result<Vec<GateGuard>, DeviceError> {
        self.legs().iter().map(|leg| leg.queue.quiesce(timeout)).collect()
    }

    /// Returns the current pieces of the device.
    #[doc(hidden)]
    pub fn legs(&self) -> &[Leg] {
        self.newest().map_or(&self.inner.legs, |longer| &longer.legs)
    }

    /// Returns true if both handles are of the same device.
    pub fn same(&self, other: &Device) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Returns the queue if it is the device from end to end, so that its size is the device's.
    #[doc(hidden)]
    pub fn whole_queue(&self) -> Option<&Arc<Queue>> {
        if self.is_whole() { self.inner.legs.first().map(|leg| &leg.queue) } else { None }
    }

    /// Returns true if one queue is the device from end to end: a device without pieces that was not extended.
    #[doc(hidden)]
    pub fn is_whole(&self) -> bool {
        self.inner.whole && !self.is_extended()
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
