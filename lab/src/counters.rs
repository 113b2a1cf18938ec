//! Four ways to keep the number of requests in flight: three count at the start and the end, and one derives it from
//! tags.
//!
//! Owns the counters and the rule which thread writes which counter. Reads and writes are counted apart, like in the
//! kernel; the two numbers of a pair share a cache line.
//!
//! * C1. A [`Seat`] counts on one thread. With [`Way::PerThread`] it is the only writer of its pair, and so needs no
//!   atomic addition. A request may start in one seat and end in another; the sum over all seats is right all the same.
//! * C2. [`Counters::read`] with [`Way::PerThread`] sums numbers of different moments, so the sum can include the end
//!   of a request without its start.
//! * C3. With a reader in the I/O path, a [`Seat`] tests at each start and end if a new jiffy has begun, and the first
//!   seat in a jiffy reads the requests in flight, like the kernel's `part_round_stats` did. A jiffy is a tick of the
//!   kernel: `CLOCK_MONOTONIC_COARSE` changes at ticks only.

use std::sync::{Arc, Mutex, PoisonError};

use crossbeam_utils::CachePadded;
use rustix::time::{ClockId, clock_getres, clock_gettime};
use sheave::Device;
use sheave_base::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use sheave_blk::bio::Op;

/// Number of pairs of [`Way::PerThread`], one for each possible thread. A reader has to read all of them.
pub const POSSIBLE: usize = 256;
/// Number of pairs of [`Way::PerNode`], as the mailing-list thread suggests ("some suitable value (like 4)").
pub const LINES: usize = 4;

/// The method of counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// One pair for all threads, with atomic additions.
    Pair,
    /// A pair for each thread, which only this thread writes.
    PerThread,
    /// [`LINES`] pairs for all threads, with atomic additions. A thread always uses the same pair.
    PerNode,
    /// No counters: a reader goes through the busy tags.
    Tags,
}

impl Way {
    /// Returns the number of pairs.
    pub fn pairs(self) -> usize {
        match self {
            Way::Pair => 1,
            Way::PerThread => POSSIBLE,
            Way::PerNode => LINES,
            Way::Tags => 0,
        }
    }
}

/// Numbers of reads and writes in flight. They are signed numbers stored as their bits, because the pair of one seat
/// may go below zero.
type Pair = CachePadded<[AtomicU64; 2]>;

/// The reader in the I/O path, which the kernel needed to compute the time that a device is busy (C3).
#[derive(Debug, Default)]
struct InPath {
    /// Start of the jiffy of the last reading, in ns.
    last: CachePadded<AtomicU64>,
    /// The device to read. Set only while the reader is used: the device holds the counters, so a reference to it for
    /// ever would keep both alive.
    device: Mutex<Option<Device>>,
    /// Number of readings, and below it the sum of the requests that they saw.
    readings: AtomicU64,
    seen: AtomicU64,
}

#[derive(Debug)]
pub struct Counters {
    way: Way,
    in_path: Option<Box<InPath>>,
    pairs: Box<[Pair]>,
    seats: AtomicUsize,
    /// Number of updates by seats that were dropped.
    updates: AtomicU64,
}

/// Numbers of requests in flight, for each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    pub reads: i64,
    pub writes: i64,
}

impl Reading {
    pub fn total(self) -> i64 {
        self.reads + self.writes
    }
}

impl Counters {
    /// Makes counters at zero, without a reader in the I/O path.
    pub fn new(way: Way) -> Arc<Counters> {
        Counters::with(way, None)
    }

    /// Makes counters at zero with a reader in the I/O path. It reads once in each jiffy after [`Counters::watch`] has
    /// set a device.
    pub fn read_in_path(way: Way) -> Arc<Counters> {
        Counters::with(way, Some(Box::default()))
    }

    fn with(way: Way, in_path: Option<Box<InPath>>) -> Arc<Counters> {
        let pairs = (0..way.pairs()).map(|_| Pair::default()).collect();
        Arc::new(Counters { way, in_path, pairs, seats: AtomicUsize::new(0), updates: AtomicU64::new(0) })
    }

