//! Statistics of one hardware context: one writer, readable at any time from any thread.
//!
//! Owns the counters of each operation, with a histogram of latencies and one for each stage of a request's life
//! (`split`). Does not read the clock: each batch brings the time stamps that its requests share. Only a reading within
//! a busy period reads the clock.
//!
//! Invariants:
//! - I1: only the owner of the hardware context writes, with a plain load and store: no read-modify-write, no lock.
//!   A reader may see one counter of a batch before another; each counter only grows.
//! - I2: requests of one batch that were issued together have the same latency, so that a batch costs the updates of a
//!   few histograms per distinct (operation, start), not per request.

mod busy;
mod counter;
mod part;
mod records;
mod split;

use std::time::Duration;

use sheave_base::clock::{Clock, CoarseTs};
use sheave_base::status::Status;
use sheave_base::sync::atomic::Ordering;
use sheave_base::sync::count::AtomicU64;
use sheave_base::sync::{Arc, Mutex};

use self::busy::{BusyTime, Calendar};
use self::split::add;
use crate::bio::{NR_OPS, Op};

pub(crate) use self::busy::BusyEdge;
#[doc(hidden)]
pub use self::counter::BusyCounter;
pub(crate) use self::part::{OpTallies, PartStats};
pub(crate) use self::records::Owners;
pub use self::records::{IoTally, OpCounts, RecordStats};
pub use self::split::{
    LATENCY_CELLS, Latencies, NR_STAGES, STAGE_CELLS, Split, SplitCounts, Stage, StageTimes, quantile_ns,
};

/// Statistics of one hardware context.
#[derive(Debug)]
pub struct HctxStats {
    /// Counts of requests with bios that came through no partition, and of records whose owners have no counts of their
    /// own.
    pub(crate) own: OpTallies,
    /// Counts of requests and records that came through a partition, for each partition that the ring has attached.
    parts: Mutex<Vec<Arc<PartStats>>>,
    /// Errors that are faults of the device.
    faults: AtomicU64,
    /// The newest fault: a [`Status`] as a number.
    last_fault: AtomicU64,
    pub(crate) busy: BusyTime,
    /// Clock of the ring, for readers.
    clock: Clock,
    pub(crate) owners: Owners,
}

impl HctxStats {
    pub(crate) fn new(clock: Clock) -> HctxStats {
        HctxStats {
            own: OpTallies::default(),
            parts: Mutex::default(),
            faults: Default::default(),
            last_fault: Default::default(),
            busy: BusyTime::default(),
            clock,
            owners: Owners::default(),
        }
    }

    fn parts(&self) -> impl std::ops::DerefMut<Target = Vec<Arc<PartStats>>> + '_ {
        self.parts.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Adds counts for another partition.
    pub(crate) fn open_part(&self, part: u16) -> Arc<PartStats> {
        let stats = Arc::new(PartStats::new(part));
        self.parts().push(Arc::clone(&stats));
        stats
    }

    /// Counts an error: in `tallies` if the request is counted there, and in any case as a fault of the device if it is
    /// one.
    #[cold]
    pub(crate) fn note_error(&self, tallies: Option<&OpTallies>, op: Op, status: Status) {
        if let Some(tallies) = tallies {
            tallies.note_error(op);
        }
        if status.is_fault() {
            // Relaxed, as in `add`: a reader may see the count of this fault with the status of the one before.
            self.last_fault.store(status as u64, Ordering::Relaxed);
            add(&self.faults, 1);
        }
    }

    /// Returns the faults of the device that this hardware context has seen.
    pub(crate) fn faults(&self) -> Faults {
        // Relaxed: see `add`.
        let last = Status::from_u8(self.last_fault.load(Ordering::Relaxed) as u8);
        Faults { count: self.faults.load(Ordering::Relaxed), last }
    }

    /// Adds to `into` the counts for the partitions that `within` accepts (0 is the device with all its partitions) and
    /// the faults of the whole device. `into` is a reading of this queue alone. `seat` is the context's place on the
    /// queue; no other one has it at the same time.
    pub(crate) fn read(&self, seat: usize, within: &impl Fn(u16) -> bool, into: &mut Stats) {
        let whole = within(0);
        if whole {
            self.own.read(&mut into.ops);
            into.read_busy((seat, 0), &self.busy, &self.clock);
        }
        for part in self.parts().iter().filter(|part| whole || within(part.part)) {
            part.tallies.read(&mut into.ops);
            // Not if the whole device is read: it is busy whenever a partition is, so its own busy time contains this
            // one.
            if !whole {
                into.read_busy((seat, part.part), &part.busy, &self.clock);
            }
        }
        self.owners.read(&mut into.ops, |part| whole || within(part));
        into.faults.add(self.faults());
    }

