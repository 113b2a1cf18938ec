//! The request queue of a device: the state that all its rings share.
//!
//! Owns the driver, the limits, the size, the gate (freeze, quiesce) and the list of hardware contexts that readers of
//! statistics and in-flight counts walk. Does not own requests: those belong to the hardware contexts.
//!
//! The gate. *Frozen*: no bio enters, and those that have entered complete; [`Queue::freeze`] returns when nothing is
//! in flight. *Quiesced*: requests stay, but none goes to the driver; [`Queue::quiesce`] returns when no ring is inside
//! the driver. Both nest. Bios and requests that arrive wait in their ring and go on when the gate opens.
//!
//! Invariants:
//! - I1 (freeze): a ring publishes its tags and marks itself as dispatching before it reads the gate. The freezer
//!   closes the gate, makes every processor run a barrier ([`asymmetric`](sheave_base::asymmetric)), and reads that
//!   mark before it reads the tags. Either the ring sees the gate closed, or the freezer sees the mark or the tags.
//! - I2 (quiesce): either the ring sees the gate closed, or the quiescer sees the ring's mark until its call has ended.
//! - I3: the statistics of a closed hardware context are kept in its queue.

use std::ops::Range;
use std::time::{Duration, Instant};

use sheave_base::asymmetric::barrier;
use sheave_base::beside::{Activities, Activity};
use sheave_base::status::Status;
use sheave_base::sync::atomic::{AtomicU32, Ordering};
use sheave_base::sync::{Arc, Mutex, MutexGuard};

use crate::bio::{Bio, Op};
use crate::claim::{Claim, Claims, Sharing};
use crate::driver::{Capabilities, Driver};
use crate::error::DeviceError;
use crate::flush_alarm::Watches;
use crate::hctx_shared::HctxShared;
use crate::limits::{Capacity, Limits, MAX_DEPTH};
use crate::stats::{Faults, Retired, Stats};
use crate::tag_set::{InFlight, TagSet, TagWalk};

const QUIESCE: u32 = 1 << 16;
const FREEZE: u32 = 1;
/// Set while the device keeps no statistics. In the gate, because rings read it before each call of the driver anyway.
const NO_STATS: u32 = 1 << 31;

/// Default time that a request may take before the timeout walk calls the driver for it.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// Request queue of a device.
#[derive(Debug)]
pub struct Queue {
    name: String,
    driver: Box<dyn Driver>,
    limits: Limits,
    capabilities: Capabilities,
    capacity: Capacity,
    gate: AtomicU32,
    timeout: Duration,
    host_tags: Option<Arc<TagSet>>,
    /// Parent of each partition; that of number n is at n - 1.
    partitions: Mutex<Vec<u16>>,
    /// By seat. A closed context leaves its seat to the next one that is opened.
    hctxs: Mutex<Vec<Option<Seat>>>,
    retired: Mutex<Retired>,
    claims: Arc<Claims>,
    watches: Arc<Watches>,
    /// Times at which the queue was frozen or quiesced.
    beside: Activities,
}

impl Queue {
    /// Makes a queue for this driver.
    pub fn new(name: impl Into<String>, driver: Box<dyn Driver>, timeout: Duration) -> Arc<Queue> {
        let host_tags = driver.host_wide_depth().map(|depth| TagSet::shared(depth.clamp(1, MAX_DEPTH)));
        Self::with_host_tags(name.into(), driver, timeout, host_tags)
    }

    /// Makes a queue for a driver that passes its requests on to the driver of `lower`, with the same tags. If those
    /// are host-wide, the two queues share them.
    pub fn over(lower: &Queue, name: &str, driver: Box<dyn Driver>, timeout: Duration) -> Arc<Queue> {
        Self::with_host_tags(name.to_string(), driver, timeout, lower.host_tags.as_ref().map(|tags| tags.beside()))
    }