    /// Sets the device that the reader in the I/O path reads; `None` removes it.
    pub fn watch(&self, device: Option<&Device>) {
        if let Some(in_path) = &self.in_path {
            *in_path.device.lock().unwrap_or_else(PoisonError::into_inner) = device.cloned();
        }
    }

    /// Returns the number of readings in the I/O path so far, and the sum of the requests that they saw.
    pub fn readings_in_path(&self) -> (u64, u64) {
        // Relaxed: counts by themselves.
        let of = |in_path: &InPath| (in_path.readings.load(Ordering::Relaxed), in_path.seen.load(Ordering::Relaxed));
        self.in_path.as_deref().map(of).unwrap_or_default()
    }

    /// Reads the counters if there was no reading in the current jiffy (C3).
    #[inline]
    fn tick(&self) {
        if let Some(in_path) = &self.in_path {
            self.look(in_path);
        }
    }

    /// Kept out of line, so that arms without a reader execute only one test more.
    #[inline(never)]
    fn look(&self, in_path: &InPath) {
        let jiffy = jiffy();
        // Relaxed: the stamp carries nothing but itself, and the exchange succeeds for only one seat in each jiffy.
        let last = in_path.last.load(Ordering::Relaxed);
        let first = || in_path.last.compare_exchange(last, jiffy, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        // `>` and not `!=`, because a thread that was preempted here may have the number of a jiffy that is over.
        if jiffy > last && first() {
            self.read_here(in_path);
        }
    }

    #[cold]
    fn read_here(&self, in_path: &InPath) {
        let device = in_path.device.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = &*device {
            // Relaxed: counts by themselves. A sum below zero (C2) adds nothing.
            in_path.seen.fetch_add(u64::try_from(self.read(device).total()).unwrap_or(0), Ordering::Relaxed);
            in_path.readings.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub fn way(&self) -> Way {
        self.way
    }

    /// Makes a seat for one thread (C1).
    pub fn seat(self: &Arc<Self>) -> Seat {
        // Relaxed: each seat needs only a number of its own. Seats beyond the number of pairs share pairs, except with
        // `PerThread`, which never has so many.
        let number = self.seats.fetch_add(1, Ordering::Relaxed);
        debug_assert!(self.way != Way::PerThread || number < POSSIBLE, "C1: a pair has one writer");
        Seat { counters: self.clone(), at: number % self.pairs.len().max(1), updates: 0 }
    }

    /// Returns the numbers of requests in flight on `device` according to these counters.
    pub fn read(&self, device: &Device) -> Reading {
        if self.way == Way::Tags {
            let in_flight = device.in_flight();
            return Reading { reads: in_flight.reads.into(), writes: in_flight.writes.into() };
        }
        let mut sum = Reading::default();
        for pair in &self.pairs {
            // Relaxed: each number by itself (C2).
            sum.reads += pair[0].load(Ordering::Relaxed).cast_signed();
            sum.writes += pair[1].load(Ordering::Relaxed).cast_signed();
        }
        sum
    }

    /// Returns the number of updates of counters by seats that were dropped.
    pub fn updates(&self) -> u64 {
        // Relaxed: read after the threads were joined.
        self.updates.load(Ordering::Relaxed)
    }
}

/// Returns the length of a jiffy.
fn tick_ns() -> u64 {
    let tick = clock_getres(ClockId::MonotonicCoarse);
    (tick.tv_sec as u64 * 1_000_000_000 + tick.tv_nsec as u64).max(1)
}

/// Returns the start of the current jiffy, in ns.
pub fn jiffy() -> u64 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Returns the number of jiffies that began since `start`. It is rounded, because jiffies are a little shorter or
/// longer while the clock is slewed.
pub fn jiffies_since(start: u64) -> u64 {
    (jiffy() - start + tick_ns() / 2) / tick_ns()
}

/// The right of one thread to update the counters.
#[derive(Debug)]
pub struct Seat {
    counters: Arc<Counters>,
    at: usize,
    updates: u64,
}

impl Seat {
    #[inline]
    pub fn start(&mut self, op: Op) {
        self.add(op, 1);
    }

    #[inline]
    pub fn end(&mut self, op: Op) {
        self.add(op, -1);
    }

    #[inline]
    fn add(&mut self, op: Op, change: i64) {
        self.counters.tick();
        let change = change.cast_unsigned();
        let which = usize::from(op != Op::Read);
        match self.counters.way {
            Way::Tags => return,
            Way::PerThread => {
                let number = &self.counters.pairs[self.at][which];
                // Relaxed: there is one writer (C1), and a reader needs the number and no data behind it.
                number.store(number.load(Ordering::Relaxed).wrapping_add(change), Ordering::Relaxed);
            }
            Way::Pair | Way::PerNode => {
                // Relaxed: a reader needs the number and no data behind it.
                self.counters.pairs[self.at][which].fetch_add(change, Ordering::Relaxed);
            }
        }
        self.updates += 1;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        // Relaxed: read after the threads were joined.
        self.counters.updates.fetch_add(self.updates, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheave::open_device;

    #[test]
    fn what_starts_in_one_seat_and_ends_in_another_is_zero_in_the_end() {
        let device = open_device("null:").expect("a null device");
        for way in [Way::Pair, Way::PerThread, Way::PerNode] {
            let counters = Counters::new(way);
            let mut here = counters.seat();
            for op in [Op::Read, Op::Read, Op::Write] {
                here.start(op);
            }
            assert_eq!(counters.read(&device), Reading { reads: 2, writes: 1 }, "{way:?}");
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let mut there = counters.seat();
                    [Op::Read, Op::Write, Op::Read].into_iter().for_each(|op| there.end(op));
                });
            });
            assert_eq!(counters.read(&device), Reading::default(), "{way:?}");
            drop(here);
            assert_eq!(counters.updates(), 6, "{way:?}");
        }
    }

    #[test]
    fn tags_count_nothing() {
        let device = open_device("null:").expect("a null device");
        let counters = Counters::new(Way::Tags);
        let mut seat = counters.seat();
        seat.start(Op::Read);
        assert_eq!(counters.read(&device), Reading::default(), "the device has no request");
        drop(seat);
        assert_eq!(counters.updates(), 0);
    }

    #[test]
    fn seats_of_a_node_go_round_its_lines() {
        let counters = Counters::new(Way::PerNode);
        let at: Vec<usize> = (0..6).map(|_| counters.seat().at).collect();
        assert_eq!(at, [0, 1, 2, 3, 0, 1]);
    }

    #[test]
    fn the_reader_in_the_path_reads_once_a_jiffy_and_lets_go_of_its_device() {
        let device = open_device("null:").expect("a null device");
        for way in [Way::PerThread, Way::Tags] {
            let counters = Counters::read_in_path(way);
            let mut seat = counters.seat();
            seat.start(Op::Read);
            assert_eq!(counters.readings_in_path(), (0, 0), "{way:?}: it has no device yet");
            counters.watch(Some(&device));
            let began = jiffy();
            // Repeats until there are two readings. The time limit ends the loop on a machine that makes no progress.
            while counters.readings_in_path().0 < 2 && jiffy() < began + 10_000_000_000 {
                seat.start(Op::Read);
                // The end of a request tests for a new jiffy too, and may do the second reading.
                if counters.readings_in_path().0 < 2 {
                    seat.end(Op::Read);
                }
            }
            let (readings, seen) = counters.readings_in_path();
            let most = jiffies_since(began) + 1;
            assert!(readings == 2 && readings <= most, "{way:?}: {readings} readings in {most} jiffies");
            // The counters show the request that was started first, and the second reading may also see the current
            // request.
            let expected = if way == Way::Tags { 0..=0 } else { readings..=2 * readings };
            assert!(expected.contains(&seen), "{way:?}: {seen} seen in {readings} readings");
            counters.watch(None);
            assert!(counters.in_path.as_ref().is_some_and(|path| path.device.lock().expect("its lock").is_none()));
        }
        let mut seat = Counters::new(Way::PerThread).seat();
        seat.start(Op::Read);
        assert_eq!(seat.counters.readings_in_path(), (0, 0), "nobody asked for a reader");
    }
}
