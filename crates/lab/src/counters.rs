//! Four ways to know how many requests are in flight: three that count at the start and the end, and one that does not.
//!
//! Owns the counters and who writes which. Reads and writes are counted apart, as the kernel does it; the two numbers
//! of a pair share a cache line.
//!
//! * C1. A [`Seat`] counts on one thread. Of [`Way::PerThread`] it is the only writer of its pair, so that it needs no
//!   atomic addition; a request may start in one seat and end in another, and the sum is right all the same.
//! * C2. [`Counters::read`] of [`Way::PerThread`] is a sum of numbers of different moments: between two looks a request
//!   may seem to end that was not seen to start.
//! * C3. A [`Seat`] of counters with a reader in the path looks for a new jiffy at each start and end, and the first
//!   seat of a jiffy reads what is in flight, as the kernel's `part_round_stats` did. A jiffy is a tick of the kernel's
//!   own: `CLOCK_MONOTONIC_COARSE` shows no other time.

use std::sync::{Arc, Mutex, PoisonError};

use crossbeam_utils::CachePadded;
use rustix::time::{ClockId, clock_getres, clock_gettime};
use sheave::Device;
use sheave_base::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use sheave_blk::bio::Op;

/// Pairs of [`Way::PerThread`]: one for each thread that there may ever be, which a reader has to walk.
pub const POSSIBLE: usize = 256;
/// Pairs of [`Way::PerNode`]: as many cache lines as the thread suggests for a node ("some suitable value (like 4)").
pub const LINES: usize = 4;

/// How it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// One pair for all, added to atomically.
    Pair,
    /// A pair for each thread, which it alone writes.
    PerThread,
    /// [`LINES`] pairs for all, added to atomically: a thread always takes the same.
    PerNode,
    /// From the tags, when somebody asks.
    Tags,
}

impl Way {
    /// The pairs that there are.
    pub fn pairs(self) -> usize {
        match self {
            Way::Pair => 1,
            Way::PerThread => POSSIBLE,
            Way::PerNode => LINES,
            Way::Tags => 0,
        }
    }
}

/// Signed numbers as their bits: the pairs of one arm go below zero.
type Pair = CachePadded<[AtomicU64; 2]>;

/// The reader in the path of I/O: what the kernel had to work out the time that a device is busy (C3).
#[derive(Debug, Default)]
struct InPath {
    /// The jiffy in which somebody read last, in ns.
    last: CachePadded<AtomicU64>,
    /// Its device while there is one: a device has its counters, so these cannot hold it for good.
    device: Mutex<Option<Device>>,
    /// Readings, and how many requests they saw.
    readings: AtomicU64,
    seen: AtomicU64,
}

/// The counters of one device.
#[derive(Debug)]
pub struct Counters {
    way: Way,
    in_path: Option<Box<InPath>>,
    pairs: Box<[Pair]>,
    seats: AtomicUsize,
    /// Updates, of seats that have gone.
    updates: AtomicU64,
}

/// What is in flight, as a reader sees it: reads and writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Reads.
    pub reads: i64,
    /// Writes.
    pub writes: i64,
}

impl Reading {
    /// Both.
    pub fn total(self) -> i64 {
        self.reads + self.writes
    }
}

impl Counters {
    /// All zero, without a reader in the path.
    pub fn new(way: Way) -> Arc<Counters> {
        Counters::with(way, None)
    }

    /// All zero. Whoever starts or ends a request reads once a jiffy, from when [`Counters::watch`] says of what.
    pub fn read_in_path(way: Way) -> Arc<Counters> {
        Counters::with(way, Some(Box::default()))
    }

    fn with(way: Way, in_path: Option<Box<InPath>>) -> Arc<Counters> {
        let pairs = (0..way.pairs()).map(|_| Pair::default()).collect();
        Arc::new(Counters { way, in_path, pairs, seats: AtomicUsize::new(0), updates: AtomicU64::new(0) })
    }

    /// The device that the reader in the path reads of; none lets go of it.
    pub fn watch(&self, device: Option<&Device>) {
        if let Some(in_path) = &self.in_path {
            *in_path.device.lock().unwrap_or_else(PoisonError::into_inner) = device.cloned();
        }
    }

    /// Readings in the path so far, and how many requests they saw in flight, all together.
    pub fn readings_in_path(&self) -> (u64, u64) {
        // Relaxed: counts by themselves.
        let of = |in_path: &InPath| (in_path.readings.load(Ordering::Relaxed), in_path.seen.load(Ordering::Relaxed));
        self.in_path.as_deref().map(of).unwrap_or_default()
    }

    /// Reads when a jiffy has begun in which nobody has (C3).
    #[inline]
    fn tick(&self) {
        if let Some(in_path) = &self.in_path {
            self.look(in_path);
        }
    }

    /// A call of its own, so that arms without a reader pay for a test and for nothing else.
    #[inline(never)]
    fn look(&self, in_path: &InPath) {
        let jiffy = jiffy();
        // Relaxed: the stamp carries nothing but itself, and the exchange lets one seat a jiffy through.
        let last = in_path.last.load(Ordering::Relaxed);
        let first = || in_path.last.compare_exchange(last, jiffy, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        // Later, and not just another: a thread that was held up here comes with a jiffy that is over.
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

    /// How it is known.
    pub fn way(&self) -> Way {
        self.way
    }

    /// A place for one thread to count at (C1).
    pub fn seat(self: &Arc<Self>) -> Seat {
        // Relaxed: only that seats differ matters. More than there are pairs share them: of `PerThread` there never
        // are.
        let number = self.seats.fetch_add(1, Ordering::Relaxed);
        debug_assert!(self.way != Way::PerThread || number < POSSIBLE, "C1: a pair has one writer");
        Seat { counters: self.clone(), at: number % self.pairs.len().max(1), updates: 0 }
    }

    /// What is in flight on `device`, whose requests are counted here.
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

    /// Updates of counters, by seats that have gone.
    pub fn updates(&self) -> u64 {
        // Relaxed: read after the threads were joined.
        self.updates.load(Ordering::Relaxed)
    }
}

/// How long a jiffy is.
fn tick_ns() -> u64 {
    let tick = clock_getres(ClockId::MonotonicCoarse);
    (tick.tv_sec as u64 * 1_000_000_000 + tick.tv_nsec as u64).max(1)
}

/// When the jiffy began that it is now, in ns.
pub fn jiffy() -> u64 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// How many jiffies have begun since that of `start`. Rounded: while the clock is being slewed they are a little
/// shorter or longer than they should be.
pub fn jiffies_since(start: u64) -> u64 {
    (jiffy() - start + tick_ns() / 2) / tick_ns()
}

/// One thread's place at the counters.
#[derive(Debug)]
pub struct Seat {
    counters: Arc<Counters>,
    at: usize,
    updates: u64,
}

impl Seat {
    /// A request starts.
    #[inline]
    pub fn start(&mut self, op: Op) {
        self.add(op, 1);
    }

    /// A request ends.
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
                // Relaxed: one writer (C1); a reader wants a number, and nothing that it stands for.
                number.store(number.load(Ordering::Relaxed).wrapping_add(change), Ordering::Relaxed);
            }
            Way::Pair | Way::PerNode => {
                // Relaxed: the same.
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
mod tests;