    fn with_host_tags(
        name: String,
        driver: Box<dyn Driver>,
        timeout: Duration,
        host_tags: Option<Arc<TagSet>>,
    ) -> Arc<Queue> {
        Arc::new(Queue {
            name,
            limits: driver.limits().normalized(),
            capabilities: driver.capabilities(),
            capacity: Capacity::new(driver.size_bytes()),
            gate: AtomicU32::new(0),
            timeout,
            host_tags,
            partitions: Mutex::new(Vec::new()),
            hctxs: Mutex::new(Vec::new()),
            retired: Mutex::default(),
            claims: Arc::default(),
            watches: Arc::default(),
            beside: Activities::default(),
            driver,
        })
    }

    /// Returns the spec that the device was opened with.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the limits of a request.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns the features of the device.
    pub fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    /// Returns the driver.
    pub fn driver(&self) -> &dyn Driver {
        &*self.driver
    }

    /// Returns the size in sectors of 512 bytes.
    #[inline]
    pub fn sectors(&self) -> u64 {
        self.capacity.sectors()
    }

    /// Sets a new size; see [`Capacity::set_bytes`].
    pub fn set_capacity(&self, bytes: u64) {
        self.capacity.set_bytes(bytes);
    }

    /// Returns the handle of the size, for holders that must see it change.
    pub(crate) fn capacity(&self) -> &Capacity {
        &self.capacity
    }

    /// Returns the time that a request may take before the driver is called for it.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Returns a number for a new partition, from 1 on, for accounting. `parent` is the number of the partition that
    /// contains it, 0 for the device. After 65,535 partitions the result is `parent`: the new one is accounted to it.
    pub fn new_partition(&self, parent: u16) -> u16 {
        let mut parents = self.parents();
        let Ok(number) = u16::try_from(parents.len() + 1) else { return parent };
        debug_assert!(parent < number, "the number came from here");
        parents.push(parent.min(number - 1));
        number
    }

    /// Claims a range of the queue's sectors, and the driver with it. For a driver that stacks on this queue; users
    /// claim a [`Device`](crate::Device).
    ///
    /// # Errors
    ///
    /// [`DeviceError::Claimed`] names the holder.
    pub fn claim(&self, range: Range<u64>, sharing: Sharing) -> Result<Claim, DeviceError> {
        self.claims.hold(&self.name, range, sharing, || self.driver.claim(sharing))
    }

    /// Returns the flush alarms of this queue's users.
    pub(crate) fn watches(&self) -> &Arc<Watches> {
        &self.watches
    }

    pub(crate) fn host_tags(&self) -> Option<&Arc<TagSet>> {
        self.host_tags.as_ref()
    }

    fn hctxs(&self) -> impl std::ops::DerefMut<Target = Vec<Option<Seat>>> + '_ {
        self.hctxs.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(crate) fn add_hctx(&self, shared: Arc<HctxShared>) {
        let shared = Seat { tags: shared.tags.walk(), shared };
        let mut hctxs = self.hctxs();
        match hctxs.iter_mut().find(|seat| seat.is_none()) {
            Some(seat) => *seat = Some(shared),
            None => hctxs.push(Some(shared)),
        }
    }

    pub(crate) fn remove_hctx(&self, shared: &Arc<HctxShared>) {
        let mut hctxs = self.hctxs();
        let mut retired = self.retired.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let is_it = |have: &Option<Seat>| have.as_ref().is_some_and(|have| Arc::ptr_eq(&have.shared, shared));
        if let Some(seat) = hctxs.iter().position(is_it) {
            hctxs[seat] = None;
            shared.stats.retire(seat, &mut retired);
        }
    }

    /// Returns statistics of the device over all rings since it was opened.
    pub fn stats(&self) -> Stats {
        self.stats_of(|part| part == 0)
    }