    /// Adds the counts of this context, which is being closed, to one sum per partition. Sum 0 gets the I/O that came
    /// through no partition.
    pub(crate) fn retire(&self, seat: usize, into: &mut Retired) {
        let own = into.of(0);
        self.own.read(&mut own.ops);
        own.read_busy((seat, 0), &self.busy, &self.clock);
        own.faults.add(self.faults());
        self.owners.read(&mut own.ops, |part| part == 0);
        for part in self.parts().iter() {
            let sum = into.of(part.part);
            part.tallies.read(&mut sum.ops);
            sum.read_busy((seat, part.part), &part.busy, &self.clock);
            self.owners.read(&mut sum.ops, |of| of == part.part);
        }
    }
}

/// Largest number of sums for closed hardware contexts, one a partition. I/O of further partitions counts in sum 0.
const RETIRED_PARTS: usize = 1024;

/// Sums of a queue's closed hardware contexts, by partition; 0 for I/O that came through none.
#[derive(Debug, Default)]
pub(crate) struct Retired(Vec<(u16, Stats)>);

impl Retired {
    /// Returns the sum of a partition, or sum 0 for partitions beyond [`RETIRED_PARTS`].
    fn of(&mut self, part: u16) -> &mut Stats {
        let part = if self.0.len() < RETIRED_PARTS || self.has(part) { part } else { 0 };
        let at = self.0.iter().position(|(have, _)| *have == part).unwrap_or_else(|| {
            self.0.push((part, Stats::default()));
            self.0.len() - 1
        });
        &mut self.0[at].1
    }

    fn has(&self, part: u16) -> bool {
        self.0.iter().any(|(have, _)| *have == part)
    }

    /// Returns the sum over the partitions that `within` accepts, and the faults of the whole device.
    pub(crate) fn read(&self, within: &impl Fn(u16) -> bool) -> Stats {
        let whole = within(0);
        let mut sum = Stats::default();
        for (part, stats) in self.0.iter().filter(|(part, _)| whole || within(*part)) {
            let busy = stats.busy.iter().filter(|busy| !whole || busy.part == 0 && *part == 0);
            busy.for_each(|busy| sum.add_busy(*busy));
            sum.add_all_but_busy(stats);
        }
        sum.faults = self.faults();
        sum
    }

    /// Returns the faults of the device that closed contexts have seen.
    pub(crate) fn faults(&self) -> Faults {
        self.0.iter().find(|(part, _)| *part == 0).map_or_else(Faults::default, |(_, stats)| stats.faults)
    }
}

/// Requests that ended with a fault of the device ([`Status::is_fault`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Faults {
    /// Number of faults since the device was opened.
    pub count: u64,
    /// Status of one of the newest faults; `Ok` if there was none.
    pub last: Status,
}

impl Faults {
    /// Adds faults of the same device that another context has seen.
    pub fn add(&mut self, other: Faults) {
        self.count += other.count;
        if other.count > 0 {
            self.last = other.last;
        }
    }
}

/// Busy time of one hardware context in a reading.
#[derive(Clone, Copy, Debug)]
struct BusyOf {
    queue: usize,
    /// Place of the context on its queue.
    seat: usize,
    /// Partition; 0 is the device with all its partitions.
    part: u16,
    ns: u64,
}

impl BusyOf {
    fn is_like(&self, other: &BusyOf) -> bool {
        (self.queue, self.seat, self.part) == (other.queue, other.seat, other.part)
    }
}

/// A reading of the statistics of a device or of one hardware context.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    ops: [OpCounts; NR_OPS],
    faults: Faults,
    /// One entry per queue, seat and partition.
    busy: Vec<BusyOf>,
    /// Ticks in which some context was busy.
    calendar: Calendar,
    /// Time of the reading, or of the close of the last context that it contains; 0 if there was no ring yet.
    at: CoarseTs,
}

impl Stats {
    /// Returns the counts of one operation.
    pub fn op(&self, op: Op) -> &OpCounts {
        &self.ops[op as usize]
    }

    /// Returns the faults of the device.
    pub fn faults(&self) -> Faults {
        self.faults
    }

    /// Adds a reading of other queues to this one.
    pub fn add(&mut self, other: &Stats) {
        let queues = self.busy.iter().map(|busy| busy.queue + 1).max().unwrap_or(0);
        self.busy.extend(other.busy.iter().map(|busy| BusyOf { queue: queues + busy.queue, ..*busy }));
        self.add_all_but_busy(other);
    }