    /// Returns statistics of the partitions that `is` accepts and of those within them, over all rings since the device
    /// was opened. The faults are those of the whole device.
    pub(crate) fn stats_of(&self, is: impl Fn(u16) -> bool) -> Stats {
        let within = self.within(is);
        let within = |part| within.contains(part);
        let hctxs = self.hctxs();
        let mut sum = self.retired.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).read(&within);
        for (seat, hctx) in hctxs.iter().enumerate() {
            if let Some(hctx) = hctx {
                hctx.shared.stats.read(seat, &within, &mut sum);
            }
        }
        sum
    }

    /// Returns the faults of the device over all rings since it was opened, without reading all statistics.
    pub fn faults(&self) -> Faults {
        let hctxs = self.hctxs();
        let mut sum = self.retired.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).faults();
        hctxs.iter().flatten().for_each(|hctx| sum.add(hctx.shared.stats.faults()));
        sum
    }

    /// Counts the requests that the driver has: of the whole device, and of one partition with those within it, in one
    /// pass over the tags.
    pub fn in_flight(&self, part: u16) -> (InFlight, InFlight) {
        let (mut whole, mut of_part) = (InFlight::default(), InFlight::default());
        let within = self.within(|have| have == part);
        self.for_each_request(|op, part, held| {
            if !held {
                whole.count(op);
                if within.contains(part) {
                    of_part.count(op);
                }
            }
        });
        (whole, of_part)
    }

    /// Counts the requests of the partitions that `is` accepts and of those within them, each once: all accounted ones
    /// (`held_too`), or only those that the driver has.
    pub(crate) fn count(&self, is: impl Fn(u16) -> bool, held_too: bool) -> InFlight {
        let mut count = InFlight::default();
        let within = self.within(is);
        self.for_each_request(|op, part, held| {
            if (held_too || !held) && within.contains(part) {
                count.count(op);
            }
        });
        count
    }

    /// Calls `tell` for each accounted request with its operation, its partition, and true if the block layer holds it
    /// back.
    fn for_each_request(&self, mut tell: impl FnMut(Op, u16, bool)) {
        let hctxs = self.hctxs();
        if let Some(tags) = &self.host_tags {
            tags.for_each(&mut tell);
        }
        for hctx in hctxs.iter().flatten() {
            hctx.tags.for_each(&mut tell);
            hctx.shared.tell_of_flush(&mut tell);
        }
    }

    /// Returns the set of the partitions that `is` accepts and those within them. A set that includes the device needs
    /// no list of partitions. Any other locks the list until it is dropped.
    fn within<F: Fn(u16) -> bool>(&self, is: F) -> Within<'_, F> {
        let parents = if is(0) { None } else { Some(self.parents()) };
        Within { is, parents }
    }

    fn parents(&self) -> MutexGuard<'_, Vec<u16>> {
        self.partitions.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Returns the current state of the gate.
    #[inline]
    pub(crate) fn gate(&self) -> Gate {
        // SeqCst: read behind the mark of `HctxShared::start_dispatch` (I1, I2); pairs with `freeze` and `quiesce`.
        Gate(self.gate.load(Ordering::SeqCst))
    }

    /// Turns statistics of the device on or off; see [`Device::set_stats`](crate::Device::set_stats).
    pub fn set_stats(&self, on: bool) {
        // Relaxed, both: a ring reads it with its next call of the driver, and nothing is ordered by it.
        if on {
            self.gate.fetch_and(!NO_STATS, Ordering::Relaxed);
        } else {
            self.gate.fetch_or(NO_STATS, Ordering::Relaxed);
        }
    }

    /// Returns true if the device keeps statistics.
    pub fn keeps_stats(&self) -> bool {
        self.gate().keeps_stats()
    }

    /// Returns activities that may have delayed I/O here.
    pub fn beside(&self) -> &Activities {
        &self.beside
    }

    fn open_gate(&self, unit: u32) {
        self.beside.end(Activity::FrozenQueue);
        // SeqCst for symmetry with closing; rings that sleep are woken below.
        self.gate.fetch_sub(unit, Ordering::SeqCst);
        self.wake_rings();
    }

    fn wake_rings(&self) {
        for hctx in self.hctxs().iter().flatten() {
            hctx.shared.unpark();
        }
    }

    /// Keeps bios from entering until the guard is dropped, and waits until nothing is in flight. The rings that use
    /// the device must poll meanwhile; a ring of the calling thread must have nothing in flight before the call.
    pub fn freeze(self: &Arc<Self>, timeout: Duration) -> Result<GateGuard, DeviceError> {
        // SeqCst: before the barrier of `wait_for` (I1); pairs with the load in `gate`.
        self.gate.fetch_add(FREEZE, Ordering::SeqCst);
        self.beside.start(Activity::FrozenQueue);
        let guard = GateGuard { queue: self.clone(), unit: FREEZE };
        // A ring may sleep with requests that were refused or held back, and must wake up to take them apart.
        self.wake_rings();
        self.wait_for(timeout, || self.dispatching() + self.count(|part| part == 0, true).total())?;
        Ok(guard)
    }

    /// Keeps requests from the driver until the guard is dropped, and waits until no ring is inside the driver.
    pub fn quiesce(self: &Arc<Self>, timeout: Duration) -> Result<GateGuard, DeviceError> {
        // SeqCst: before the barrier of `wait_for` (I2); pairs with the load in `gate`.
        self.gate.fetch_add(QUIESCE, Ordering::SeqCst);
        self.beside.start(Activity::FrozenQueue);
        let guard = GateGuard { queue: self.clone(), unit: QUIESCE };
        self.wait_for(timeout, || self.dispatching())?;
        Ok(guard)
    }

    /// Returns the number of rings that are inside the driver or about to read the gate.
    fn dispatching(&self) -> u32 {
        self.hctxs().iter().flatten().filter(|hctx| hctx.shared.is_dispatching()).count() as u32
    }

    /// Waits until `busy` is 0: no ring that saw the gate open still acts on it.
    fn wait_for(&self, timeout: Duration, busy: impl Fn() -> u32) -> Result<(), DeviceError> {
        let start = Instant::now();
        let mut pause = Duration::from_micros(5);
        let mut ordered = false;
        loop {
            // Between closing the gate and the first read of the rings' marks (I1, I2). If the barrier fails, a mark
            // that is not set does not prove that the ring is outside of its driver.
            ordered = ordered || barrier();
            let in_flight = if ordered { busy() } else { 1 };
            if in_flight == 0 {
                return Ok(());
            }
            if start.elapsed() >= timeout {
                let ms = timeout.as_millis() as u64;
                return Err(DeviceError::Busy { what: self.name.clone(), ms, in_flight });
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(1));
        }
    }

    /// Returns the status that the bio must end with if it is out of range. A flush has no range: it covers the whole
    /// device, even if it came through a piece beyond the end of a device that has shrunk.
    #[inline]
    pub(crate) fn check_range(&self, bio: &Bio) -> Result<(), Status> {
        let end = bio.end_sector();
        let within = end <= self.sectors() && bio.sector <= end;
        if within || bio.op == Op::Flush { Ok(()) } else { Err(Status::IoErr) }
    }
}

/// A hardware context in the list, with its tags cached beside it for readers.
#[derive(Debug)]
struct Seat {
    shared: Arc<HctxShared>,
    tags: TagWalk,
}

/// Set of partitions of a queue, including those within them.
struct Within<'a, F> {
    is: F,
    /// Parents as in [`Queue::partitions`]; `None` if the set includes the device itself.
    parents: Option<MutexGuard<'a, Vec<u16>>>,
}

impl<F: Fn(u16) -> bool> Within<'_, F> {
    /// Returns true if the set contains the partition. Walks up through its parents, whose numbers are ever smaller.
    #[inline]
    fn contains(&self, mut part: u16) -> bool {
        let Some(parents) = &self.parents else { return true };
        while part != 0 {
            if (self.is)(part) {
                return true;
            }
            part = parents.get(usize::from(part) - 1).copied().unwrap_or(0);
        }
        false
    }
}

/// Value of the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gate(u32);

impl Gate {
    #[inline]
    pub(crate) fn is_open(self) -> bool {
        self.0 & !NO_STATS == 0
    }

    /// Returns the value that the gate has when it is open.
    pub(crate) fn opened(self) -> Gate {
        Gate(self.0 & NO_STATS)
    }

    /// Returns true if the device keeps statistics.
    pub(crate) fn keeps_stats(self) -> bool {
        self.0 & NO_STATS == 0
    }

    pub(crate) fn is_frozen(self) -> bool {
        !self.0.is_multiple_of(QUIESCE)
    }
}

/// Keeps the gate closed. Dropping it opens the gate and wakes the rings that wait at it.
#[derive(Debug)]
#[must_use = "the gate opens when the guard is dropped"]
pub struct GateGuard {
    queue: Arc<Queue>,
    unit: u32,
}