    fn add_all_but_busy(&mut self, other: &Stats) {
        self.faults.add(other.faults);
        self.calendar.add(&other.calendar);
        self.at = self.at.max(other.at);
        for (sum, op) in self.ops.iter_mut().zip(&other.ops) {
            sum.add(op);
        }
    }

    fn add_busy(&mut self, of: BusyOf) {
        match self.busy.iter_mut().find(|have| have.is_like(&of)) {
            Some(have) => have.ns += of.ns,
            None => self.busy.push(of),
        }
    }

    fn read_busy(&mut self, (seat, part): (usize, u16), busy: &BusyTime, clock: &Clock) {
        let (ns, now) = busy.read(clock, &mut self.calendar);
        self.at = self.at.max(now);
        self.add_busy(BusyOf { queue: 0, seat, part, ns });
    }

    /// Returns the busy time of each hardware context of the device or partition, in ns, up to the reading: the time in
    /// which it had at least one request whose issue was counted and whose end was not. A context that a ring opens in
    /// the place of a closed one continues its busy time.
    ///
    /// The times of several contexts overlap, so their sum may exceed the time that has passed.
    pub fn busy_ns(&self) -> impl Iterator<Item = u64> {
        self.busy.iter().map(|busy| busy.ns)
    }

    /// Returns the time in ns for which the device was busy since the `earlier` reading. Exact if one ring alone used
    /// the device in that time, except that an I/O that its driver ends within the call is seen only after the call.
    ///
    /// If several rings used it, their busy times are combined by ticks of about 0.5 ms (Linux uses ticks of 1 to 4
    /// ms). The device counts as busy in each tick that an I/O of any ring has touched, limited to at most the sum of
    /// all rings and at least the busiest one. Ticks of the last 17 s are kept; the time before is assumed to have been
    /// alike.
    pub fn busy_ns_since(&self, earlier: &Stats) -> u64 {
        self.busy_ns_from(&earlier.busy, earlier.at)
    }

    /// [`Stats::busy_ns_since`] a reading at `from` with these busy times.
    fn busy_ns_from(&self, had: &[BusyOf], from: CoarseTs) -> u64 {
        let before = |of: &BusyOf| had.iter().find(|have| have.is_like(of));
        let (mut longest, mut sum) = (0, 0_u64);
        for of in &self.busy {
            let ns = of.ns.saturating_sub(before(of).map_or(0, |before| before.ns));
            longest = longest.max(ns);
            sum = sum.saturating_add(ns);
        }
        if sum == longest {
            return longest;
        }
        let busy_ns = self.calendar.busy_ns(from, self.at);
        busy_ns.clamp(longest, sum.min(self.at.ns_since(from)).max(longest))
    }

    /// Returns [`Stats::busy_ns_since`] as a share (0 to 1) of the time between the two readings: `%util` of iostat.
    /// `elapsed` comes from another clock than the statistics, so a share above 1 is cut to 1.
    pub fn utilization_since(&self, earlier: &Stats, elapsed: Duration) -> f64 {
        let elapsed_ns = elapsed.as_nanos().max(1) as f64;
        (self.busy_ns_since(earlier) as f64 / elapsed_ns).min(1.0)
    }

    /// Returns the number of requests completed, over all operations.
    pub fn ios(&self) -> u64 {
        self.ops.iter().map(|op| op.ios).sum()
    }
}

/// Collects the requests of one completion batch, and counts them with few stores (I2).
#[derive(Debug)]
pub(crate) struct BatchAccount<'a> {
    stats: &'a HctxStats,
    op: Op,
    split: Split,
    ios: u64,
    bytes: u64,
    merges: u64,
}

impl<'a> BatchAccount<'a> {
    #[inline]
    pub(crate) fn new(stats: &'a HctxStats) -> Self {
        BatchAccount { stats, op: Op::Read, split: Split::default(), ios: 0, bytes: 0, merges: 0 }
    }

    #[inline(always)]
    pub(crate) fn request(&mut self, op: Op, split: &Split, bytes: u32, merged: u16) {
        if op != self.op || *split != self.split {
            if self.ios != 0 {
                self.write();
            }
            self.op = op;
            self.split = *split;
        }
        self.ios += 1;
        self.bytes += u64::from(bytes);
        self.merges += u64::from(merged);
    }

    /// Counts the requests collected since the operation or the split last changed.
    #[inline(never)]
    pub(crate) fn write(&mut self) {
        if self.ios == 0 {
            return;
        }
        self.stats.own.note(self.op, &self.split, self.ios, self.bytes);
        self.stats.own.note_merges(self.op, self.merges);
        self.ios = 0;
        self.bytes = 0;
        self.merges = 0;
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