impl Drop for GateGuard {
    fn drop(&mut self) {
        self.queue.open_gate(self.unit);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Device;
    use crate::bio::{BIO_FUA, Op};
    use crate::device::Leg;
    use crate::support::{BLOCK, Puppet, Rig};

    /// Makes a device, and two partitions of 1,000 sectors on it.
    fn partitioned(puppet: &Puppet) -> [Device; 3] {
        let whole = puppet.device();
        let queue = whole.legs()[0].queue.clone();
        let part = |offset: u64| {
            let part = queue.new_partition(0);
            Device::from_legs(
                "part",
                vec![Leg { start: 0, sectors: 1000, offset, part, queue: queue.clone(), lower: None }],
            )
        };
        let (one, two) = (part(0), part(1000));
        [whole, one, two]
    }

    /// Returns the counts by partition (0 is the device), checked against the whole count of each pass.
    fn by_part(rig: &Rig) -> [u32; 3] {
        let counts = [0, 1, 2].map(|part| rig.queue().in_flight(part));
        let whole = counts[0].0;
        assert!(counts.iter().all(|count| count.0 == whole), "each pass gives the same whole");
        assert_eq!(counts[0].1, whole, "the device is all of it");
        let direct = whole.total().checked_sub(counts[1].1.total() + counts[2].1.total());
        let direct = direct.expect("the whole is its partitions and what is direct");
        assert_eq!(rig.devices[0].1.in_flight(), whole);
        for part in [1, 2] {
            assert_eq!(rig.devices[part].1.in_flight(), counts[part].1);
        }
        [direct, counts[1].1.total(), counts[2].1.total()]
    }

    fn rigs() -> [(Puppet, Rig); 2] {
        [Puppet::new(), Puppet::new().host_depth(64)].map(|puppet| {
            let puppet = puppet.caps(|caps| caps.volatile_cache = true).holding();
            let devices = partitioned(&puppet);
            let rig = Rig::new(&devices.iter().collect::<Vec<_>>());
            (puppet, rig)
        })
    }

    #[test]
    fn partitions_and_directions_in_one_pass() {
        for (puppet, mut rig) in rigs() {
            assert_eq!(by_part(&rig), [0, 0, 0]);
            rig.io_to(0, Op::Read, 0, 5000, BLOCK, 0);
            for owner in 1..3 {
                rig.io_to(1, Op::Write, 0, u64::from(owner) * 100, BLOCK, owner);
            }
            for owner in 3..6 {
                rig.io_to(2, Op::Discard, 0, u64::from(owner) * 100, BLOCK, owner);
            }
            rig.poll();
            assert_eq!(by_part(&rig), [1, 2, 3]);
            assert_eq!(rig.device().in_flight(), InFlight { reads: 1, writes: 2, other: 3 });
            // A flush counts for the device, even if it came through a partition.
            rig.io_to(2, Op::Flush, 0, 0, 0, 6);
            rig.poll();
            assert_eq!(by_part(&rig), [2, 2, 3]);
            puppet.script().finish = 4;
            rig.poll();
            assert_eq!(by_part(&rig), [1, 0, 2], "oldest first: the read, both writes, a discard");
            puppet.script().finish = u32::MAX;
            rig.drain();
            assert_eq!(by_part(&rig), [0, 0, 0]);
            assert_eq!(rig.take_ok().len(), 7);
        }
    }

    #[test]
    fn merges_do_not_cross_partitions() {
        for (puppet, mut rig) in rigs() {
            rig.ctx.start_plug(4);
            // The last blocks of partition one and the first of two are adjacent on the device.
            rig.io_to(1, Op::Read, 0, 984, BLOCK, 0);
            rig.io_to(1, Op::Read, 0, 992, BLOCK, 1);
            rig.io_to(2, Op::Read, 0, 0, BLOCK, 2);
            rig.io_to(2, Op::Read, 0, 8, BLOCK, 3);
            rig.ctx.finish_plug();
            let seen: Vec<_> = puppet.script().seen.iter().map(|seen| (seen.sector, seen.bytes)).collect();
            assert_eq!(seen, [(984, 2 * BLOCK), (1000, 2 * BLOCK)]);
            assert_eq!(by_part(&rig), [0, 1, 1]);
            puppet.script().finish = u32::MAX;
            rig.drain();
            assert_eq!(by_part(&rig), [0, 0, 0]);
        }
    }

    #[test]
    fn equal_to_the_weight_of_the_tags_whatever_happens() {
        for (puppet, mut rig) in rigs() {
            rig.ctx.start_plug(100);
            for n in 0..50 {
                rig.io_to((n % 3) as usize, Op::Write, 0, u64::from(n) * 16, BLOCK, n);
            }
            puppet.script().accept = 10;
            rig.ctx.finish_plug();
            // 32 went when the plug was full. Refused requests keep their tags, and are accounted once.
            for _ in 0..3 {
                rig.poll();
                assert_eq!(rig.device().accounted().total(), 50);
                assert_eq!(by_part(&rig).iter().sum::<u32>(), 42, "the driver has those that it took");
            }
            puppet.script().accept = u32::MAX;
            rig.poll();
            puppet.script().finish = 20;
            puppet.script().lifo = true;
            rig.poll();
            assert_eq!(by_part(&rig).iter().sum::<u32>(), 30);
            // Reused tags: the new requests count, the old ones do not.
            (0..5).for_each(|n| assert!(rig.io_to(2, Op::Read, 0, n * 16, BLOCK, 100 + n as u32)));
            assert_eq!(by_part(&rig).iter().sum::<u32>(), 35);
            rig.io_to(0, Op::Write, BIO_FUA, 0, BLOCK, 200);
            rig.poll();
            assert_eq!(by_part(&rig).iter().sum::<u32>(), 36);
            puppet.script().finish = u32::MAX;
            rig.drain();
            assert_eq!(by_part(&rig), [0, 0, 0]);
            assert_eq!(rig.take_ok().len(), 56);
        }
    }

    #[test]
    fn statistics_off_does_not_change_it() {
        let puppet = Puppet::new().holding();
        let device = puppet.device();
        let mut rigs = [Rig::with(64, true, &[&device]), Rig::with(64, false, &[&device])];
        for rig in &mut rigs {
            (0..3).for_each(|n| assert!(rig.read(n * 2, n as u32)));
        }
        assert_eq!(device.in_flight().reads, 6);
        puppet.script().finish = u32::MAX;
        rigs.iter_mut().for_each(Rig::drain);
        assert_eq!(device.in_flight().total(), 0);
        assert_eq!(device.stats().op(Op::Read).ios, 3, "the ring without statistics counts nothing");
    }

    #[test]
    fn a_ring_that_went_away_left_its_statistics_and_nothing_in_flight() {
        let puppet = Puppet::new().holding();
        let device = puppet.device();
        let mut rig = Rig::new(&[&device]);
        rig.read(0, 0);
        drop(rig);
        assert_eq!(device.in_flight().total(), 0);
        assert_eq!(device.stats().op(Op::Read).ios, 1);
        assert_eq!(device.stats().op(Op::Read).errors, 1, "the driver ended it when the ring went");
    }

    #[test]
    fn capacity_changes_count_for_the_next_bio() {
        let puppet = Puppet::new();
        let mut rig = Rig::new(&[&puppet.device()]);
        rig.queue().set_capacity(8 * u64::from(BLOCK));
        assert_eq!(rig.device().size_bytes(), 8 * u64::from(BLOCK));
        rig.read(7, 0);
        rig.read(8, 1);
        rig.io(Op::Write, 7 * 8, 2 * BLOCK, 2);
        rig.queue().set_capacity(16 * u64::from(BLOCK));
        rig.read(8, 3);
        rig.drain();
        let mut ended = rig.take_ended();
        ended.sort_unstable_by_key(|end| end.0);
        assert_eq!(
            ended.iter().map(|end| end.1).collect::<Vec<_>>(),
            [Status::Ok, Status::IoErr, Status::IoErr, Status::Ok]
        );
    }

    #[test]
    fn partition_numbers_start_at_one() {
        let queue = Queue::new("q", Box::new(Puppet::new()), Duration::from_secs(1));
        assert_eq!([queue.new_partition(0), queue.new_partition(1)], [1, 2]);
    }
}
